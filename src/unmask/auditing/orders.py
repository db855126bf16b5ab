"""Audit a decoding order: does it choose positions by what the network says there, or by where they are?

Position. The rows of a trial are drawn independently from one distribution, so they are exchangeable: an order that
looks only at the network chooses each set of k among L positions with equal probability. The sum of the chosen
positions 0..L-1 then has the mean k (L - 1) / 2 and the variance k (L - k) (L + 1) / 12, whatever k depends on
otherwise. Leftness is 0 under this law, and 1 if the leftmost positions are always chosen. Where rows tie, as with one
token left of each, a stable sort takes the leftmost: the order is then left to right.

Entropy. Sequences are drawn one token per call from a joint distribution that is known, by this order and by
first-hitting with the same seeds. First-hitting has the joint, so the difference of the mean -log p(x) is the entropy
that the order loses. The effective temperature is that of the joint p^(1/T) / Z with the same mean.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from unmask.auditing.subjects import seeded
from unmask.draw import Pick, exponential_race
from unmask.networks.oracles.enumerated import EnumeratedOracle
from unmask.noise import Streams
from unmask.sampler import Task
from unmask.samplers.ranked import Ranked
from unmask.sampling import sample
from unmask.schedule import Linear

LEVEL = 1e-6  # false alarms of a whole audit
LENGTH, VOCAB = 32, 64
JOINT, TRIALS, SEQUENCES = (3, 6), 300, 2000  # (vocabulary, length) of the known joint
ONE_TOKEN = "one token left"

Subject = Ranked | Callable[..., Any]
"""One of our orders, or a function (logits [positions, vocabulary], count) -> the positions to unmask, or a mask.

An order that depends on the tokens drawn returns them too: (positions or mask, the tokens of all positions).
"""


@dataclass(frozen=True)
class Choice:
    """The choices among exchangeable rows of one kind."""

    rows: str
    dtype: str
    leftness: float  # 0 under a uniform choice, 1 for the leftmost positions
    error: float  # its standard error under a uniform choice; nan if every position was chosen
    p_value: float
    moved: float  # share of trials in which reversing the rows does not reverse the choice: it depends on the position
    moved_error: float


@dataclass(frozen=True)
class OrderReport:
    """The audit of an order. ``exact`` is the verdict."""

    name: str
    choices: tuple[Choice, ...]
    disagreement: float  # share of trials in which float32 and float64 logits give different choices
    disagreement_error: float
    lost: float  # nats of a sequence, against first-hitting with the same seeds
    lost_error: float
    temperature: float
    temperature_error: float
    leftmost: bool  # whether positions are chosen by where they are
    biased: bool  # whether the entropy differs from the model's

    @property
    def exact(self) -> bool:
        return not (self.leftmost or self.biased)

    @property
    def verdict(self) -> str:
        faults = []
        if self.leftmost:
            worst = min(self.choices, key=lambda one: one.p_value)
            side = "left" if worst.leftness > 0 else "right"
            rows = f"{worst.rows}, {worst.dtype}"
            faults.append(f"positions are chosen from the {side} (leftness {worst.leftness:.2f}; {rows})")
        if self.biased:
            what = (
                f"{abs(self.lost):.3f} +- {self.lost_error:.3f} nats of entropy {'lost' if self.lost > 0 else 'gained'}"
            )
            faults.append(f"{what}, as at T = {self.temperature:.2f}")
        return f"FAULT: {'; '.join(faults)}" if faults else "no fault was found"

    def __str__(self) -> str:
        return f"{self.name}: {self.verdict}"


def audit_order(order: Subject, *, seed: int = 0, trials: int = TRIALS, name: str | None = None) -> OrderReport:
    """Audit one of ``unmask.samplers``' orders, or a function from logits and a count to positions."""
    if not isinstance(order, Ranked) and not callable(order):
        raise ValueError(f"an order ranks positions, or is a function of logits and a count; got {order!r}")
    choices, chosen = [], {}
    for kind in ROWS:
        logits = ROWS[kind](trials, torch.Generator().manual_seed(seed))
        for dtype in (torch.float32, torch.float64):
            given = logits.to(dtype)
            chosen[kind, dtype] = chosen_by(order, given, seed)
            choices.append(_choice(order, kind, given, chosen[kind, dtype], seed))
    differ = torch.cat([(chosen[k, torch.float32] != chosen[k, torch.float64]).any(1) for k in ROWS])
    lost, lost_error, temperature, temperature_error = _entropy(order, seed)
    return OrderReport(
        name or str(getattr(order, "__name__", order)),
        tuple(choices),
        *_share(differ),
        lost,
        lost_error,
        temperature,
        temperature_error,
        any(one.p_value <= LEVEL / (2 * len(choices)) for one in choices),
        math.erfc(abs(lost) / lost_error / math.sqrt(2)) <= LEVEL / 2 if lost_error else lost != 0,
    )


def _normal(scale: float) -> Callable[[int, torch.Generator], Tensor]:
    def rows(trials: int, source: torch.Generator) -> Tensor:
        return scale * torch.randn(trials, LENGTH, VOCAB, generator=source, dtype=torch.float64)

    return rows


def _one_token(trials: int, source: torch.Generator) -> Tensor:
    """What top-p or a low temperature leaves of a confident row: one token, with probability 1."""
    token = torch.randint(VOCAB, (trials, LENGTH, 1), generator=source)
    return torch.full((trials, LENGTH, VOCAB), -torch.inf, dtype=torch.float64).scatter(2, token, 0.0)


ROWS = {"ordinary": _normal(1.0), "sharp": _normal(40.0), ONE_TOKEN: _one_token}


