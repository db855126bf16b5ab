"""The sampling loop: a sampler requests rows, the network computes them, the sampler fills positions.

``stream`` yields one Step per network call and ``sample`` collects them. A sampler is three functions: ``begin`` draws
everything that needs no network, ``ask`` names the rows of the next call, and ``fill`` turns the result into tokens.
The loop handles batches, counting, callbacks and errors; the server advances the same states. Sequence i of a call with
seed s depends only on (s, i) and the model, not on the batch.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from unmask import checks
from unmask.draw import Faults, Pick
from unmask.errors import OptionError
from unmask.network import answer, device_of, inference, leave, waits
from unmask.noise import Streams
from unmask.options import Canvas, Options, takes
from unmask.processes import process_of
from unmask.protocol import Allowed, Caches, Denoiser, LooksAhead, for_sampling
from unmask.sampler import Sampler, Skips, State, Step, Task, apply

if TYPE_CHECKING:
    from unmask.samplers.guided import Population
    from unmask.stopping import Stopping

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


@dataclass(frozen=True, kw_only=True)
class Watched(Options):
    """Options of sampling that returns when it is done."""

    callback: Callable[[Step], object] | None = None
    """Called with every Step, one for each network call: the positions, tokens and probabilities."""


@dataclass(frozen=True, kw_only=True)
class Request(Watched):
    """The arguments of ``sample`` besides the model."""

    num: int | None = None
    """Without a canvas, the number of sequences, by default 1."""
    length: int | None = None
    """Without a canvas, the length of the sequences, by default the model's, if known."""
    canvas: Canvas | None = None
    """Token ids [B, L] with mask_id at masked positions; a tensor, an array or lists. Visible tokens never change."""


@takes(Request)
def sample(model: Denoiser, request: Request) -> Sample:
    """Fill the masked positions of a canvas, or of ``num`` empty canvases of ``length``.

        unmask.sample(model, num=4, length=64, seed=1).tokens
        unmask.sample(model, canvas=canvas, steps=16, predict=unmask.predict.extrapolate)

    Args:
        model: A Denoiser, called as ``model(tokens, time=..., rows=...)``, with ``vocab_size`` and ``mask_id``. No base
            class.
        **options: The fields of ``Request``, each with its help text.

    Returns:
        A Sample: tokens int64 [B, L]; nfe and ncs [B], the network calls and drawn rows of each sequence; calls and
        seconds of the whole run; trace, its Steps.

    Raises:
        OptionError: An option is invalid, or the model does not support it. It is a ValueError.
    """
    return filled(model, request)


def filled(model: Denoiser, request: Request) -> Sample:
    """``sample`` of a Request."""
    started, each = clock.perf_counter(), request.each
    canvas = checks.check_canvas(model, request.canvas, request.num, request.length)
    tokens = canvas.repeat_interleave(each, 0) if each > 1 else canvas.clone()
    nfe, ncs = torch.zeros(2, len(tokens), dtype=torch.int64)
    trace = []
    for step in steps_of(model, canvas, request):
        apply(step, tokens, model.mask_id)
        nfe[step.sequences] += 1
        ncs[step.sequences] += step.draws
        trace.append(step)
        if request.callback is not None:
            request.callback(step)
    if left := int((tokens == model.mask_id).sum()):
        who = request.plan or request.sampler
        raise ValueError(f"{who} left {left} positions masked: it must fill every masked position")
    done = Sample(tokens, tuple(trace), nfe, ncs, len(trace), clock.perf_counter() - started)
    if request.guide is None or not len(canvas):
        return done
    from unmask.samplers.guided import populated

    streams = Streams.of(request.seed, len(canvas), request.index)
    done = chosen_particles(done, populated(tokens, trace, each, streams))
    weighed = each > 1 or (request.guide.tilts and not request.guide.races and request.pick == Pick(request.draw))
    population = done.population if weighed else None  # otherwise the weights are not those of p h / Z
    return replace(done, population=population, seconds=clock.perf_counter() - started)


def chosen_particles(run: S, population: Population) -> S:
    """One particle of each population, with its Steps and its cost."""
    from unmask.samplers.guided import lineage

    each = population.tokens.shape[1]
    rows = torch.arange(len(population.chosen)) * each + population.chosen
    return replace(
        run,
        tokens=run.tokens[rows.to(run.tokens.device)],
        trace=lineage(run.trace, rows),
        nfe=run.nfe[rows],
        ncs=run.ncs.view(-1, each).sum(1),
        population=population,
    )


@dataclass(frozen=True)
class OnCanvas(Options):
    """The arguments of ``stream`` and ``divided`` besides the model."""

    canvas: Canvas
    """Token ids [B, L] with mask_id at masked positions."""


@takes(OnCanvas)
def stream(model: Denoiser, request: OnCanvas) -> Iterator[Step]:
    """Yield one Step per network call; options as in ``sample``. ``apply`` turns Steps into tokens."""
    return steps_of(model, checks.check_canvas(model, request.canvas, None, None), request)


@takes(OnCanvas)
def divided(model: Denoiser, request: OnCanvas) -> list[list[int]]:
    """The sequences of a canvas that ``sample`` puts into each batch, so that batches can be run one by one.

    ``sample`` of one batch, with its sequences as ``index``, makes the same network calls as for all of them.
    """
    each = request.each
    canvas = checks.check_canvas(model, request.canvas, None, None)
    return [part[::each].div(each, rounding_mode="floor").tolist() for part in _begun(model, canvas, request)[2]]


