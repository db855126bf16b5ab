"""How a server does under traffic over HTTP, with three models of one text.

    python -m benchmarks.traffic                                    some minutes
    python -m benchmarks.traffic --models kjv --only lengths        one model, one part
    python -m benchmarks.traffic --quick                            does it run, not how fast

    lengths    16 requests of one length, and 16 of as many lengths, each against one request at a time
    behind     a small request alone, and while the heaviest that are allowed run for somebody else
    giants     requests that are refused for their size: seconds, and the server's memory

One request at a time is measured before and after the 16, so that whatever else the machine does falls on both. The
server is a process of its own with as many threads as this one. Markdown on stdout; --output takes the numbers as JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

CLIENTS = 16
KEPT, SLOWER = 0.8, 10.0  # of the gain at mixed lengths; times a small request's time alone
MODELS = ("kjv", "kjv-anyorder", "kjv-ar")
PARTS = ("lengths", "behind", "giants")
# The most that a request may ask for, each in another way: 512 tokens are four times the models' own length, two
# sequences of so many are --max-joint, and two in 16,384 steps of the published sampler are --max-work.
HEAVIEST: dict[str, dict[str, Any]] = {
    "16 sequences, a token a call": {"number": 16},
    "16 sequences in 2 steps": {"number": 16, "steps": 2},
    "2 by confidence": {"number": 2, "decoding": "confidence"},
    "2 by remdm-cap, 4,096 steps": {"number": 2, "decoding": "remdm-cap", "steps": 4096},
    "2 as published, 16,384 steps": {"number": 2, "sampler": "published-ancestral", "steps": 16384},
    "8 sequences, 32 tokens ahead": {"number": 8, "ahead": 32},
}
LONGEST = 512
GIANTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "240,000 blanks": ("unmask", {"text": "a _ " * 240_000}, 1),
    "eight of these at once": ("unmask", {"text": "a _ " * 240_000}, 8),
    "a prompt of 980 kB": ("completions", {"prompt": "x" * 980_000}, 1),
}


class Server(NamedTuple):
    """``unmask serve`` in a process of its own."""

    address: str
    pid: int

    @property
    def peak(self) -> float:
        """The most memory that it has held, in MB."""
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found
        return int(found[1]) / 1e3


@contextmanager
def serving(names: Sequence[str]) -> Iterator[Server]:
    command = [sys.executable, "-m", "unmask", "serve", *names, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            found = (re.search(r"at (http://\S+)", line) for line in process.stderr)
            yield Server(next(one[1] for one in found if one), process.pid)
        finally:
            process.terminate()


def ask(server: Server, path: str, body: dict[str, Any]) -> int:
    """The status of an answer that was read to its end."""
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{server.address}/v1/{path}", data, headers)) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def together(server: Server, bodies: Sequence[dict[str, Any]], clients: int) -> float:
    """Seconds for these requests, so many at a time."""
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        statuses = set(pool.map(lambda body: ask(server, "unmask", body), bodies))
    assert statuses == {200}, statuses
    return time.perf_counter() - started


def lengths(name: str, length: int, repeat: int) -> dict[str, float]:
    """What 16 at a time bring at one length, and at 16 lengths from about a third less to a third more.

    The sixteen have as many tokens in all either way. One at a time is asked before and after, in halves.
    """
    apart = [length - length // 3 + round(i * 2 * (length // 3) / (CLIENTS - 1)) for i in range(CLIENTS)]
    found: dict[str, float] = {}
    with serving([name]) as server:
        for way, each in (("equal", [length] * CLIENTS), ("mixed", apart)):
            bodies = [{"model": name, "length": n, "seed": i} for i, n in enumerate(each)]
            alone = crowd = 0.0
            together(server, bodies, CLIENTS)  # memory is made, and threads are there
            for _ in range(repeat):
                alone += together(server, bodies[::2], 1)
                crowd += together(server, bodies, CLIENTS)
                alone += together(server, bodies[1::2], 1)
            tokens = repeat * sum(each)
            found |= {way: alone / crowd, f"{way} tokens/s": tokens / crowd, f"{way} alone tokens/s": tokens / alone}
    return found | {"kept": found["mixed"] / found["equal"]}


def behind(name: str, repeat: int) -> dict[str, dict[str, float]]:
    """Seconds of a small request alone, and while each of the heavy ones runs for somebody else.

    The heavy one is begun again for each, and the small one comes at one moment of it or another: in the first pass,
    and later.
    """
    small: dict[str, Any] = {"model": name, "length": 24, "seed": 1}
    found = {}
    with serving([name]) as server:
        together(server, [small], 1)
        for about, heavy in HEAVIEST.items():
            if not allowed(server, name, heavy):
                continue
            alone = min(together(server, [small], 1) for _ in range(repeat))
            took = []
            for number in range(repeat):
                other, answer = begun(server, {"model": name, "length": LONGEST, "seed": 0, "stream": True, **heavy})
                time.sleep(0.3 * number)
                took.append(together(server, [small], 1))
                answer.close()
                other.close()
            found[about] = {"alone": alone, "behind": statistics.median(took), "worst": max(took)}
            found[about]["ratio"] = found[about]["worst"] / alone
    return found


def allowed(server: Server, name: str, heavy: dict[str, Any]) -> bool:
    """Whether the model can do this at all: a left-to-right one has one way to draw, and few look ahead."""
    return ask(server, "unmask", {"model": name, "length": 2, **heavy, "number": 1}) == 200


def begun(server: Server, body: dict[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A stream of another client, from another address of the loopback, that has been accepted."""
    host, port = server.address.removeprefix("http://").split(":")
    other = http.client.HTTPConnection(host, int(port), source_address=("127.0.0.2", 0))
    other.request("POST", "/v1/unmask", json.dumps(body), {"Content-Type": "application/json"})
    answer = other.getresponse()
    assert answer.status == 200, answer.read()
    return other, answer


