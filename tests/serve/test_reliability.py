"""What must not break: limits, overload, clients that go away, networks that raise, SIGTERM, and what is logged."""

import asyncio
import concurrent.futures
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

import httpx
import pytest

from tests.serve.served import MODELS, SERVED, library, listening, until
from tests.serve.test_engine import Gated
from tests.small_models import TOKENIZERS, folder, network
from unmask import Model
from unmask.cli import main
from unmask.cli.serve import ServeOptions
from unmask.serve.engine.job import Refused
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served
from unmask.serve.http.app import Service, create_app
from unmask.serve.http.exchange import Exchange

SMALL = Limits(
    max_batch=4,
    max_queue=2,
    max_length=16,
    max_number=3,
    max_steps=8,
    max_prompts=3,
    max_work=3 * 16 * 8,
    max_body_bytes=600,
    max_logits=8 * MODELS["tiny"].denoiser.vocab_size,
    max_joint=6 * MODELS["tiny"].denoiser.vocab_size,
)


@pytest.fixture(scope="module")
def small():
    with listening(SERVED, SMALL) as (address, _), httpx.Client(base_url=address, timeout=300) as client:
        yield client


@pytest.fixture
def counting():
    made = Gated(network(TOKENIZERS["bpe"]))
    return made, {"c": Served(Model(made, TOKENIZERS["bpe"], name="c"))}


@pytest.mark.parametrize(
    ("path", "at", "past"),
    [
        ("unmask", {"length": 16, "steps": 2}, {"length": 17, "steps": 2}),
        ("unmask", {"canvas": [None] * 16, "steps": 2}, {"canvas": [None] * 17, "steps": 2}),
        ("unmask", {"length": 4, "number": 3}, {"length": 4, "number": 4}),
        ("unmask", {"length": 4, "steps": 8}, {"length": 4, "steps": 9}),
        ("unmask", {"text": "_" * 14 * 4, "steps": 2}, {"text": "_" * 15 * 4, "steps": 2}),
        ("unmask", {"length": 3, "decoding": "margin", "number": 2}, {"length": 3, "decoding": "margin", "number": 3}),
        ("unmask", {"length": 3, "decoding": "margin", "number": 2}, {"length": 4, "decoding": "margin", "number": 2}),
        ("unmask", {"length": 8, "steps": 1}, {"length": 9, "steps": 1}),  # numbers in one call's answer
        ("unmask", {"length": 8, "decoding": "margin", "steps": 2}, {"length": 9, "decoding": "margin", "steps": 2}),
        ("unmask", {"length": 16, "number": 3, "steps": 8}, {"length": 16, "number": 2}),  # calls times length
        ("unmask", {"length": 4, "ahead": 16}, {"length": 4, "ahead": 17}),
        ("unmask", {"length": 4, "decoding": "margin", "block": 16}, {"length": 4, "decoding": "margin", "block": 17}),
        ("completions", {"model": "tiny", "max_tokens": 16, "steps": 2}, {"model": "tiny", "max_tokens": 17}),
        ("completions", {"model": "tiny", "max_tokens": 2, "n": 3}, {"model": "tiny", "max_tokens": 2, "n": 4}),
        (
            "completions",
            {"model": "tiny", "max_tokens": 1, "prompt": ["a", "b", "c"]},
            {"model": "tiny", "max_tokens": 1, "prompt": ["a", "b", "c", "d"]},
        ),
    ],
    ids=str,
)
def test_at_each_limit_200_and_one_past_it_a_4xx(small, path, at, past):
    answer = small.post(f"/v1/{path}", json=at)
    assert answer.status_code == 200, answer.text
    answer = small.post(f"/v1/{path}", json=past)
    assert answer.status_code == 400, answer.text
    assert re.search("at most|the limit is", answer.json()["error"]["message"])


def test_a_body_that_is_too_large(small):
    def body(size):
        return json.dumps({"length": 2, "prompt": ""}).encode().ljust(size)

    headers = {"Content-Type": "application/json"}
    assert small.post("/v1/unmask", content=body(600), headers=headers).status_code == 200
    for content in (body(601), iter([body(300), b" " * 301])):  # with its length in the header, and without
        answer = small.post("/v1/unmask", content=content, headers=headers)
        assert answer.status_code == 413 and "600 bytes" in answer.json()["error"]["message"]