def steps_of(model: Denoiser, canvas: Tensor, options: Options) -> Iterator[Step]:
    """The Steps of all batches."""
    stop, each, allowed = _stop_ids(model, options.stop), options.each, options.allowed
    network = for_sampling(model)
    sampler, whole, parts = _begun(model, canvas, options, network)
    planned, calls = sum(int(whole.calls[part].max()) for part in parts), 0
    for part in parts:
        whose = part.div(each, rounding_mode="floor").tolist()
        only = [allowed[i] if isinstance(allowed, list) else allowed for i in whose]
        for step in _run(for_sampling(network), sampler, whole.take(part), only, device_of(model), stop):
            calls += 1
            yield replace(step, sequences=part[step.sequences], calls=calls, planned=max(planned, calls))


def _stop_ids(model: Denoiser, stop: int | Sequence[int] | None) -> tuple[int, ...]:
    if stop is None:
        return ()
    from unmask.stopping import stop_ids

    return stop_ids(stop, model.vocab_size)


def _begun(
    model: Denoiser, canvas: Tensor, options: Options, network: Denoiser | None = None
) -> tuple[Sampler, State, list[Tensor]]:
    """The sampler to use, the state of its sequences before the first call, and their batches.

    network: the model as it is called, which decides how far it is worth looking ahead.
    """
    sampler = sampler_for(model, canvas, options)
    streams = Streams.of(options.seed, len(canvas), options.index)
    chains = isinstance(model if network is None else network, LooksAhead)
    stop = _stop_ids(model, options.stop)
    task = Task(model.mask_id, streams, options.pick, options.alpha, options.steps, stop, chains)
    state = sampler.begin(canvas, task)
    return sampler, state, _batches(state.calls, options.batch, options.each)


def sampler_for(model: Denoiser, canvas: Tensor, options: Options) -> Sampler:
    """The sampler that the options select for this kind of network; what it does not support is refused."""
    process = process_of(model)
    process.check(model, canvas, options)
    check_ids(options, model.vocab_size)
    return process.sampler(options)


def check_ids(options: Options, vocab_size: int) -> None:
    """Refuse ids that the network does not know."""
    for token in options.logit_bias or {}:
        if token >= vocab_size:
            raise OptionError("logit_bias", f"logit_bias has the id {token}: allowed are 0..{vocab_size - 1}")


def _batches(calls: Tensor, batch: int | None, each: int = 1) -> list[Tensor]:
    """Which sequences share network calls, at most ``batch`` of them, grouped by the number of calls each needs.

    each: the number of particles per sequence, which stay together.
    """
    # Longest first: the sequences that are still running are then the first ones of the batch, or nearly so.
    order = calls.argsort(descending=True, stable=True)
    size = each * batch if batch else max(len(order), 1)
    return [order[i : i + size] for i in range(0, len(order), size)]


def _run(
    network: Denoiser,
    sampler: Sampler,
    state: State,
    allowed: Sequence[Allowed | None],
    device: torch.device,
    stop: tuple[int, ...] = (),
) -> Iterator[Step]:
    """One batch of sequences from the first network call to the last, by a network on a device."""
    stopping, shown = None, state.x.cpu() if stop else state.x  # on the CPU, where ends are looked for
    if stop:
        from unmask.stopping import Stopping

        stopping = Stopping.of(shown, stop, state.task.mask_id)
    faults = Faults() if waits(state.x.device) else None
    sequences = torch.arange(len(state.x))
    if isinstance(network, Caches):
        network.add(*state.x.shape)
    for call in range(1, 1 << 62):
        ask = sampler.ask(state)
        live = (ask.rows >= 0).any(1)
        if stopping is not None:
            live &= ~stopping.finished(shown)  # even if the sampler would ask for more
        stay = leave(network, live) if len(sequences) else sequences
        if len(stay) < len(sequences):
            state, ask, sequences = state.take(stay), ask.take(stay), sequences[stay]
            stopping, shown = None if stopping is None else stopping.take(stay), shown[stay] if stop else shown
        if not len(sequences):
            break
        with inference(network), nullcontext() if faults is None else faults.collected():
            step = sampler.fill(state, ask, answer(network, state.x, ask, allowed, device=device))
        state.advance(step)
        if stopping is not None:
            step, shown = _ended(stopping, state, step, shown)
            if isinstance(sampler, Skips):
                sampler.skip(state, stopping.needless(shown))
        if faults is not None and call % CALLS_BETWEEN_CHECKS == 0:
            faults.check()
        yield replace(step, sequences=sequences[step.sequences]).on(state.x.device)
    if faults is not None:
        faults.check()


def _ended(stopping: Stopping, state: State, step: Step, shown: Tensor) -> tuple[Step, Tensor]:
    """The Step that also fills what is behind the ends it drew, and the canvas after it on the CPU."""
    mask_id = state.task.mask_id
    step = replace(step, tokens=step.tokens.cpu())  # the one time that the host waits for the call
    more = stopping.padded(step, shown := apply(step, shown, mask_id))
    if more is step:
        return step, shown
    state.advance(more)
    return more, apply(more, shown, mask_id)
