"""Samplers of uniform-state models (``unmask.uniform``).

``Uniformised`` is exact. Among the reverse processes with the law of the forward process at every time, take the one
with the fewest jumps: position l changes to y /= x^l at the rate -alpha'/(1 - alpha) mu_l(y). In w = -log(1 - alpha)
that is mu_l(y), which sums to less than 1. So the events of a Poisson process of rate 1 for each position are enough:
at each the position is redrawn from mu_l = E[x0^l | x], and late ones usually keep its token. Events are drawn before
the first call. There are infinitely many before alpha = 1, but when alpha is 1 - tail/L, the state differs from data
with a probability below ``tail``, and sampling stops.

The number of events of a sequence is Poisson with mean L log(L/tail). That is the number of calls for a network that
reads the time. For one that does not, a call serves all events up to the first that changes a token, with the same
tokens; the mean number of changes is L (1 - 1/V) (1 - tail/L) if the network is right.

For a network that is not quite right each reverse process has its own law. The bound of such a model is that of the
reversed forward process, in which tokens also change back: jumps="all". In log(alpha/(1 - alpha)) its rate to y is
(1 - alpha)/V q(y | nu)/q(x^l | nu), which sums to less than 1 as well; it starts where alpha = tail/L.

First hitting, one draw for each position in a random order, has no analogue: the network cannot tell which tokens have
been drawn and which are noise, so a token drawn early is only as good as the noise that it was drawn from. A position
must be redrawn later.

``Ancestral`` is the published N-step sampler, exact as N grows, with DUO's greedy last step and its psi samplers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unmask.devices import download, upload
from unmask.draw import Pick
from unmask.errors import OptionError, check_number
from unmask.noise import Noise
from unmask.sampler import Ask, State, Step, Task, filled
from unmask.uniform import clean, noisy, posterior, stretched

SMALLEST_OF_SCORES = 1e-3  # alpha at t = 1 under the published noise: less was not trained
LONG_AFTER = 60.0
LARGEST_WINDOW = 256  # events that one call may serve, if none of them changes a token


@dataclass
class UniformState(State):
    """Tokens everywhere, the events that redraw them, and the next event."""

    position: Tensor  # int64 [B, N]: of each event; -1 pads
    level: Tensor  # float64 [B, N]: 1 - alpha at each event
    visit: Tensor  # int64 [B, N]: how often the position has been redrawn before
    at: Tensor  # int64 [B]: the next event
    window: Tensor  # int64 [B]: the events that the next call serves
    noise: Noise  # [B, L]: of the tokens
    shown: Tensor  # int64 [B, L]: x on the CPU

    @property
    def events(self) -> Tensor:
        """int64 [B]."""
        return (self.position >= 0).sum(1)


@dataclass(frozen=True)
class Uniformised:
    """Exact sampling by uniformisation, at most ``tail`` from the model's law in total variation."""

    process: ClassVar[str] = "uniform"
    settles: ClassVar[bool] = False

    tail: float = 1e-3
    jumps: Literal["fewest", "all"] = "fewest"
    reads_time: bool = True
    scores: bool = False

    def __post_init__(self) -> None:
        check_number("tail", self.tail, gt=0, le=0.5)
        if self.jumps not in ("fewest", "all"):
            raise OptionError("jumps", f"jumps must be 'fewest' or 'all', got {self.jumps!r}")

    def begin(self, canvas: Tensor, task: Task) -> UniformState:
        batch, length = canvas.shape
        end = math.log(max(length, 1) / self.tail - 1)
        span = -math.log(self.tail / max(length, 1)) if self.jumps == "fewest" else 2 * end
        position, w, visit = poisson_events(task.streams.at("event", length), span)
        level = torch.exp(-w) if self.jumps == "fewest" else torch.sigmoid(end - w)
        events = (position >= 0).sum(1)
        shown = random_tokens(task, length)
        x = upload(shown, canvas.device)
        calls = events if self.reads_time else events.clamp(max=length)
        zeros = torch.zeros(batch, dtype=torch.int64)
        noise = task.streams.at("token", length)
        return UniformState(task, x, calls, position, level, visit, zeros, zeros + 1, noise, shown)

    def ask(self, state: UniformState) -> Ask:
        """The positions of the next events. The time is that of the first; others ask for one alone."""
        width = int(state.window.max()) if len(state.window) else 1
        column = torch.arange(width)
        index = state.at.unsqueeze(1) + column
        index = torch.where(column < state.window.unsqueeze(1), index, state.position.shape[1])
        rows = torch.nn.functional.pad(state.position, (0, 1), value=-1)
        rows = rows.gather(1, index.clamp(max=rows.shape[1] - 1))
        first = state.at.clamp(max=max(state.level.shape[1] - 1, 0)).unsqueeze(1)
        return Ask(rows, state.task.schedule.inverse(1 - state.level.gather(1, first).squeeze(1)))

    def fill(self, state: UniformState, ask: Ask, log_mu: Tensor) -> Step:
        """Redraw the positions in turn, up to the first that changes: the rows of later ones are those of another x."""
        real, x = ask.rows >= 0, state.shown
        row, column = real.nonzero(as_tuple=True)
        at, event = ask.rows[row, column], state.at[row] + column
        before, alpha = x[row, at], 1 - state.level[row, event]
        nu, there = shaped(state.task.pick, log_mu, alpha, self.scores), log_mu.device
        move = redraw if self.jumps == "fewest" else jump
        weights = move(nu, upload(before, there), upload(alpha, there))
        noise = state.noise[row, at].again(state.visit[row, event])
        ids, probabilities = download(*plain(state.task.pick)(weights.log(), noise))
        changes = torch.zeros_like(real)
        changes[row, column] = ids != before
        changed = changes.any(1)
        last = torch.where(changed, changes.long().argmax(1), real.sum(1) - 1)
        done = torch.arange(len(row))[column == last[row]]  # the last event of each sequence that counts
        tokens, certain = x.clone(), torch.full(x.shape, 1.0 / state.task.mask_id, dtype=torch.float64)
        tokens[row[done], at[done]], certain[row[done], at[done]] = ids[done], probabilities[done]
        chosen = (state.at == 0).unsqueeze(1).repeat(1, x.shape[1])  # the first call shows the noise too
        chosen[row[done], at[done]] = True
        tau = state.task.schedule.inverse(alpha[done])
        state.at, state.shown = state.at + last + 1, tokens
        if not self.reads_time:
            state.window = torch.where(changed, (state.window // 2).clamp(min=1), state.window * 2)
            state.window = state.window.clamp(max=LARGEST_WINDOW)
        return filled(chosen, tokens, certain, tau, last + 1)


def poisson_events(keys: Noise, span: float) -> tuple[Tensor, Tensor, Tensor]:
    """The events of all positions in order: position and time int64 and float64 [B, N], and earlier events there.

    keys: the noise of each position, [B, L]. Each position has a Poisson process of rate 1 from 0 to ``span``. A
    sequence without events gets one long after the end, where nothing changes any more.
    """
    most = math.ceil(span + 12 * math.sqrt(span) + 24)  # a Poisson variable exceeds it with a probability below 1e-20
    arrival = keys.exponential(most).cumsum(2)
    w, index = torch.where(arrival <= span, arrival, torch.inf).flatten(1).sort(1)
    width = max(int(w.isfinite().sum(1).max()) if w.numel() else 0, 1)
    w, index = w[:, :width], index[:, :width]
    w[:, :1] = torch.where(w[:, :1].isfinite(), w[:, :1], LONG_AFTER)
    there = w.isfinite()
    return torch.where(there, index // most, -1), w, torch.where(there, index % most, 0)


def redraw(nu: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """mu [M, V], up to a factor."""
    return posterior(nu, x, torch.ones_like(alpha), alpha)


def jump(nu: Tensor, x: Tensor, alpha: Tensor) -> Tensor:
    """(1 - alpha)/V q(y | nu)/q(x | nu) [M, V], and the rest of the probability at x [M]."""
    q, here = noisy(nu, alpha), x.unsqueeze(1)
    weights = q * ((1 - alpha).unsqueeze(1) / nu.shape[1] / q.gather(1, here))
    stay = 1 - weights.sum(1, keepdim=True) + weights.gather(1, here)
    return weights.scatter(1, here, stay.clamp(min=0))


Kappa = Callable[[Tensor, Tensor], Tensor]
"""From alpha_s and alpha_t to the weight of the posterior, in 0..1."""


@dataclass(frozen=True)
class Ancestral:
    """The published N-step sampler: every position is drawn from its own posterior at N times, 1, 1 - 1/N, ..., 1/N.

    last: in the last step, draw from the posterior of the clean token, or take the most likely id of the network
    (DUO's greedy tail). kappa: mix the posterior with noise added to a drawn clean token (DUO's psi samplers); the law
    at each time stays that of the forward process, and mistakes are drawn again.
    """

    process: ClassVar[str] = "uniform"
    settles: ClassVar[bool] = False

    last: Literal["posterior", "greedy"] = "posterior"
    kappa: Kappa | None = None
    scores: bool = False

    def begin(self, canvas: Tensor, task: Task) -> UniformState:
        if task.steps is None:
            raise OptionError("steps", "this sampler needs steps, the number of steps N")
        (batch, length), steps = canvas.shape, task.steps
        shown = random_tokens(task, length)
        x = upload(shown, canvas.device)
        calls, zeros = torch.full((batch,), steps if length else 0), torch.zeros(batch, dtype=torch.int64)
        alpha, _ = stretched(task.schedule, 1 - torch.arange(steps + 1, dtype=torch.float64) / steps)
        alpha[0], alpha[-1] = 0.0, 1.0
        grid, noise = (1 - alpha).expand(batch, -1), task.streams.at("token", length)
        every = torch.zeros(batch, steps, dtype=torch.int64)
        return UniformState(task, x, calls, every, grid, every, zeros, zeros + 1, noise, shown)

    def ask(self, state: UniformState) -> Ask:
        """Every position."""
        going = (state.at < state.calls).unsqueeze(1)
        rows = torch.where(going, torch.arange(state.x.shape[1]).expand(len(going), -1), -1)
        return Ask(rows, state.task.schedule.inverse(1 - state.level.gather(1, state.at.unsqueeze(1)).squeeze(1)))

    def fill(self, state: UniformState, ask: Ask, log_mu: Tensor) -> Step:
        batch, length = state.x.shape
        x, there, k = state.x.flatten().to(log_mu.device), log_mu.device, int(state.at[0])
        alpha_t, alpha_s = ((1 - state.level[:, i]).repeat_interleave(length) for i in (k, k + 1))
        nu = shaped(state.task.pick, log_mu, alpha_t.clamp(min=2.0**-53), self.scores)
        weights = self._weights(nu, x, upload(alpha_s, there), upload(alpha_t, there))
        noise = Noise(state.noise.again(k).keys.flatten())
        ids, probabilities = plain(state.task.pick)(weights.log(), noise)
        if self.last == "greedy" and k + 1 == state.task.steps:
            ids, probabilities = nu.argmax(1), torch.ones_like(probabilities)
        tokens, certain = (part.view(batch, length) for part in download(ids, probabilities))
        chosen = torch.ones_like(tokens, dtype=torch.bool) if not k else tokens != state.shown
        tau = state.task.schedule.inverse(1 - state.level[:, k + 1])
        state.at, state.shown = state.at + 1, tokens
        return filled(chosen, tokens, certain, tau, torch.full((batch,), length))

    def _weights(self, nu: Tensor, x: Tensor, alpha_s: Tensor, alpha_t: Tensor) -> Tensor:
        weights = normalised(posterior(nu, x, alpha_s, alpha_t))
        if self.kappa is None:
            return weights
        kappa = self.kappa(alpha_s, alpha_t).unsqueeze(1)
        again = noisy(normalised(posterior(nu, x, torch.ones_like(alpha_s), alpha_t)), alpha_s)
        return kappa * weights + (1 - kappa) * again


def psi(eta: float = 0.1, kind: Literal["constant", "capped", "rescaled"] = "capped") -> Ancestral:
    """DUO's psi samplers: kappa = 1 - eta, or 1 - sigma/(1 - alpha_s) with ReMDM's capped or rescaled sigma."""
    check_number("eta", eta, ge=0, le=1)

    def kappa(alpha_s: Tensor, alpha_t: Tensor) -> Tensor:
        if kind == "constant":
            return torch.full_like(alpha_s, 1 - eta)
        largest = torch.where(alpha_t > 0, (1 - alpha_s) / alpha_t, 1.0).clamp(max=1.0)
        sigma = largest.clamp(max=eta) if kind == "capped" else eta * largest
        return torch.where(alpha_s < 1, 1 - sigma / (1 - alpha_s), 1.0).clamp(0, 1)

    return Ancestral(kappa=kappa)


def random_tokens(task: Task, length: int) -> Tensor:
    """The state at alpha = 0: uniform ids int64 [B, L]; there are mask_id of them."""
    return (task.streams.at("state", length).uniform() * task.mask_id).long()


def shaped(pick: Pick, log_p: Tensor, alpha: Tensor, scores: bool) -> Tensor:
    """nu [M, V] of a network's output, with the temperature and the other changes of its distribution."""
    seen = alpha.clamp(min=SMALLEST_OF_SCORES) if scores else alpha
    nu = clean(log_p, upload(seen, log_p.device), scores=scores)
    return nu if plain(pick) == pick else pick.shaped(nu.log()).softmax(1)


def plain(pick: Pick) -> Pick:
    """The draw alone."""
    return Pick(draw=pick.draw)


def normalised(weights: Tensor) -> Tensor:
    return weights / weights.sum(1, keepdim=True)
