"""Sampling from a left-to-right model as ``unmask.sample`` does from a masked one: the same Steps, the same Sample."""

from __future__ import annotations

import itertools
import time as clock
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.draw import Draw, check_shape_options, inverse_cdf, shaped
from unmask.protocol import device_of, for_sampling, inference
from unmask.sampling import Sample, Step, generators

if TYPE_CHECKING:
    from unmask.models.causal import Causal


def generate(
    network: Causal,
    num: int,
    length: int | None = None,
    *,
    prompt: Tensor | None = None,
    first: Tensor | None = None,
    draw: Draw = inverse_cdf,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | Sequence[int] = 0,
    batch: int | None = None,
    callback: Callable[[Step], object] | None = None,
) -> Sample:
    """One token per call with the KV cache, every draw kept as a Step with tau = 1 - l/L.

    prompt: int64 [P] or [num, P], the beginning of every sequence. first: bool [V], the ids that may follow it.
    """
    started = clock.perf_counter()
    if batch is not None and batch < 1:
        raise ValueError(f"batch must be at least 1, or None for all sequences at once, got {batch}")
    length = network.length if length is None else length
    known = 0 if prompt is None else prompt.shape[-1]
    if num < 0 or length < 0:
        raise ValueError(f"num and length must be at least 0, got num={num} and length={length}")
    if prompt is not None and prompt.dtype != torch.int64:
        raise ValueError(f"prompt must be int64, got {prompt.dtype}")
    if known > length:
        raise ValueError(f"the prompt has {known} tokens, more than length={length}")
    check_shape_options(temperature, top_k, top_p)
    random = generators(seed, num)
    size = batch or max(num, 1)
    parts = [torch.arange(start, min(start + size, num)) for start in range(0, num, size)]
    planned = len(parts) * max(length - known, 0)
    trace: list[Step] = []

    def recording(part: Tensor) -> Draw:
        position = itertools.count(known)

        def pick(logits: Tensor, rows: Sequence[torch.Generator]) -> Tensor:
            at = next(position)
            if first is not None and at == known:
                logits = logits.masked_fill(~first.to(logits.device), -torch.inf)
            # After this: what may not follow the prompt must not count among the top k.
            logits = shaped(logits, temperature=temperature, top_k=top_k, top_p=top_p)
            ids = draw(logits, rows)
            p = (logits.gather(1, ids.unsqueeze(1)) - logits.logsumexp(1, keepdim=True)).exp()
            with torch.inference_mode(False):  # a Step may be used anywhere
                where = torch.full((len(part), 1), at)
                tau, drawn = 1 - where.double() / length, torch.ones_like(where, dtype=torch.bool)
                tokens = ids.clone().unsqueeze(1)
                trace.append(Step(part, where, tokens, p.clone(), tau, drawn, None, len(trace) + 1, planned))
                if callback is not None:
                    callback(trace[-1])
            return ids

        return pick

    tokens = torch.full((num, length), network.mask_id)
    if prompt is not None:
        tokens[:, :known] = prompt
    fast = for_sampling(network)
    for part in parts:
        own, pick, x = [random[i] for i in part.tolist()], recording(part), tokens[part].to(device_of(network))
        run = for_sampling(fast)
        for position in range(known, length):
            with inference(run):
                logits = run(x, rows=torch.full((len(x), 1), position, device=x.device)).squeeze(1)
                ids = pick(logits, own)
            x[:, position] = ids
        tokens[part] = x.cpu()
    calls = torch.full((num,), length - known)
    return Sample(tokens, tuple(trace), calls, calls.clone(), len(trace), clock.perf_counter() - started)