def test_a_full_queue_is_503_at_once_while_the_accepted_finish(counting):
    made, served = counting
    truth = [Model(made.model, TOKENIZERS["bpe"]).sample(seed=i, steps=3).text for i in range(3)]
    with (
        listening(served, Limits(max_batch=1, max_queue=2)) as (address, app),
        httpx.Client(base_url=address, timeout=300) as client,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        engine = app.state.server.engine
        made.hold()

        def ask(seed):
            return client.post("/v1/unmask", json={"seed": seed, "steps": 3})

        accepted = [pool.submit(ask, 0)]
        made.called.acquire()
        for waiting in (1, 2):
            accepted.append(pool.submit(ask, waiting))
            until(lambda waiting=waiting: engine.queued == waiting)
        for _ in range(20):
            refused = client.post("/v1/unmask", json={"seed": 9, "steps": 3})
            assert refused.status_code == 503 and int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["code"] == "overloaded"
        stream = client.post("/v1/completions", json={"model": "c", "stream": True})
        assert stream.status_code == 503, "a stream is refused before it begins"
        made.gate.set()
        for one, text in zip(accepted, truth, strict=True):
            assert [choice["text"] for choice in one.result().json()["choices"]] == text


class TestClientsThatGo:
    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("path", ["unmask", "completions"])
    def test_one_that_goes_frees_its_place_within_one_step(self, counting, stream, path):
        made, served = counting
        with listening(served, Limits(max_batch=1)) as (address, app):
            engine = app.state.server.engine
            made.hold()
            body = {"model": "c", "stream": stream, "max_tokens": 20} if path == "completions" else {"stream": stream}
            connection = begun(address, path, body)
            made.called.acquire()
            connection.close()
            until(lambda: all(one.job.cancelled for batch in engine._batches.values() for one in batch.seats))
            made.gate.set()
            until(lambda: engine.live == 0 and not engine._batches)
            assert len(made.batches) == 1
            assert httpx.post(f"{address}/v1/unmask", json={"steps": 2, "seed": 0}, timeout=300).status_code == 200

    def test_a_hundred_of_them_leave_nothing_behind(self):
        with listening(SERVED, Limits(max_batch=4, max_queue=200)) as (address, app):
            engine, before = app.state.server.engine, threading.active_count()
            bodies = [{}, {"stream": True}, {"model": "anyorder", "stream": True}, {"model": "twin"}]
            connections = [begun(address, "unmask", bodies[i % 4]) for i in range(100)]
            for connection in connections:
                connection.close()
            until(lambda: engine.queued == engine.live == 0 and not engine._batches)
            answer = httpx.post(f"{address}/v1/unmask", json={"seed": 1, "length": 6}, timeout=300).json()
            assert answer["choices"][0]["text"] == library({"seed": 1, "length": 6}).text[0]
            # asyncio's own pool of threads, in which plans are drawn, is all that may have grown.
            assert threading.active_count() - before <= (os.cpu_count() or 1) + 4


def begun(address, path, body):
    """A connection with a request whose answer is not read."""
    host, port = address.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def test_a_model_that_raises_is_a_500_and_the_next_one_has_its_answer(counting, caplog):
    _, served = counting
    poisoned = {"canvas": [7, *[None] * 5], "seed": 1}
    with caplog.at_level(logging.DEBUG), listening(served) as (address, _), httpx.Client(base_url=address) as client:
        answer = client.post("/v1/unmask", json=poisoned, timeout=300)
        assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
        assert "cannot bear" not in answer.text
        streamed = client.post("/v1/unmask", json={**poisoned, "stream": True}, timeout=300)
        assert streamed.status_code == 200 and "event: error" in streamed.text
        assert client.post("/v1/unmask", json={"length": 6, "seed": 2}, timeout=300).status_code == 200
    assert "RuntimeError" in caplog.text and "cannot bear" not in caplog.text


def test_prompts_are_not_logged(caplog):
    secret = "xyzzy plugh"
    with caplog.at_level(logging.DEBUG), listening(SERVED) as (address, _), httpx.Client(base_url=address) as client:
        for path, body in (
            ("unmask", {"prompt": secret, "length": 14}),
            ("unmask", {"text": secret}),
            ("unmask", {"nonsense": secret}),
            ("completions", {"model": "tiny", "prompt": secret, "max_tokens": 1, "stream": True}),
            ("completions", {"model": secret, "prompt": ""}),
        ):
            client.post(f"/v1/{path}", json=body, timeout=300)
    # httpx, the client, logs its own addresses; a body is never logged.
    assert "xyzzy" not in caplog.text


def test_loopback_is_the_default():
    assert ServeOptions().host == "127.0.0.1"


def test_the_guides_name_every_limit_metric_and_path():
    docs = Path(__file__).parents[2] / "docs"
    text = "".join((docs / page).read_text(encoding="utf-8") for page in ("serving.md", "operations.md"))
    app = create_app([SERVED["tiny"]])
    counted = re.findall(r"# TYPE unmask_(\w+)", app.state.metrics.text().decode())
    options = [f"--{field.name.replace('_', '-')}" for field in fields(Limits)]
    paths = [path for path in app.openapi()["paths"] if "{" not in path]
    assert len(counted) >= 10 and len(paths) >= 5
    assert not [name for name in (*options, *counted, *paths) if f"`{name}`" not in text and f"{name}`" not in text]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("models") / "tiny")


