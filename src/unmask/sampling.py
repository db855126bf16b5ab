"""The sampling loop: a sampler requests rows, the network computes them, the sampler fills positions.

``stream`` yields one Step per network call and ``sample`` collects them. A sampler is three functions: ``begin`` draws
everything that needs no network, ``ask`` names the rows of the next call, and ``fill`` turns the result into tokens.
The loop handles batches, counting, callbacks and errors; the server advances the same states. Sequence i of a call with
seed s depends only on (s, i) and the model, not on the batch.
"""

from __future__ import annotations

import inspect
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import torch
from torch import Tensor

from unmask import checks
from unmask import plan as plans
from unmask.draw import Draw, Faults, Pick, exponential_race
from unmask.forward import check_begins, check_continues
from unmask.guide import Guide
from unmask.network import Allowed, answer, inference, leave, waits
from unmask.noise import Streams
from unmask.plan import Blocks, Planner
from unmask.predict import Predictor, correct, first_order
from unmask.protocol import (
    Caches,
    Denoiser,
    block_of,
    first_token_of,
    for_sampling,
    inserts,
    is_left_to_right,
    prefers_left_to_right,
)
from unmask.sampler import InBlocks, Planned, Sampler, SamplingOptions, Skips, State, Step, Task, Window, apply
from unmask.samplers.ahead import Ahead
from unmask.schedule import Linear, Schedule

if TYPE_CHECKING:
    from unmask.samplers.guided import Population

CALLS_BETWEEN_CHECKS = 64  # on an accelerator: reading its results makes it wait


@dataclass(frozen=True, repr=False)
class Sample:
    """Finished sequences and what they cost."""

    tokens: Tensor  # int64 [B, L]
    trace: tuple[Step, ...]
    nfe: Tensor  # int64 [B]: network calls that each sequence took part in
    ncs: Tensor  # int64 [B]: rows that were drawn for each sequence
    calls: int  # network calls in total
    seconds: float
    population: Population | None = None  # of a guided run: the particles, their weights and the evidence

    def __repr__(self) -> str:
        """Three lines: the number of sequences, their cost, and the start of the first one."""
        num, length = self.tokens.shape
        particles = [] if self.population is None else [f"  {self.population}"]
        each = "" if not num else f", {self.nfe.double().mean():.4g} for each sequence"
        return "\n".join(
            (
                f"{type(self).__name__}({num:,} sequence{'s' * (num != 1)} of {length:,} tokens)",
                f"  {self.calls:,} network calls{each}, {int(self.ncs.sum()):,} tokens drawn, {self.seconds:.3g} s",
                *particles,
                f"  {self._beginning()}",
            )
        )

    def _beginning(self) -> str:
        first = self.tokens[0].tolist() if len(self.tokens) else []
        return f"tokens: {first[:12]}{' ...' if len(first) > 12 else ''}"


S = TypeVar("S", bound=Sample)


