"""response_format over HTTP: JSON that satisfies its schema, with the evidence, as the library draws it."""

import json
from dataclasses import replace

import httpx
import openai
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("outlines_core", reason="JSON Schemas are an extra: pip install 'unmask[schema]'")

import unmask
from tests.serve.served import Limits, Served, listening
from tests.small_models import folder
from unmask.serve.http import guided

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"]}
FORM = {"type": "json_schema", "json_schema": {"name": "one", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("structured")
    kinds = {
        "m": {},
        "order": {"attention": "order"},
        "block": {"attention": "block", "block": 4},
        "left": {"causal": True},
    }
    return {
        name: replace(unmask.load(folder(path / name, "bytes", length=16, **kind)), name=name)
        for name, kind in kinds.items()
    }


@pytest.fixture(scope="module")
def address(models):
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with listening({name: Served(one, chat_template=template) for name, one in models.items()}, Limits()) as (url, _):
        yield url


@pytest.mark.parametrize(("name", "particles"), [("m", 1), ("order", 1), ("block", 4), ("left", 4)])
def test_completions_are_the_librarys_with_their_evidence(models, address, name, particles):
    body = {"model": name, "prompt": "x", "max_tokens": 12, "n": 2, "seed": 3, "response_format": FORM}
    with httpx.Client(base_url=address, timeout=300) as client:
        choices = client.post("/v1/completions", json=body).json()["choices"]
        streamed = [
            json.loads(line[6:])["choices"]
            for line in client.post("/v1/completions", json=body | {"stream": True}).text.splitlines()
            if line.startswith("data: {")
        ]
    made = models[name].sample(2, prompt="x", max_tokens=12, seed=3, schema=SCHEMA, particles=particles)
    assert ["x" + one["text"] for one in choices] == made.text
    assert [one["unmask"] for one in choices] == [pytest.approx(one) for one in made.population.reports()]
    assert all(json.loads(one["text"])["a"] in (1, 22) and one["finish_reason"] == "stop" for one in choices)
    texts = {part["index"]: part["text"] for parts in streamed for part in parts if part["text"]}
    assert [texts[i] for i in range(2)] == [one["text"] for one in choices], "in one piece: particles may change"


def test_chats_of_openais_client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300) as gpt:
        made = gpt.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], response_format=FORM, max_tokens=12, seed=1
        )
        assert json.loads(made.choices[0].message.content)["a"] in (1, 22)
        assert made.choices[0].model_extra["unmask"]["log_evidence"] < 0


def test_any_object(address):
    body = {"model": "m", "prompt": "x", "max_tokens": 8, "seed": 3, "response_format": {"type": "json_object"}}
    told = httpx.post(f"{address}/v1/completions", json=body, timeout=300).json()
    assert isinstance(json.loads(told["choices"][0]["text"]), dict)


def test_a_left_to_right_model_takes_words_by_particles(address):
    body = {"model": "left", "length": 10, "number": 2, "seed": 4, "contains": ["ab"]}
    for one in httpx.post(f"{address}/v1/unmask", json=body, timeout=300).json()["choices"]:
        assert "ab" in one["text"] and one["particles"] == 4 and one["effective"] >= 1


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"max_tokens": 3}, "response_format", "no text of"),
        ({"logprobs": 1}, "logprobs", "cannot be combined"),
        ({"suffix": "y"}, "suffix", "cannot be combined"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "no other type takes it"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "integer", "minimum": 1}}}},
            "response_format",
            "minimum",
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "string", "maxLength": 140}},
                }
            },
            "response_format",
            "the limit is 256",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(address, body, param, says, monkeypatch):
    monkeypatch.setattr(guided, "MOST_SECONDS", 60.0)  # on a busy machine the time would be over before the states
    whole = {"model": "m", "prompt": "x", "max_tokens": 12, "response_format": FORM} | body
    answer = httpx.post(f"{address}/v1/completions", json=whole, timeout=300)
    error = answer.json()["error"]
    assert answer.status_code in (400, 422) and error["param"] == param and says in error["message"], error
