"""A masked network beside counts of its training data, which know what stands between two neighbours.

A small network needs long to learn what counting says at once. Both are joined at the logits of a masked position:

    logits(x) = w_0 log p_network(x) + w_1 log p(x) + sum over both sides of
                u log p(x | a) / p(x)  +  v log p(x | a', a) / p(x | a)

a is the token beside it and a' the next one, where they are visible; the p are Kneser-Ney's, of the text for the left
side and of the reversed text for the right one. With w_0 = 0 and all other weights 1 this is the law of a Markov chain,
p(x | a, b) ~ p(x) p(x | a)/p(x) p(x | b)/p(x). The weights depend on how many neighbours each side shows (none, one,
two) and are fitted to text that was left out of the counts (``unmask.training.counts``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.network import device_of, logits_at
from unmask.networks.ngram import KneserNey, kneser_ney
from unmask.processes import Process, process_of
from unmask.protocol import for_bound, for_sampling, length_of

FILE = "counts.safetensors"
ORDER, SHOWN, FEATURES = 3, 3, 6  # none, one or two neighbours of each side; the terms of the formula
SIDES = ("left", "right")
PARTS = ("keys2", "own2", "rest2", "keys3", "own3", "rest3")


class Counted(nn.Module):
    """The network with its counts: again a denoiser of a masked model."""

    def __init__(self, network: Any, counts: Mapping[str, Tensor], weights: Tensor) -> None:
        super().__init__()
        if not process_of(network).joins_counts or process_of(network).from_left:
            raise ValueError(f"counts are for masked models, and this is {process_of(network).phrase}")
        self.network, self.vocab_size, self.mask_id = network, network.vocab_size, network.mask_id
        for name, tensor in {**counts, "weights": weights}.items():
            self.register_buffer(name, tensor)

    @property
    def process(self) -> Process:
        return process_of(self.network)

    @property
    def length(self) -> int | None:
        return length_of(self.network)

    @property
    def suppresses_mask(self) -> bool:
        return True

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """Logits [B, R, V] at the rows, or [B, L, V]."""
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        logits = logits_at(self.network, tokens, time, rows)
        batch = torch.arange(len(rows), device=rows.device).unsqueeze(1).expand_as(rows)
        joined = self.joined(logits.flatten(0, 1), tokens, batch.flatten(), rows.flatten())
        return joined.view(logits.shape)

    def joined(self, logits: Tensor, tokens: Tensor, batch: Tensor, position: Tensor) -> Tensor:
        """Logits [M, V] of the network, with the counts at these positions [M] of the sequences."""
        features, shown = self.features(logits, tokens, batch, position)
        weights: Tensor = self.weights[shown]  # type: ignore[index]
        total = torch.zeros_like(features[0])
        for k, feature in enumerate(features):
            total += weights[:, k : k + 1] * feature
        return total if self.mask_id >= self.vocab_size else total.index_fill(-1, _one(self.mask_id, total), -torch.inf)

    def features(
        self, logits: Tensor, tokens: Tensor, batch: Tensor, position: Tensor
    ) -> tuple[Sequence[Tensor], Tensor]:
        """The six terms of the formula without their weights, each [M, V], and which weights a position takes [M]."""
        logits = logits.float()
        if self.mask_id < self.vocab_size:
            logits = logits.index_fill(-1, _one(self.mask_id, logits), -30.0)  # finite: it is suppressed in the end
        single: Tensor = self.single  # type: ignore[assignment]
        logs = single.log()
        features = [logits.log_softmax(-1), logs.expand_as(logits)]
        shown = torch.zeros_like(position)
        edge = torch.where(tokens == self.mask_id, -1, tokens)
        for number, side in enumerate(SIDES):
            near, far = (_beside(edge, batch, position, (1 if number else -1) * k, self.vocab_size) for k in (1, 2))
            bigram, trigram, state = self._side(side, near, far, single)
            features += [bigram, trigram]
            shown = shown * SHOWN + state
        return features, shown

    def _side(self, side: str, near: Tensor, far: Tensor, single: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log p(x | a) / p(x) and log p(x | a', a) / p(x | a), each [M, V] and 0 if not visible; how many are shown."""
        keys2, own2, rest2, keys3, own3, rest3 = (getattr(self, f"{side}_{part}") for part in PARTS)
        size = self.vocab_size + 1
        one, two = near >= 0, (near >= 0) & (near < self.vocab_size) & (far >= 0)
        lower = single.expand(len(near), -1)
        p2 = _continued(keys2, own2, rest2, torch.where(one, near, -1), lower, size)
        asked = far.clamp(min=0) * size + near.clamp(min=0)
        place = torch.searchsorted(keys2, asked).clamp(max=len(keys2) - 1)
        context = torch.where(two & (keys2[place] == asked), place, -1)
        p3 = _continued(keys3, own3, rest3, context, p2, size)
        return (p2 / single).log(), (p3 / p2).log(), one.long() + two.long()

    def for_sampling(self) -> Counted:
        return self._around(for_sampling(self.network))

    def for_bound(self) -> Counted:
        return self._around(for_bound(self.network))

    def _around(self, network: Any) -> Counted:
        return self if network is self.network else Counted(network, self.counts(), self.weights)  # type: ignore[arg-type]

    def counts(self) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in self.named_buffers(recurse=False) if name != "weights"}


