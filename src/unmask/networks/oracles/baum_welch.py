"""Fitting a hidden Markov chain: the scaled recursions, the E-step's counts and a start that lets EM move.

From a random start every state sees nearly the same tokens and EM takes very long to tell them apart, the more so the
larger the vocabulary. Here it starts from token classes: types with similar neighbours (k-means on what stands to their
left and right) share a state, and the classes' own moves are the first transition table.
"""

from __future__ import annotations

from itertools import zip_longest

import torch
from torch import Tensor

from unmask.networks.oracles.tables import impossible, normalise

_STREAM_ROW = 1024
_ELEMENTS_AT_ONCE = 2**23
_NEIGHBOURS = 128
_LLOYD_ITERATIONS = 10
_BACKGROUND = 0.05


def rows_at_once(length: int, states: int) -> int:
    """How many sequences to hold at a time, so that one [L, B, S] tensor stays below 64 MB."""
    return max(1, _ELEMENTS_AT_ONCE // (length * states))


def as_rows(tokens: Tensor, mask_id: int) -> Tensor:
    """A stream [N] as rows of 1024, the last one padded with masks (missing data); rows stay as they are."""
    if tokens.dim() != 1 or len(tokens) == 0:
        return tokens
    length = min(_STREAM_ROW, len(tokens))
    padding = tokens.new_full((-len(tokens) % length,), mask_id)
    return torch.cat([tokens, padding]).view(-1, length)


def evidence_of(tokens: Tensor, likelihood: Tensor) -> Tensor:
    """p(x^l | z^l) of tokens [B, L] as [L, B, S], from a table by token id in which the mask's row is 1."""
    return torch.nn.functional.embedding(tokens.T, likelihood)


def messages(evidence: Tensor, start: Tensor, matrix: Tensor, *, backward: bool = False) -> tuple[Tensor, Tensor]:
    """m_1 = start, m_{l+1} = (m_l * evidence_l / scale_l) @ matrix with scale_l = sum(m_l * evidence_l).

    evidence [L, B, S] -> m [L, B, S], scale [L, B]. With `backward` the recursion runs from l = L to 1. A scale that
    reaches zero (an impossible context) makes the rest of its sequence zero.
    """
    m, scale = torch.empty_like(evidence), evidence.new_empty(*evidence.shape[:2], 1)
    weighted = torch.empty_like(evidence[0])
    steps = list(zip(m, evidence, scale, strict=True))[:: -1 if backward else 1]
    steps[0][0].copy_(start)
    for (here, e, total), following in zip_longest(steps, steps[1:]):
        torch.mul(here, e, out=weighted)
        torch.sum(weighted, -1, keepdim=True, out=total)
        if following is not None:
            weighted /= total.clamp_min(torch.finfo(torch.float64).tiny)
            torch.mm(weighted, matrix, out=following[0])
    return m, scale.squeeze(-1)


def forward_backward(
    tokens: Tensor, evidence: Tensor, initial: Tensor, transition: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Forward-backward: p(z^l | x^1..x^{l-1}) [L, B, S], p(x^l | x^1..x^{l-1}) [L, B], p(x^{l+1}..x^L | z^l) [L, B, S].

    The last is up to a factor for each sequence and l. Forward times evidence times backward, normalised over states,
    is the posterior p(z^l | x).
    """
    forward, scale = messages(evidence, initial, transition)
    possible = (scale > 0).all(0)
    if not bool(possible.all()):
        raise impossible(possible, tokens)
    backward, _ = messages(evidence, torch.ones_like(initial), transition.T.contiguous(), backward=True)
    return forward, scale, backward


def expected_counts(
    tokens: Tensor, initial: Tensor, transition: Tensor, likelihood: Tensor
) -> tuple[Tensor, Tensor, Tensor, float]:
    """The E-step: expected counts of first states [S], moves [S, S] and emissions [S, ids], and the log-likelihood."""
    first, moves, emitted = torch.zeros_like(initial), torch.zeros_like(transition), torch.zeros_like(likelihood)
    nats = 0.0
    for part in torch.split(tokens, rows_at_once(tokens.shape[1], len(initial))):
        evidence = evidence_of(part, likelihood)
        forward, scale, backward = forward_backward(part, evidence, initial, transition)
        after = backward.mul_(evidence)
        posterior = forward * after
        total = posterior.sum(-1, keepdim=True)
        posterior /= total
        # p(z^l, z^{l+1} | x) = p(z^l | x^1..x^l) p(z^{l+1} | z^l) after^{l+1} / total^{l+1}
        before = forward.mul_(evidence).div_(scale.unsqueeze(-1))
        first += posterior[0].sum(0)
        moves += before[:-1].flatten(0, 1).T @ after.div_(total)[1:].flatten(0, 1)
        emitted.index_add_(0, part.T.flatten(), posterior.flatten(0, 1))
        nats += float(scale.log().sum())
    return first, transition * moves, emitted.T, nats


def start(tokens: Tensor, allowed: Tensor, states: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Initial, transition and emission of a class bigram model, blurred so that EM may move a token between states."""
    vocab_size = len(allowed)
    generator = torch.Generator().manual_seed(seed)
    visible = torch.where((tokens >= 0) & (tokens < vocab_size), tokens, 0)
    seen = (tokens == visible) & allowed[visible]
    count = torch.bincount(tokens[seen], minlength=vocab_size).double()
    if not bool(seen.any()):
        raise ValueError("tokens must hold at least one visible token")
    adjacent = seen[:, :-1] & seen[:, 1:]
    left, right = tokens[:, :-1][adjacent], tokens[:, 1:][adjacent]
    label = _cluster(_neighbourhoods(left, right, count), count, min(states, int((count > 0).sum())))
    owner = _share_out(torch.bincount(label, weights=count), states)
    inside = (label == owner.unsqueeze(1)).double()
    noise = torch.rand(states, vocab_size, dtype=torch.float64, generator=generator)
    emission = normalise(count * (inside + _BACKGROUND * (0.5 + noise)), allowed)
    moves = torch.bincount(label[left] * states + label[right], minlength=states**2).double().view(states, states)
    moves = moves[owner][:, owner] * _random_split(owner, generator)
    blur = (1 + _BACKGROUND * moves.sum(1, keepdim=True)) / states
    return normalise(torch.ones(states, dtype=torch.float64)), normalise(moves + blur), emission


def _random_split(owner: Tensor, generator: torch.Generator) -> Tensor:
    """The share [S, S] each state of a class gets of another's moves to the class: uneven, or twins stay twins."""
    states = len(owner)
    share = torch.rand(states, states, dtype=torch.float64, generator=generator).clamp_min(1e-9).log().square()
    return share / torch.zeros_like(share).index_add_(1, owner, share)[:, owner]


def _share_out(mass: Tensor, states: int) -> Tensor:
    """Which class each state stands for [S]: one for each class, and spare states where the classes are heaviest."""
    owner = mass.nonzero().flatten().tolist()
    parts = torch.ones_like(mass)
    for _ in range(states - len(owner)):
        heaviest = int((mass / parts).argmax())
        parts[heaviest] += 1
        owner.append(heaviest)
    return torch.tensor(owner)


def _neighbourhoods(left: Tensor, right: Tensor, count: Tensor) -> Tensor:
    """For each type, the square roots of its left and right neighbours' frequencies, [V, 2 (K + 1)]."""
    vocab_size, kinds = len(count), min(_NEIGHBOURS, len(count))
    kind = torch.full((vocab_size,), kinds)
    kind[count.topk(kinds).indices] = torch.arange(kinds)
    sides = []
    for centre, neighbour in ((left, right), (right, left)):
        pairs = torch.bincount(centre * (kinds + 1) + kind[neighbour], minlength=vocab_size * (kinds + 1))
        table = pairs.double().view(vocab_size, kinds + 1)
        # A type seen once says little about its class: a few average neighbours pull it to the middle.
        sides.append(normalise(table + 5 * normalise(table.sum(0))).sqrt())
    return torch.cat(sides, -1)


def _cluster(features: Tensor, weight: Tensor, clusters: int) -> Tensor:
    """Weighted k-means; each first centre is the type that the centres before it serve worst."""

    def distance(centres: Tensor) -> Tensor:
        return (norm - 2 * (features @ centres.T) + centres.square().sum(-1)).clamp_min(0)

    norm, weighted = features.square().sum(-1, keepdim=True), weight.unsqueeze(-1) * features
    centres = features[weight.argmax()].unsqueeze(0)
    nearest = distance(centres)[:, 0]
    while len(centres) < clusters:
        worst = features[(weight * nearest).argmax()].unsqueeze(0)
        centres = torch.cat([centres, worst])
        nearest = torch.minimum(nearest, distance(worst)[:, 0])
    for _ in range(_LLOYD_ITERATIONS):
        label = distance(centres).argmin(-1)
        mass = weight.new_zeros(clusters).index_add_(0, label, weight).unsqueeze(-1)
        total = torch.zeros_like(centres).index_add_(0, label, weighted)
        centres = torch.where(mass > 0, total / mass.clamp_min(1), centres)
    return label