def sample(
    model: Denoiser,
    *,
    num: int | None = None,
    length: int | None = None,
    canvas: Tensor | None = None,
    allowed: Allowed | list[Allowed] | None = None,
    callback: Callable[[Step], object] | None = None,
    **options: Unpack[SamplingOptions],
) -> Sample:
    """Fill the masked positions of a canvas, or of ``num`` empty canvases of ``length``.

        unmask.sample(model, num=4, length=64, seed=1).tokens
        unmask.sample(model, canvas=canvas, steps=16, predict=unmask.predict.extrapolate)

    Args:
        model: A Denoiser, called as ``model(tokens, time=..., rows=...)``, with ``vocab_size`` and ``mask_id``. No base
            class.
        canvas: Token ids [B, L] with mask_id at masked positions; a tensor, an array or lists. Visible tokens never
            change.
        num: Without a canvas, the number of sequences, by default 1.
        length: Without a canvas, the length of the sequences, by default the model's, if known.
        allowed: ``{position: bool [V]}``, the only ids that may fill a position; or a list of these, one per sequence.
        plan: Which positions are unmasked when. unmask.plan.first_hitting (one token per call, exact, the default),
            plan.parallel (the default with ``steps``), plan.ancestral, plan.left_to_right (the only one for a
            left-to-right model, and the default for one with adapters), or plan.Blocks, block by block (the only one
            for block attention).
        steps: For parallel the maximum number of network calls, for ancestral the N of its grid.
        predict: unmask.predict.first_order, or extrapolate and correct, the second-order variants for ``steps``.
        sampler: One of unmask.samplers, instead of plan and predict; its distribution may differ from the model's.
        ahead: The look-ahead window, or True for an automatic one: the same tokens in fewer calls, for plans that fill
            one token per step.
        stop: The id or ids that end a text. Later positions of the same run of masked positions cost no call and are
            filled with the id.
        draw: How a token is drawn. unmask.draw.exponential_race (exact, the default), inverse_cdf, gumbel(dtype),
            truncated(M).
        temperature: The softmax temperature, by default 1; 0 takes the most likely token.
        top_k: Draw only from the k most likely ids.
        top_p: Draw only from the smallest set of ids with probability p.
        guide: One of unmask.guides, for p(x) h(x) / Z instead of p(x); with a plan and predict.first_order.
        particles: The number of particles per sequence (sequential Monte Carlo), which corrects approximate guides.
        schedule: alpha(t), by default unmask.Linear(); it matters only to networks that read the time.
        seed: An integer, for which sequence i is always the same; or a list with one seed per sequence, each of which
            gives what it gives alone.
        index: Which sequences of the seed to make, by default the first ones.
        batch: The maximum number of sequences per network call, by default all; it changes no token.
        callback: Called with every Step, one for each network call: the positions, tokens and probabilities.

    Returns:
        A Sample: tokens int64 [B, L]; nfe and ncs [B], the network calls and drawn rows of each sequence; calls and
        seconds of the whole run; trace, its Steps.

    Raises:
        ValueError: An argument is invalid.
    """
    started = clock.perf_counter()
    canvas = checks.check_canvas(model, canvas, num, length)
    each = options.get("particles", 1)
    tokens = canvas.repeat_interleave(each, 0) if isinstance(each, int) and each > 1 else canvas.clone()
    nfe, ncs = torch.zeros(2, len(tokens), dtype=torch.int64)
    trace = []
    for step in stream(model, canvas, allowed=allowed, **options):
        apply(step, tokens, model.mask_id)
        nfe[step.sequences] += 1
        ncs[step.sequences] += step.draws
        trace.append(step)
        if callback is not None:
            callback(step)
    if left := int((tokens == model.mask_id).sum()):
        who = options.get("plan") or options.get("sampler")
        raise ValueError(f"{who} left {left} positions masked: it must fill every masked position")
    made = Sample(tokens, tuple(trace), nfe, ncs, len(trace), clock.perf_counter() - started)
    if options.get("guide") is None or not len(canvas):
        return made
    from unmask.samplers.guided import populated

    streams = Streams.of(options.get("seed", 0), len(canvas), options.get("index"))
    made = chosen_particles(made, populated(tokens, trace, each, streams))
    return replace(made, seconds=clock.perf_counter() - started)


def chosen_particles(made: S, population: Population) -> S:
    """One particle of each population, with its Steps and its cost."""
    from unmask.samplers.guided import lineage

    each = population.tokens.shape[1]
    rows = torch.arange(len(population.chosen)) * each + population.chosen
    return replace(
        made,
        tokens=made.tokens[rows.to(made.tokens.device)],
        trace=lineage(made.trace, rows),
        nfe=made.nfe[rows],
        ncs=made.ncs.view(-1, each).sum(1),
        population=population if each > 1 else None,
    )


def stream(
    model: Denoiser,
    canvas: Tensor,
    *,
    allowed: Allowed | list[Allowed] | None = None,
    **options: Unpack[SamplingOptions],
) -> Iterator[Step]:
    """Yield one Step per network call; arguments as in ``sample``. ``apply`` turns Steps into tokens."""
    stop = _stop_ids(model, options.get("stop"))
    sampler, whole, parts = _begun(model, canvas, **options)
    network = for_sampling(model)
    planned, calls = sum(int(whole.calls[part].max()) for part in parts), 0
    for part in parts:
        whose = part.div(options.get("particles", 1), rounding_mode="floor").tolist()
        only = [allowed[i] if isinstance(allowed, list) else allowed for i in whose]
        for step in _run(for_sampling(network), sampler, whole.take(part), only, stop):
            calls += 1
            yield replace(step, sequences=part[step.sequences], calls=calls, planned=max(planned, calls))


