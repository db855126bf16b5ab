"""What a kind of network is: how it is sampled, masked, trained and bounded, and what it cannot do.

A network states its process by an attribute ``process``; without one it is masked (``unmask.processes.masked``). Every
front end asks the process, so a new kind of network is one new file. ``Process`` has the behaviour that most kinds
share: a random order, any sampler, maskings by time (Eq. 6) or by count (Eq. 7), and their cross-entropies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from unmask import plan as plans
from unmask import protocol, timing
from unmask.devices import home, upload
from unmask.errors import OptionError
from unmask.forward import beside, check_begins, holes
from unmask.masking import Masking, Uniforms, by_count, by_time, in_order, maskgit_count
from unmask.network import device_of, logits_at, logits_where
from unmask.options import Options
from unmask.plan import Planner
from unmask.protocol import Denoiser, for_sampling
from unmask.sampler import Sampler
from unmask.samplers.ahead import Ahead
from unmask.samplers.planned import Planned
from unmask.schedule import Schedule

By = Literal["count", "time", "order", "mixture", "left-to-right"]
ALONG_ORDERS = ("order", "mixture")  # the chain rule: one network call per token
MASKED_OBJECTIVES = ("time", "count", "mask-predict", "maskgit", "score-entropy")
FIRST_HITTING: Literal["first-hitting"] = "first-hitting"
LEFT_TO_RIGHT: Literal["left-to-right"] = "left-to-right"
FROM_LEFT = "from left to right"


@dataclass(frozen=True)
class Process:
    """A kind of network. The attributes say in words and numbers what front ends need to know."""

    name: ClassVar[str]
    phrase: ClassVar[str]  # "a masked model"
    chooses: ClassVar[bool] = True  # whether the order of positions is free: plans, steps, decoding orders
    continues: ClassVar[bool] = False  # whether it sees only what comes before a position, or before its block
    exact: ClassVar[bool] = False  # whether its likelihood is computed, and not bounded
    draws_length: ClassVar[bool] = False  # whether a text's length is drawn with it
    reads_order: ClassVar[bool] = False  # whether the output depends on the order in which tokens became visible
    joins_counts: ClassVar[bool] = False  # whether counts of neighbours can be joined with it (networks.counted)
    extra_ids: ClassVar[int] = 0  # ids of the network that are no tokens, besides the mask
    objectives: ClassVar[tuple[str, ...]] = MASKED_OBJECTIVES  # of training; the first is the default
    bounds: ClassVar[Mapping[str, str]] = {
        "count": "count (Eq. 7)",
        "time": "time (Eq. 6)",
        "order": "the chain rule along random orders",
        "mixture": "the mean probability over random orders",
    }
    orders: ClassVar[str] = "in a random order"  # how its tokens are drawn, unless from left to right
    in_steps: ClassVar[str] = "parallel"  # the sampler for a given number of steps
    settings: ClassVar[Mapping[str, Any]] = {}  # of the project's network of this kind, besides its attention
    refused: ClassVar[Mapping[str, str]] = {}  # what it cannot do: an option or a use, and a sentence about {it}

    from_left: bool = False  # whether left to right is the default order although it can take any
    first_token: int | None = None  # the id that begins every sequence, if there is one

    # What it cannot do

    def require(self, *uses: str) -> None:
        """Refuse options and uses that this kind of network does not support."""
        for use in uses:
            if use in self.refused:
                raise OptionError(use, self.refused[use].format(it=use.replace("_", " ")))

    def check(self, model: Denoiser, canvas: Tensor, options: Options) -> None:
        """Refuse a canvas int64 [B, L] or options of sampling that this kind of network does not support."""
        self.require(*(one.name for one in fields(Options) if one.name in options.given))
        check_draft(model, options.draft)
        self.check_sampler(options.sampler)
        if self.first_token is not None:
            check_begins(canvas, model.mask_id, self.first_token)
        if self.continues and options.guide is not None and options.guide.everywhere:
            raise OptionError("guide", f"this guide needs every masked position; {self.phrase} computes the next ones")

    def check_sampler(self, sampler: Sampler | None) -> None:
        """Refuse a sampler that states another process."""
        needed = getattr(sampler, "process", self.name)
        if needed != self.name:
            says = f"{type(sampler).__name__} needs a model of the process {needed!r}; this is {self.phrase}"
            raise OptionError("sampler", says)

    def check_bound(self, by: str, where: Tensor | None) -> None:
        """Refuse a way to compute the bound, or given positions (false in ``where`` [B, L]), that it does not have."""
        self.require(f"by={by}", *(["where"] if where is not None else []))

    def check_objective(self, objective: str) -> None:
        """Refuse a training objective that is meant for another kind of network."""
        if objective not in self.objectives:
            known = " or ".join(repr(one) for one in self.objectives)
            raise OptionError("objective", f"{self.phrase} is trained with objective {known}, not {objective!r}")

    # Sampling

    @property
    def order(self) -> str:
        """The order of the positions by default."""
        return LEFT_TO_RIGHT if self.from_left else FIRST_HITTING

    @property
    def default_by(self) -> By:
        """How the distribution is bounded that sampling draws from by default."""
        return LEFT_TO_RIGHT if self.from_left else "count"

    def law(self, by: By) -> str:
        """The distribution whose -log p is bounded, in words: how its tokens are drawn."""
        law, default = (FROM_LEFT if way == LEFT_TO_RIGHT else self.orders for way in (by, self.default_by))
        if self.exact or law == default:
            return default
        return f"{law} (by default, sampling draws {default})"

    def sampler(self, options: Options) -> Sampler:
        """The sampler that the options select."""
        if options.sampler is not None:
            return options.sampler
        plan = self.plan(options)
        if options.guide is not None:
            from unmask.samplers.guided import Guided

            return Guided(plan, options.guide, options.each, options.own_orders)
        return (
            Planned(plan, options.predict)
            if options.window is None
            else Ahead(plan, options.window, None, options.draft)
        )

    def plan(self, options: Options) -> Planner:
        """The plan of the options, or the default one."""
        usual = plans.left_to_right if self.from_left else plans.first_hitting
        plan = options.plan or (usual if options.steps is None else plans.parallel)
        if isinstance(plan, plans.Blocks) and options.predict.corrects:
            raise OptionError("predict", "predict.correct chooses among all masked positions: it takes no plan.Blocks")
        return plan

    # Training and bounds: a masking, and its terms

    def parts(self, batch: int, length: int) -> tuple[int, int]:
        """How many independent processes a batch of sequences has, and how many positions each."""
        return batch, length

    def masking(
        self,
        objective: str,
        u: Uniforms,
        *,
        batch: int,
        length: int,
        schedule: Schedule | None = None,
        where: Tensor | None = None,
        count: tuple[Tensor, Tensor | float | None] | None = None,
    ) -> Masking:
        """The masking of sequences [batch, length] by the uniforms of their ``parts``.

        where: bool [batch, length], the positions that may be masked. count: n and the weight, if these are not drawn
        from u.
        """
        where = beside(where, u.keys)
        if objective in ("time", "score-entropy"):
            return by_time(u.t, u.keys, schedule=schedule, where=where, when=u.when)
        weight: Tensor | float | None = None if objective == "count" else 1.0
        maskable = holes(u.keys, where)
        if count is not None:
            n, weight = count
        elif objective == "maskgit":
            n = maskgit_count(u.t, u.keys.shape[1])
        else:  # a block without maskable positions has none masked
            n = timing.count(u.t, maskable.clamp(min=1)).minimum(maskable)
        return by_count(n, u.keys, u.hits, weight=weight, schedule=schedule, where=where, when=u.when)

    def logits(self, model: Any, x0: Tensor, masking: Masking) -> Tensor:
        """Raw logits [M, V] at the positions with a term."""
        return logits_where(model, masking.hide(x0, model.mask_id), masking.time, masking.masked)

    def summed(self, masking: Masking, values: Tensor) -> Tensor:
        """Values [M] at the positions with a term, summed by weight: [B], or [B, N] for N parts of a sequence."""
        return masking.summed(values)

    def spread(self, masking: Masking, values: Tensor) -> Tensor:
        """The opposite of ``summed``: for each position with a term the value [M] of its weight."""
        return values.flatten()[masking.parts()]

    def terms(self, model: Any, x0: Tensor, masking: Masking, objective: str = "count") -> Tensor:
        """The terms of x0 [B, L], summed by weight: cross-entropies, or SEDD's score entropies."""
        logits, targets = at_least_float32(self.logits(model, x0, masking)), x0[masking.at]
        if objective == "score-entropy":
            return self.summed(masking, score_entropies(model, logits, targets))
        return self.summed(masking, functional.cross_entropy(logits, targets, reduction="none"))

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        """The final states [M, width] of the positions with a term, if the terms are cross-entropies of a linear head.

        Only for networks that compute states at given positions (``training.head``).
        """
        if objective == "score-entropy":
            return None
        return self._states(network, masking.hide(x0, network.mask_id), masking)

    @staticmethod
    def _states(network: Any, x: Tensor, masking: Masking, **more: Tensor | None) -> Tensor:
        states: Tensor = network.states(x, masking.time, masking.at, **more)
        return states

    def validated(self, objective: str) -> str:
        """The objective of validation: the bound of Eq. 7, for every objective of a masked model."""
        return "count"

    def pass_uniforms(self, t: Tensor, u: Tensor) -> Uniforms:
        """The uniforms of passes of a bound, from t [B] and u [B, 3, L]."""
        return Uniforms(t, u[:, 0], u[:, 1])

    def estimate(
        self, model: Any, x0: Tensor, t: Tensor, u: Tensor, by: str, schedule: Schedule, where: Tensor | None
    ) -> Tensor:
        """One pass of the bound of x0 [B, L] in nats, float64 [B], from uniforms t [B] and u [B, 3, L] on the CPU."""
        device, (batch, length) = device_of(model), x0.shape
        if by in ALONG_ORDERS:
            way, time = self.way(u[:, 0], u[:, 1], schedule, where)
            time = None if time is None else upload(time, device)
            return self.along_order(model, upload(x0, device), upload(way, device), time=time).cpu().double()
        drawn = self.pass_uniforms(t, u)
        masking = self.masking(by, drawn, batch=batch, length=length, schedule=schedule, where=where)
        terms = self.terms(model, upload(x0, device), masking.to(device))
        return masking.weighted(terms.cpu().double())

    def way(self, keys: Tensor, hits: Tensor, schedule: Schedule, where: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """A random order of the maskable positions, int64 [B, H], and the time of each call."""
        return in_order(keys, hits, schedule=schedule, where=where)

    def along_order(self, model: Any, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
        """-sum_n log p(x^sigma(n) | x^sigma(<n)), the chain rule along the order sigma int64 [B, K]: [B] nats.

        Positions outside the order are visible throughout. time [B, K] is for a network that reads it.
        """
        x = x0.scatter(1, order, model.mask_id)
        there = home(x0.device)
        total = torch.zeros(len(x0), dtype=torch.float64, device=there)
        for k in range(order.shape[1]):
            position = order[:, k : k + 1]
            here = torch.zeros_like(x0, dtype=torch.bool).scatter(1, position, True)
            logits = logits_where(model, x, None if time is None else time[:, k], here)
            token = x0.gather(1, position)
            exact, target = logits.to(there).double(), token.squeeze(1).to(there)
            total = total + functional.cross_entropy(exact, target, reduction="none")
            x = x.scatter(1, position, token)
        return total

    def per_position(self, model: Denoiser, x0: Tensor, where: Tensor) -> Tensor:
        """-log p(x^l | x^<l) at the positions where ``where`` is true, 0 elsewhere: float64 [B, L] on the CPU.

        One call of the network that sampling would use for each position. What ``where`` leaves out is visible.
        """
        network, x = for_sampling(model), x0.masked_fill(where, model.mask_id)
        nats = torch.zeros(x0.shape, dtype=torch.float64)
        for at in where.any(0).nonzero().squeeze(1).tolist():
            here = where[:, at]
            logits = logits_at(network, x, None, torch.full_like(x0[:, :1], at)).squeeze(1)
            nats[here.cpu(), at] = token_nats(logits[here], x0[here, at])
            x[:, at] = x0[:, at]
        return nats


def check_draft(model: Denoiser, draft: Denoiser | None) -> None:
    """Refuse a draft that is no denoiser of the model's ids."""
    if draft is None:
        return
    try:
        protocol.check(draft)
    except ValueError as error:
        raise OptionError("draft", f"draft: {error}") from None
    ids = (model.vocab_size, model.mask_id)
    if (draft.vocab_size, draft.mask_id) != ids:
        says = f"the draft must have the model's ids, {ids[0]:,} of them and the mask {ids[1]}"
        raise OptionError("draft", f"{says}; it has {draft.vocab_size:,} and the mask {draft.mask_id}")


def at_least_float32(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()


def token_nats(logits: Tensor, tokens: Tensor) -> Tensor:
    """-log p of tokens [M] from logits [M, V], float64 on the CPU."""
    return functional.cross_entropy(at_least_float32(logits), tokens, reduction="none").cpu().double()


def score_entropies(model: Denoiser, logits: Tensor, targets: Tensor) -> Tensor:
    """sum_x e^f_x - f_x0 - 1 for each row [M, V].

    The network's outputs are log-scores, f plus log D for D data tokens, and need not be normalised. Where they are, a
    term is the cross-entropy.
    """
    f = logits - math.log(data_tokens(model))
    return f.exp().sum(-1) - f.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - 1


def data_tokens(model: Denoiser) -> int:
    """How many ids are data: the mask is not one, wherever its id lies."""
    return model.vocab_size - (model.mask_id < model.vocab_size)
