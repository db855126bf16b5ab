"""Guides over HTTP: the texts of the library, with what was asked for in them, and refusals in a sentence."""

import re
from dataclasses import replace

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("interegular", reason="regular expressions are an extra: pip install 'unmask[regex]'")

import unmask
from tests.serve.served import Limits, Served, listening
from tests.small_models import folder
from unmask.serve.http import guided


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    made = unmask.load(folder(tmp_path_factory.mktemp("guided") / "characters", "characters", length=12))
    return replace(made, name="m")


@pytest.fixture(scope="module")
def client(model, tmp_path_factory):
    causal = unmask.load(folder(tmp_path_factory.mktemp("guided") / "causal", "characters", length=12, causal=True))
    served = {"m": Served(model), "left": Served(replace(causal, name="left"))}
    with listening(served, Limits()) as (address, _), httpx.Client(base_url=address, timeout=300) as one:
        yield one


def test_its_texts_are_the_librarys(client, model):
    body = {"model": "m", "length": 10, "number": 3, "seed": 4, "contains": ["ab", "z"], "pattern": "[a-z ]*"}
    told = [one["text"] for one in client.post("/v1/unmask", json=body).json()["choices"]]
    assert told == model.sample(3, length=10, seed=4, contains=["ab", "z"], pattern="[a-z ]*").text
    assert all("ab" in text and "z" in text and re.fullmatch("[a-z ]*", text) for text in told)


def test_with_steps_in_a_blank_and_behind_a_prompt(client, model):
    def made(**body):
        return client.post("/v1/unmask", json={"model": "m", "seed": 1, "contains": ["ea"], **body}).json()

    assert [one["text"] for one in made(text="God ______", steps=2)["choices"]] == (
        model.infill("God ______", 1, seed=1, contains=["ea"], steps=2).text
    )
    behind = made(prompt="th", max_tokens=5)["choices"][0]
    assert behind["text"] == model.sample(1, prompt="th", max_tokens=5, seed=1, contains=["ea"]).text[0]


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"contains": ["abcdef"], "length": 4}, 400, "contains", "no text of 4 tokens can match this contains"),
        ({"pattern": "(a", "length": 4}, 400, "pattern", "is not understood"),
        ({"pattern": "(a|b)*a(a|b){40}", "length": 8}, 400, "pattern", "the automaton of this pattern takes more"),
        ({"contains": ["a"], "ahead": 4}, 400, "ahead", "a guide works with a plan"),
        ({"max_tokens": 4, "length": 4}, 400, "max_tokens", "needs a prompt or an empty canvas"),
        ({"max_tokens": 400}, 400, "max_tokens", "at most 48"),
        ({"contains": "ab"}, 422, "contains", "list"),
        ({"contains": ["a", "b", "c", "d"]}, 422, "contains", "3"),
        ({"contains": [""]}, 422, "contains.0", "1"),
        ({"pattern": "a" * 201}, 422, "pattern", "200"),
        ({"particles": 4}, 422, "particles", "not permitted"),
    ],
)
def test_what_cannot_be_is_refused_by_name(client, body, status, param, says):
    found = client.post("/v1/unmask", json={"model": "m", **body})
    error = found.json()["error"]
    assert found.status_code == status and says in error["message"], error
    assert param is None or error["param"] == param


def test_a_pattern_is_given_up_in_time(model, monkeypatch):
    """Its automaton would have 2^40 states; the process that counts them is ended."""
    monkeypatch.setattr(guided, "MOST_SECONDS", 0.5)
    with pytest.raises(ValueError, match="s to build"):
        guided.guide_of(Served(model), [model.denoiser.mask_id] * 4, "(a|b)*a(a|b){40}", ())
