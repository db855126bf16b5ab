"""Decoding orders that depend on the network: rank the masked positions by its output, and unmask the first ones.

    Order                 unmasks first
    confidence            the most likely tokens, drawn everywhere, with annealed Gumbel noise (MaskGIT)
    low_confidence, llada the same without noise, in blocks (LLaDA's low-confidence remasking)
    random_order          a random choice, in as many steps as LLaDA's (its random remasking)
    threshold             all tokens more likely than a threshold, and the most likely one in any case (Fast-dLLM)
    margin, entropy       where the two most likely tokens differ most; where the entropy is lowest
    dream                 one of these three, with Dream's step sizes and its temperature for the choice
    entropy_bounded       the lowest entropies, as many as keep the bound on their joint entropy below gamma
    blocks(K, inner)      blocks of K masked positions from left to right, each in an inner order

``unmask.sample(model, sampler=decoding.margin(), steps=16)``. Without ``steps`` one token is unmasked per call. A
network that reads the time gets alpha^-1(1 - masked/L).

Positions that tie are ordered uniformly at random, by noise of the position's own; ``leftmost`` keeps the authors'
rule, a stable sort. ``unmask audit --order`` measures what that does.

Which distribution results: with one token per call, choosing the position by the network's prediction from the visible
tokens (margin, entropy, entropy_bounded with gamma = 0) leaves the chain rule intact, and is exact for a network whose
conditionals come from one joint distribution. Choosing it by the token drawn there (confidence, llada) prefers likely
tokens, with any number of calls. Tokens unmasked together are drawn independently. Measurements are in
docs/results/sampling.md; ``plan.first_hitting`` has the model's distribution.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from unmask.plan import even
from unmask.samplers.ranked import Look, Pace, Ranked, Score


def log_probability(look: Look) -> Tensor:
    """log mu of the token that was drawn."""
    return look.log_mu.gather(1, look.ids.to(look.log_mu.device).unsqueeze(1)).squeeze(1)


def probability(look: Look) -> Tensor:
    """mu of the token that was drawn."""
    return log_probability(look).exp()


def gap(look: Look) -> Tensor:
    """mu of the most likely token minus that of the second."""
    best: Tensor = look.log_mu.topk(min(2, look.log_mu.shape[1]), dim=1).values.exp()
    return best[:, 0] - best[:, 1:].sum(1)


def negative_entropy(look: Look) -> Tensor:
    """-H(mu), in nats."""
    entropies: Tensor = torch.special.entr(look.log_mu.exp()).sum(1)
    return -entropies


def nothing(look: Look) -> Tensor:
    """0 everywhere: all positions rank equally."""
    return torch.zeros_like(look.log_mu[:, 0])


def cosine(n: int, steps: int) -> list[int]:
    """MaskGIT's step sizes: after step k of N, floor(n cos(pi k / 2N)) positions are masked, at least one fewer."""
    left = [n]
    for k in range(1, steps):
        left.append(max(min(math.floor(n * math.cos(math.pi / 2 * k / steps)), left[-1] - 1), min(n, 1)))
    return [before - after for before, after in zip(left, [*left[1:], 0], strict=True)]


@lru_cache
def falling(eps: float) -> Pace:
    """Dream's step sizes: from t to s floor(n (1 - s/t)) of n masked positions, in the last step all; t ends at eps."""

    def pace(n: int, steps: int) -> list[int]:
        counts: list[int] = []
        for k in range(steps - 1):
            t, s = (1 - (1 - eps) * i / steps for i in (k, k + 1))
            counts.append(int((n - sum(counts)) * (1 - s / t)))
        return [*counts, n - sum(counts)]

    return pace


def confidence(*, noise: float = 4.5, pace: Pace = cosine) -> Ranked:
    """MaskGIT's order: draw everywhere, keep the tokens with the highest log mu + noise (1 - k/N) g, with Gumbel g."""
    return Ranked(log_probability, pace, "token", noise=_checked("noise", noise), annealed=True)


