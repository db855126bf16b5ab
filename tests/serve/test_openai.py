"""What clients of OpenAI's API expect beyond a text: logprobs, scores, biases, penalties, chats, many prompts."""

import math
from dataclasses import replace

import httpx
import openai
import pytest
import torch

from tests.serve.served import LIMITS, MODELS, SERVED, listening
from unmask.serve.http.openai import piece
from unmask.tokenizers.chat import template_of, written

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
SERVING = SERVED | {"chatty": replace(SERVED["twin"], model=replace(MODELS["twin"], name="chatty"))}
SERVING["chatty"] = replace(SERVING["chatty"], chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def client():
    with listening(SERVING) as (address, _), httpx.Client(base_url=f"{address}/v1", timeout=300) as one:
        yield one


@pytest.fixture(scope="module")
def gpt(client):
    with openai.OpenAI(base_url=str(client.base_url), api_key="none", max_retries=0, timeout=300) as one:
        yield one


@torch.no_grad()
def truth(name, ids):
    """log p of each id given those before it, from the network itself."""
    network, mask_id = MODELS[name].denoiser, MODELS[name].denoiser.mask_id
    found, when = [], torch.arange(len(ids)).unsqueeze(0)
    for i in range(len(ids)):
        shown = torch.tensor([[*ids[:i], *[mask_id] * (len(ids) - i)]])
        more = {"when": when} if name == "anyorder" else {}
        time = torch.tensor([1 - i / len(ids)])
        found.append(network(shown, time, torch.tensor([[i]]), **more)[0, 0].double().log_softmax(-1))
    return [float(row[token]) for row, token in zip(found, ids, strict=True)], found


@pytest.mark.parametrize("name", ["tiny", "anyorder", "twin"])
class TestScores:
    def test_echo_without_tokens_scores_the_prompt(self, gpt, name):
        ids = [5, 9, 200, 9, 31]
        made = gpt.completions.create(model=name, prompt=ids, max_tokens=0, echo=True, logprobs=3)
        (choice,) = made.choices
        wanted, rows = truth(name, ids)
        assert choice.logprobs.token_logprobs == pytest.approx(wanted, abs=1e-4)
        assert choice.text == MODELS[name].rows.written(ids) and made.usage.completion_tokens == 0
        for row, told, token in zip(rows, choice.logprobs.top_logprobs, choice.logprobs.tokens, strict=True):
            assert 3 <= len(told) <= 4 and token in told
            assert max(told.values()) == pytest.approx(float(row.max()), abs=1e-4)

    def test_as_evaluation_tools_ask(self, gpt, name):
        """lm-eval sends ids, wants one more token, and compares a token's number with the largest, as floats."""
        ids = [5, 9, 200]
        best = int(truth(name, [*ids, 0])[1][-1].argmax())
        made = gpt.completions.create(model=name, prompt=[*ids, best], max_tokens=1, echo=True, logprobs=1, seed=1)
        scored = made.choices[0].logprobs
        assert len(scored.tokens) == len(scored.token_logprobs) == len(scored.top_logprobs) == 5
        assert scored.token_logprobs[3] == max(scored.top_logprobs[3].values())
        assert scored.token_logprobs[:4] == pytest.approx(truth(name, [*ids, best])[0], abs=1e-4)


class TestLogprobs:
    def test_of_what_was_drawn(self, gpt):
        made = gpt.completions.create(model="twin", prompt=[5, 9], max_tokens=6, logprobs=2, seed=3, temperature=0.7)
        scored = made.choices[0].logprobs
        network = MODELS["twin"].denoiser
        ids = MODELS["twin"].sample(canvas=torch.tensor([[5, 9, *[network.mask_id] * 6]]), seed=3, temperature=0.7)
        rows = [row / 0.7 for row in truth("twin", ids.tokens[0].tolist())[1][2:]]
        wanted = [float(row.log_softmax(-1)[i]) for row, i in zip(rows, ids.tokens[0, 2:].tolist(), strict=True)]
        assert scored.token_logprobs == pytest.approx(wanted, abs=1e-4)
        assert scored.text_offset[0] == len(MODELS["twin"].rows.written([5, 9])) and len(scored.tokens) == 6

    @pytest.mark.parametrize("name", ["tiny", "twin"])
    def test_of_a_stream_are_those_of_the_plain_answer(self, gpt, name):
        how = {"model": name, "prompt": "In ", "max_tokens": 8, "logprobs": 1, "seed": 5, "stop": ["zzz"]}
        plain = gpt.completions.create(**how).choices[0].logprobs
        chunks = [chunk.choices[0].logprobs for chunk in gpt.completions.create(**how, stream=True)]
        assert [p for chunk in chunks for p in chunk.token_logprobs] == pytest.approx(plain.token_logprobs, abs=1e-5)
        assert [t for chunk in chunks for t in chunk.tokens] == plain.tokens

    def test_what_cannot_be_answered(self, gpt):
        for more, message in (
            ({"extra_body": {"predictor": "correct", "steps": 2}}, "first-order"),
            ({"presence_penalty": 1.0}, "penalties"),
            ({"echo": True, "stream": True}, "not streamed"),
        ):
            with pytest.raises(openai.BadRequestError, match=message):
                gpt.completions.create(model="tiny", prompt="a", logprobs=1, **more)


class TestShaping:
    def test_a_bias_is_added_to_the_logit(self, gpt):
        made = gpt.completions.create(model="twin", prompt=[5], max_tokens=5, logit_bias={"17": 100}, logprobs=0)
        assert len({*made.choices[0].logprobs.tokens}) == 1
        plain = gpt.completions.create(model="twin", prompt=[5], max_tokens=1, logprobs=20, seed=1)
        moved = gpt.completions.create(model="twin", prompt=[5], max_tokens=1, logprobs=20, logit_bias={"17": 1.5})
        logits = truth("twin", [5, 0])[1][1]
        biased = logits + 1.5 * torch.nn.functional.one_hot(torch.tensor(17), len(logits))
        for made, wanted in ((plain, logits), (moved, biased)):
            best = max(made.choices[0].logprobs.top_logprobs[0].values())
            assert best == pytest.approx(float(wanted.log_softmax(-1).max()), abs=1e-4)

    def test_min_p(self, gpt):
        how = {"model": "twin", "prompt": [5], "max_tokens": 1, "logprobs": 20}
        made = gpt.completions.create(**how, extra_body={"min_p": 0.9})
        p = truth("twin", [5, 0])[1][1].softmax(-1)
        kept = p[p >= 0.9 * p.max()]
        told = made.choices[0].logprobs.top_logprobs[0].values()
        assert len(told) == min(len(kept), 20) and max(told) == pytest.approx(math.log(p.max() / kept.sum()), abs=1e-4)

    @pytest.mark.parametrize("name", ["tiny", "twin"])
    def test_penalties_are_those_of_the_tokens_drawn_before(self, gpt, name):
        """With a bias so strong that one token would always be drawn, a penalty of 2 each time lets others come."""
        how = {"model": name, "prompt": [5, 9], "max_tokens": 12, "seed": 3, "logit_bias": {"17": 6}, "logprobs": 0}
        free = gpt.completions.create(**how).choices[0].logprobs.tokens
        bound = gpt.completions.create(**how, frequency_penalty=2.0, presence_penalty=2.0).choices[0].logprobs
        assert max(map(free.count, free)) > max(map(bound.tokens.count, bound.tokens))
        if name == "twin":
            network, ids, counts = MODELS[name].denoiser, [5, 9], torch.zeros(MODELS[name].denoiser.vocab_size)
            texts = [piece(MODELS[name], i) for i in range(network.vocab_size)]
            for token, told in zip(bound.tokens, bound.token_logprobs, strict=True):
                logits = truth(name, [*ids, 0])[1][-1].clone()
                logits[17] += 6
                logits -= 2 * counts + 2 * (counts > 0)
                i = texts.index(token)
                assert told == pytest.approx(float(logits.log_softmax(-1)[i]), abs=1e-3)
                ids.append(i)
                counts[i] += 1

    def test_a_temperature_next_to_nothing_takes_the_likeliest(self, client):
        cold = [{"model": "tiny", "prompt": "In ", "max_tokens": 6, "seed": 2, "temperature": t} for t in (0, 1e-308)]
        texts = [client.post("/completions", json=body).json()["choices"][0]["text"] for body in cold]
        assert texts[0] == texts[1]


def test_more_prompts_than_places_are_queued(gpt):
    """20 are what LangChain sends at once; here there are eight places."""
    prompts = [f"In the {i} " for i in range(20)]
    made = gpt.completions.create(model="twin", prompt=prompts, max_tokens=3, seed=4)
    assert len(made.choices) == 20 > LIMITS.max_batch
    for i in (0, 7, 19):
        alone = gpt.completions.create(model="twin", prompt=prompts[i], max_tokens=3, seed=4)
        assert made.choices[i].text == alone.choices[0].text


class TestChat:
    def test_messages_are_written_by_the_template_and_completed(self, gpt):
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "In the"}]
        made = gpt.chat.completions.create(model="chatty", messages=messages, max_tokens=7, seed=2, stop=["zzz"])
        prompt = "system: Be brief.\nuser: In the\nassistant:"
        plain = gpt.completions.create(model="chatty", prompt=prompt, max_tokens=7, seed=2)
        assert made.choices[0].message.content == plain.choices[0].text and made.object == "chat.completion"
        chunks = gpt.chat.completions.create(model="chatty", messages=messages, max_tokens=7, seed=2, stream=True)
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == plain.choices[0].text

    def test_a_model_without_a_template_says_so(self, gpt):
        with pytest.raises(openai.BadRequestError, match="tiny has no chat template: it completes texts"):
            gpt.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "Hello"}])

    def test_templates_run_in_a_sandbox_and_their_errors_are_reported(self, tmp_path):
        for bad in ("{{ ''.__class__.__mro__ }}", "{{ raise_exception('only users speak') }}", "{% if"):
            with pytest.raises(Exception, match=r"chat template cannot write|unsafe"):
                written(bad, [{"role": "user", "content": "x"}])
        assert template_of(tmp_path) is None
        (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "a"}')
        assert template_of(tmp_path) == "a"
        (tmp_path / "chat_template.jinja").write_text("b")
        assert template_of(tmp_path) == "b"


