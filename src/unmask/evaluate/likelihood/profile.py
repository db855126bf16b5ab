"""The entropy profile of a network: the mean cross-entropy of a masked token given n visible ones, for every n.

h(n) is the term of Eq. 7 with L - n masked tokens, per masked token. L times the mean of the profile is the NELBO, and
``unmask.theory.parallel_loss`` computes from it the cost of decoding several tokens per call.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from unmask import objective
from unmask.likelihood import default_batch
from unmask.masking import of_subset
from unmask.network import device_of, inference
from unmask.noise import generator as stream
from unmask.processes import process_of
from unmask.protocol import Denoiser
from unmask.schedule import Linear, Schedule


@dataclass(frozen=True)
class EntropyProfile:
    """h(0) .. h(L - 1) in nats per masked token, with standard errors over the sequences."""

    nats: tuple[float, ...]
    errors: tuple[float, ...]  # per count; errors of different counts are not independent
    sequences: int

    def __post_init__(self) -> None:
        if not self.nats or len(self.nats) != len(self.errors):
            raise ValueError(f"one error per count is needed, got {len(self.errors)} for {len(self.nats)} counts")
        if not all(map(math.isfinite, self.nats)):
            raise ValueError("a profile must be finite at every count")

    @classmethod
    def of(cls, values: Tensor) -> EntropyProfile:
        """From h(n) of each sequence, [B, L], with nan where not measured."""
        number = (~values.isnan()).sum(0)
        if bool((number < 2).any()):
            raise ValueError(
                f"{int(number.min())} sequences at {int(number.argmin())} visible tokens, at least 2 are needed: give "
                "more sequences or more passes"
            )
        mean = values.nanmean(0)
        variance = (values - mean).square().nansum(0) / (number - 1)
        return cls(tuple(mean.tolist()), tuple((variance / number).sqrt().tolist()), len(values))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> EntropyProfile:
        try:
            content = json.loads(text)
            nats, errors = (tuple(map(float, content[name])) for name in ("nats", "errors"))
            return cls(nats, errors, int(content["sequences"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an entropy profile: {error}") from error


def entropy_by_count(
    model: Denoiser,
    tokens: Tensor,
    *,
    passes: int | None = None,
    schedule: Schedule | None = None,
    batch: int | None = None,
    seed: int = 0,
) -> Tensor:
    """The mean cross-entropy of each sequence's masked tokens given n random visible ones: float64 [B, L].

    ``EntropyProfile.of`` is the profile of it. nan where a count was not measured.

    passes: per sequence; L by default, every count once. Fewer are distributed so that all sequences together see all
    counts equally often; 2 L are every count in two orders.

    The visible tokens of all counts are prefixes of one random order per sequence (and L passes). A row is therefore a
    paired comparison of counts: the difficulty of a sequence cancels in ``parallel_loss(row, sizes)``, and the spread
    of these losses over the sequences gives the standard error of the loss.
    """
    length = tokens.shape[1] if tokens.ndim == 2 else 0
    passes = length if passes is None else passes
    _check(model, tokens, passes, batch)
    batch, schedule, device = batch or default_batch(model, length), schedule or Linear(), device_of(model)
    tokens = tokens.cpu()
    counts = torch.randperm(length, generator=stream(seed, "profile"))
    flat = torch.arange(len(tokens) * passes)
    visible, sequence, order = counts[flat % length], flat // passes, flat % passes // length
    total = torch.zeros(len(tokens), length, dtype=torch.float64)
    number = torch.zeros_like(total)
    with inference(model):
        for rows in torch.split(visible.argsort(stable=True), batch):  # neighbours have about as many tokens to predict
            n, i = visible[rows], sequence[rows]
            rank, hits = _uniforms(seed, i, order[rows], length).unbind(1)
            masked = rank.argsort(1).argsort(1) >= n.unsqueeze(1)
            masking = of_subset(masked, hits, schedule=schedule, when=rank).to(device)
            terms = objective.cross_entropy(model, tokens[i].to(device), masking)
            nats = terms.double().cpu() / (length - n)
            total.index_put_((i, n), nats, accumulate=True)
            number.index_put_((i, n), torch.ones_like(nats), accumulate=True)
    return total / number


def _uniforms(seed: int, sequence: Tensor, order: Tensor, length: int) -> Tensor:
    """[B, 2, L], from the stream of a sequence and an order."""
    streams = (stream(i, seed, "profile", k) for i, k in zip(sequence.tolist(), order.tolist(), strict=True))
    return torch.stack([torch.rand(2, length, dtype=torch.float64, generator=random) for random in streams])


def _check(model: Denoiser, tokens: Tensor, passes: int, batch: int | None) -> None:
    if tokens.ndim != 2 or tokens.dtype != torch.int64 or not tokens.numel():
        raise ValueError(f"tokens must be int64 [sequences, length], got {tokens.dtype} {tuple(tokens.shape)}")
    if bool((tokens == model.mask_id).any()):
        raise ValueError(f"tokens must not contain the mask id {model.mask_id}")
    process_of(model).require("profile")
    if passes < 1 or (batch is not None and batch < 1):
        raise ValueError(f"passes and batch must be at least 1, got {passes} and {batch}")
