"""Guided sampling: tokens from p(x) h(x) / Z instead of p(x), where h is a guide's value of a finished sequence.

If g(visible) = E[h(x) | visible], one token per call from

    q(token) = mu(token) g(visible, token) / sum over tokens of the same

has exactly that distribution. Most guides approximate g and are exact only for finished sequences. Then a sequence has
an importance weight, prod_j Z_j / g_{j-1}: Z_j is the sum above at its j-th token, and g_{j-1} the guide's value after
the token before. Its mean is Z = E_p[h(x)]. With ``particles`` each sequence is drawn from a population that is
resampled by these weights (sequential Monte Carlo): its distribution tends to p h / Z as the population grows, whatever
the guide's intermediate values.

The particles of a sequence share one order sigma by default, so that limit is E_sigma[p_sigma h / Z_sigma], with
p_sigma the chain rule along sigma. It is p h / Z if the network's conditionals belong to one joint, because p_sigma is
then the same for all orders; a trained network's are close to that. With ``own_orders`` every particle draws an order
of its own, and the limit is p h / Z with p = E_sigma[p_sigma], the distribution without a guide, for any network.

Tokens that a plan fills in one call are drawn one after the other, each with the guide's value given those before it.
So p is the distribution of the plan, with one token per call or several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.draw import Pick, exponential_race
from unmask.guide import Call, Guide
from unmask.noise import Noise, Streams
from unmask.plan import Plan, Planner
from unmask.sampler import Particles, State, Step, Task, packed
from unmask.samplers.planned import PlanAsk

RESAMPLED_BELOW = 0.5  # as a fraction of the particles: a population is resampled below this effective number


@dataclass
class GuidedState(State):
    """The state of sequences, each a population of particles that share its plan, or have plans of their own."""

    plan: Plan
    step: Tensor  # int64 [N]
    noise: Noise  # [N, L]: of the tokens
    visits: Tensor  # int64 [N, L]: how often each particle's row has drawn each position: more than once in own orders
    resampling: Noise  # [N, L]: a population's, the same in all its particles
    given: Tensor  # bool [N, L]
    number: Tensor  # int64 [N]: sequence * particles + particle
    log_g: Tensor  # float64 [N]: the guide's last value, for what has been filled
    log_weights: Tensor  # float64 [N]


@dataclass(frozen=True)
class Guided:
    """A plan whose tokens are drawn with a guide, by populations of particles."""

    plan: Planner
    guide: Guide
    particles: int = 1
    own_orders: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.particles, bool) or not isinstance(self.particles, int) or self.particles < 1:
            raise ValueError(f"particles must be a whole number of at least 1, got {self.particles!r}")
        if self.particles > 1 and (self.guide.races or not self.guide.tilts):
            why = "must then weigh all tokens" if self.guide.races else "is not defined by a weight h(x)"
            raise ValueError(f"particles={self.particles}: the guide {type(self.guide).__name__} {why}")

    def begin(self, canvas: Tensor, task: Task) -> GuidedState:
        pick, length, each = task.pick, canvas.shape[1], self.particles
        if each > 1 and pick != Pick(pick.draw):
            raise ValueError("particles sample the model itself: leave out temperature, top_k, top_p and bias")
        if pick.penalises:
            raise ValueError("a guide cannot be combined with a presence or frequency penalty")
        if self.guide.races and pick != Pick(exponential_race):
            raise ValueError("a guide with at_once needs the exponential race and temperature 1")
        sequence = torch.arange(len(canvas)).repeat_interleave(each)
        plan = self._plan(canvas, task, sequence)
        noise = torch.stack([task.streams.particle(k).at("token", length).keys for k in range(each)], 1)
        x, zeros = canvas.repeat_interleave(each, 0), torch.zeros(len(sequence), dtype=torch.float64)
        return GuidedState(
            task,
            x,
            plan.calls,
            plan,
            torch.zeros_like(sequence),
            Noise(noise.flatten(0, 1)),
            torch.zeros(x.shape, dtype=torch.int64),
            task.streams.at("resampling", length).take(sequence),
            (x != task.mask_id).cpu(),
            torch.arange(len(sequence)),
            zeros,
            zeros.clone(),
        )

    def _plan(self, canvas: Tensor, task: Task, sequence: Tensor) -> Plan:
        """The plan of every particle [N]: that of its sequence, or its own."""
        how = {"mask_id": task.mask_id, "schedule": task.schedule, "steps": task.steps}
        if not self.own_orders:
            return self.plan(canvas, streams=task.streams, **how).take(sequence)
        own = Plan.join([self.plan(canvas, streams=task.streams.particle(k), **how) for k in range(self.particles)])
        plan = own.take(torch.arange(len(own)).view(self.particles, -1).T.flatten())
        calls = plan.calls.view(-1, self.particles)
        if bool((calls != calls[:, :1]).any()):
            raise ValueError(
                "own_orders needs a plan with as many network calls for every particle, such as plan.first_hitting or "
                "plan.parallel"
            )
        return plan

    def ask(self, state: GuidedState) -> PlanAsk:
        """The rows of this step, followed by all masked positions if the guide needs log mu everywhere."""
        group = state.plan.group(state.step)
        rows = group.positions
        if self.guide.everywhere and rows.shape[1]:
            others = (state.x == state.task.mask_id).cpu() & (rows >= 0).any(1, keepdim=True)
            others[(rows >= 0).nonzero()[:, 0], rows[rows >= 0]] = False
            rows = torch.cat((rows, packed(others)), 1)
        return PlanAsk(rows=rows, time=state.plan.time(state.step), group=group)

    def fill(self, state: GuidedState, ask: PlanAsk, log_mu: Tensor) -> Step:
        """The tokens of the group, one after the other; before the first a population may be resampled."""
        task, group, device = state.task, ask.group, log_mu.device
        positions = group.positions
        weigh = self.guide(Call(state.x, ask.rows, log_mu, ask.time, state.given, task.mask_id))
        real = ask.rows >= 0
        answer = (real.flatten().cumsum(0) - 1).view_as(real)  # the row of log mu for each requested row
        tokens, certain = torch.full_like(positions, -1), torch.zeros(positions.shape, dtype=torch.float64)
        source, particles, x = torch.arange(len(positions)), None, state.x.clone()
        for column in range(positions.shape[1]):
            live = (positions[:, column] >= 0).nonzero().squeeze(1)
            at = positions[live, column]
            mu = log_mu[answer[source[live], column].to(device)]
            race = self._race(mu, state.noise[live, at])
            weights = mu + weigh(source[live], x[live.to(device)], at, race).to(device)
            state.log_weights[live] += weights.logsumexp(1).cpu() - state.log_g[live]
            if column == 0:
                assert len(live) == len(source), "who has nothing to fill has left"
                particles = self._resampled(state)
                source = particles.parents
                x, mu, weights = (tensor[source.to(device)] for tensor in (x, mu, weights))
                if self.own_orders:  # a copy goes on along the order of the particle that it was copied from
                    state.plan, group = state.plan.take(source), group.take(source)
                    positions = group.positions
                    at = positions[:, 0]
            lost = (weights == -torch.inf).all(1)  # weight 0: it is dropped when its population is resampled
            weights = torch.where(lost.unsqueeze(1), mu, weights)
            drawn, probabilities = task.pick(weights, state.noise[live, at].again(state.visits[live, at]))
            state.visits[live, at] += 1
            state.log_g[live] = (weights - mu).gather(1, drawn.unsqueeze(1)).squeeze(1).cpu()
            x[live.to(device), at.to(device)] = drawn
            tokens[live, column], certain[live, column] = drawn.cpu(), probabilities.cpu()
        state.step = state.step + 1
        if particles is not None:
            # Weights change with every token of the call, so the population is counted once more.
            number = torch.minimum(particles.effective, self._effective(state))
            particles = replace(particles, log_weights=state.log_weights.clone(), effective=number)
        sequences = torch.arange(len(positions))
        return Step(
            sequences, positions, tokens, certain, group.tau, group.drawn, group.drawn.sum(1), particles=particles
        )

    def _race(self, mu: Tensor, noise: Noise) -> Tensor | None:
        if not self.guide.races:
            return None
        return mu - torch.cat(list(noise.log_clocks(mu.shape[1], device=mu.device)))

    def _effective(self, state: GuidedState) -> Tensor:
        """The effective number of each particle's population, [N]; 0 where all weights are 0."""
        members, number = state.number.argsort().view(-1, self.particles), torch.empty_like(state.log_weights)
        number[members] = effective(state.log_weights[members]).nan_to_num(0.0).unsqueeze(1).expand(members.shape)
        return number

    def _resampled(self, state: GuidedState) -> Particles:
        """The particle that each becomes a copy of; a population of nearly equal weights is not resampled."""
        members = state.number.argsort().view(-1, self.particles)
        log_weights = state.log_weights[members]
        mean, number = log_mean_exp(log_weights), effective(log_weights)
        if bool((mean == -torch.inf).any()):
            raise ValueError(
                "the guide excludes every token: its constraint is impossible on this canvas, or so rare "
                f"that it needs more particles than {self.particles}"
            )
        chosen, row = number < RESAMPLED_BELOW * self.particles, members[:, 0]
        u = state.resampling[row, state.step[row]].uniform()
        kept = torch.where(chosen.unsqueeze(1), systematic(log_weights, u), torch.arange(self.particles))
        parents, each = torch.empty_like(state.number), torch.empty_like(state.log_weights)
        parents[members], each[members] = members.gather(1, kept), number.unsqueeze(1).expand_as(log_weights)
        state.log_weights[members] = torch.where(chosen.unsqueeze(1), mean.unsqueeze(1), log_weights)
        return Particles(parents, state.log_weights, each)


