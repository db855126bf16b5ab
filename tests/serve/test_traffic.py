"""Real traffic: lengths that differ, clients that want everything, giants, slow ones, and an engine that dies."""

import concurrent.futures
import random
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import httpx
import pytest
import uvicorn

from tests.serve.served import MODELS, SERVED, Asked, library, listening, model, running, until
from tests.serve.test_engine import Gated, holes
from tests.serve.test_reliability import saved, serving
from tests.small_models import TOKENIZERS, network
from unmask import Model
from unmask.networks.cache.seats import Seated
from unmask.samplers.published import Coupled
from unmask.serve.engine import engine as engines
from unmask.serve.engine.batch import Batch
from unmask.serve.engine.engine import Engine
from unmask.serve.engine.job import Refused
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served
from unmask.serve.http.connection import timed

__all__ = ["saved"]  # a fixture

# One position that is filled somewhere in the middle of many steps, with one network call for all of them.
LATE = {"canvas": [*[9] * 31, None], "sampler": "published-ancestral", "steps": 20_000}


class TestLengths:
    @pytest.mark.parametrize("name", ["tiny", "anyorder", "twin"])
    def test_many_lengths_share_calls_and_every_text_is_that_of_the_request_alone(self, name):
        """A hundred sequences of each kind of network, of up to 40 tokens, with prompts and without."""
        choose = random.Random(name)
        bodies = []
        for seed in range(100):
            length = choose.randrange(3, 41)
            shown = choose.randrange(length) if choose.random() < 0.5 else 0
            canvas = [choose.randrange(200) if i < shown else None for i in range(length)]
            steps = {"steps": choose.randrange(1, 9)} if name == "tiny" and seed % 3 == 0 else {}
            bodies.append({"model": name, "canvas": canvas, "seed": seed, **steps})
        engine = Engine(Limits(max_batch=16, max_queue=200))
        asked = [Asked(engine, SERVED, body) for body in bodies]
        engine.start()
        for one, body in zip(asked, bodies, strict=True):
            truth = library(body)
            (done,) = one.answer()
            assert done.tokens == truth.tokens[0].tolist() and done.nfe == int(truth.nfe)
        engine.stop()
        # All of one length would fill 16 rows of a call; these have widths and, of the first kind, lengths to agree in.
        assert engine.counts.rows / engine.counts.calls > (2.5 if name == "tiny" else 8)

    def test_a_self_conditioned_network_too(self):
        served = {"self": Served(model(name="self", self_conditioning=True, convolution=3))}
        with running(Limits(max_batch=8)) as engine:
            asked = [Asked(engine, served, {"seed": n, "length": n, "steps": 4}) for n in (5, 9, 12, 7, 20)]
            for n, one in zip((5, 9, 12, 7, 20), asked, strict=True):
                truth = served["self"].model.sample(length=n, seed=n, steps=4)
                assert [done.tokens for done in one.answer()] == truth.tokens.tolist()

    def test_windows_of_one_and_of_many_share_a_pass(self):
        bodies = [{"model": "anyorder", "length": 9, "ahead": window, "seed": window} for window in (1, 4, 1, 6)]
        engine = Engine(Limits(max_batch=8))
        asked = [Asked(engine, SERVED, body) for body in bodies]
        engine.start()
        for one, body in zip(asked, bodies, strict=True):
            assert [done.tokens for done in one.answer()] == library(body).tokens.tolist()
        engine.stop()

    def test_a_pass_over_too_many_positions_is_several_calls(self):
        made = Gated(network(TOKENIZERS["bpe"]))
        served = {"c": Served(Model(made, TOKENIZERS["bpe"], name="c"))}
        engine = Engine(Limits(max_batch=16, max_positions=50))
        asked = [Asked(engine, served, {"length": 20, "seed": 1, "number": 6, "steps": 3})]
        engine.start()
        truth = Model(made.model, TOKENIZERS["bpe"]).sample(6, length=20, seed=1, steps=3)
        assert [done.tokens for done in asked[0].answer()] == truth.tokens.tolist()
        engine.stop()
        assert {rows for rows, _ in made.batches} == {2} and engine.counts.calls == 9

    @pytest.mark.parametrize("window", [8, "auto"])
    def test_looking_ahead_shows_a_canvas_for_each_guess_and_no_call_is_long(self, window):
        made = Gated(network(TOKENIZERS["bpe"]))
        served = {"c": Served(Model(made, TOKENIZERS["bpe"], name="c"))}
        with running(Limits(max_positions=50)) as engine:
            asked = Asked(engine, served, {"length": 20, "seed": 1, "number": 3, "ahead": window})
            truth = Model(made.model, TOKENIZERS["bpe"]).sample(3, length=20, seed=1)
            assert [done.tokens for done in asked.answer()] == truth.tokens.tolist()
        assert max(rows * length for rows, length in made.batches) == 40


