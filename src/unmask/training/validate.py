"""The bound on held-out data, in the middle of a run and with whatever has wrapped the network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from unmask.bound import Bound
from unmask.data.tokens import TokenFile
from unmask.devices import upload, widest
from unmask.masking import Masking
from unmask.processes import process_of
from unmask.schedule import Schedule
from unmask.training.masking import Losses, for_validation


def validate(
    losses: Losses,
    tokens: TokenFile,
    accelerator: Any,
    *,
    objective: str,
    sequences: int,
    micro_batch: int,
    schedule: Schedule,
    stop: Callable[[], object] = lambda: False,
) -> Bound | None:
    """The bound of the network's process, Eq. 7 for a masked one, on evenly spaced sequences.

    None if ``stop`` said so on the way.

    The sequences and their masks are the same every time, so that differences between validations are the network's.
    Where fewer sequences are held out than asked for, each is masked several times, with counts spread over 1..L. The
    errors are those of independent passes; the counts are spread evenly, so the truth is somewhat better.
    """
    process = process_of(accelerator.unwrap_model(losses).network)
    several = 1 if process.exact else -(-sequences // len(tokens))
    num = min(sequences, len(tokens)) if several == 1 else several * len(tokens)
    chosen = torch.arange(num) * len(tokens) // num if several == 1 else torch.arange(num) % len(tokens)
    asked = tokens.asked(chosen)
    masking = for_validation(process, objective, batch=num, length=tokens.length, schedule=schedule, where=asked)
    # Every process makes as many passes as every other, as FSDP needs: what is left over is computed twice.
    share = -(-num // accelerator.num_processes)
    own = torch.arange(share) + accelerator.process_index * share
    total = torch.zeros(num, dtype=widest(accelerator.device), device=accelerator.device)
    was_training = losses.training
    losses.eval()
    try:
        for part in own.split(micro_batch):
            if stop():
                return None
            rows, device = part % num, accelerator.device
            values = _pass(losses, upload(tokens.sequences(chosen[rows]), device), masking.rows(rows).to(device))
            new = int((part < num).sum())  # the surplus comes last
            total[upload(part[:new], device)] = values[:new]
    finally:
        losses.train(was_training)
    return _bound(accelerator.reduce(total, "sum").cpu().double(), tokens, asked, exact=process.exact)


def _bound(values: Tensor, tokens: TokenFile, asked: Tensor | None, *, exact: bool) -> Bound:
    """From one value per pass, which are in rounds over the sequences."""
    passes = values.view(-1, min(len(values), len(tokens)))
    nats = passes.mean(0)
    errors = passes.std(0) / math.sqrt(len(passes)) if len(passes) > 1 else torch.full_like(nats, math.inf)
    return tokens.bound(nats, None if exact else errors, None if asked is None else asked[: len(nats)])


@torch.no_grad()
def _pass(losses: Losses, x0: Tensor, masking: Masking) -> Tensor:
    return losses(x0, *masking.tensors(), index=masking.index)[1]  # type: ignore[no-any-return]