@contextmanager
def serving(saved, *options, **environment):
    """``unmask serve`` in a process of its own, where it listens, and what it says after that."""
    command = [sys.executable, "-m", "unmask", "serve", str(saved), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}) as process:
        try:
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"at (http://127\.0\.0\.1:\d+)", line):
                    yield process, found[1]
                    break
            else:
                raise AssertionError("".join(said))
        finally:
            process.kill()


def test_sigterm_lets_what_is_running_finish_and_refuses_the_rest(saved):
    headers = {"Authorization": "Bearer s3cret"}
    with (
        serving(saved, "--grace-seconds", "300", "--max-length", "200", UNMASK_TOKEN="s3cret") as (process, address),
        httpx.Client(base_url=address, headers=headers, timeout=300) as client,
        client.stream("POST", "/v1/unmask", json={"length": 200, "stream": True}) as running,
    ):
        assert httpx.get(f"{address}/v1/models").status_code == 401
        assert f"curl {address}/v1/completions" in "".join(process.stderr.readline() for _ in range(2))
        lines = running.iter_lines()
        assert next(line for line in lines if line == "event: step")
        process.send_signal(signal.SIGTERM)
        assert "finishing 1 request" in process.stderr.readline()
        until(lambda: refused(address))
        rest = list(lines)
        assert rest.count("event: done") == 1 and rest.count("event: end") == 1
        assert process.wait(300) == 0


@pytest.mark.parametrize(("grace", "signals", "code"), [("1", 1, 0), ("600", 2, 143)])
def test_sigterm_ends_after_the_grace_all_the_same_and_a_second_one_at_once(saved, grace, signals, code):
    with (
        serving(saved, "--grace-seconds", grace, "--max-length", "3000") as (process, address),
        httpx.stream("POST", f"{address}/v1/unmask", json={"length": 3000, "stream": True}, timeout=300) as running,
    ):
        chunks = running.iter_bytes()  # kept: a generator that is thrown away closes the connection
        next(chunks)
        process.send_signal(signal.SIGTERM)
        assert any("finishing 1 request" in line for line in process.stderr)
        if signals == 2:
            process.send_signal(signal.SIGTERM)
        assert process.wait(300) == code


def refused(address):
    try:
        return httpx.get(f"{address}/health", timeout=300).status_code == 503
    except httpx.TransportError:
        return True


def test_what_cannot_be_served_is_said_in_one_line(saved, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, message in (
            ([str(saved), "--port", port], f"127.0.0.1:{port} is in use; --port 0 takes a free port"),
            ([str(saved), "--port", "70000"], "--port must be in 0..65535, got 70000"),
            (["no-such-model", "--port", "0"], "no model 'no-such-model'"),
            ([str(saved), str(saved), "--port", "0"], "two models have one name"),
            ([str(saved), "--token-file", os.devnull], "its first line is empty"),
        ):
            assert main(["serve", *arguments]) == 2
            said = capsys.readouterr().err
            assert message in said and said.count("\n") == 1
    with pytest.raises(SystemExit) as wrong:
        main(["serve", str(saved), "--max-batch", "0"])
    assert wrong.value.code == 2 and "max_batch must be at least 1, got 0" in capsys.readouterr().err


def test_unread_answers_count_as_requests(counting):
    _, served = counting
    server = Service(list(served.values()), Limits(max_batch=1, max_queue=1))
    server.open = {Exchange(server.engine, watched=False) for _ in range(2)}
    with pytest.raises(Refused, match="2 requests are in progress"):
        asyncio.run(server.begin(list, watched=False))