def log_mean_exp(log_weights: Tensor) -> Tensor:
    """log of the mean weight, [..., K] -> [...]: for a population, the estimate of log Z."""
    return log_weights.logsumexp(-1) - math.log(log_weights.shape[-1])


def effective(log_weights: Tensor) -> Tensor:
    """The effective number of particles, (sum w)^2 / sum w^2: [..., K] -> [...]."""
    return (2 * log_weights.logsumexp(-1) - (2 * log_weights).logsumexp(-1)).exp()


def systematic(log_weights: Tensor, u: Tensor) -> Tensor:
    """K draws from weights [..., K] with one uniform [...]: particle k occurs K w_k times, rounded up or down."""
    count = log_weights.shape[-1]
    cumulative = log_weights.softmax(-1).cumsum(-1)
    places = (torch.arange(count, dtype=torch.float64) + u.unsqueeze(-1)) / count * cumulative[..., -1:]
    return torch.searchsorted(cumulative.contiguous(), places.contiguous(), right=True).clamp(max=count - 1)


@dataclass(frozen=True)
class Population:
    """The particles at the end of a run, and which of them is the drawn sequence."""

    tokens: Tensor  # int64 [B, K, L]
    log_weights: Tensor  # float64 [B, K]
    chosen: Tensor  # int64 [B]
    effective: Tensor  # float64 [B]: the smallest effective number of particles in the run, its end included

    def __str__(self) -> str:
        each, least = self.log_weights.shape[1], self.effective
        evidence = self.log_evidence
        return (
            f"{each:,} particles for each, of which at least {least.min():.3g} effective; "
            f"log evidence {evidence.mean():.4g}"
        )

    @property
    def log_evidence(self) -> Tensor:
        """log of the estimate of Z = E_p[h(x)], [B]. The estimate is unbiased, its logarithm is not."""
        return log_mean_exp(self.log_weights)

    def evidence(self) -> float:
        """log of the estimate of Z from the particles of all sequences, if these have one canvas."""
        return float(log_mean_exp(self.log_weights.flatten()))

    def reports(self) -> list[dict[str, float]]:
        """Of each sequence: log of the estimate of Z, the effective number of particles, and their number."""
        each = self.log_weights.shape[1]
        rows = zip(self.log_evidence.tolist(), self.effective.tolist(), strict=True)
        return [{"log_evidence": z, "effective": number, "particles": each} for z, number in rows]


