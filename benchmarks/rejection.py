"""Any-subset speculative decoding as published (Guo and Ermon 2025), to compare ``ahead`` with.

A round is two network calls. The first drafts the next W tokens of the order from their marginals q given what is
settled. The second gives every draft's conditional p given the drafts before it. Drafts are kept while u < p/q. The
first that is not kept is replaced by a draw from (p - q)+, normalised, and those behind it are thrown away. The law is
exact, as that of ``ahead`` is, but the tokens are others: the decision to keep a token takes randomness of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.draw import exponential_race
from unmask.noise import Noise
from unmask.plan import Plan, Planner, first_hitting
from unmask.sampler import Ask, State, Step, Task


@dataclass
class RejectionState(State):
    plan: Plan
    settled: Tensor  # int64 [B]
    rounds: Tensor  # int64 [B]: a position that is drafted again has new noise
    noise: dict[str, Tensor]  # keys [B, L] of the drafts, the decisions and the replacements
    drafts: Tensor | None = None  # int64 [B, W]: -1 where there is none
    q: Tensor | None = None  # float64 [B, W, V]: log q

    def take(self, index: Tensor) -> RejectionState:
        taken = super().take(index)
        taken.noise = {name: keys[index] for name, keys in self.noise.items()}
        return taken


@dataclass(frozen=True)
class Rejection:
    """Drafts of so many tokens, kept or replaced by rejection sampling."""

    window: int
    plan: Planner = first_hitting

    def begin(self, canvas: Tensor, task: Task) -> RejectionState:
        whole = self.plan(canvas, mask_id=task.mask_id, streams=task.streams, schedule=task.schedule, steps=task.steps)
        noise = {name: task.streams.at(name, canvas.shape[1]).keys for name in ("token", "kept", "replaced")}
        nothing = torch.zeros(len(canvas), dtype=torch.int64)
        return RejectionState(task, canvas.clone(), 2 * whole.calls, whole, nothing, nothing.clone(), noise)

    def ask(self, state: RejectionState) -> Ask:
        left = state.plan.holes - state.settled
        width = min(self.window, int(left.max())) if len(left) else 0
        slots = state.settled.unsqueeze(1) + torch.arange(width)
        real = slots < state.plan.holes.unsqueeze(1)
        inside = torch.where(real, slots, 0)
        rows = torch.where(real, state.plan.order.gather(1, inside), -1)
        time = torch.where(real, state.plan.call_time.gather(1, inside), 0.0) if width else torch.zeros(rows.shape)
        if state.drafts is None or not width:
            return Ask(rows, time[:, 0] if width else time.sum(1))
        known = (real.sum(1) - 1).clamp(min=0)
        row, column = (torch.arange(width) < known.unsqueeze(1)).nonzero(as_tuple=True)
        canvas = state.x.clone()
        canvas[row, rows[row, column]] = state.drafts[row, column]
        return Ask(rows, time, canvas, known)

    def fill(self, state: RejectionState, ask: Ask, log_mu: Tensor) -> Step:
        rows, real = ask.rows, ask.rows >= 0
        row, column = real.nonzero(as_tuple=True)

        def noise(name: str) -> Noise:
            return Noise(state.noise[name][row, rows[row, column]]).again(state.rounds[row])

        table = torch.full((*rows.shape, log_mu.shape[1]), -torch.inf, dtype=torch.float64)
        table[row, column] = log_mu
        if state.drafts is None:
            state.q, state.drafts = table, torch.full_like(rows, -1)
            state.drafts[row, column] = exponential_race(log_mu, noise("token"))
            none = rows[:, :0]
            return Step(torch.arange(len(rows)), none, none, none.double(), none.double(), none.bool(), real.sum(1))
        assert state.q is not None
        drafts, q = state.drafts, state.q
        log_p, log_q = (of.gather(2, drafts.clamp(min=0).unsqueeze(2)).squeeze(2) for of in (table, q))
        kept = torch.zeros_like(real)
        kept[row, column] = noise("kept").uniform() < (log_p - log_q)[row, column].exp()
        run = (kept & real).long().cumprod(1).sum(1)
        count = torch.minimum(run + 1, real.sum(1))
        ids, replaced = drafts.clone(), torch.nonzero(run < real.sum(1)).squeeze(1)
        if len(replaced):
            at = run[replaced]
            rest = (table[replaced, at].exp() - q[replaced, at].exp()).clamp(min=0)
            where = Noise(state.noise["replaced"][replaced, rows[replaced, at]]).again(state.rounds[replaced])
            ids[replaced, at] = exponential_race(rest.log(), where)
        state.settled, state.rounds = state.settled + count, state.rounds + 1
        state.drafts = state.q = None
        most = int(count.max())
        settles = torch.arange(most) < count.unsqueeze(1)
        chance = table.gather(2, ids.clamp(min=0).unsqueeze(2)).squeeze(2).exp()[:, :most]
        return Step(
            torch.arange(len(rows)),
            torch.where(settles, rows[:, :most], -1),
            torch.where(settles, ids[:, :most], -1),
            torch.where(settles, chance, 0.0),
            torch.zeros_like(chance),
            settles,
            real.sum(1),
        )