def _stop_ids(model: Denoiser, stop: int | Sequence[int] | None) -> tuple[int, ...]:
    if stop is None:
        return ()
    from unmask.stopping import stop_ids

    return stop_ids(stop, model.vocab_size)


def divided(model: Denoiser, canvas: Tensor, **options: Unpack[SamplingOptions]) -> list[list[int]]:
    """The sequences of a canvas that ``sample`` puts into each batch, so that batches can be run one by one.

    ``sample`` of one batch, with its sequences as ``index``, makes the same network calls as for all of them.
    """
    each = options.get("particles", 1)
    return [part[::each].div(each, rounding_mode="floor").tolist() for part in _begun(model, canvas, **options)[2]]


def _begun(
    model: Denoiser,
    canvas: Tensor,
    *,
    plan: Planner | None = None,
    steps: int | None = None,
    predict: Predictor = first_order,
    sampler: Sampler | None = None,
    ahead: Window = None,
    guide: Guide | None = None,
    particles: int = 1,
    stop: int | Sequence[int] | None = None,
    draw: Draw = exponential_race,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    schedule: Schedule | None = None,
    seed: int | Sequence[int] = 0,
    index: Sequence[int] | None = None,
    batch: int | None = None,
) -> tuple[Sampler, State, list[Tensor]]:
    """The sampler to use, the state of its sequences before the first call, and their batches."""
    canvas = checks.check_canvas(model, canvas, None, None)
    checks.choices(plan=plan, predict=predict, draw=draw, sampler=sampler, schedule=schedule)
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or steps < 1):
        raise ValueError(f"steps must be a whole number of at least 1, got {steps!r}")
    if stop is not None and inserts(model):
        raise ValueError("an insertion model draws where a text ends: it takes no stop")
    if stop is not None and particles != 1:
        raise ValueError("particles are compared when all have filled the same positions: they take no stop")
    how: dict[str, Any] = {"predict": predict, "ahead": ahead, "guide": guide, "particles": particles}
    sampler = chosen(model, canvas, plan=plan, steps=steps, sampler=sampler, **how)
    pick, streams = Pick(draw, temperature, top_k, top_p), Streams.of(seed, len(canvas), index)
    state = sampler.begin(canvas, Task(model.mask_id, streams, pick, schedule or Linear(), steps))
    return sampler, state, _batches(state.calls, batch, particles)


def _batches(calls: Tensor, batch: int | None, each: int = 1) -> list[Tensor]:
    """Which sequences share network calls, at most ``batch`` of them, grouped by the number of calls each needs.

    each: the number of particles per sequence, which stay together.
    """
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, or None for all sequences at once, got {batch}")
    # Longest first: the sequences that are still running are then the first ones of the batch, or nearly so.
    order = calls.argsort(descending=True, stable=True)
    size = each * batch if batch else max(len(order), 1)
    return [order[i : i + size] for i in range(0, len(order), size)]