class TestShares:
    @pytest.mark.parametrize("heavy", [{"number": 16}, LATE], ids=["plan", "late"])
    def test_a_small_request_behind_the_heaviest_takes_at_most_ten_times_its_time_alone(self, monkeypatch, heavy):
        """By a clock that counts the positions that the network computes, and those that a published sampler draws."""
        now = SimpleNamespace(seconds=0.0)
        monkeypatch.setattr(engines, "clock", SimpleNamespace(perf_counter=lambda: now.seconds))
        drawn = Coupled._drawn

        def counted(self, state, weights):
            now.seconds += len(weights)
            return drawn(self, state, weights)

        monkeypatch.setattr(Coupled, "_drawn", counted)

        class Costly(Gated):
            def __call__(self, tokens, time=None, rows=None):
                made = super().__call__(tokens, time, rows)
                now.seconds += tokens.numel()
                return made

        limits = Limits()
        made = Costly(network(TOKENIZERS["bpe"]))
        served = {"c": Served(Model(made, TOKENIZERS["bpe"], name="c"))}
        heavy = {"seed": 0, **({} if "canvas" in heavy else {"length": limits.length_of(made.length)}), **heavy}
        small = {"canvas": holes(8, 12), "seed": 1}
        with running(limits) as engine:
            before = now.seconds
            Asked(engine, served, small).answer()
            alone = now.seconds - before
        made.hold()
        with running(limits) as engine:
            first = Asked(engine, served, heavy, client="heavy")
            made.called.acquire()
            until(lambda: engine.live == min(limits.share, heavy.get("number", 1)))
            before, ends = now.seconds, []
            second = Asked(engine, served, small, client="small")
            tell = second.job.tell
            second.job.tell = lambda event: (ends.append(now.seconds), tell(event))  # in the engine's thread
            made.gate.set()
            second.answer()
            took = ends[-1] - before
            assert first.job.unfinished and not first.job.cancelled, "it was behind the heavy one, and not after it"
        assert alone <= took <= 10 * alone, (alone, took)

    def test_places_go_to_the_client_with_the_fewest(self):
        engine = Engine(Limits(max_batch=4, max_queue=99))
        greedy = [Asked(engine, SERVED, {"seed": i}, client="greedy") for i in range(9)]
        modest = [Asked(engine, SERVED, {"seed": i}, client="modest") for i in range(2)]
        engine._admit()
        seated = [one.job for batch in engine._batches.values() for one in batch.sequences]
        assert [job.client for job in seated] == ["greedy", "modest"] * 2
        assert [job for job in seated if job.client == "greedy"] == [one.job for one in greedy[:2]]
        assert [job for job in seated if job.client == "modest"] == [one.job for one in modest]

    def test_one_request_never_has_all_places_and_who_has_none_gets_a_spare_one(self):
        engine = Engine(Limits(max_batch=4, max_queue=99))
        Asked(engine, SERVED, {"seed": 0, "number": 9}, client="a")
        engine._admit()
        assert len(engine._batches) == 1 and sum(len(b.sequences) for b in engine._batches.values()) == 2
        Asked(engine, SERVED, {"seed": 1, "number": 9}, client="a")
        Asked(engine, SERVED, {"seed": 2}, client="b")
        Asked(engine, SERVED, {"seed": 3}, client="c")
        engine._admit()
        clients = sorted(one.job.client for batch in engine._batches.values() for one in batch.sequences)
        assert clients == ["a", "a", "b", "c"]
        Asked(engine, SERVED, {"seed": 4}, client="d")
        Asked(engine, SERVED, {"seed": 5}, client="e")
        engine._admit()
        clients = sorted(one.job.client for batch in engine._batches.values() for one in batch.sequences)
        assert clients == ["a", "a", "b", "c", "d"], "max_batch and one more"


class TestGiants:
    @pytest.mark.parametrize(
        ("path", "body", "param"),
        [
            ("unmask", {"text": "a _ " * 240_000}, "text"),
            ("unmask", {"text": "_ " * 700}, "text"),
            ("unmask", {"prompt": "In the beginning " * 57_000}, "prompt"),
            ("completions", {"model": "tiny", "prompt": "x" * 980_000}, "prompt"),
            ("completions", {"model": "tiny", "prompt": "x", "suffix": "y" * 980_000}, "prompt"),
            ("completions", {"model": "tiny", "prompt": [1] * 300_000}, "prompt"),
        ],
        ids=lambda value: str(value)[:40],
    )
    def test_they_are_refused_before_anything_is_tokenized(self, path, body, param, monkeypatch):
        def never(*_):
            raise AssertionError("tokenized")

        monkeypatch.setattr(type(MODELS["tiny"].tokenizer), "encode", never)
        with listening({"tiny": SERVED["tiny"]}) as (address, _):
            answer = httpx.post(f"{address}/v1/{path}", json=body, timeout=300)
            assert answer.status_code in (400, 422) and answer.json()["error"]["param"] == param, answer.text
            assert "at most" in answer.json()["error"]["message"]

    def test_the_default_length_is_a_few_times_the_models_own(self):
        limits = Limits()
        assert limits.length_of(128) == 512 and limits.length_of(None) == 4096
        assert Limits(max_length=7).length_of(128) == 7