@pytest.mark.parametrize(
    ("path", "body", "status", "param", "message"),
    [
        ("completions", {"model": "tiny", "prompt": [1, "a"]}, 422, "prompt", "a list of token ids (whole numbers"),
        ("completions", {"model": "tiny", "prompt": {"a": 1}}, 422, "prompt", "a prompt is a text"),
        ("completions", {"model": "tiny", "stop": ["a"] * 5}, 422, "stop", "at most 4 texts"),
        ("unmask", {"ahead": 0}, 422, "ahead", "at least 1, or 'auto'"),
        ("unmask", {"decoding": "margin", "block": 10**22}, 400, "block", "at most"),
        ("unmask", {"ahead": 10**22}, 400, "ahead", "at most"),
        ("unmask", {"sampler": "parallel"}, 400, "steps", "needs steps"),
        ("unmask", {"decoding": "margin", "gamma": 1.0}, 400, "gamma", "takes no gamma"),
        ("unmask", {"prompt": "In the beginning God", "length": 3}, 400, "prompt", "no room"),
        ("unmask", {"canvas": [1] * 99 + [None]}, 400, "canvas", "at most 96"),
        ("completions", {"model": "tiny", "prompt": [300, 1]}, 400, "prompt", "which is the mask"),
        ("completions", {"model": "tiny", "prompt": [9999]}, 400, "prompt", "allowed are 0"),
        ("completions", {"model": "tiny", "prompt": "a", "max_tokens": 97}, 400, "max_tokens", "at most 96"),
        ("completions", {"model": "tiny", "logit_bias": {"x": 1}}, 400, "logit_bias", "'x'"),
        ("completions", {"model": "tiny", "logit_bias": {"1": 101}}, 422, "logit_bias.1", "100"),
        ("embeddings", {"model": "tiny", "input": "a"}, 404, None, "/v1/chat/completions"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_is_wrong_is_said_of_the_right_field(client, path, body, status, param, message):
    answer = client.post(f"/{path}", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param) and message in error["message"], error


def test_histograms_by_model(client):
    client.post("/completions", json={"model": "twin", "prompt": "In ", "max_tokens": 4})
    text = client.get(f"{str(client.base_url).removesuffix('/v1/')}/metrics").text
    for name in ("queue_seconds", "first_token_seconds", "token_seconds"):
        assert f'unmask_{name}_bucket{{le="+Inf",model="twin"}}' in text and f"# TYPE unmask_{name} histogram" in text


class TestTokens:
    """What lm-eval asks with tokenizer_backend=remote."""

    def test_ids_and_back(self, client):
        root = str(client.base_url).removesuffix("/v1/")
        text, tokenizer = "In the beginning", MODELS["tiny"].tokenizer
        told = client.post(f"{root}/tokenize", json={"prompt": text, "add_special_tokens": False}).json()
        assert told["tokens"] == list(tokenizer.encode(text)) and told["count"] == len(told["tokens"])
        for name in ("tiny", "bytes"):
            ids = client.post(f"{root}/tokenize", json={"prompt": text, "model": name}).json()["tokens"]
            assert ids == list(MODELS[name].tokenizer.encode(text))
            back = client.post(f"{root}/detokenize", json={"tokens": ids, "model": name})
            assert back.json() == {"prompt": text}
        assert client.get(f"{root}/tokenizer_info").json()["eos_token"] is None

    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [("tokenize", {"prompt": "x" * 980_000}, "prompt"), ("detokenize", {"tokens": [10**9]}, "tokens")],
        ids=["long", "id"],
    )
    def test_what_has_no_ids(self, client, path, body, param):
        answer = client.post(f"{str(client.base_url).removesuffix('/v1/')}/{path}", json=body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == param