def _run(
    network: Denoiser, sampler: Sampler, state: State, allowed: Sequence[Allowed | None], stop: tuple[int, ...] = ()
) -> Iterator[Step]:
    """One batch of sequences from the first network call to the last."""
    stopping = None
    if stop:
        from unmask.stopping import Stopping

        stopping = Stopping.of(state.x, stop, state.task.mask_id)
    faults = Faults() if waits(state.x.device) else None
    sequences = torch.arange(len(state.x))
    if isinstance(network, Caches):
        network.add(*state.x.shape)
    for call in range(1, 1 << 62):
        ask = sampler.ask(state)
        live = (ask.rows >= 0).any(1)
        if stopping is not None:
            live &= ~stopping.finished(state.x)  # even if the sampler would ask for more
        stay = leave(network, live) if len(sequences) else sequences
        if len(stay) < len(sequences):
            state, ask, sequences = state.take(stay), ask.take(stay), sequences[stay]
            stopping = None if stopping is None else stopping.take(stay)
        if not len(sequences):
            break
        with inference(network), nullcontext() if faults is None else faults.collected():
            step = sampler.fill(state, ask, answer(network, state.x, ask, allowed))
        apply(step, state.x, state.task.mask_id)
        if stopping is not None:
            step = stopping.padded(step, state.x)
            apply(step, state.x, state.task.mask_id)
            if isinstance(sampler, Skips):
                sampler.skip(state, stopping.needless(state.x))
        if faults is not None and call % CALLS_BETWEEN_CHECKS == 0:
            faults.check()
        yield replace(step, sequences=sequences[step.sequences])
    if faults is not None:
        faults.check()


def chosen(
    model: Denoiser,
    canvas: Tensor,
    *,
    plan: Planner | None = None,
    steps: int | None = None,
    predict: Predictor = first_order,
    sampler: Sampler | None = None,
    ahead: Window = None,
    guide: Guide | None = None,
    particles: int = 1,
) -> Sampler:
    """The sampler that the arguments of ``sample`` select."""
    masked, in_turn, block = canvas == model.mask_id, is_left_to_right(model), block_of(model)
    if (first := first_token_of(model)) is not None:
        check_begins(canvas, model.mask_id, first)
    second_order, looks = predict is not first_order, not (ahead is None or ahead is False)
    checks.together(plan, predict, sampler, looks, guide, particles)
    if guide is not None and guide.everywhere and (in_turn or block is not None):
        raise ValueError("this guide looks at all masked positions, and the network answers for the next ones alone")
    if inserts(model):
        from unmask.samplers.insertion import Insertion

        checks.insertion(model, canvas, plan, steps, predict, sampler, looks, guide)
        return sampler or Insertion()
    if in_turn:
        plan = checks.left_to_right(masked, plan, steps, predict, sampler)
    if block is not None:
        check_continues(masked, block)
        if looks or second_order:
            raise ValueError(
                "attention by blocks answers for one block at a time: it cannot be combined with ahead or predict"
            )
    if sampler is not None:
        return sampler if block is None else _by_blocks(sampler, block)
    if plan is None and steps is None and prefers_left_to_right(model):
        plan = plans.left_to_right
    plan = _planner(plan, steps, predict, block)
    if guide is not None:
        from unmask.samplers.guided import Guided

        return Guided(plan, guide, particles)
    if not looks:
        return Planned(plan, predict)
    if second_order:
        raise ValueError("ahead is for predict.first_order: with one token per step the second order adds nothing")
    return Ahead(plan, "auto" if ahead is True or ahead is None else ahead)


def _planner(plan: Planner | None, steps: int | None, predict: Predictor, block: int | None) -> Planner:
    """The plan, or the default one; block by block where the network has blocks."""
    plan = plan or (plans.first_hitting if steps is None else plans.parallel)
    if block is not None and not isinstance(plan, Blocks):
        plan = Blocks(block, plan)
    if isinstance(plan, Blocks) and block not in (None, plan.size):
        raise ValueError(f"plan.Blocks({plan.size}) does not fit the network: its blocks have {block} positions")
    if isinstance(plan, Blocks) and predict is correct:
        raise ValueError("predict.correct chooses again among all masked positions: it takes no plan by blocks")
    return plan


def _by_blocks(sampler: Sampler, block: int) -> Sampler:
    """The sampler in the form that a network with block attention needs."""
    if not isinstance(sampler, InBlocks):
        raise ValueError(
            f"{type(sampler).__name__} fills positions all over the canvas; attention by blocks takes plans and "
            "decoding orders that can go from block to block"
        )
    return sampler.in_blocks(block)


DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(_begun).parameters.items()}
checks.show_options(sample, SamplingOptions, DEFAULTS)
checks.show_options(stream, SamplingOptions, DEFAULTS)
checks.show_options(divided, SamplingOptions, DEFAULTS)
