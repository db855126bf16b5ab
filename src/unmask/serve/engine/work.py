"""One request as the engine sees it: a canvas, a plan for each of its sequences, and how its tokens are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unmask import plan as plans
from unmask.draw import Draw, check_shape_options, inverse_cdf, shaped
from unmask.plan import Plan
from unmask.predict import Prediction, Predictor, first_order
from unmask.protocol import Caches, LooksAhead, device_of, follows_order, for_sampling, remembers
from unmask.samplers import Remasking
from unmask.samplers.law import coupled_by_law
from unmask.sampling import Step, check_canvas, generators
from unmask.text.blanks import Blanks, spaces
from unmask.text.model import Model, TextSample

Callback = Callable[[Step], object]


@dataclass(frozen=True, eq=False)
class Served:
    """A model that is being served, and what a run of sampling should call."""

    model: Model
    card: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def network(self) -> Any:
        return for_sampling(self.model.denoiser)

    @property
    def kind(self) -> str:
        if self.model.left_to_right:
            return "left-to-right"
        return "any-order" if follows_order(self.model.denoiser) else "masked"

    @property
    def forgetful(self) -> bool:
        """Whether sequences of different requests may share its calls: it remembers nothing, or its seats do."""
        return isinstance(self.network, Caches) or not remembers(self.network)

    @property
    def cached(self) -> bool:
        """Whether tokens that have been read need not be read again."""
        return isinstance(self.network, LooksAhead)

    @cached_property
    def begins_with_space(self) -> Tensor:
        """The ids that may stand where a space belongs to the token: bool [V]."""
        allowed = spaces(self.model.tokenizer, self.model.denoiser.vocab_size)
        return allowed.to(device_of(self.model.denoiser))


@dataclass(frozen=True)
class Style:
    """How a token is drawn from a distribution."""

    draw: Draw = inverse_cdf
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def pick(self, log_weights: Tensor, rows: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
        """An id for each row [M, V], and its probability under what it was drawn from; as ``unmask.sample`` does."""
        logits = shaped(log_weights, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        ids = self.draw(logits, rows)
        chosen = logits.gather(1, ids.unsqueeze(1)).squeeze(1)
        return ids, (chosen - logits.logsumexp(1)).exp()


@dataclass(frozen=True)
class Work:
    """What a request asks, with every name resolved.

    chosen: the keyword arguments of ``Model.sample``. alone: the request as ``Model.sample`` or ``Model.infill`` runs
    it, for samplers that have a loop of their own.
    """

    served: Served
    number: int
    seed: int
    canvas: tuple[int, ...]  # the mask id in the holes
    blanks: Blanks | None
    chosen: Mapping[str, Any]
    alone: Callable[[Model, Callback], TextSample]

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def holes(self) -> int:
        return self.canvas.count(self.model.denoiser.mask_id)

    @property
    def planned(self) -> bool:
        """Whether everything but the tokens can be drawn now, so that the engine can serve it with others."""
        return "sampler" not in self.chosen and self.served.forgetful

    @property
    def settles(self) -> bool:
        """Whether a token that is there stays: Algorithm 4 and remasking take tokens back."""
        predict = self.chosen.get("predict") or first_order
        return predict.prepare is first_order.prepare and not isinstance(self.chosen.get("sampler"), Remasking)

    @property
    def most_calls(self) -> int:
        """A bound on the network calls of a sampler that is not planned; by the law, about what it takes."""
        steps, sampler = self.chosen.get("steps"), self.chosen.get("sampler")
        if steps is None:
            return self.holes
        if sampler is coupled_by_law:  # no step in which nothing happens, and a token or two refused for one that stays
            return min(int(steps), 3 * self.holes)
        return int(steps) if sampler is not None else min(int(steps), self.holes)


@dataclass(eq=False)
class Filling:
    """A sequence that is being filled: its plan, drawn before the first network call, and how far it is."""

    owner: Any
    index: int  # which sequence of its request
    canvas: Tensor  # int64 [L]
    plan: Plan  # of one row
    predict: Predictor
    style: Style
    random: torch.Generator
    spaced: frozenset[int]  # positions that only ``allowed`` may fill
    allowed: Tensor | None
    watched: bool  # somebody wants to know of every step
    step: int = 0  # calls made
    ncs: int = 0
    before: Prediction | None = None  # the last call's answer at this step's rows, for Algorithm 3
    started: float = 0.0  # the clock when it got its place

    @cached_property
    def calls(self) -> int:
        """The network calls it takes: known before the first."""
        return int(self.plan.calls[0])

    @cached_property
    def call_time(self) -> list[float]:
        return self.plan.call_time[0].tolist()

    @cached_property
    def widest(self) -> int:
        """The most rows that it asks of a call."""
        sizes = [*self.plan.starts[0].diff().tolist(), 0]
        neighbours = self.plan.tentative is not None or self.predict.lookahead
        return max((a + b * neighbours for a, b in pairwise(sizes)), default=0)

    @property
    def unread(self) -> int:
        """The tokens of a prompt that a cache has yet to read."""
        return 0 if self.step else len(self.canvas) - int(self.plan.holes[0])


def fillings(work: Work, owner: Any, watched: bool) -> list[Filling]:
    """Draw everything that does not need the network: one plan per sequence, as ``unmask.sample`` draws it."""
    model, chosen, network = work.model, work.chosen, work.model.denoiser
    canvas = check_canvas(network, torch.tensor(work.canvas, dtype=torch.int64).expand(work.number, -1), 1, None)
    random = generators(work.seed, work.number)
    predict = chosen.get("predict") or first_order
    if model.left_to_right:
        whole = left_to_right(canvas, network.mask_id)
    else:
        steps = chosen.get("steps")
        planner = chosen.get("plan") or (plans.first_hitting if steps is None else plans.parallel)
        schedule = chosen.get("schedule") or model.schedule
        whole = planner(canvas, mask_id=network.mask_id, generators=random, schedule=schedule, steps=steps)
        whole = predict.prepare(whole, random)
    temperature, top_k, top_p = chosen.get("temperature", 1.0), chosen.get("top_k"), chosen.get("top_p")
    check_shape_options(temperature, top_k, top_p)
    style = Style(chosen.get("draw") or inverse_cdf, temperature, top_k, top_p)
    spaced = frozenset(work.blanks.spaced) if work.blanks else frozenset()
    allowed = work.served.begins_with_space if spaced else None
    return [
        Filling(owner, i, canvas[i], whole.rows(slice(i, i + 1)), predict, style, random[i], spaced, allowed, watched)
        for i in range(work.number)
    ]


def trial(served: Served) -> Work:
    """One network call, to know what one costs: of a whole canvas, or of one token where there is a cache."""
    mask_id = served.model.denoiser.mask_id
    length = 1 if served.cached else served.model.length or 1
    canvas = (*[0 if mask_id else 1] * (length - 1), mask_id)

    def alone(model: Model, callback: Callback) -> TextSample:
        return model.sample(canvas=torch.tensor([canvas]), callback=callback)

    return Work(served, 1, 0, canvas, None, {}, alone)


def left_to_right(canvas: Tensor, mask_id: int) -> Plan:
    """The plan of a left-to-right model: the holes from the first to the last, at tau = 1 - l/L."""
    masked = (canvas == mask_id).cpu()
    length = masked.shape[1]
    order = torch.where(masked, torch.arange(length), length).sort(1).values
    real = order < length
    times = torch.where(real, 1 - order.double() / max(length, 1), 0.0)
    most = int(masked.sum(1).amax()) if masked.numel() else 0
    step = torch.where(real, torch.arange(length), -1)
    return Plan(torch.where(real, order, -1), times, step, times[:, :most])
