"""The loop that joins Plan, Predict and Draw.

``stream`` yields one Step per network call and ``sample`` collects them. Sequence i of a call with seed s depends on
(s, i) and the model alone: not on the batch, nor on what it shares it with.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask import plan as plans
from unmask import predict as predictors
from unmask.draw import Draw, Faults, check_shape_options, inverse_cdf, shaped
from unmask.noise import generator
from unmask.plan import Ask, Plan, Planner
from unmask.predict import Prediction, Predictor, log_mean
from unmask.protocol import check, device_of, for_sampling, inference, length_of, logits_of
from unmask.schedule import Linear, Schedule

Pick = Callable[[Tensor, Sequence[torch.Generator]], tuple[Tensor, Tensor]]

CALLS_BETWEEN_CHECKS = 64  # of an accelerator: looking at what it computed makes it wait


@dataclass(frozen=True)
class Step:
    """What one call of the network did. R is the most positions that a sequence filled; pads are -1."""

    sequences: Tensor  # int64 [b]: which sequences the call was for
    positions: Tensor  # int64 [b, R]: filled after the call
    tokens: Tensor  # int64 [b, R]: with these
    probabilities: Tensor  # float64 [b, R]: their probabilities under what they were drawn from; 1 if carried over
    tau: Tensor  # float64 [b, R]: their hitting times
    drawn: Tensor  # bool [b, R]: drawn in this call, not carried over
    hidden: Tensor | None  # int64 [b, H]: masked again before the filling (Algorithm 4)
    calls: int  # network calls so far, this one included
    planned: int  # network calls of the whole run: known before the first


@dataclass(frozen=True)
class Sample:
    """Finished sequences and what they cost."""

    tokens: Tensor  # int64 [B, L]
    trace: tuple[Step, ...]
    nfe: Tensor  # int64 [B]: network calls that each sequence took part in
    ncs: Tensor  # int64 [B]: rows that were drawn for each sequence
    calls: int  # network calls in total
    seconds: float


def sample(
    model: Any,
    *,
    num: int = 1,
    length: int | None = None,
    canvas: Tensor | None = None,
    plan: Planner = plans.first_hitting,
    steps: int | None = None,
    predict: Predictor = predictors.first_order,
    draw: Draw = inverse_cdf,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    schedule: Schedule | None = None,
    seed: int | Sequence[int] = 0,
    batch: int | None = None,
    callback: Callable[[Step], object] | None = None,
) -> Sample:
    """Fill the masked positions of a canvas, or of ``num`` empty canvases of ``length``.

    canvas: int64 [B, L] with mask_id at the holes. plan: plan.first_hitting (one token per call, exact),
    plan.parallel or plan.ancestral with ``steps``. seed: one number for the whole call, or one per sequence, which is
    then what that seed gives alone. batch: at most so many sequences per network call. callback: gets every Step.
    """
    started = clock.perf_counter()
    canvas = check_canvas(model, canvas, num, length)
    tokens = canvas.clone()
    nfe, ncs = torch.zeros(2, len(canvas), dtype=torch.int64)
    trace = []
    for step in stream(
        model, canvas, plan=plan, steps=steps, predict=predict, draw=draw, temperature=temperature, top_k=top_k,
        top_p=top_p, schedule=schedule, seed=seed, batch=batch,
    ):  # fmt: skip
        apply(step, tokens, model.mask_id)
        nfe[step.sequences] += 1
        ncs[step.sequences] += step.drawn.sum(1)
        trace.append(step)
        if callback is not None:
            callback(step)
    if left := int((tokens == model.mask_id).sum()):
        raise ValueError(f"plan={plan!r} left {left} positions masked: a plan must order every masked position")
    return Sample(tokens, tuple(trace), nfe, ncs, len(trace), clock.perf_counter() - started)


def stream(
    model: Any,
    canvas: Tensor,
    *,
    plan: Planner = plans.first_hitting,
    steps: int | None = None,
    predict: Predictor = predictors.first_order,
    draw: Draw = inverse_cdf,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    schedule: Schedule | None = None,
    seed: int | Sequence[int] = 0,
    batch: int | None = None,
) -> Iterator[Step]:
    """Yield one Step per network call; arguments as in ``sample``. ``apply`` turns Steps into tokens."""
    canvas = check_canvas(model, canvas, 1, None)
    check_shape_options(temperature, top_k, top_p)
    if not isinstance(predict, Predictor):
        raise ValueError(f"predict must be first_order, extrapolate or correct of unmask.predict, got {predict!r}")
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, or None for all sequences at once, got {batch}")
    network = for_sampling(model)
    random = generators(seed, len(canvas))
    whole = plan(canvas, mask_id=model.mask_id, generators=random, schedule=schedule or Linear(), steps=steps)
    whole = predict.prepare(whole, random)
    # Longest first: the sequences that are still running are then the first ones of the batch.
    order = whole.calls.argsort(descending=True, stable=True)
    size = batch or max(len(order), 1)
    parts = [order[i : i + size] for i in range(0, len(order), size)]
    planned = sum(int(whole.calls[part].max()) for part in parts)

    as_predicted = predict.combine is predictors.first_order.combine

    def pick(log_weights: Tensor, rows: Sequence[torch.Generator]) -> tuple[Tensor, Tensor]:
        logits = shaped(log_weights, temperature=temperature, top_k=top_k, top_p=top_p)
        ids = draw(logits, rows)
        chosen = logits.gather(1, ids.unsqueeze(1)).squeeze(1)
        normalised = as_predicted and logits is log_weights  # log mu itself
        return ids, chosen.exp() if normalised else (chosen - logits.logsumexp(1)).exp()

    calls = 0
    for part in parts:
        rows = [random[i] for i in part.tolist()]
        for step in _run(for_sampling(network), canvas[part], whole.rows(part), predict, pick, rows):
            calls += 1
            yield replace(step, sequences=part[step.sequences], calls=calls, planned=planned)


def _run(
    model: Any, x: Tensor, plan: Plan, predict: Predictor, pick: Pick, random: Sequence[torch.Generator]
) -> Iterator[Step]:
    """Plan, predict, draw: one batch of sequences, longest first, from the first network call to the last."""
    x, before, calls = x.clone(), None, plan.calls.tolist()
    faults = Faults() if waits(x.device) else None
    for s in range(plan.call_time.shape[1]):
        live = sum(1 for last in calls if last > s)
        if live < len(x):
            x, plan = x[:live], plan.rows(slice(live))
        now = torch.full((live,), s)
        ask = plan.ask(now)
        ahead = plan.ask(now + 1) if predict.lookahead else None
        row, column = ask.drawn.nonzero(as_tuple=True)
        with inference(model), nullcontext() if faults is None else faults.collected():
            log_mu, log_mu_ahead = _log_means(model, x, plan.call_time[:, s], ask, ahead)
            at = Prediction(log_mu, plan.call_time[row, s].to(x.device))
            log_weights = predict.combine(at, before, ask.tau[row, column].to(x.device))
            ids, probabilities = pick(log_weights, [random[i] for i in row.tolist()])
            if ahead is not None and log_mu_ahead is not None:
                before = Prediction(log_mu_ahead, plan.call_time[ahead.drawn.nonzero()[:, 0], s].to(x.device))
        step = _step(ask, x, row, column, ids, probabilities)
        apply(step, x, model.mask_id)
        if faults is not None and ((s + 1) % CALLS_BETWEEN_CHECKS == 0 or s + 1 == plan.call_time.shape[1]):
            faults.check()
        yield step


def _log_means(model: Any, x: Tensor, time: Tensor, ask: Ask, ahead: Ask | None) -> tuple[Tensor, Tensor | None]:
    """One network call: log mu at the rows drawn now, and at those of the next call if they are wanted."""
    time, width = time.to(x.device), ask.positions.shape[1]
    if ahead is None:
        return log_mean(logits_of(model, x, time, ask.positions.clamp(min=0).to(x.device), ask.drawn)), None
    asked, drawn = torch.cat([ask.positions, ahead.positions], 1), torch.cat([ask.drawn, ahead.drawn], 1)
    log_mu = log_mean(logits_of(model, x, time, asked.clamp(min=0).to(x.device), drawn))
    later = drawn.nonzero()[:, 1] >= width
    return log_mu[~later], log_mu[later]


def waits(device: torch.device) -> bool:
    """Whether looking at a number there means to wait for everything that was asked of the device before."""
    return device.type != "cpu"


def _step(ask: Ask, x: Tensor, row: Tensor, column: Tensor, ids: Tensor, probabilities: Tensor) -> Step:
    """A call's outcome: what was drawn, and beside it what is carried over from the canvas (Eq. 4)."""
    positions = ask.positions.to(x.device)
    real = positions >= 0
    tokens = torch.where(real, x.gather(1, positions.clamp(min=0)), -1)
    certain = real.double()
    tokens[row, column], certain[row, column] = ids, probabilities
    return Step(torch.arange(len(x)), ask.positions, tokens, certain, ask.tau, ask.drawn, ask.hidden, 0, 0)


