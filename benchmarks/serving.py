"""How a server does under load, as ratios within one run.

    python -m benchmarks.serving                   the paper's small network: minutes
    python -m benchmarks.serving --only rest       one part of it
    python -m benchmarks.serving --quick           a tiny one: does it run, not how fast

    batching   tokens/s of 16 clients against one request at a time, of each kind of model, beside the machine's own
               limit: what one network call for 16 sequences brings against 16 calls for one
    latency    p50 and p99 of the time to the first token and of whole requests, with 16 clients
    overload   ten times as many requests as the queue holds, at once: nothing that was accepted is lost
    soak       an hour of one request a second, compressed, one in five cancelled: memory after a third and at the end

The weights are random, which changes no cost. The engine is asked directly: `benchmarks.traffic` is over HTTP.
One request at a time is measured before and after the 16 clients, so that whatever else the machine does falls
on both. Markdown on stdout, or JSON with --json; progress on stderr.
"""

from __future__ import annotations

import argparse
import gc
import json
import queue
import random
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from unmask import Model
from unmask.network import inference
from unmask.networks.any_order import AnyOrderConfig, OneStream
from unmask.networks.causal import Causal, twin
from unmask.networks.config import blocks_of
from unmask.networks.ddit import DDiT, DDiTConfig
from unmask.protocol import for_sampling
from unmask.serve.engine.engine import Engine
from unmask.serve.engine.job import Done, Failed, Filled, Job, Refused
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served
from unmask.serve.http.request import unmask_work
from unmask.serve.http.schemas import UnmaskRequest
from unmask.tokenizers import vocabularies as tokenizers

CLIENTS = 16
ANY_ORDER = "any-order, cached"
TARGET = 3.0  # times the tokens/s of one request at a time, of that one
PARTS = ("batching", "rest")