def _one(index: int, like: Tensor) -> Tensor:
    return torch.full((1,), index, device=like.device)


def _beside(tokens: Tensor, batch: Tensor, position: Tensor, offset: int, mark: int) -> Tensor:
    """The token at this offset from each position: -1 if it is masked, and the mark beyond an end."""
    at = position + offset
    inside = (at >= 0) & (at < tokens.shape[1])
    return torch.where(inside, tokens[batch, at.clamp(0, tokens.shape[1] - 1)], mark)


def _continued(keys: Tensor, own: Tensor, rest: Tensor, context: Tensor, lower: Tensor, size: int) -> Tensor:
    """p(. | context) [M, V] by Kneser-Ney: what was counted, and the rest by the lower order; -1 is the lower order."""
    known = context >= 0
    at = context.clamp(min=0)
    p = lower * torch.where(known, rest[at], 1.0).unsqueeze(1)
    begin, end = torch.searchsorted(keys, at * size), torch.searchsorted(keys, (at + 1) * size)
    count = torch.where(known, end - begin, 0)
    row = torch.repeat_interleave(torch.arange(len(context), device=keys.device), count)
    first = torch.repeat_interleave(begin - (count.cumsum(0) - count), count)
    entry = first + torch.arange(len(row), device=keys.device)
    return p.index_put((row, keys[entry] % size), own[entry], accumulate=True)


def tables(documents: np.ndarray[Any, Any], vocab_size: int) -> dict[str, Tensor]:
    """The counts of sequences [N, L], from the left and from the right, as tensors to be saved."""
    if documents.shape[1] < ORDER:
        raise ValueError(f"sequences of {documents.shape[1]} tokens are too short for counts: they need {ORDER}")
    made = {}
    for side, rows in zip(SIDES, (documents, documents[:, ::-1]), strict=True):
        fitted = kneser_ney(rows, ORDER, vocab_size)
        if side == SIDES[0]:
            made["single"] = torch.from_numpy(_single(fitted)).float()
        for order, number in zip(fitted.orders[1:], ("2", "3"), strict=True):
            made |= {
                f"{side}_keys{number}": torch.from_numpy(order.keys.astype(np.int64)),
                f"{side}_own{number}": torch.from_numpy(order.own).float(),
                f"{side}_rest{number}": torch.from_numpy(order.left).float(),
            }
    return made


def _single(fitted: KneserNey) -> np.ndarray[Any, Any]:
    order = fitted.orders[0]
    single: np.ndarray[Any, Any] = order.own[: fitted.vocab_size] + order.left[0] / fitted.vocab_size
    return single


def save(folder: Path, model: Counted) -> None:
    """Write the counts beside the network's weights."""
    from safetensors.torch import save_file

    save_file({name: t.detach().cpu().contiguous() for name, t in model.named_buffers(recurse=False)}, folder / FILE)


def load(folder: Path, network: Any) -> Counted:
    """The network with the counts of its folder. Any problem is one ValueError."""
    from unmask.networks.pretrained import read_weights

    stored, size = read_weights(folder / FILE), network.vocab_size + 1
    wrong = {"single", "weights", *(f"{side}_{part}" for side in SIDES for part in PARTS)} ^ stored.keys()
    if wrong:
        raise ValueError(f"{folder / FILE} holds no counts of this project: see {', '.join(sorted(wrong)[:3])}")
    shapes = [stored["single"].shape == (size - 1,), stored["weights"].shape == (SHOWN**2, FEATURES)]
    for side in SIDES:
        for number, contexts in (("2", size), ("3", len(stored[f"{side}_keys2"]))):
            keys, own, rest = (stored[f"{side}_{name}{number}"] for name in ("keys", "own", "rest"))
            shapes += [keys.dtype == torch.int64, keys.ndim == 1 and keys.shape == own.shape, len(rest) == contexts]
            shapes += [bool((keys[1:] > keys[:-1]).all()), not len(keys) or 0 <= int(keys[0]) <= int(keys[-1])]
            shapes += [not len(keys) or int((keys % size).max()) < size - 1]
    finite = all(bool(t.isfinite().all()) for t in stored.values() if t.is_floating_point())
    if not all(shapes) or not finite or not bool((stored["single"] > 0).all()):
        raise ValueError(f"{folder / FILE} does not fit the network: it was made for another vocabulary, or damaged")
    copies = {name: tensor.clone() for name, tensor in stored.items()}
    weights = copies.pop("weights")
    return Counted(network, copies, weights).to(device_of(network))
