"""The API: the library's answers, OpenAI's shapes, streams that say what the plain answer says."""

import asyncio
import json
import re
from dataclasses import fields

import httpx
import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from tests.serve.served import LIMITS, MODELS, SERVED, library, listening, model, until
from unmask.evaluate.judge.diversity import sequence_entropy
from unmask.names import SamplerOptions
from unmask.serve.engine.change import Change
from unmask.serve.engine.job import Done
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served
from unmask.serve.http.app import create_app
from unmask.serve.http.final_text import first_stop, held_back
from unmask.serve.http.openai import Completion
from unmask.serve.http.request import completion_works
from unmask.serve.http.schemas import CompletionRequest, SamplingRequest
from unmask.serve.http.transcript import Transcript


@pytest.fixture(scope="module")
def server():
    with listening(SERVED) as (address, app):
        yield address, app


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server[0], timeout=300) as one:
        yield one


@pytest.fixture(scope="module")
def gpt(server):
    with openai.OpenAI(base_url=f"{server[0]}/v1", api_key="none", max_retries=0, timeout=300) as one:
        yield one


def events(text):
    """Server-sent events as [name, data]."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    assert all(name.startswith("event: ") and data.startswith("data: ") for name, data in blocks)
    return [(name[7:], json.loads(data[6:])) for name, data in blocks]


ASKED = {
    "text": {"text": "God ________ the earth", "number": 2, "steps": 3},
    "prompt": {"prompt": "And the ", "length": 10, "top_p": 0.9},
    "canvas": {"canvas": [1, None, 2, None, None], "predictor": "correct", "steps": 2},
    "nothing": {"length": 6, "draw": "inverse-cdf"},
    "looking": {"length": 6, "decoding": "confidence", "steps": 3, "number": 2},
    "published": {"length": 6, "sampler": "published-euler", "steps": 4},
    "left-to-right": {"model": "twin", "prompt": "In ", "length": 8},
    "any-order": {"model": "anyorder", "text": "In the ________ God", "steps": 4},
    "bytes": {"model": "bytes", "text": "神____ é____", "predictor": "correct", "steps": 5},
}


@pytest.mark.parametrize("name", ASKED)
class TestUnmask:
    def test_the_plain_answer_is_the_librarys(self, client, name):
        body = {**ASKED[name], "seed": 11, "trace": True}
        answer, truth = client.post("/v1/unmask", json=body), library({**ASKED[name], "seed": 11})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert found["object"] == "unmask" and found["seed"] == 11 and found["model"] == body.get("model", "tiny")
        assert [one["text"] for one in found["choices"]] == truth.text
        assert [one["tokens"] for one in found["choices"]] == truth.tokens.tolist()
        assert [one["nfe"] for one in found["choices"]] == truth.nfe.tolist()
        assert [one["ncs"] for one in found["choices"]] == truth.ncs.tolist()
        assert [one["entropy"] for one in found["choices"]] == pytest.approx(sequence_entropy(truth.tokens).tolist())
        assert [len(one["trace"]) for one in found["choices"]] == truth.nfe.tolist()
        assert found["calls"] >= max(truth.nfe.tolist()) and {"sampler", "draw", "dtype", "seconds"} <= found.keys()

    def test_the_stream_is_the_plain_answer(self, client, name):
        body, truth = {**ASKED[name], "seed": 11}, library({**ASKED[name], "seed": 11})
        answer = client.post("/v1/unmask", json={**body, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        told = events(answer.text)
        assert told[-1] == ("end", {})
        for i, text in enumerate(truth.text):
            mine = [(name, data) for name, data in told if data.get("index") == i]
            assert [name for name, _ in mine] == ["plan", *["step"] * int(truth.nfe[i]), "done"]
            plan, done = mine[0][1], mine[-1][1]
            assert done["text"] == text and done["tokens"] == truth.tokens[i].tolist()
            ids, pieces = list(plan["canvas"]), list(plan["pieces"])
            if plan["order"] is not None:
                assert sorted(plan["order"]) == [p for p, token in enumerate(ids) if token is None]
                assert plan["tau"] == sorted(plan["tau"], reverse=True) and plan["calls"] == truth.nfe[i]
            for _, step in mine[1:-1]:
                for position in step["hidden"] or ():
                    ids[position] = pieces[position] = None
                for position, token, piece in zip(step["positions"], step["tokens"], step["pieces"], strict=True):
                    ids[position], pieces[position] = token, piece
                for position, piece in step["revised"]:
                    pieces[position] = piece
                assert [piece is None for piece in pieces] == [token is None for token in ids]
                # What is shown never has more of a character than the text will have.
            assert ids == done["tokens"]
            tokenizer = MODELS[body.get("model", "tiny")].tokenizer
            whole = b"".join(b"\n" if t == tokenizer.eos_id else tokenizer.pieces([t])[0] for t in ids)
            assert "".join(pieces) == whole.decode(errors="replace")
            assert mine[-2][1]["entropy"] == pytest.approx(done["entropy"])


STOPPED = {
    "left-to-right": {"model": "twin", "prompt": "In the ", "length": 20},
    "any order": {"length": 20, "number": 2},
    "blanks": {"text": "In the ________________ God. And ____________ the earth."},
    "a canvas": {"canvas": [5, 9, None, None, 31, None, None, None]},
    "bytes": {"model": "bytes", "prompt": "é", "length": 16},
    "tokens that are taken back": {"length": 12, "steps": 4, "predictor": "correct"},
}


@pytest.mark.parametrize("name", STOPPED)
def test_what_was_made_ends_before_the_first_stop_sequence(client, name):
    """Whatever two characters follow each other in the text that was made are a stop sequence in turn."""
    body = {**STOPPED[name], "seed": 3}
    truth, tokenizer = library(body), MODELS[body.get("model", "tiny")].tokenizer
    blanks = body.get("text", body.get("prompt", "")).split("_")
    given = len(blanks[0]) if "canvas" not in body else len(tokenizer.decode([5, 9]))
    whole = truth.text[0]
    made = whole[given : len(whole) - len(blanks[-1] if "text" in body else "")]
    for at in range(0, len(made) - 1, 5):
        stop = made[at : at + 2]
        end = given + made.index(stop)
        plain = client.post("/v1/unmask", json={**body, "stop": ["never there", stop]}).json()["choices"][0]
        assert (plain["text"], plain["finish_reason"]) == (whole[:end], "stop")
        shown = truth.tokens[0].tolist()
        assert plain["tokens"] == shown[: len(plain["tokens"])] and plain["nfe"] <= int(truth.nfe[0])
        told = events(client.post("/v1/unmask", json={**body, "stop": stop, "stream": True}).text)
        mine = [(name, data) for name, data in told if data.get("index") == 0]
        assert mine[-1][0] == "done" and mine[-1][1]["text"] == whole[:end] and told[-1] == ("end", {})
        assert [name for name, _ in mine].count("step") == plain["nfe"] == mine[-1][1]["nfe"]
    unstopped = client.post("/v1/unmask", json={**body, "stop": "never there"}).json()["choices"]
    assert [(one["text"], one["finish_reason"]) for one in unstopped] == [(text, "length") for text in truth.text]


def test_a_stop_sequence_saves_the_calls_that_are_left(client):
    body = {"model": "twin", "prompt": "In ", "length": 20, "seed": 3}
    text = library(body).text[0]
    stopped = client.post("/v1/unmask", json={**body, "stop": text[3:5]}).json()["choices"][0]
    assert stopped["nfe"] < int(library(body).nfe[0]) and len(stopped["tokens"]) < 20


def pieces_of(data):
    """The pieces of a sequence of bytes that appear in some order, at every moment."""
    work = completion_works(SERVED, CompletionRequest(model="bytes", max_tokens=len(data)), LIMITS)[0].work
    return Transcript(work)


@settings(max_examples=60, deadline=None)
@hypothesis_given(st.text(max_size=6), st.binary(max_size=3), st.randoms(use_true_random=False))
def test_characters_are_shown_whole_and_once(text, noise, luck):
    """Bytes arrive in any order: a character of the text is shown when its last byte is there, never a part of it."""
    data = text.encode() or b"a"
    transcript, order = pieces_of(data), list(range(len(data)))
    luck.shuffle(order)
    for position in order:
        change = Change([position], [data[position]], [1.0], [0.0], None)
        transcript.apply(change)
        assert "\ufffd" not in "".join(piece or "" for piece in transcript.pieces) or "\ufffd" in text
    assert "".join(transcript.pieces) == data.decode()
    # Bytes that are not text are replaced as decode does it.
    wild = noise + data
    transcript = pieces_of(wild)
    for position, byte in enumerate(wild):
        transcript.apply(Change([position], [byte], [1.0], [0.0], None))
    assert "".join(transcript.pieces) == wild.decode(errors="replace")


class TestCompletions:
    def test_the_openai_package_gets_what_the_library_makes(self, gpt):
        how = {"seed": 4, "temperature": 0.9, "top_p": 0.8}
        made = gpt.completions.create(model="tiny", prompt="In the ", max_tokens=6, n=2, **how)
        length = made.usage.prompt_tokens + 6
        canvas = MODELS["tiny"].rows.prompted("In the ", length)
        truth = MODELS["tiny"].sample(2, prompt="In the ", length=length, **how)
        assert ["In the " + one.text for one in made.choices] == truth.text
        assert [one.finish_reason for one in made.choices] == ["length", "length"]
        holes = canvas.holes[0][1] - canvas.holes[0][0]
        assert holes == 6 and made.usage.completion_tokens == 12 and made.object == "text_completion"

    def test_a_suffix_is_an_infill(self, gpt):
        options = {"prompt": "In the ", "suffix": " God", "max_tokens": 4, "seed": 4}
        made = gpt.completions.create(model="tiny", **options, extra_body={"steps": 2})
        truth = MODELS["tiny"].infill("In the #### God", mask_character="#", steps=2, seed=4)
        assert "In the " + made.choices[0].text + " God" == truth.text[0]

    @pytest.mark.parametrize("name", ["tiny", "twin", "anyorder", "bytes"])
    @pytest.mark.parametrize("prompt", ["", "And the ", [5, 6, 7], ["In", "Go"]], ids=str)
    def test_a_stream_is_the_plain_answer(self, gpt, name, prompt):
        options = {"model": name, "prompt": prompt, "max_tokens": 7, "seed": 9, "n": 2}
        plain = gpt.completions.create(**options)
        texts, reasons, usage = {}, {}, None
        for chunk in gpt.completions.create(**options, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage
            for one in chunk.choices:
                texts[one.index] = texts.get(one.index, "") + one.text
                reasons[one.index] = one.finish_reason
        assert texts == {one.index: one.text for one in plain.choices}
        assert reasons == {one.index: one.finish_reason for one in plain.choices}
        assert usage == plain.usage

    @pytest.mark.parametrize("way", [{"predictor": "correct"}, {"decoding": "remdm-cap"}, {"decoding": "margin"}])
    def test_tokens_that_may_be_taken_back_are_not_sent(self, gpt, way):
        more = {**way, "steps": 6}
        options = {"model": "tiny", "prompt": "", "max_tokens": 12, "seed": 9, "extra_body": more}
        plain = gpt.completions.create(**options).choices[0].text
        chunks = [chunk.choices[0].text for chunk in gpt.completions.create(**options, stream=True)]
        assert "".join(chunks) == plain and ("margin" in way.values() or len(chunks) == 1)

    def test_stop_ends_a_text_and_is_not_in_it(self, gpt):
        options = {"model": "twin", "prompt": "In ", "max_tokens": 12, "seed": 3}
        whole = gpt.completions.create(**options).choices[0].text
        stop = whole[len(whole) // 2]
        for stream in (False, True):
            made = gpt.completions.create(**options, stop=["never there", stop], stream=stream)
            chunks = list(made) if stream else [made]
            assert "".join(chunk.choices[0].text for chunk in chunks) == whole[: whole.index(stop)]
            assert chunks[-1].choices[0].finish_reason == "stop"

    def test_echo(self, gpt):
        options = {"model": "twin", "prompt": "In ", "max_tokens": 3, "seed": 3}
        alone = gpt.completions.create(**options).choices[0].text
        assert gpt.completions.create(**options, echo=True).choices[0].text == "In " + alone
        chunks = gpt.completions.create(**options, echo=True, stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == "In " + alone

    def test_rows_end_at_their_eos(self):
        molecules = model("smiles", "molecules")
        body = CompletionRequest(model="m", max_tokens=4, seed=0)
        (prompted,) = completion_works({"m": Served(molecules)}, body, LIMITS)
        one, eos = Completion(prompted, 0), molecules.tokenizer.eos_id
        one.done(Done(index=0, nfe=4, ncs=4, calls=4, seconds=0.0, tokens=[1, 2, eos, eos]))
        assert one.finish_reason == "stop" and one.text == molecules.tokenizer.decode([1, 2])
        for row, reason in (([1, 2, eos, eos], "stop"), ([1, 2, 1, 2], "length")):
            done = Done(index=0, nfe=4, ncs=4, calls=4, seconds=0.0, tokens=row)
            assert Transcript(prompted.work).done_event(done)["finish_reason"] == reason

    def test_the_package_raises_its_own_errors(self, gpt):
        with pytest.raises(openai.NotFoundError, match="no model 'gpt-9'"):
            gpt.completions.create(model="gpt-9", prompt="a")
        with pytest.raises(openai.BadRequestError, match="penalties are exact where one token is drawn per call"):
            gpt.completions.create(model="tiny", prompt="a", frequency_penalty=1.0, extra_body={"steps": 2})
        with pytest.raises(openai.UnprocessableEntityError, match="temperature"):
            gpt.completions.create(model="tiny", prompt="a", temperature=-1)

    def test_models(self, gpt, client):
        assert [one.id for one in gpt.models.list()] == list(MODELS)
        assert gpt.models.retrieve("twin").id == "twin"
        about = client.get("/v1/models").json()["data"][0]["unmask"]
        assert about["kind"] == "masked" and about["length"] == 24 and "parallel" in about["samplers"]
        assert about["vocab_size"] == about["mask_id"] == MODELS["tiny"].tokenizer.vocab_size


@settings(max_examples=50, deadline=None)
@hypothesis_given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_stopping_while_a_text_grows_is_stopping_at_its_end(text, stops):
    """Whatever is sent before the end is a beginning of what is sent in the end."""
    end = first_stop(text, stops)
    final = text if end is None else text[:end]
    for size in range(len(text) + 1):
        grown = text[:size]
        stop = first_stop(grown, stops)
        if stop is not None:
            assert grown[:stop] == final
            break
        assert final.startswith(grown[: size - held_back(grown, stops)])


async def talk(app, calls):
    """Ask an application without a network in between."""
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://here") as one:
        return await calls(one)


def test_health_metrics_and_the_page(client):
    until(lambda: client.get("/health").json() == {"status": "ok", "queued": 0, "live": 0})
    text = client.get("/metrics").text
    assert "# TYPE unmask_tokens_total counter" in text and 'unmask_requests_total{path="/health",status="200"}' in text
    page = client.get("/")
    assert page.status_code == 200 and "default-src 'self'" in page.headers["content-security-policy"]
    assert client.get("/web/app.js").headers["content-type"].startswith("text/javascript")
    for bad in ("/web/..%2fapp.py", "/web/nothing.js", "/nowhere"):
        answer = client.get(bad)
        assert answer.status_code == 404 and answer.json()["error"]["type"] == "not_found_error"
    elsewhere = client.options("/v1/models", headers={"Origin": "http://elsewhere"})
    assert "access-control-allow-origin" not in elsewhere.headers


def test_openapi_with_examples_that_work(client):
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) >= {"/v1/unmask", "/v1/completions", "/v1/models", "/health", "/livez", "/readyz"}
    for path, name in (("unmask", "UnmaskRequest"), ("completions", "CompletionRequest")):
        examples = schema["components"]["schemas"][name]["examples"]
        assert len(examples) >= 2
        for example in examples:
            answer = client.post(f"/v1/{path}", json=example | ({"model": "tiny"} if "model" in example else {}))
            assert answer.status_code == 200, answer.text


def test_whatever_unmask_sample_takes_about_sampling_can_be_asked_for():
    assert {one.name for one in fields(SamplerOptions)} <= set(SamplingRequest.model_fields)


def test_metrics_are_prometheus_text(client):
    client.post("/v1/unmask", json={"length": 4, "seed": 0})
    until(lambda: client.get("/health").json()["live"] == 0)  # an answer may be there before its round has ended
    lines = client.get("/metrics").text.splitlines()
    number = r"[0-9.e+-]+"
    assert all(re.fullmatch(rf"# (HELP|TYPE) unmask_\w+ .+|unmask_\w+(\{{[^}}]*\}})? {number}", line) for line in lines)
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values["unmask_tokens_total"]) >= 4 and float(values["unmask_network_calls_total"]) >= 4
    assert values["unmask_queue_requests"] == values["unmask_live_sequences"] == "0.0"


def test_what_openai_lets_be_null_may_be(client):
    names = ("suffix", "n", "stop", "seed", "temperature", "top_p", "stream", "echo", "logprobs", "user")
    nothing = dict.fromkeys(names)
    answer = client.post("/v1/completions", json={**nothing, "model": "tiny", "prompt": None, "max_tokens": None})
    assert answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] == 16


def test_a_page_elsewhere_cannot_post(client):
    """A browser sends text/plain anywhere without asking first; it is not JSON, and not parsed as such."""
    answer = client.post("/v1/unmask", content=b'{"length": 4}', headers={"Content-Type": "text/plain"})
    assert answer.status_code == 422 and "Content-Type: application/json" in answer.json()["error"]["message"]


def test_a_token_is_asked_for():
    app = create_app([SERVED["tiny"]], LIMITS, token="s3cret")

    async def calls(one):
        right, wrong = {"Authorization": "Bearer s3cret"}, {"Authorization": "Bearer s3cre"}
        found = [(await one.get("/v1/models", headers=headers)) for headers in (right, wrong, {})]
        assert [answer.status_code for answer in found] == [200, 401, 401]
        assert found[1].json()["error"]["type"] == "authentication_error"
        assert [(await one.get(path)).status_code for path in ("/health", "/", "/metrics")] == [200, 200, 401]

    asyncio.run(talk(app, calls))


def test_a_name_that_is_not_this_machines_is_not_answered():
    app = create_app([SERVED["tiny"]], LIMITS, hosts=("localhost", "127.0.0.1", "::1"))

    async def calls(one):
        for host, status in (
            ("localhost:8000", 200),
            ("127.0.0.1", 200),
            ("evil.example", 421),
            ("[::1]", 200),
            ("[::1]:80", 200),
            ("[", 421),
            ("", 421),
        ):
            assert (await one.get("/health", headers={"Host": host})).status_code == status

    asyncio.run(talk(app, calls))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"text": "no blank"}, "no blank"),
        ({"text": "a__", "prompt": "b"}, "one of text, prompt and canvas"),
        ({"canvas": [None, 10**6]}, "allowed are 0"),
        ({"canvas": [None], "length": 4}, "length cannot be combined with canvas"),
        ({"prompt": "In the beginning God created", "length": 3}, "no room"),
        ({"prompt": "\ud800", "length": 9}, "surrogate"),
        ({"sampler": "parallel"}, "needs steps"),
        ({"sampler": "published-euler"}, "needs steps"),
        ({"sampler": "parallel", "decoding": "margin", "steps": 2}, "takes no sampler"),
        ({"decoding": "margin", "block": 2, "steps": 3, "length": 20}, "blocks"),
        ({"model": "twin", "steps": 3}, "takes no"),
        ({"model": "twin", "text": "a____"}, "cannot fill blanks"),
        ({"model": "twin", "canvas": [None, 1]}, "the masked positions must come last"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said(client, body, message):
    answer = client.post("/v1/unmask", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"number": "1"}',
        b'{"number": 0}',
        b'{"nonsense": 1}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"seed": -1}',
        b'{"seed": 1.5}',
        b'{"number": true}',
        b"[" * 5000,
        b'{"seed": 1' + b"0" * 5000 + b"}",
        b'{"order": 1}',
        b"\xff\xfe",
        b'{"canvas": []}',
        b'{"\\ud800": 1}',
    ],
)
def test_what_is_no_request_is_said(client, content):
    answer = client.post("/v1/unmask", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422) and answer.json()["error"]["type"] == "invalid_request_error"


FUZZED = create_app([SERVED["tiny"], SERVED["twin"]], LIMITS)
SMALL = Limits(max_batch=4, max_length=16, max_number=2, max_steps=20)
schema = schemathesis.openapi.from_dict(FUZZED.openapi())


@schema.parametrize()
@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_request_is_answered_with_a_5xx(case, fuzzed):
    """Schemathesis makes requests, good and bad, from the OpenAPI document."""
    answer = case.call(base_url=fuzzed)
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def fuzzed():
    with listening({name: SERVED[name] for name in ("tiny", "twin")}, SMALL) as (address, _):
        yield address


def test_a_text_that_the_tokenizer_cannot_spell_is_refused():
    with listening({"rows": Served(model("smiles", "rows", length=24))}, SMALL) as (address, _):
        answer = httpx.post(f"{address}/tokenize", json={"prompt": "\x18!"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "prompt"


def test_json_that_is_none_names_no_field(client):
    answer = client.post("/v1/unmask", content=b'{"text": "a ____"', headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert answer.status_code == 422 and error["param"] is None and "the body is not JSON" in error["message"]


def test_a_model_of_rows_completes_a_whole_row_by_default():
    served = {"rows": Served(model("smiles", "rows", length=24))}
    for prompt, tokens in (("", 24), ([1, 2], 22), ("CC", 22)):
        (made,) = completion_works(served, CompletionRequest(model="rows", prompt=prompt), LIMITS)
        assert made.work.holes == tokens
    (made,) = completion_works(served, CompletionRequest(model="rows", prompt="", max_tokens=16), LIMITS)
    assert made.work.holes == 16
    (made,) = completion_works(SERVED, CompletionRequest(model="tiny", prompt=""), LIMITS)
    assert made.work.holes == 16


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v1/unmask", {f"k{i}": 1 for i in range(101)}, "the body has 101 fields"),
        ("/v1/completions", {"model": "tiny", "prompt": [""] * 17_000}, "prompt: a list of 17,000 items is too long"),
        ("/v1/unmask", {"canvas": [None] * 140_000}, "canvas: 140,000 items; this server takes at most"),
        (
            "/v1/unmask",
            {"logit_bias": {str(i): 1 for i in range(17_000)}},
            "logit_bias: 17,000 items; this server takes at most",
        ),
    ],
)
def test_thousands_of_items_are_refused_at_once(client, path, body, says):
    error = client.post(path, json=body).json()["error"]
    assert says in error["message"]


def test_the_first_wrong_item_of_a_list_ends_its_check(client):
    for path, name in (("/detokenize", "tokens"), ("/v1/unmask", "canvas")):
        answer = client.post(path, json={name: ["a"] * 9_000})
        assert answer.status_code == 422 and answer.json()["error"]["param"] == name
        assert answer.json()["error"]["message"].endswith(("(whole numbers from 0)", "null at masked positions"))


def test_an_unknown_name_is_not_repeated_whole(client):
    answer = client.post("/v1/unmask", json={"model": "x" * 100_000})
    assert answer.status_code == 404 and len(answer.content) < 1000


def test_the_document_of_the_api_knows_streams(client):
    paths = client.get("/openapi.json").json()["paths"]
    for name in ("/v1/unmask", "/v1/completions", "/v1/chat/completions"):
        assert set(paths[name]["post"]["responses"]["200"]["content"]) == {"application/json", "text/event-stream"}