def models(width: int, layers: int, length: int) -> dict[str, Served]:
    """One network of each kind, of the same size."""
    words = tokenizers.bytes_of_utf8()
    size = {"width": width, "layers": layers, "heads": max(width // 64, 1)}
    config = DDiTConfig(words.vocab_size, words.vocab_size, length, **size)  # type: ignore[arg-type]
    order = blocks_of(twin(config), AnyOrderConfig, neighbours=2)
    torch.manual_seed(0)
    made = {ANY_ORDER: OneStream(order), "left-to-right, cached": Causal(twin(config)), "bidirectional": DDiT(config)}
    return {name: Served(Model(network.eval(), words, name=name)) for name, network in made.items()}


class Client:
    """One request after another, each with its times."""

    def __init__(self, engine: Engine, served: dict[str, Served]) -> None:
        self.engine, self.served = engine, served
        self.first: list[float] = []  # seconds to the first token
        self.whole: list[float] = []
        self.tokens = 0

    def ask(self, body: dict[str, Any]) -> None:
        told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        started = time.perf_counter()
        job = Job(unmask_work(self.served, UnmaskRequest(**body), self.engine.limits), told.put, watched=True)
        self.engine.submit(job)
        first = 0.0
        while not isinstance(event := told.get(), Done):
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Filled) and not first:
                first = time.perf_counter() - started
        self.first.append(first)
        self.whole.append(time.perf_counter() - started)
        self.tokens += event.ncs


def asking(
    engine: Engine, served: dict[str, Served], clients: int, each: int, body: dict[str, Any]
) -> tuple[list[Client], float]:
    """So many clients, each asking so often, and the seconds that it took."""
    people = [Client(engine, served) for _ in range(clients)]

    def busy(number: int) -> None:
        for k in range(each):
            people[number].ask({**body, "seed": number * each + k})

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(clients)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return people, time.perf_counter() - started


def batching(served: dict[str, Served], name: str, each: int, body: dict[str, Any]) -> dict[str, float]:
    """16 clients between two halves of one request at a time."""
    engine = Engine(Limits(max_batch=CLIENTS)).start()
    engine.warm(served[name])
    body = {**body, "model": name}
    before = asking(engine, served, 1, each, body)
    crowd, seconds = asking(engine, served, CLIENTS, each, body)
    after = asking(engine, served, 1, each, body)
    engine.stop()
    alone = [client for people, _ in (before, after) for client in people]
    speed = [sum(c.tokens for c in crowd) / seconds, sum(c.tokens for c in alone) / (before[1] + after[1])]
    found = {"clients": speed[0], "alone": speed[1], "ratio": speed[0] / speed[1], "requests": len(crowd) * each}
    for who, people in (("alone", alone), ("clients", crowd)):
        for label in ("first", "whole"):
            times = sorted(seconds for client in people for seconds in getattr(client, label))
            found |= {f"{who}_{label}_p{p}": times[min(len(times) * p // 100, len(times) - 1)] for p in (50, 99)}
    return found


def limit(served: Served, length: int, repeat: int) -> float:
    """16 calls for one sequence against one call for 16: what batching could bring if nothing but the network counted.

    A call of a run: one token has become visible since the last, and one is asked for.
    """

    def seconds(batch: int) -> float:
        network = for_sampling(served.network)
        tokens = torch.full((batch, length), network.mask_id)
        times = []
        with inference(network):
            for position in range(1 + repeat):
                started = time.perf_counter()
                network(tokens, rows=torch.full((batch, 1), position))
                times.append(time.perf_counter() - started)
                tokens[:, position] = 0
        return min(times[1:])

    return CLIENTS * seconds(1) / seconds(CLIENTS)


def overload(served: dict[str, Served], body: dict[str, Any], places: int) -> dict[str, int]:
    """Ten times the queue, at once."""
    engine = Engine(Limits(max_batch=places, max_queue=places)).start()
    answered: list[int] = []

    def one(number: int) -> None:
        client = Client(engine, served)
        try:
            client.ask({**body, "seed": number})
        except Refused:
            return
        answered.append(number)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(10 * places)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    engine.stop()
    accepted = len(threads) - engine.counts.refused
    assert len(answered) == accepted == engine.counts.sequences, "an accepted request was lost"
    return {"asked": len(threads), "accepted": accepted, "refused": engine.counts.refused, "answered": len(answered)}


def resident() -> int:
    """Bytes of memory that this process holds."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def soak(served: dict[str, Served], requests: int, length: int) -> dict[str, float]:
    """Requests of every kind, one in five cancelled; memory after a third of them, and at the end."""
    engine = Engine(Limits(max_batch=8)).start()
    choose, marks, told = random.Random(0), [], queue.Queue[Any]()
    ways: list[dict[str, Any]] = [{}, {"steps": 4}, {"steps": 4, "predictor": "correct"}]
    ways += [{"steps": 4, "decoding": "margin"}, {"steps": 4, "sampler": "published-ancestral"}]
    for number in range(requests):
        name = choose.choice(list(served))
        way = {} if served[name].kind == "left-to-right" else choose.choice(ways)
        body = {**way, "model": name, "length": choose.choice((length // 4, length // 2, length)), "seed": number}
        job = Job(unmask_work(served, UnmaskRequest(**body), engine.limits), told.put, watched=number % 2 == 0)
        while True:
            try:
                engine.submit(job)
                break
            except Refused:
                time.sleep(0.01)
        if number % 5 == 0:
            engine.cancel(job)
        while not told.empty():
            told.get()
        if number in (requests // 3, requests - 1):
            gc.collect()
            marks.append(resident() / 1e6)
    engine.stop()
    return {
        "requests": requests,
        "megabytes_after_a_third": marks[0],
        "megabytes_at_the_end": marks[1],
        "growth": marks[1] / marks[0] - 1,
    }


def markdown(found: dict[str, Any]) -> str:
    """The tables of docs/results/serving.md."""
    lines = [
        f"Width {found['width']}, {found['layers']} layers, {found['length']} tokens, {found['threads']} threads.",
        "",
        "| model | tokens/s, one at a time | tokens/s, 16 clients | ratio | machine's limit |",
        "|---|---|---|---|---|",
    ]
    for name, one in found["batching"].items():
        numbers = (f"{one[column]:.1f}" for column in ("alone", "clients", "ratio", "limit"))
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    lines += [
        "",
        "| model | requests | first token, p50 / p99 | request, p50 / p99 | one at a time: first token, request |",
        "|---|---|---|---|---|",
    ]
    for name, one in found["batching"].items():
        first, whole = (f"{one[f'clients_{x}_p50']:.2f} / {one[f'clients_{x}_p99']:.2f} s" for x in ("first", "whole"))
        alone = f"{one['alone_first_p50']:.2f} s, {one['alone_whole_p50']:.2f} s"
        lines.append(f"| {name} | {one['requests']} | {first} | {whole} | {alone} |")
    return "\n".join(lines)


def markdown_of_the_rest(found: dict[str, Any]) -> str:
    over, soaked = found["overload"], found["soak"]
    lines = [
        f"Overload: {over['asked']} requests at once, {over['refused']} refused at once, {over['accepted']} accepted, "
        f"{over['answered']} answered.",
        f"Soak: {soaked['requests']} requests; {soaked['megabytes_after_a_third']:.0f} MB after a third of them, "
        f"{soaked['megabytes_at_the_end']:.0f} MB at the end ({100 * soaked['growth']:+.1f}%).",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--quick", action="store_true", help="tiny networks: does it run, not how fast")
    options.add_argument("--width", type=int, default=768)
    options.add_argument("--layers", type=int, default=12)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--requests", type=int, default=3, help="of each client")
    options.add_argument("--soak", type=int, default=3600, help="requests of the soak")
    options.add_argument("--json", action="store_true", help="every number, in place of the tables")
    options.add_argument("--only", choices=PARTS, action="append", help="a part of it; several if you like")
    chosen = options.parse_args(arguments)
    parts = chosen.only or PARTS
    width, layers, length = (64, 2, 16) if chosen.quick else (chosen.width, chosen.layers, chosen.length)
    found: dict[str, Any] = {"width": width, "layers": layers, "length": length, "threads": torch.get_num_threads()}
    said = []
    if "batching" in parts:
        found["batching"] = batching_of_all(
            models(width, layers, length), length, 1 if chosen.quick else chosen.requests
        )
        said.append(markdown(found))
    if "rest" in parts:
        print("overload and soak", file=sys.stderr)
        body = {"model": ANY_ORDER, "length": length, "steps": 8}
        found["overload"] = overload(models(width, layers, length), body, 4 if chosen.quick else CLIENTS)
        found["soak"] = soak(models(64, 2, 16), 90 if chosen.quick else chosen.soak, 16)
        said.append(markdown_of_the_rest(found))
    print(json.dumps(found, indent=1) if chosen.json else "\n\n".join(said))
    return 0 if chosen.quick else _failed(found)


def batching_of_all(served: dict[str, Served], length: int, each: int) -> dict[str, Any]:
    found = {}
    for name, one in served.items():
        print(f"{name}: 16 clients against one", file=sys.stderr)
        # Token by token where a call is cheap; a bidirectional pass is not, and is asked for 8 of them a request.
        body = {"length": length, **({"steps": 8} if one.kind == "masked" else {})}
        measured = batching(served, name, each if one.kind != "masked" else 1, body)
        found[name] = measured | {"limit": limit(one, length, 5)}
    return found


def _failed(found: dict[str, Any]) -> int:
    """1 if a ratio is less than it should be, which is then said."""
    short = []
    if "batching" in found and (ratio := found["batching"][ANY_ORDER]["ratio"]) < TARGET:
        short.append(f"{ANY_ORDER}: {ratio:.1f} times is less than {TARGET}")
    for line in short:
        print(line, file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