def low_confidence(*, pace: Pace = even) -> Ranked:
    """LLaDA's low-confidence remasking: draw everywhere, keep the most likely of the drawn tokens."""
    return Ranked(log_probability, pace, "token")


def random_order() -> Ranked:
    """LLaDA's random remasking: draw everywhere, keep the tokens of uniformly drawn positions."""
    return Ranked(nothing, sees="token", noise=1.0)  # equal scores plus Gumbels: a uniform ranking


def threshold(threshold: float = 0.9, *, opening: bool = False) -> Ranked:
    """Fast-dLLM's order: draw everywhere, keep tokens of at least this probability, and the most likely one.

    opening: the first call of a block fills its first position alone, as Fast-dLLM does for Dream.
    """
    if not 0 <= threshold <= 1:
        raise ValueError(f"threshold must be a probability, got {threshold}")
    return Ranked(probability, sees="token", least=float(threshold), opening=opening)


def margin(*, noise: float = 0.0, pace: Pace = even) -> Ranked:
    """First where the most likely token leads the second by most."""
    return Ranked(gap, pace, noise=_checked("noise", noise))


def entropy(*, noise: float = 0.0, pace: Pace = even) -> Ranked:
    """First where mu has the lowest entropy."""
    return Ranked(negative_entropy, pace, noise=_checked("noise", noise))


def entropy_bounded(gamma: float = 0.1) -> Ranked:
    """In each call as many positions of lowest entropy as possible, whose sum minus the largest is at most gamma nats.

    Sum minus maximum bounds the mutual information of the tokens drawn together. It needs no ``steps``; gamma = 0 is
    one token per call, except where the network is certain.
    """
    return Ranked(negative_entropy, gamma=_checked("gamma", gamma))


def blocks(length: int, inner: Ranked) -> Ranked:
    """Semi-autoregressive: blocks of ``length`` masked positions from left to right, each in the inner order.

    ``steps`` are shared evenly among the blocks, so each block needs at least one.
    """
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise ValueError(f"length, the holes of a block, must be a whole number of at least 1, got {length!r}")
    if not isinstance(inner, Ranked):
        raise ValueError(f"inner must be an order that ranks positions, such as confidence(), got {inner!r}")
    return replace(inner, block=length)


def leftmost(order: Ranked) -> Ranked:
    """The same order with the authors' rule for ties: a stable sort, which takes the leftmost position.

    By default ties are broken uniformly at random, by noise of the position's own.
    """
    return replace(order, ties="leftmost")


def llada(block_length: int | None = None) -> Ranked:
    """LLaDA's ``generate``, low-confidence remasking without guidance: ``steps`` spread evenly over the blocks."""
    return low_confidence() if block_length is None else blocks(block_length, low_confidence())


DREAM: dict[str, tuple[Score, Literal["mean", "token"]]] = {
    "entropy": (negative_entropy, "mean"),
    "maskgit_plus": (probability, "token"),
    "topk_margin": (gap, "mean"),
}


def dream(alg: str = "entropy", *, alg_temp: float = 0.0, eps: float = 1e-3) -> Ranked:
    """Dream's ``diffusion_generate``: alg ranks; with alg_temp, positions are drawn from softmax(score / alg_temp)."""
    if alg not in DREAM:
        raise ValueError(f"alg must be one of {', '.join(map(repr, DREAM))}, got {alg!r}")
    if not 0 < eps < 1:
        raise ValueError(f"eps, the last time, must be in (0, 1), got {eps}")
    score, sees = DREAM[alg]
    # The top k of score / T + Gumbel are k draws without replacement from softmax(score / T).
    return Ranked(score, falling(eps), sees, noise=_checked("alg_temp", alg_temp), as_drawn=True)


def _checked(name: str, value: float) -> float:
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
    return float(value)