def chosen_by(order: Subject, logits: Tensor, seed: int) -> Tensor:
    """Which positions of each trial [N, L, V] are unmasked first, bool [N, L]: a quarter if the order takes a count."""
    trials, length, vocab = logits.shape
    chosen = torch.zeros(trials, length, dtype=torch.bool)
    if isinstance(order, Ranked):
        steps = 4 if order.gamma is None and order.least is None else None
        task = Task(vocab, Streams.of(seed, trials), Pick(), Linear(), steps)
        state = order.begin(torch.full((trials, length), vocab), task)
        step = order.fill(state, order.ask(state), logits.flatten(0, 1).double().log_softmax(1))
        row, column = (step.positions >= 0).nonzero(as_tuple=True)
        chosen[step.sequences[row], step.positions[row, column]] = True
        return chosen
    with seeded(seed):
        for trial in range(trials):
            chosen[trial, _called(order, logits[trial], length // 4)[0]] = True
    return chosen


def _called(function: Callable[..., Any], logits: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
    """The positions that a function chooses, and its tokens. Its arguments but the first two have their defaults."""
    try:
        most = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in _parameters(function))
    except (TypeError, ValueError):  # compiled functions may have no signature
        most = 2
    made = function(logits.clone(), *([count] if most > 1 else []))
    where, tokens = made if isinstance(made, tuple) else (made, None)
    found = torch.as_tensor(where).reshape(-1)
    at = found.nonzero().squeeze(1) if found.dtype == torch.bool else found.long()
    if not 0 < len(at) <= len(logits) or bool((at < 0).any()) or bool((at >= len(logits)).any()):
        raise ValueError(f"the order must return positions in 0..{len(logits) - 1}, at least one, got {found.tolist()}")
    return at, None if tokens is None else torch.as_tensor(tokens)[at]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def _choice(order: Subject, kind: str, logits: Tensor, chosen: Tensor, seed: int) -> Choice:
    length = chosen.shape[1]
    k = chosen.sum(1).double()
    away = k * (length - 1) / 2 - (chosen * torch.arange(length)).sum(1)
    variance, farthest = k * (length - k) * (length + 1) / 12, k * (length - k) / 2
    total, spread, most = float(away.sum()), float(variance.sum()) ** 0.5, float(farthest.sum())
    p = math.erfc(abs(total) / spread / math.sqrt(2)) if spread else 1.0
    moved = (chosen_by(order, logits.flip(1), seed).flip(1) != chosen).any(1)
    name = str(logits.dtype).removeprefix("torch.")
    return Choice(kind, name, total / most if most else 0.0, spread / most if most else math.nan, p, *_share(moved))


def _share(where: Tensor) -> tuple[float, float]:
    share = float(where.double().mean())
    return share, math.sqrt(max(share * (1 - share), 1 / len(where)) / len(where))


def known_joint() -> EnumeratedOracle:
    """The joint that entropy is measured on: fixed, far from uniform, every sequence possible."""
    weights = torch.rand([JOINT[0]] * JOINT[1], dtype=torch.float64, generator=torch.Generator().manual_seed(7)) ** 4
    return EnumeratedOracle(weights / weights.sum())


def _entropy(order: Subject, seed: int) -> tuple[float, float, float, float]:
    """Nats lost against first-hitting, and the effective temperature, each with its standard error."""
    model, length = known_joint(), JOINT[1]
    exact = -model.log_likelihood(sample(model, num=SEQUENCES, length=length, seed=seed).tokens)
    if isinstance(order, Ranked):
        tokens = sample(model, num=SEQUENCES, length=length, seed=seed, sampler=order).tokens
    else:
        tokens = _drawn(model, order, seed)
    nats = -model.log_likelihood(tokens)
    lost = exact - nats
    every = torch.cartesian_prod(*[torch.arange(JOINT[0])] * length)
    log_p = model.log_likelihood(every)
    mean, error = float(nats.mean()), float(nats.std()) / SEQUENCES**0.5
    at = [_temperature(log_p, value) for value in (mean, mean - error, mean + error)]
    return float(lost.mean()), float(lost.std()) / SEQUENCES**0.5, at[0], (at[2] - at[1]) / 2


def _temperature(log_p: Tensor, nats: float) -> float:
    """T such that the mean of -log p under p^(1/T) / Z is so many nats, by bisection: the mean grows with T."""
    low, high = 0.01, 100.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        mean = float(-((log_p / middle).softmax(0) * log_p).sum())
        low, high = (middle, high) if mean < nats else (low, middle)
    return math.sqrt(low * high)


def _drawn(model: EnumeratedOracle, order: Callable[..., Any], seed: int) -> Tensor:
    """Sequences one token per call: the order chooses the position, and the token is its own or drawn by the position's
    noise."""
    length = JOINT[1]
    x = torch.full((SEQUENCES, length), model.mask_id)
    noise, row = Streams.of(seed, SEQUENCES).at("token", length), torch.arange(SEQUENCES)
    with seeded(seed):
        for _ in range(length):
            logits = model(x)
            at, own = torch.empty(SEQUENCES, dtype=torch.int64), torch.full((SEQUENCES,), -1)
            for i, (canvas, each) in enumerate(zip(x, logits, strict=True)):
                holes = (canvas == model.mask_id).nonzero().squeeze(1)
                chosen, tokens = _called(order, each[holes].float(), 1)
                at[i], own[i] = holes[chosen[0]], -1 if tokens is None else tokens[0]
            x[row, at] = torch.where(own < 0, exponential_race(logits[row, at], noise[row, at]), own)
    return x