class TestSlowOnes:
    def test_a_header_that_does_not_come_and_a_body_that_does_not_end(self):
        with listening(SERVED, Limits(header_seconds=0.5, body_seconds=0.5)) as (address, _):
            host, port = address.removeprefix("http://").split(":")
            header = socket.create_connection((host, int(port)))
            header.sendall(b"POST /v1/unmask HTTP/1.1\r\nHost: ")
            silent = socket.create_connection((host, int(port)))
            body = socket.create_connection((host, int(port)))
            head = f"POST /v1/unmask HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            body.sendall(f"{head}Content-Length: 90\r\n\r\n{{".encode())
            for one in (header, silent, body):
                one.settimeout(300)
            assert closed(header) and closed(silent)
            said = b""
            while part := body.recv(65536):
                said += part
            assert b" 408 " in said and b"did not arrive within 0.5 seconds" in said
            for one in (header, silent, body):
                one.close()
            assert httpx.get(f"{address}/livez", timeout=300).status_code == 200

    def test_bodies_that_are_being_read_count(self):
        with listening(SERVED, Limits(max_batch=1, max_queue=1)) as (address, _):
            host, port = address.removeprefix("http://").split(":")
            held = [socket.create_connection((host, int(port))) for _ in range(2)]
            for one in held:
                one.sendall(b"POST /v1/unmask HTTP/1.1\r\nHost: x\r\nContent-Length: 90\r\n\r\n{")

            def refused():
                answer = httpx.post(f"{address}/v1/unmask", json={"length": 2}, timeout=300)
                return answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1

            until(refused)
            for one in held:
                one.close()
            until(lambda: not refused())

    def test_a_client_that_reads_nothing_is_given_up(self):
        """64 MB in pieces, none of which is read."""
        gone = threading.Event()

        async def endless(scope, receive, send):
            if scope["type"] != "http":
                return
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(64):
                await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            gone.set()

        with socket.create_server(("127.0.0.1", 0)) as free:
            http = timed(Limits(patience_seconds=0.3))
            server = uvicorn.Server(uvicorn.Config(endless, http=http, log_config=None, lifespan="off"))
            thread = threading.Thread(target=server.run, kwargs={"sockets": [free]}, daemon=True)
            thread.start()
            until(lambda: server.started)
            with socket.create_connection(free.getsockname()) as lazy:
                lazy.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert gone.wait(300)
            server.should_exit = True
            thread.join(300)


def closed(connection):
    """Whether the other side has closed it, perhaps by a reset."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


class TestEnds:
    def test_an_error_outside_the_network_fails_running_requests_and_readiness(self, monkeypatch, caplog):
        made = Gated(network(TOKENIZERS["bpe"]))
        served = {"c": Served(Model(made, TOKENIZERS["bpe"], name="c")), "anyorder": SERVED["anyorder"]}
        with (
            listening(served, Limits(max_batch=2)) as (address, app),
            httpx.Client(base_url=address, timeout=300) as client,
            concurrent.futures.ThreadPoolExecutor(4) as pool,
        ):
            made.hold()
            asked = [pool.submit(client.post, "/v1/unmask", json={"seed": i}) for i in range(3)]
            stream = pool.submit(client.post, "/v1/unmask", json={"seed": 9, "stream": True})
            until(lambda: len(app.state.server.engine._jobs) == 4)

            def fail(*_):
                raise MemoryError("no room to leave")

            monkeypatch.setattr(Batch, "drop_unwanted", fail)
            made.gate.set()
            for one in asked:
                answer = one.result()
                assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
                assert "the engine has failed with MemoryError" in answer.json()["error"]["message"]
            assert "event: error" in stream.result().text and "MemoryError" in stream.result().text
            for path in ("/readyz", "/livez", "/health"):
                answer = client.get(path)
                assert answer.status_code == 503 and answer.json()["status"] == "the engine has failed"
            assert client.post("/v1/unmask", json={}).status_code == 503
            assert app.state.server.engine.queued == app.state.server.engine.live == 0
        assert "no room to leave" not in caplog.text and "MemoryError at " in caplog.text

    def test_a_cache_that_fails_when_a_sequence_leaves_costs_its_batch_alone(self, monkeypatch):
        leave = Seated.leave

        def fail(*_):
            raise MemoryError

        monkeypatch.setattr(Seated, "leave", fail)
        with running() as engine:
            asked = Asked(engine, SERVED, {"model": "anyorder", "length": 3, "seed": 0})
            with pytest.raises(MemoryError):
                asked.answer()
            until(lambda: engine.live == 0)
            monkeypatch.setattr(Seated, "leave", leave)
            assert engine.alive
            Asked(engine, SERVED, {"model": "anyorder", "length": 3, "seed": 0}).answer()

    def test_a_server_whose_engine_dies_ends_with_an_error(self, saved):
        code = """
import sys
from unmask.cli import main
from unmask.serve.engine.batch import Batch
def fail(self):
    if any(one.job.counted for one in self.sequences):
        raise MemoryError
Batch.drop_unwanted = fail
sys.exit(main(["serve", sys.argv[1], "--port", "0"]))
"""
        command = [sys.executable, "-c", code, str(saved)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            line = next(line for line in process.stderr if " at http://" in line)
            answer = httpx.post(f"{line.split(' at ')[1].strip()}/v1/unmask", json={}, timeout=300)
            assert answer.status_code == 503
            assert process.wait(300) == 1
            said = process.stderr.read()
        assert "Traceback" not in said and "unmask serve: the engine has failed with MemoryError" in said

    def test_after_the_grace_period_every_request_gets_an_answer(self, saved):
        more = ("--grace-seconds", "1", "--max-length", "3000", "--max-batch", "2")
        with (
            serving(saved, *more) as (process, address),
            httpx.Client(base_url=address, timeout=300) as client,
            concurrent.futures.ThreadPoolExecutor(8) as pool,
        ):
            name = client.get("/v1/models").json()["data"][0]["id"]
            plain = [pool.submit(client.post, "/v1/unmask", json={"length": 3000}) for _ in range(3)]
            streams = [
                pool.submit(client.post, f"/v1/{path}", json={**body, "stream": True})
                for path, body in (
                    ("unmask", {"length": 3000}),
                    ("completions", {"model": name, "max_tokens": 2900}),
                    ("unmask", {"length": 3000}),
                )
            ]
            until(lambda: client.get("/health").json()["queued"] == 4)
            process.send_signal(signal.SIGTERM)
            for one in plain:
                answer = one.result()
                assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
                assert answer.json()["error"]["message"] == "the server is shutting down"
            for one in streams:
                assert '"message": "the server is shutting down"' in one.result().text
            assert process.wait(300) == 0
            said = process.stderr.read()
            assert "Traceback" not in said and said.count("were not finished in time") == 1, said

    def test_ready_comes_after_the_warm_up_which_resets_no_counts(self):
        made = Gated(network(TOKENIZERS["bpe"]))
        made.gate.clear()
        served = {"c": Served(Model(made, TOKENIZERS["bpe"], name="c"))}
        with listening(served, ready=False) as (address, app), httpx.Client(base_url=address, timeout=300) as client:
            answer = client.get("/readyz")
            assert answer.status_code == 503 and answer.json()["status"] == "warming up"
            assert client.get("/livez").status_code == client.get("/health").status_code == 200
            app.state.server.engine.counts.refused = 3
            made.gate.set()
            until(lambda: client.get("/readyz").status_code == 200)
            assert app.state.server.engine.counts.refused == 3 and app.state.server.engine.counts.calls == 0

    def test_refusals_say_when_to_come_back(self):
        engine = Engine(Limits(max_batch=2, max_queue=1))
        engine._left, engine._costs.of_round = [(1, 9), (2, 4)], lambda batches: 2.5
        Asked(engine, SERVED, {"seed": 0})
        with pytest.raises(Refused) as refused:
            Asked(engine, SERVED, {"seed": 0})
        assert refused.value.retry_after == 10, "the next place is free after four rounds of 2.5 seconds"


def test_with_several_tokens_each_is_a_client():
    made = Gated(network(TOKENIZERS["bpe"]))
    served = {"c": Served(Model(made, TOKENIZERS["bpe"], name="c"))}
    with listening(served, token=["one", "two"]) as (address, app), concurrent.futures.ThreadPoolExecutor(3) as pool:
        made.hold()

        def ask(token):
            headers = {"Authorization": f"Bearer {token}"}
            body = {"length": 3, "seed": 0}  # a drawn seed might begin with the token at which this network fails
            return httpx.post(f"{address}/v1/unmask", json=body, headers=headers, timeout=300).status_code

        asked = [pool.submit(ask, token) for token in ("one", "two", "three")]
        until(lambda: len(app.state.server.engine._jobs) == 2)
        assert {job.client for job in app.state.server.engine._jobs} == {"token 0", "token 1"}
        made.gate.set()
        assert [one.result() for one in asked] == [200, 200, 401]
