"""Parts of ``benchmarks.sampling``: counts without a clock, single optimisations, torch.compile, threads, any order."""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

import unmask
from benchmarks import anyorder, sampling
from benchmarks.sampling import (
    SIZES,
    VARIANTS,
    AsPublished,
    Everywhere,
    Size,
    coupled,
    exponent,
    half,
    in_turns,
    of_a_step,
    ours,
    spread,
    steppers,
)
from benchmarks.train import megabytes
from unmask import plan
from unmask.networks.cache import rows as fast_path
from unmask.networks.cache.rows import sharing
from unmask.networks.layers import take
from unmask.samplers import published

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h


class Shapes(TorchDispatchMode):
    """Notes the largest tensor that any operation makes; views of the weights do not count."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.largest = 0
        self.weights = {tensor.untyped_storage().data_ptr() for tensor in network.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.weights:
                self.largest = max(self.largest, tensor.numel())
        return out


def counts(size: Size) -> dict[str, dict[str, int]]:
    """Network calls, rows through the head and the largest tensor of whole runs: the same on every machine."""
    network = size.network()
    found: dict[str, dict[str, int]] = {}

    def run(name: str, make: Callable[[Any], unmask.Sample], model: Any) -> None:
        inner, rows = getattr(model, "network", model), []
        head = inner.logits
        inner.logits = lambda states: (rows.append(states.numel() // size.width), head(states))[1]
        with Shapes(inner) as shapes:
            made = make(model)
        del inner.logits
        found[name] = {
            "calls": made.calls,
            "head_rows": sum(rows),
            "largest": shapes.largest,
            "tokens": made.tokens.numel(),
        }

    fast, empty = network.for_sampling(), {"num": 1, "length": size.length}
    run("first-hitting", lambda model: unmask.sample(model, **empty), fast)
    run("first-hitting, batch of 3", lambda model: unmask.sample(model, num=3, length=size.length), fast)
    for count in (4, 50, 10_000):
        run(f"ancestral {count}", lambda m, n=count: unmask.sample(m, **empty, plan=plan.ancestral, steps=n), fast)
    run(
        "ancestral 10, batch of 3",
        lambda m: unmask.sample(m, num=3, length=size.length, plan=plan.ancestral, steps=10),
        fast,
    )
    run("full head", lambda model: unmask.sample(model, **empty), Everywhere(network))
    run("coupled 50", lambda m: unmask.sample(m, **empty, sampler=published.Coupled(), steps=50), Everywhere(network))
    return found


def tricks(size: Size) -> dict[str, Any]:
    """First-hitting without one of the optimisations, against all of them: how much more a step costs."""
    network, canvas = size.network(), half(size)
    anew, unfolded = size.network().for_sampling(), size.network()
    with patch.object(fast_path, "private_copy", sharing):
        unfolded = fast_path.AskedRows(unfolded)
    anew.first = unfolded.first = None

    def without(model: Any, change: Callable[[], AbstractContextManager[Any]]) -> Iterator[object]:
        run = ours(model, canvas)
        while True:
            with change():
                step = next(run)
            yield step

    class LastBlockEverywhere(Everywhere):
        def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
            return self.network.logits(take(self.network.states(tokens, time), rows))

    fast = network.for_sampling()
    changes: dict[str, tuple[Any, Callable[[], AbstractContextManager[Any]]]] = {
        "with all": (fast, nullcontext),
        "head and last block at every row": (Everywhere(fast), nullcontext),
        "last block at every row": (LastBlockEverywhere(fast.network), nullcontext),
        "adaLN not folded, first block projected anew": (unfolded, nullcontext),
        "first block projected anew": (anew, nullcontext),
        "GELU by tanh": (
            fast,
            lambda: patch.object(fast_path, "gelu", lambda x: functional.gelu(x, approximate="tanh")),
        ),
        "MLP in one piece": (fast, lambda: patch.object(fast_path, "MLP_ROWS", 10**9)),
    }
    run = {name: without(model, change) for name, (model, change) in changes.items()}
    found = in_turns(run, size.inner, size.rounds)
    best = found["with all"]
    return {
        name: {"seconds": statistics.median(values)} | spread([a / b for a, b in zip(values, best, strict=True)])
        for name, values in found.items()
    }


def compiled(size: Size) -> dict[str, Any]:
    """The network by torch.compile, static shapes, against the fast path: what a step gains, what warming up costs."""
    fast, canvas = size.network().for_sampling(), half(size)
    rows = torch.zeros(1, 1, dtype=torch.int64)
    try:
        made = torch.compile(fast, dynamic=False)
        started, wall = time.process_time(), time.perf_counter()
        with torch.inference_mode():
            made(canvas, rows=rows)
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    warm = {"cpu_seconds": time.process_time() - started, "seconds": time.perf_counter() - wall}

    def calls(network: Any) -> Iterator[object]:
        while True:
            with torch.inference_mode():
                answer = network(canvas, rows=rows)
            yield answer

    found = in_turns({"fast": calls(fast), "compiled": calls(made)}, size.inner, size.rounds)
    ratio = spread([a / b for a, b in zip(found["fast"], found["compiled"], strict=True)])
    return {"warming_up": warm, "speedup": ratio}


def whole(size: Size) -> dict[str, float]:
    """Whole runs at N = 1,000, each in a process of its own: a check of what is multiplied up, also for a batch."""
    runs = {kind: (size, kind, 1000, 1) for kind in ("ours", *sampling.WAYS)}
    runs |= {f"{kind}, B = 4": (size, kind, 1000, 4) for kind in ("ours", "float32")}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {name: pool.apply(whole_run, run) for name, run in runs.items()}


def whole_run(size: Size, kind: str, steps: int, batch: int) -> float:
    """CPU seconds of a sequence in N steps, of so many side by side."""
    torch.set_num_threads(1)
    network, empty = size.network(), torch.full((batch, size.length), size.vocab - 1)
    started = time.process_time()
    if kind == "ours":
        unmask.sample(network, canvas=empty, plan=plan.ancestral, steps=steps)
    else:
        times = torch.arange(steps, -1, -1, dtype=torch.float64) / steps
        for _ in AsPublished.of(network, kind).stream(empty, times):
            pass
    return (time.process_time() - started) / batch


def alone(size: Size) -> dict[str, Any]:
    """The steps of ``sampling.steps`` once more, each variant in a process of its own, in turns as before.

    What a step costs that makes and frees blocks of some MB depends on what the allocator has in hand, and in a process
    with others that is theirs. A sampler has its process to itself.
    """
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        ends = {}
        for variant in VARIANTS:
            ends[variant], other = context.Pipe()
            child = context.Process(target=_answer, args=(size, variant, other), daemon=True)
            child.start()
            other.close()  # so that a child that fails is noticed
            stack.callback(child.terminate)
        found: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for number in range(-1, size.rounds):
            for variant, end in ends.items():
                end.send(1 if number < 0 else size.inner)
                seconds = end.recv()
                if number >= 0:
                    found[variant].append(seconds)
    return sampling.compared(size, found)


def _answer(size: Size, variant: str, other: Any) -> None:
    """A child of ``alone``: so many steps when asked, and what one of them took."""
    torch.set_num_threads(1)
    steps = steppers(size, [variant])[variant]
    while True:
        other.send(of_a_step(steps, other.recv()))


def step_memory(name: str, variant: str) -> float:
    """MB that the second step of a run takes at its peak beyond what the process held before it, by /proc.

    The allocator must give back at once what is freed, or the step would be served with the first one's pages: every
    block of 64 KB and more is mapped for itself.
    """
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    torch.set_num_threads(1)
    mallopt = ctypes.CDLL("libc.so.6").mallopt
    assert mallopt(M_MMAP_THRESHOLD, 1 << 16) and mallopt(M_TRIM_THRESHOLD, 1 << 16)
    steps_of = steppers(SIZES[name], [variant])[variant]
    next(steps_of)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
    base = megabytes(status, "VmRSS")
    next(steps_of)
    return megabytes(status, "VmHWM") - base


def memory(name: str) -> dict[str, float]:
    """Of one step, each variant in a process of its own."""
    variants = ("ours, one row a call", "full head, one-row draw", "coupled float32, call", "coupled float64, call")
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {variant: pool.apply(step_memory, (name, variant)) for variant in variants}


def growth(size: Size) -> dict[str, Any]:
    """How the cost of a whole run grows: exponents of fits to seconds over L, V and B, token by token."""
    result: dict[str, Any] = {}
    axes = {"length": (128, 256, 512, 1024, 2048), "vocab": (64, 512, 4096, 50_258), "batch": (1, 2, 4, 8, 16)}
    for axis, values in axes.items():
        seconds: dict[str, dict[int, float]] = {"ours": {}, "float32": {}}
        for value in values:
            one = size if axis == "batch" else replace(size, **{axis: value})
            network, canvas = one.network(), half(one, value if axis == "batch" else 1)
            run = {"ours": ours(network.for_sampling(), canvas), "float32": coupled(network, canvas, "float32", False)}
            for kind, found in in_turns(run, 2, 5).items():
                seconds[kind][value] = statistics.median(found) * one.length
        result[axis] = {kind: {"seconds": at, "exponent": exponent(at)} for kind, at in seconds.items()}
    return result


def batches(size: Size) -> dict[int, dict[str, float]]:
    """Tokens per CPU second of first-hitting at B = 1, 4, 16: each call unmasks B tokens."""
    fast, found = size.network().for_sampling(), {}
    for batch in (1, 4, 16):
        canvas = half(size, batch)
        run = ours(fast, canvas)
        if size.inner > 1:
            next(run)
        started, count = time.process_time(), size.inner
        for _ in range(count):
            next(run)
        found[batch] = {"tokens_per_second": batch * count / (time.process_time() - started)}
    return found


CHILD = """
import json, sys, time, torch
torch.set_num_threads(int(sys.argv[1]))
from benchmarks.sampling import SIZES, half, ours
steps = ours(SIZES["tiny"].network().for_sampling(), half(SIZES["tiny"]))
next(steps)
times = []
for _ in range(40):
    started = time.perf_counter()
    next(steps)
    times.append(time.perf_counter() - started)
