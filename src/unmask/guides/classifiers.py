"""Guides that use a classifier, a table of allowed ids, or another network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.devices import home, upload
from unmask.guide import Call, Weigh
from unmask.network import device_of, inference, logits_of
from unmask.predict import log_mean
from unmask.protocol import Denoiser, check

Classify = Callable[[Tensor], Tensor]
"""Canvases int64 [N, L], mask_id at their holes, -> log p(y | canvas), [N]."""

CANVASES = 4096  # per call of the classifier
SMALLEST = -700.0  # log mu' of ids that the other network considers impossible: the contrast must stay finite


@dataclass(frozen=True)
class Classifier:
    """p(y | visible, token) of every candidate, or only of as many as are needed to know the winner."""

    classify: Classify
    at_once: int | None = None
    everywhere: bool = False
    tilts: bool = True

    @property
    def races(self) -> bool:
        return self.at_once is not None

    def __call__(self, call: Call) -> Weigh:
        def weigh(i: Tensor, x: Tensor, at: Tensor, race: Tensor | None) -> Tensor:
            size = call.log_mu.shape[1]
            if race is None or self.at_once is None:
                return self._asked(x, at, torch.arange(size).expand(len(x), size))
            return self._as_needed(x, at, race, self.at_once)

        return weigh

    def _as_needed(self, x: Tensor, at: Tensor, race: Tensor, count: int) -> Tensor:
        """Evaluate the likeliest winners first, until no other id can win, because log p(y | .) <= 0."""
        race, at = race.cpu(), at.cpu()  # which candidates are left depends on what the classifier said
        order = race.argsort(1, descending=True)
        weights = torch.full_like(race, -torch.inf)
        going = torch.arange(len(race))
        for start in range(0, race.shape[1], count):
            ids = order[going, start : start + count]
            weights[going.unsqueeze(1), ids] = self._asked(x[upload(going, x.device)], at[going], ids).cpu()
            best = (weights[going] + race[going]).amax(1)
            if start + count >= race.shape[1]:
                break
            ahead = race[going, order[going, start + count]]
            going = going[best < ahead]
            if not len(going):
                break
        return weights

    def _asked(self, x: Tensor, at: Tensor, ids: Tensor) -> Tensor:
        """log p(y | x with an id at a position): x [b, L], at [b], ids [b, k] -> [b, k]."""
        canvases = x.unsqueeze(1).repeat(1, ids.shape[1], 1)
        place = upload(at, x.device).view(-1, 1, 1).expand(-1, ids.shape[1], 1)
        canvases = canvases.scatter(2, place, upload(ids, x.device).unsqueeze(2)).flatten(0, 1)
        answers = [
            torch.as_tensor(self.classify(part)).to(home(x.device)).double() for part in torch.split(canvases, CANVASES)
        ]
        log_p = torch.cat(answers)
        if log_p.shape != (len(canvases),):
            raise ValueError(f"the classifier must give {len(canvases)} times log p(y | canvas), got {log_p.shape}")
        if bool(log_p.isnan().any()) or (self.races and bool((log_p > 1e-9).any())) or bool((log_p == torch.inf).any()):
            raise ValueError("the classifier must give log p(y | canvas): a number of at most 0, or -inf")
        return log_p.view_as(ids)


def classifier(classify: Classify, *, at_once: int | None = None) -> Classifier:
    """Guide by log p(y | canvas), or by the logarithm of any h(canvas) >= 0.

    It is evaluated on the canvas with each of the V tokens at the position. With one token per call the distribution is
    p(x) h(x) / Z if h(canvas) is E[h(x) | canvas] for every canvas. If h is right only for finished sequences,
    particles correct the distribution.

    Args:
        classify: From canvases int64 [N, L] to log h, [N].
        at_once: Evaluate only this many tokens at a time, the likeliest winners first, until no other can win; the
            resulting tokens are the same. That needs h <= 1 and no particles, and takes about min(V, 1 / p(y |
            visible)) evaluations.
    """
    if not callable(classify):
        raise ValueError(f"classify must be callable: canvases [N, L] -> log p(y | canvas) [N], got {classify!r}")
    if at_once is not None and (isinstance(at_once, bool) or not isinstance(at_once, int) or at_once < 1):
        raise ValueError(f"at_once must be a whole number of at least 1, or None for all, got {at_once!r}")
    return Classifier(classify, at_once)


@dataclass(frozen=True)
class Only:
    """h(x) = 1 where every position holds one of its ids."""

    allowed: Mapping[int, Tensor]
    everywhere: bool = False
    races: bool = False
    tilts: bool = True

    def __call__(self, call: Call) -> Weigh:
        log_g = torch.zeros(call.x.shape[1], call.log_mu.shape[1], dtype=torch.float64)
        for position, ids in self.allowed.items():
            log_g[position, ~ids.cpu()] = -torch.inf
        return lambda i, x, at, race: log_g[at]


def only(allowed: Mapping[int, Tensor]) -> Only:
    """Guide by {position: bool [V]}, the ids that may fill it.

    Without particles this is ``allowed`` of ``unmask.sample``: each token is drawn as if only it were restricted. With
    particles the distribution tends to the model's, given that all positions hold allowed ids.
    """
    return Only(allowed)


@dataclass(frozen=True)
class ClassifierFree:
    """log-weights (1 + s) log mu - s log mu', with mu' from a second call."""

    model: Denoiser
    strength: float
    hide: bool
    everywhere: bool = False
    races: bool = False
    tilts: bool = False

    def __call__(self, call: Call) -> Weigh:
        real = call.rows >= 0
        x = torch.where(upload(call.given, call.x.device), call.mask_id, call.x) if self.hide else call.x
        with inference(self.model):
            device = device_of(self.model)
            rows, time = upload(call.rows.clamp(min=0), device), upload(call.time, device)
            other = log_mean(logits_of(self.model, upload(x, device), time, rows, real)).to(x.device)
        column = (real.flatten().cumsum(0) - 1).view_as(real)

        def weigh(i: Tensor, x: Tensor, at: Tensor, race: Tensor | None) -> Tensor:
            asked = (call.rows[i] == at.unsqueeze(1)).long().argmax(1)
            here = upload(column[i, asked], other.device)
            contrast = call.log_mu[here] - other[here].clamp(min=SMALLEST)
            return torch.where(contrast == -torch.inf, -torch.inf, self.strength * contrast)

        return weigh


def classifier_free(model: Denoiser, strength: float, *, hide: bool = True) -> ClassifierFree:
    """Guide by the difference that a prompt makes: weights mu^(1 + strength) / mu'^strength, as LLaDA's cfg_scale.

    It costs a second network call for each. The result is in general not of the form p(x) h(x), in any order of
    unmasking; strength = 0 is the model's distribution.

    Args:
        model: The network that predicts mu'.
        strength: The weight of the difference.
        hide: mu' is the prediction with the initially visible tokens masked. False: on the same canvas, for another
            network.
    """
    check(model)
    if not (isinstance(strength, (int, float)) and 0 <= strength < float("inf")):
        raise ValueError(f"strength must be a finite number of at least 0, got {strength!r}")
    return ClassifierFree(model, float(strength), hide)
