"""The events of a run. The loop makes them; the display, TensorBoard and the tests read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.bound import Bound
from unmask.training.config import TrainConfig


@dataclass(frozen=True)
class Started:
    config: TrainConfig  # the effective one
    step: int  # 0, or where a resumed run continues
    tokens_per_step: int
    note: str  # one line: the run's size, and what was chosen for the user


@dataclass(frozen=True)
class Stepped:
    step: int  # steps done, this one included
    loss: float  # nats per token, over the global batch
    gradient_norm: float  # before clipping
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class Replanned:
    """As the speed has changed, other steps fit into the run's minutes."""

    step: int
    steps: int  # of the whole run


@dataclass(frozen=True)
class Validated:
    step: int
    bound: Bound


@dataclass(frozen=True)
class Previewed:
    step: int
    text: str


@dataclass(frozen=True)
class Saved:
    step: int
    path: Path


@dataclass(frozen=True)
class Finished:
    step: int  # of the model: the last, or the best if validations ended the run
    model: Path
    why: str = ""  # if the run ended before its last step
    bound: dict[str, Any] | None = None  # the record of the model's validation
    trigram: float | None = None  # nats per token of a Kneser-Ney trigram of the same data, on the same held-out part
    samples: tuple[str, ...] = ()
    picture: Path | None = None
    overfit: str = ""  # the result of --overfit
    own: str = ""  # the class of a user's network
    notes: tuple[str, ...] = ()  # notes for readers of the bound
    alone: dict[str, Any] | None = None  # the bound of the network without the counts that it was joined with
    countable: bool = False  # whether it can be joined with counts
    forecast: float | None = None  # seconds of training after which the bound may fall to the trigram's


Event = Started | Stepped | Replanned | Validated | Previewed | Saved | Finished
Report = Callable[[Event], object]
