"""``unmask steps``: how many network calls a model needs, and the cost of fewer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from unmask import devices, sample, theory
from unmask.cli.command import Command
from unmask.cli.options import (
    DATA_HELP,
    MODEL_HELP,
    OnMachine,
    StoredWeights,
    UserNetwork,
    check_files,
    check_number,
    guarded,
    loaded,
    use_threads,
)
from unmask.evaluate.data import found
from unmask.evaluate.likelihood.profile import EntropyProfile, entropy_by_count
from unmask.files import write_whole
from unmask.loading import find
from unmask.model import Model

PROFILE = "profile.json"  # in a model's folder
WINDOWS = (8, 32)
SHOWN = 9  # columns of the profile's line


@dataclass(frozen=True, kw_only=True)
class StepsOptions(OnMachine, StoredWeights, UserNetwork):
    """Show the nats that a sequence loses if several tokens are decoded per network call.

    The loss follows from the entropy profile, which is measured on DATA or comes with the model. It is 0 with one token
    per call. Look-ahead sampling (unmask sample --ahead) loses nothing either; its number of calls is measured.
    """

    model: str
    data: str | None = None
    split: Literal["train", "valid"] = "valid"
    """Which part of a corpus or of prepared data."""
    number: int | None = None
    """The number of sequences, evenly spaced in the data. The default is all."""
    passes: int | None = None
    """Passes over each sequence. The default is one for every number of visible tokens."""
    samples: int = 4
    """The number of samples for measuring the calls of --ahead; 0 skips the measurement."""
    seed: int = 0
    """The seed of the masks and the samples."""
    json: bool = False
    """Print the result as JSON, with the whole profile and the group sizes."""
    output: str | None = None
    """Write the profile to this file; as profile.json in the model's folder it is used from then on."""


COMMAND = Command(
    "steps",
    StepsOptions,
    {"model": MODEL_HELP, "data": f"{DATA_HELP}; without it, the profile that comes with the model"},
    ("unmask steps kjv", "unmask steps runs/book book.txt --number 64"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask steps``."""
    chosen = COMMAND.parsed(arguments)
    return guarded("steps", lambda: _steps(chosen))


def _steps(chosen: StepsOptions) -> None:
    check_files(chosen, "output")
    use_threads(chosen.threads)
    check_number(chosen.number)
    model = loaded(chosen.model, chosen.network, devices.chosen(chosen.device), chosen.weights)
    profile = _profile(chosen, model)
    if chosen.output is not None:
        write_whole(Path(chosen.output), (profile.to_json() + "\n").encode())
    length = len(profile.nats)
    costs = _costs(profile, [n for n in _powers(length) if n >= min(4, length)])
    ahead = {window: _calls(model, length, window, chosen) for window in WINDOWS if chosen.samples}
    if chosen.json:
        record = {"model": chosen.model, "profile": asdict(profile), "costs": [asdict(cost) for cost in costs]}
        print(json.dumps(record | {"ahead": ahead}))
    else:
        print("\n".join(_lines(chosen, profile, costs, ahead)))


def _profile(chosen: StepsOptions, model: Model) -> EntropyProfile:
    if chosen.data is None:
        folder = find(chosen.model)
        if folder is None or not (folder / PROFILE).is_file():
            raise ValueError(f"{chosen.model} has no stored profile: give DATA to measure one, such as held-out text")
        return EntropyProfile.from_json((folder / PROFILE).read_text(encoding="utf-8"))
    with found(chosen.data, model, split=chosen.split) as tokens:
        num = min(chosen.number or len(tokens), len(tokens))
        rows = tokens.sequences(torch.arange(num) * len(tokens) // max(num, 1))
    passes, schedule, seed = chosen.passes, model.schedule, chosen.seed
    return EntropyProfile.of(entropy_by_count(model.denoiser, rows, passes=passes, schedule=schedule, seed=seed))


def _costs(profile: EntropyProfile, steps: Sequence[int]) -> list[theory.ParallelCost]:
    """The loss with equal sizes, and with those that are optimal for the smoothed profile."""
    fit = theory.smoothed(profile.nats, profile.errors)
    return [
        replace(
            cost,
            equal=theory.parallel_loss(profile.nats, theory.equal_sizes(len(fit), cost.steps)),
            optimal=theory.parallel_loss(profile.nats, cost.sizes),
        )
        for cost in theory.parallel_costs(fit, steps)
    ]


def _calls(model: Model, length: int, window: int, chosen: StepsOptions) -> float:
    """The mean number of calls per sequence with look-ahead."""
    finished = sample(
        model.denoiser, num=chosen.samples, length=length, ahead=window, schedule=model.schedule, seed=chosen.seed
    )
    return float(finished.nfe.double().mean())


def _powers(length: int) -> list[int]:
    """1, 2, 4, ... and the length."""
    return [2**k for k in range(length.bit_length()) if 2**k < length] + [length]


def _lines(
    chosen: StepsOptions, profile: EntropyProfile, costs: Sequence[theory.ParallelCost], ahead: dict[int, float]
) -> list[str]:
    length = len(profile.nats)
    counts = sorted({round(k * (length - 1) / (SHOWN - 1)) for k in range(SHOWN)})
    lines = [
        f"{chosen.model}: nats of a hidden token given n visible ones, on {profile.sequences:,} sequences of {length}",
        "  n     " + "".join(f"{n:7d}" for n in counts),
        "  h(n)  " + "".join(f"{profile.nats[n]:7.2f}" for n in counts),
        "  error " + "".join(f"{profile.errors[n]:7.2f}" for n in counts),
        "",
        f"nats lost per sequence, of {sum(profile.nats):.1f}, by decoding in N calls; the optimal sizes of groups are",
        "those of a smooth curve within the errors of the profile, because its noise has minima of its own",
        "  calls N    equal sizes    optimal sizes",
    ]
    lines += [f"  {cost.steps:7d} {cost.equal:14.2f} {cost.optimal:16.2f}" for cost in costs]
    if ahead:
        each = ", ".join(f"{calls:.1f} calls with a window of {window}" for window, calls in ahead.items())
        lines += ["", f"looking ahead (--ahead) loses none: {each}, the mean of {chosen.samples} sequences"]
    return lines
