"""Defaults of the settings of a training run, chosen for the data and the machine."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from unmask.training.config import CHECKPOINT, USER_NETWORK, TrainConfig
from unmask.training.ema import default_decay


@dataclass(frozen=True)
class Size:
    """A row of the table of defaults."""

    tokens: float  # for training data of up to this many tokens
    preset: str
    batch: int
    steps: int


# A CPU run ends within an hour or so on two cores; the last accelerator row is the paper's.
SIZES = {
    "cpu": (Size(3e5, "tiny", 32, 1_000), Size(float("inf"), "mini", 32, 3_000)),
    "accelerator": (
        Size(1e6, "mini", 64, 5_000),
        Size(3e7, "compact", 128, 20_000),
        Size(float("inf"), "small", 512, 100_000),
    ),
}


TOKENS_PER_PASS = 32_768
NARROW = 512  # smaller networks have other defaults
OFTEN_READ = 5  # epochs after which a network may begin to memorise the data
OVERFIT_SEQUENCES, OVERFIT_STEPS = 4, 500  # few sequences, each with several masks in a batch


def resolve(config: TrainConfig, *, tokens: int, length: int, device: str, small: bool | None = None) -> TrainConfig:
    """Fill in open settings, for training data of this many tokens in sequences of ``length``.

    small: whether a user's or a checkpoint's network is small; None for the project's.
    """
    kind = "cpu" if device == "cpu" else "accelerator"
    size = next(size for size in SIZES[kind] if tokens <= size.tokens)
    if config.overfit:
        # A constant rate: whether the loss still falls at the end is then due to the network.
        config = replace(_filled(config, steps=OVERFIT_STEPS, decay="constant"), dropout=0.0, patience=0)
    own = small is not None
    config = _filled(config, preset=USER_NETWORK if own else size.preset, batch=size.batch, steps=size.steps)
    narrow = config.network(1, length)[1].width < NARROW if small is None else small  # docs/results/training.md
    config = _filled(
        config,
        optimizer="muon" if narrow and not own else "adamw",  # it cannot know which matrices are a network's blocks
        decay="cosine" if narrow else "constant",
        neighbours=None if own else 2 if config.attention == "order" else 0,
        convolution=None if own else 3 if narrow and config.attention != "order" else 0,
    )
    rate = 3e-4 if not narrow else 3e-3 if config.optimizer == "muon" else 1e-3
    if config.preset == CHECKPOINT and config.lora is None:
        rate /= 10  # so that the network does not forget in the first steps
    assert config.steps is not None and config.batch is not None
    often = max(1, min(1_000, config.steps, max(100, config.steps // 10)))
    return _filled(
        config,
        learning_rate=rate,
        warmup=min(2_500, config.steps // 10),
        ema=default_decay(config.steps),
        micro_batch=max(1, min(config.batch, TOKENS_PER_PASS // length)),
        precision="float32" if kind == "cpu" else "bf16",
        save_every=often,
        validate_every=often,
        patience=3 if config.steps * config.batch * length > OFTEN_READ * tokens else 0,
    )


def completed(asked: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """Open settings of a configuration, from that of the run it resumes."""
    return _filled(asked, **{field.name: getattr(stored, field.name) for field in fields(stored)})


def explained(asked: TrainConfig, config: TrainConfig, parameters: int, processes: int = 1) -> str:
    """One line: the size of the run, and what was chosen for the user."""
    chosen = [
        f"{field.name.replace('_', ' ')} {getattr(config, field.name)}"
        for field in fields(config)
        if getattr(asked, field.name) is None and getattr(config, field.name) is not None
    ]
    several = "1 process" if processes == 1 else f"{processes} processes"
    size = f"{several}; {parameters / 1e6:.2f} M parameters"
    return f"{size}; chosen for this data and machine: {', '.join(chosen) or 'nothing'}"


def _filled(config: TrainConfig, **defaults: Any) -> TrainConfig:
    return replace(config, **{name: value for name, value in defaults.items() if getattr(config, name) is None})
