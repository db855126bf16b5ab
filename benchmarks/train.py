"""Training speed, as ratios measured in one run: the head at masked rows alone against the full head.

    python -m benchmarks.train                 the 6 x 384 network at V = 50,258
    python -m benchmarks.train --quick         a few seconds, to see that it works

Both variants train the same network on the same masked batches, in turns, so that whatever else the machine does falls
on both. The float32 matmul rate is measured between them. Memory is the growth of the peak resident set over one step,
each variant in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import unmask
from unmask import timing
from unmask.forward import mask_by_time
from unmask.networks.ddit import DDiT, DDiTConfig
from unmask.schedule import Linear
from unmask.training.masking import Losses

TARGET_SPEEDUP, TARGET_FRACTION = 1.25, 0.6


@dataclass(frozen=True)
class Setting:
    layers: int = 6
    width: int = 384
    heads: int = 6
    vocab: int = 50_258
    length: int = 256
    batch: int = 8
    repeats: int = 5

    @property
    def network(self) -> DDiTConfig:
        # The mask is the last of the V ids, as in the published checkpoints.
        return DDiTConfig(self.vocab, self.vocab - 1, self.length, self.width, self.layers, self.heads, dropout=0.0)


class Trainer:
    """One network, its optimiser, and a step with either head."""

    def __init__(self, setting: Setting) -> None:
        torch.manual_seed(0)
        self.setting, self.network = setting, DDiT(setting.network)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=1e-4, fused=True)

    def step(self, loss: Callable[[DDiT, Tensor, Tensor], Tensor], number: int) -> int:
        """A whole training step on batch ``number``; returns how many positions were masked."""
        x, x0 = self.batch(number)
        torch.autograd.backward(loss(self.network, x, x0))
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return int((x == self.network.mask_id).sum())

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Stratified times, as in training, so that half of the positions are masked, give or take."""
        generator = torch.Generator().manual_seed(number)
        shape = (self.setting.batch, self.setting.length)
        x0 = torch.randint(self.setting.vocab - 1, shape, generator=generator)
        t = timing.stratified(self.setting.batch, generator)
        return mask_by_time(x0, t, schedule=Linear(), mask_id=self.network.mask_id, generator=generator), x0


def masked_rows(network: DDiT, x: Tensor, x0: Tensor) -> Tensor:
    """What unmask trains with: the last MLP, the head and the loss at masked positions alone."""
    masked = x == network.mask_id
    weight = torch.full((len(x),), 1 / x.numel(), dtype=torch.float64)
    total: Tensor = Losses(network, "time")(x0, masked, weight, weight)[0]
    return total


def full_head(network: DDiT, x: Tensor, x0: Tensor) -> Tensor:
    """The usual way: logits and losses everywhere, those of visible positions thrown away."""
    losses = functional.cross_entropy(network(x).flatten(0, 1), x0.flatten(), reduction="none").view_as(x)
    return (losses * (x == network.mask_id)).sum() / x.numel()


VARIANTS: dict[str, Callable[[DDiT, Tensor, Tensor], Tensor]] = {"masked rows": masked_rows, "full head": full_head}


def flops(setting: Setting, masked: int, everywhere: bool) -> float:
    """Multiplications and additions of one step, forward and twice that backward; elementwise work is not counted."""
    tokens, width = setting.batch * setting.length, setting.width
    at_head = tokens if everywhere else masked
    attention = 4 * setting.length * width  # scores and mixing, per token and block
    mixing, mlp = 2 * 4 * width * width, 2 * 8 * width * width
    blocks = setting.layers * (mixing + attention) * tokens + mlp * ((setting.layers - 1) * tokens + at_head)
    return 3.0 * (blocks + 2 * width * setting.vocab * at_head)


def matmul_rate(setting: Setting) -> float:
    """float32 FLOP/s of the machine on a large product of the network's own widths."""
    a = torch.randn(2048, 4 * setting.width)
    b = torch.randn(4 * setting.width, 4 * setting.width)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        a @ b
        seconds.append(time.perf_counter() - started)
    return 2 * a.shape[0] * a.shape[1] * b.shape[1] / min(seconds)


def speeds(setting: Setting) -> dict[str, dict[str, float]]:
    """Tokens per second and the fraction of the matmul rate, the medians over steps taken in turns."""
    trainer = Trainer(setting)
    tokens = setting.batch * setting.length
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in VARIANTS}
    for number in range(-1, setting.repeats):
        for name, loss in VARIANTS.items():
            before = matmul_rate(setting)
            started = time.perf_counter()
            masked = trainer.step(loss, max(number, 0))
            seconds = time.perf_counter() - started
            rate = (before + matmul_rate(setting)) / 2
            if number >= 0:  # the first round warms up
                found[name].append((tokens / seconds, flops(setting, masked, name == "full head") / seconds / rate))
    return {
        name: {"tokens/s": statistics.median(s for s, _ in steps), "of matmul": statistics.median(f for _, f in steps)}
        for name, steps in found.items()
    }


def peak_memory(setting: Setting, name: str) -> float:
    """MB that one step takes beyond weights and optimiser state, at its peak; not a number where there is no /proc."""
    trainer = Trainer(setting)
    for parameter in trainer.network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    trainer.optimizer.step()  # makes the optimiser's state
    trainer.optimizer.zero_grad()
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
    base = megabytes(status, "VmRSS")
    trainer.step(VARIANTS[name], 0)
    return megabytes(status, "VmHWM") - base


def megabytes(status: Path, name: str) -> float:
    line = next(line for line in status.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small batch, twice: its ratios mean little")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one line of JSON instead of the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    setting = Setting(batch=2, length=128, repeats=2) if options.quick else Setting(repeats=options.repeats)
    results = speeds(setting)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for name in VARIANTS:
            results[name]["peak MB"] = pool.apply(peak_memory, (setting, name))
    ours, theirs = results["masked rows"], results["full head"]
    ratios = {
        "speedup": ours["tokens/s"] / theirs["tokens/s"],
        "fraction of the matmul rate": ours["of matmul"],
        "memory": ours["peak MB"] / theirs["peak MB"],
    }
    if options.json:
        print(json.dumps({"unmask": unmask.__version__, "variants": results, **ratios}))
        return
    print(
        f"{setting.layers} x {setting.width}, V = {setting.vocab:,}, {setting.batch} x {setting.length} tokens, "
        f"{options.threads} thread(s)"
    )
    for name, row in results.items():
        print(
            f"  {name:12}  {row['tokens/s']:8,.0f} tokens/s   {row['of matmul']:.2f} of the float32 matmul rate   "
            f"{row['peak MB']:7,.0f} MB for a step"
        )
    print(
        f"  speed-up {ratios['speedup']:.2f} (target {TARGET_SPEEDUP}), "
        f"fraction {ratios['fraction of the matmul rate']:.2f} (target {TARGET_FRACTION}), "
        f"memory {ratios['memory']:.2f} of the full head's"
    )


if __name__ == "__main__":
    main()
