"""A Kneser-Ney n-gram model: a baseline that only counts, to compare a small network with.

Interpolated and modified (Chen and Goodman, 1998): with the counts c of order k,

    p_k(w | h) = (c(hw) - D(c(hw))) / c(h) + g(h) p_{k-1}(w | h'),      g(h) = sum_w D(c(hw)) / c(h),

where h' is h without its first token, p_0 is uniform over the vocabulary, and p_k(. | h) = p_{k-1}(. | h') for a
context that was never seen. Counts of the highest order are plain; below it c(hw) is the number of different tokens
that were seen before hw. Every document begins with a mark that is never predicted, and counts of what begins with it
are plain, too, for nothing comes before it. D has three values for each order, for the counts 1, 2 and more.

    model = kneser_ney(train, 5, vocab_size)          # int [N, L], or a list of documents
    -model.log_prob(held_out).mean()                  # nats per token
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Documents = NDArray[np.integer] | Sequence[NDArray[np.integer]]


@dataclass(frozen=True)
class Order:
    """One order's n-grams, numbered by their places in ``keys``: number(context) * (vocab_size + 1) + token.

    The first order has all tokens, seen or not, and the mark of a beginning, so that a token is its own number.
    """

    keys: Ints  # [n], ascending
    own: Floats  # [n], (c(hw) - D(c(hw))) / c(h)
    left: Floats  # [contexts], g(h); 1 where no token was seen after h
    discounts: Floats  # [4], D(0) = 0, D(1), D(2), D(3 or more)

    def find(self, keys: Ints) -> Ints:
        """The numbers of these n-grams; -1 for one that was never seen."""
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)


@dataclass(frozen=True)
class KneserNey:
    """p(token | up to order - 1 tokens before it in its document); made by ``kneser_ney``."""

    vocab_size: int
    tokens: int  # that it was fitted on
    orders: tuple[Order, ...]

    def log_prob(self, documents: Documents) -> Floats:
        """The natural logarithm of each token's probability, in the shape of the documents.

        documents: int [N, L], one int [L], or a list of these with any lengths, whose values come one after the other.
        """
        x, column, shape = _marked(documents, self.vocab_size)
        p = np.full(len(x), 1 / self.vocab_size)
        numbers = np.zeros(len(x), dtype=np.int64)
        for k, order in enumerate(self.orders, 1):
            here = np.flatnonzero(column >= k - 1)
            contexts = numbers[here - 1] if k > 1 else numbers
            here, contexts = here[contexts >= 0], contexts[contexts >= 0]
            found = order.find(contexts * (self.vocab_size + 1) + x[here])
            p[here] = np.where(found >= 0, order.own[found], 0) + order.left[contexts] * p[here]
            numbers = np.full(len(x), -1)
            numbers[here] = found
        logs: Floats = np.log(p[column > 0]).reshape(shape)
        return logs

    def following(self, contexts: Ints) -> Floats:
        """p(. | the tokens before it) [N, V]; contexts int [N, K] end at the token before it.

        vocab_size is the mark of a beginning; -1 and everything before it is not known.
        """
        base, known = self.vocab_size + 1, contexts.shape[1]
        p = np.full((len(contexts), self.vocab_size), 1 / self.vocab_size)
        for k, order in enumerate(self.orders[: known + 1], 1):
            rows, numbers = np.arange(len(contexts)), np.zeros(len(contexts), dtype=np.int64)
            for j, shorter in enumerate(self.orders[: k - 1]):  # the number of the last k - 1 tokens
                tokens = contexts[rows, known - k + 1 + j]
                numbers = np.where(tokens < 0, -1, shorter.find(numbers * base + tokens))
                rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
            p[rows] *= order.left[numbers, None]
            first, last = np.searchsorted(order.keys, numbers * base), np.searchsorted(order.keys, (numbers + 1) * base)
            for row, start, end in zip(rows.tolist(), first.tolist(), last.tolist(), strict=True):
                tokens = order.keys[start:end] % base
                data = tokens < self.vocab_size
                p[row, tokens[data]] += order.own[start:end][data]
        return p


@dataclass(frozen=True)
class NgramDenoiser:
    """An n-gram model as a denoiser: a position given the visible tokens to its left, up to the first masked one.

    It costs next to nothing, so it serves as a draft (``samplers.ahead``).
    """

    model: KneserNey
    mask_id: int

    @property
    def vocab_size(self) -> int:
        return self.model.vocab_size

    def __call__(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        """tokens [B, L], rows [B, R] -> the log-probabilities [B, R, V], float64 on the CPU."""
        x = tokens.cpu()
        at = torch.arange(x.shape[1]).expand_as(x) if rows is None else rows.cpu()
        most = len(self.model.orders) - 1
        x = torch.where(x == self.mask_id, -1, x)
        x = functional.pad(functional.pad(x, (1, 0), value=self.vocab_size), (most, 0), value=-1)
        before = at.unsqueeze(2) + torch.arange(1, most + 1)  # position l of the tokens is l + most + 1 of x
        contexts = x.gather(1, before.flatten(1)).view(-1, most).numpy()
        logs = torch.from_numpy(self.model.following(contexts)).log_()
        return logs.view(*at.shape, self.vocab_size).to(tokens.device)


def kneser_ney(documents: Documents, order: int, vocab_size: int) -> KneserNey:
    """Fit it to documents, int [N, L] or a list of int [L] of any lengths; no n-gram reaches into the next document."""
    if order < 1:
        raise ValueError(f"order={order}: it must be at least 1")
    x, column, _ = _marked(documents, vocab_size)
    if not column.any():
        raise ValueError("there is no token to fit an n-gram model to")
    orders: list[Order] = []
    grams = _grams(x, column, order, vocab_size)
    keys, counts, _ = next(grams)
    contexts = 1
    for longer in grams:
        # Whatever does not begin a document is the end of some longer n-gram.
        before = np.bincount(longer[2], minlength=len(keys))
        orders.append(_order(keys, np.where(before > 0, before, counts), contexts, vocab_size))
        contexts = len(keys)
        keys, counts, _ = longer
    orders.append(_order(keys, counts, contexts, vocab_size))
    return KneserNey(vocab_size, int((column > 0).sum()), tuple(orders))


def _grams(x: Ints, column: Ints, order: int, vocab_size: int) -> Iterator[tuple[Ints, Ints, Ints]]:
    """For each order the keys, their plain counts, and the numbers of what remains of each without its first token."""
    keys, numbers = np.arange(vocab_size + 1), x
    yield keys, np.bincount(x[column > 0], minlength=len(keys)), np.zeros_like(keys)
    for k in range(2, order + 1):
        here = np.flatnonzero(column >= k - 1)
        if not len(here):  # every document is shorter than the order
            return
        keys, places = np.unique(numbers[here - 1] * (vocab_size + 1) + x[here], return_inverse=True)
        without_first = np.empty_like(keys)
        without_first[places] = numbers[here]
        numbers = np.full(len(x), -1)
        numbers[here] = places
        yield keys, np.bincount(places), without_first


def _order(keys: Ints, counts: Ints, contexts: int, vocab_size: int) -> Order:
    discounts = _discounts(counts)
    context = keys // (vocab_size + 1)
    total = np.bincount(context, counts, contexts)
    off = discounts[np.minimum(counts, 3)]
    with np.errstate(invalid="ignore"):  # 0 / 0 for a context that nothing follows
        left = np.where(total > 0, np.bincount(context, off, contexts) / total, 1)
    return Order(keys, (counts - off) / np.maximum(total[context], 1), left, discounts)


def _discounts(counts: Ints) -> Floats:
    """Chen and Goodman's estimates from how many n-grams have the counts 1 to 4.

    They do not exist where small counts are missing, as among the tokens of a small vocabulary; then 1/2, 1 and 3/2.
    """
    n1, n2, n3, n4 = (int((counts == count).sum()) for count in (1, 2, 3, 4))
    if min(n1, n2, n3, n4):
        y = n1 / (n1 + 2 * n2)
        d = np.array([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
        if (d[1:] > 0).all():
            return d
    return np.array([0, 0.5, 1, 1.5])


def _marked(documents: Documents, vocab_size: int) -> tuple[Ints, Ints, tuple[int, ...]]:
    """All documents in a row, each after the mark vocab_size; their tokens' places, from 1; and the tokens' shape."""
    if isinstance(documents, np.ndarray):
        shape = documents.shape
        lengths = np.full(len(documents), shape[1]) if len(shape) == 2 else np.array([documents.size])
        tokens = documents.reshape(-1)
    else:
        lengths = np.array([len(one) for one in documents], dtype=np.int64)
        tokens = np.concatenate(documents) if len(documents) else np.empty(0, dtype=np.int64)
        shape = tokens.shape
    if tokens.size and (tokens.dtype.kind not in "iu" or tokens.min() < 0 or tokens.max() >= vocab_size):
        what = f"{tokens.dtype} from {tokens.min()} to {tokens.max()}"
        raise ValueError(f"documents hold {what}: they must be token ids in 0..{vocab_size - 1}")
    starts = np.cumsum(lengths) - lengths
    x = np.insert(tokens.astype(np.int64), starts, vocab_size)
    return x, np.arange(len(x)) - np.repeat(starts + np.arange(len(starts)), lengths + 1), shape