def populated(tokens: Tensor, trace: Sequence[Step], particles: int, streams: Streams) -> Population:
    """The populations of finished particles [B * K, L]: one of each is drawn by weight."""
    log_weights = torch.zeros(len(tokens), dtype=torch.float64)
    least = torch.full_like(log_weights, particles)
    for step in trace:
        if step.particles is not None:
            log_weights[step.sequences] = step.particles.log_weights
            least[step.sequences] = torch.minimum(least[step.sequences], step.particles.effective)
    return weighted(tokens, log_weights.view(-1, particles), least.view(-1, particles)[:, 0], streams)


def weighted(tokens: Tensor, log_weights: Tensor, least: Tensor, streams: Streams) -> Population:
    """Populations of finished particles [B * K, L] with these weights [B, K]: one of each is drawn by weight."""
    u, particles = streams.at("choice of a particle", 1).uniform(), log_weights.shape[1]
    cumulative = log_weights.softmax(1).cumsum(1)
    chosen = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(1).clamp(max=particles - 1)
    return Population(tokens.view(-1, particles, tokens.shape[1]), log_weights, chosen, least)


def lineage(trace: Sequence[Step], rows: Tensor) -> tuple[Step, ...]:
    """The Steps of the particles rows [B] and of their ancestors: Steps of B sequences."""
    rows, steps = rows.clone(), []
    for step in reversed(trace):
        # The step's entry for each row; rows that took no part in it have none.
        most = 1 + max(int(rows.max()), int(step.sequences.max())) if len(rows) and len(step.sequences) else 0
        entry = torch.full((most,), -1).scatter(0, step.sequences, torch.arange(len(step.sequences)))
        local = entry[rows] if most else rows[:0]
        sequence = (local >= 0).nonzero().squeeze(1)
        local = local[sequence]
        steps.append(replace(step.take(local), sequences=sequence, particles=None))
        if step.particles is not None:
            rows[sequence] = step.sequences[step.particles.parents[local]]
    return tuple(reversed(steps))