def apply(step: Step, tokens: Tensor, mask_id: int) -> Tensor:
    """Write a Step into the canvas it belongs to, in place: first what it hides, then what it fills."""
    if step.hidden is not None:
        row, column = (step.hidden >= 0).nonzero(as_tuple=True)
        tokens[step.sequences[row], step.hidden[row, column]] = mask_id
    row, column = (step.positions >= 0).nonzero(as_tuple=True)
    tokens[step.sequences[row], step.positions[row, column]] = step.tokens[row, column].to(tokens.device)
    return tokens


def generators(seed: int | Sequence[int], num: int) -> list[torch.Generator]:
    """One generator per sequence: sequence i of seed s has the i-th stream of s, alone or in any company."""
    if not isinstance(seed, Sequence):
        return [generator(i, _checked(seed)) for i in range(num)]
    if len(seed) != num:
        raise ValueError(f"seed must be one number or one per sequence: {num} sequences, {len(seed)} seeds")
    return [generator(0, _checked(one)) for one in seed]


def _checked(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}")
    return seed


def check_canvas(model: Any, canvas: Tensor | None, num: int, length: int | None) -> Tensor:
    """The canvas on the model's device, int64 [B, L], with every id one that the model knows."""
    check(model)
    if canvas is None:
        length = length_of(model) if length is None else length
        if length is None:
            raise ValueError("give length, the number of tokens, or a canvas with mask_id at the holes")
        if length < 0 or num < 0:
            raise ValueError(f"num and length must be at least 0, got num={num} and length={length}")
        return torch.full((num, length), model.mask_id, dtype=torch.int64, device=device_of(model))
    if not isinstance(canvas, Tensor) or canvas.ndim != 2 or canvas.dtype != torch.int64:
        what = f"{canvas.dtype} {tuple(canvas.shape)}" if isinstance(canvas, Tensor) else type(canvas).__name__
        raise ValueError(f"canvas must be an int64 tensor [batch, length], got {what}")
    if length is not None and length != canvas.shape[1]:
        raise ValueError(f"length={length} contradicts the canvas, which has {canvas.shape[1]} positions")
    known = (canvas >= 0) & ((canvas < model.vocab_size) | (canvas == model.mask_id))
    if not bool(known.all()):
        raise ValueError(
            f"canvas has ids that the model does not know, the first is {int(canvas[~known][0])}; allowed are "
            f"0..{model.vocab_size - 1} and the mask {model.mask_id}"
        )
    return canvas.to(device_of(model))