def giants(name: str) -> dict[str, dict[str, float]]:
    """Seconds until each is refused, and how much the server's memory grew by it."""
    found = {}
    for about, (path, body, number) in GIANTS.items():
        with serving([name]) as server, ThreadPoolExecutor(number) as pool:
            before, started = server.peak, time.perf_counter()
            statuses = list(pool.map(lambda _: ask(server, path, {"model": name, **body}), range(number)))  # noqa: B023
            found[about] = {"seconds": time.perf_counter() - started, "megabytes": server.peak - before}
            assert statuses == [400] * number, statuses
    return found


def markdown(found: dict[str, Any]) -> str:
    """The tables of docs/results/serving.md."""
    tables = []
    if lengths := found.get("lengths"):
        rows = [
            "| model | one length | 16 lengths | kept | tokens/s alone | 16 at a time | 16 lengths |",
            "|---" * 7 + "|",
        ]
        for name, one in lengths.items():
            speed = (one[f"{way} tokens/s"] for way in ("equal alone", "equal", "mixed"))
            ratios = f"{one['equal']:.2f} | {one['mixed']:.2f} | {one['kept']:.2f}"
            rows.append(f"| {name} | {ratios} | {' | '.join(f'{s:.0f}' for s in speed)} |")
        tables.append(rows)
    if behind := found.get("behind"):
        rows = ["| model | behind | alone | median | worst | worst / alone |", "|---" * 6 + "|"]
        for name, heavies in behind.items():
            for about, one in heavies.items():
                times = " | ".join(f"{one[key]:.2f} s" for key in ("alone", "behind", "worst"))
                rows.append(f"| {name} | {about} | {times} | {one['ratio']:.1f} |")
        tables.append(rows)
    if giants := found.get("giants"):
        rows = ["| request | refused after | memory |", "|---" * 3 + "|"]
        rows += [f"| {about} | {one['seconds']:.2f} s | {one['megabytes']:.0f} MB |" for about, one in giants.items()]
        tables.append(rows)
    return "\n\n".join("\n".join(rows) for rows in tables)


def measured(names: Sequence[str], parts: Sequence[str], tokens: int, repeat: int) -> dict[str, Any]:
    found: dict[str, Any] = {"threads": torch.get_num_threads(), "tokens": tokens}
    for part in parts:
        print(f"{part}: {', '.join(names)}", file=sys.stderr)
        if part == "lengths":
            found[part] = {name: lengths(name, tokens, repeat) for name in names}
        elif part == "behind":
            found[part] = {name: behind(name, 3 * repeat) for name in names}
        else:
            found[part] = giants(names[0])
    return found


def failed(found: dict[str, Any]) -> int:
    """1 if something is less than it should be, which is then said."""
    short = []
    for name, one in found.get("lengths", {}).items():
        if one["kept"] < KEPT:
            short.append(f"{name}: at mixed lengths {one['kept']:.2f} of the gain is kept, less than {KEPT}")
    for name, heavies in found.get("behind", {}).items():
        slow = [one["ratio"] for one in heavies.values() if one["ratio"] > SLOWER]
        short += [f"{name}: a small request takes {ratio:.1f} times its time alone" for ratio in slow]
    for line in short:
        print(line, file=sys.stderr)
    return 1 if short else 0


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    options.add_argument("--quick", action="store_true", help="one model, short texts: does it run, not how fast")
    options.add_argument("--models", nargs="+", default=MODELS, help="default: all three")
    options.add_argument("--only", choices=PARTS, action="append", help="a part of it; several if you like")
    options.add_argument("--output", type=Path, help="every number, as JSON; parts that were not measured stay")
    chosen = options.parse_args(arguments)
    size = (chosen.models[:1], chosen.only or PARTS, 24, 1) if chosen.quick else None
    found = measured(*(size or (chosen.models, chosen.only or PARTS, 96, 2)))
    print(markdown(found))
    if chosen.output is not None:
        kept = json.loads(chosen.output.read_text()) if chosen.output.exists() else {}
        for part, value in found.items():
            kept[part] = {**kept.get(part, {}), **value} if isinstance(value, dict) else value
        chosen.output.write_text(json.dumps(kept, indent=1) + "\n")
    return 0 if chosen.quick else failed(found)


if __name__ == "__main__":
    sys.exit(main())