print(json.dumps(sorted(times)[20]))
"""


def threads() -> dict[str, float]:
    """Milliseconds by the clock of the tiny network's step: by threads and waiting policy, idle and beside a process.

    The one part with a clock on the wall, because threads are about nothing else. Wants a machine that is quiet.
    """
    found: dict[str, float] = {}
    for busy in (False, True):
        other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
        try:
            for count in sorted({1, os.cpu_count() or 1}):
                for policy in ("passive", "active"):
                    where = "beside a busy process" if busy else "idle"
                    settings = {"OMP_WAIT_POLICY": policy, "OMP_NUM_THREADS": str(count)}
                    command = [sys.executable, "-c", CHILD, str(count)]
                    made = subprocess.run(command, env=os.environ | settings, stdout=subprocess.PIPE, check=True)
                    found[f"{count} threads, {policy}, {where}"] = 1e3 * json.loads(made.stdout)
        finally:
            if other is not None:
                other.kill()
                other.wait()
    return found


def any_order() -> dict[str, Any]:
    """The paper's small network token by token: bidirectional, visible, any order with its cache, left to right.

    One sequence at two lengths, then several side by side at the longer one: a cached step waits for its weights to be
    read, and reads them once for all of a batch.
    """
    found = anyorder.sampling(anyorder.Setting(lengths=(256, 1024), tokens=4))
    found["batches"] = {}
    for batch in (2, 4):
        beside = anyorder.Setting(lengths=(1024,), levels=(0.05, 0.5, 0.95), tokens=4, rounds=1, batch=batch)
        found["batches"][batch] = anyorder.sampling(beside)["lengths"][1024]
    return found
