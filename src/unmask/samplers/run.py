"""What the orders that look at the network share: the arguments of ``unmask.sample``, the network call, the Steps."""

from __future__ import annotations

import time as clock
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.draw import Draw, check_shape_options, inverse_cdf, shaped
from unmask.plan import start_time
from unmask.predict import log_mean
from unmask.protocol import for_sampling, inference, logits_at
from unmask.sampling import Sample, Step, apply, check_canvas, generators
from unmask.schedule import Linear, Schedule


@dataclass(frozen=True)
class Answer:
    """What the network said of the asked positions [b, R]: log mu [M, V], in float64, of the M that are no pads."""

    positions: Tensor  # int64 [b, R] on the CPU; pads are -1
    log_mu: Tensor  # float64 [M, V], row by row

    @property
    def real(self) -> Tensor:
        return self.positions >= 0


@dataclass(frozen=True)
class Task:
    """A batch of sequences, and how their tokens are drawn."""

    network: Any
    mask_id: int
    canvas: Tensor  # int64 [B, L]
    random: Sequence[torch.Generator]  # one for each sequence
    schedule: Schedule
    steps: int | None
    draw: Draw
    temperature: float
    top_k: int | None
    top_p: float | None

    def ask(self, x: Tensor, where: Tensor, time: Tensor) -> Answer:
        """Call the network for the sequences of x at the positions where the boolean [b, L] holds."""
        width = int(where.sum(1).max())
        # A stable sort of "not here" brings the wanted positions to the front, in order.
        rows = torch.argsort((~where).to(torch.int8), dim=1, stable=True)[:, :width]
        positions = torch.where(where.gather(1, rows), rows, -1)
        with inference(self.network):
            logits = logits_at(self.network, x, time.to(x.device), positions.clamp(min=0))
            log_mu = log_mean(logits[positions >= 0])
        return Answer(positions.cpu(), log_mu)

    def pick(self, log_mu: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A token for each row of log mu, and its probability under what it was drawn from; both on the CPU."""
        weights = shaped(log_mu, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        ids = self.draw(weights, [self.random[row] for row in rows])
        chosen = weights.gather(1, ids.unsqueeze(1)).squeeze(1) - weights.logsumexp(1)
        return ids.cpu(), chosen.exp().cpu()

    def time_of(self, holes: Tensor) -> Tensor:
        """The time of a canvas with so many holes: alpha^-1(1 - holes/L)."""
        return start_time(holes, self.canvas.shape[1], self.schedule)


class Order(ABC):
    """A sampler whose order depends on the network. Call it like ``unmask.sample``: same arguments, same Sample.

    ``Model.sample(sampler=order)`` works too. ``planned`` of its Steps is a bound on the calls, and the number itself
    where the order knows it. ``ncs`` counts every row that was drawn, those that stayed masked included.
    """

    @abstractmethod
    def most_calls(self, holes: Tensor, task: Task) -> Tensor:
        """A bound on each sequence's network calls, int64 [B]; ValueError for steps that the order cannot take."""

    @abstractmethod
    def run(self, task: Task) -> Iterator[tuple[Tensor, Step]]:
        """One batch: for every network call the rows drawn, int64 [b], and its Step."""

    def __call__(
        self,
        model: Any,
        *,
        num: int = 1,
        length: int | None = None,
        canvas: Tensor | None = None,
        steps: int | None = None,
        draw: Draw = inverse_cdf,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        schedule: Schedule | None = None,
        seed: int | Sequence[int] = 0,
        batch: int | None = None,
        callback: Callable[[Step], object] | None = None,
    ) -> Sample:
        """Fill the masked positions of a canvas, or of ``num`` empty canvases of ``length``; as ``unmask.sample``."""
        started = clock.perf_counter()
        canvas = check_canvas(model, canvas, num, length)
        tokens = canvas.clone()
        nfe, ncs = torch.zeros(2, len(canvas), dtype=torch.int64)
        trace = []
        for drawn, step in self._stream(
            model, canvas, steps=steps, draw=draw, temperature=temperature, top_k=top_k, top_p=top_p,
            schedule=schedule, seed=seed, batch=batch,
        ):  # fmt: skip
            apply(step, tokens, model.mask_id)
            nfe[step.sequences] += 1
            ncs[step.sequences] += drawn
            trace.append(step)
            if callback is not None:
                callback(step)
        assert not bool((tokens == model.mask_id).any()), f"{self!r} left positions masked"
        return Sample(tokens, tuple(trace), nfe, ncs, len(trace), clock.perf_counter() - started)

    def stream(self, model: Any, canvas: Tensor, **options: Any) -> Iterator[Step]:
        """Yield one Step per network call; options as in a call. ``unmask.apply`` turns Steps into tokens."""
        for _, step in self._stream(model, check_canvas(model, canvas, 1, None), **options):
            yield step

    def _stream(
        self,
        model: Any,
        canvas: Tensor,
        *,
        steps: int | None = None,
        draw: Draw = inverse_cdf,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        schedule: Schedule | None = None,
        seed: int | Sequence[int] = 0,
        batch: int | None = None,
    ) -> Iterator[tuple[Tensor, Step]]:
        check_shape_options(temperature, top_k, top_p)
        if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
            raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
        if batch is not None and batch < 1:
            raise ValueError(f"batch must be at least 1, or None for all sequences at once, got {batch}")
        network, random = for_sampling(model), generators(seed, len(canvas))
        whole = Task(
            network, model.mask_id, canvas, random, schedule or Linear(), steps, draw, temperature, top_k, top_p
        )
        calls = self.most_calls((canvas == model.mask_id).sum(1).cpu(), whole)
        # Longest first: the sequences that are still running are then the first ones of the batch, or nearly so.
        order = calls.argsort(descending=True, stable=True)
        size = batch or max(len(order), 1)
        parts = [order[i : i + size] for i in range(0, len(order), size)]
        planned, made = sum(int(calls[part].max()) for part in parts), 0
        for part in parts:
            task = replace(
                whole, network=for_sampling(network), canvas=canvas[part], random=[random[i] for i in part.tolist()]
            )
            for drawn, step in self.run(task):
                made += 1
                yield drawn, replace(step, sequences=part[step.sequences], calls=made, planned=planned)


def filled(
    live: Tensor, positions: Tensor, chosen: Tensor, ids: Tensor, probabilities: Tensor, tau: Tensor,
    hidden: Tensor | None = None,
) -> Step:  # fmt: skip
    """The Step of a call for the sequences ``live`` [b]: of its positions [b, R], those chosen got ids."""
    chosen, positions = chosen[live], positions[live]
    width = int(chosen.sum(1).max()) if len(live) else 0
    at = torch.argsort((~chosen).to(torch.int8), dim=1, stable=True)[:, :width]
    real = chosen.gather(1, at)
    return Step(
        live,
        torch.where(real, positions.gather(1, at), -1),
        torch.where(real, ids[live].gather(1, at), -1),
        torch.where(real, probabilities[live].gather(1, at), 0.0),
        torch.where(real, tau[live].unsqueeze(1), 0.0),
        drawn=real, hidden=hidden, calls=0, planned=0,
    )  # fmt: skip
