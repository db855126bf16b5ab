"""The uniform-state process against enumeration: its optimal network, its posterior, its bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import unmask
from tests.uniform_models import ROWS, AtOneTime, L, V, joint, oracle
from unmask import plan as plans
from unmask.masking import Uniforms
from unmask.networks.ddit import preset
from unmask.networks.oracles.uniform import UniformOracle
from unmask.networks.uniform import UniformDDiT
from unmask.processes import Uniform, process_of
from unmask.samplers import decoding
from unmask.samplers.uniform import Uniformised
from unmask.schedule import SCHEDULES, Linear
from unmask.uniform import clean, log_noisy, noised, noisy, posterior, score_entropies, stretched


def likelihood(alpha: Tensor) -> Tensor:
    """q(x | x0) of every pair of sequences, [x0, x]."""
    same = (ROWS[:, None] == ROWS[None]).double()
    return (alpha * same + (1 - alpha) / V).prod(2)


def nu_by_bayes(t: float | Tensor) -> Tensor:
    """p(x0^l = v | the other positions of x) by summing over all x0, [x, L, V]."""
    same = (ROWS[:, None] == ROWS[None]).double()
    q = (1 - t) * same + t / V
    table = torch.zeros(V**L, L, V, dtype=torch.float64)
    for position in range(L):
        others = [k for k in range(L) if k != position]
        weight = joint()[:, None] * q[..., others].prod(2)
        table[:, position].index_add_(1, ROWS[:, position], weight.T)
    return table / table.sum(2, keepdim=True)


Nu = Callable[[Tensor], Tensor]  # of a time: [x, L, V]


def integrated(network_nu: Nu) -> Tensor:
    """The integral of the bound for every x0: 60 Gauss-Legendre nodes in a variable that flattens both ends."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    s, size = torch.from_numpy((nodes + 1) / 2), len(ROWS)
    times, slopes = s**3 * (10 - 15 * s + 6 * s**2), 30 * (s * (1 - s)) ** 2
    total = torch.zeros(size, dtype=torch.float64)
    x0, x = (part.reshape(-1) for part in torch.broadcast_tensors(ROWS[:, None], ROWS[None]))
    for t, weight in zip(times, torch.from_numpy(weights / 2) * slopes, strict=True):
        logits = network_nu(t).log().expand(size, size, L, V).reshape(-1, V)
        values = score_entropies(logits, x, x0, (1 - t).expand(len(x))).view(size, size, L).sum(2)
        total += weight / (1 - t) * (likelihood(1 - t) * values).sum(1)
    return total


def wrong(strength: float, seed: int) -> Nu:
    """nu of a network that is not the optimal one."""
    random = torch.Generator().manual_seed(seed)
    change = strength * torch.randn(V**L, L, V, generator=random, dtype=torch.float64)
    return lambda t: (nu_by_bayes(t).log() + change).softmax(2)


def law_of(network_nu: Nu, jumps: str) -> Tensor:
    """The law of a network's reverse process, by the Runge-Kutta method in log((1 - t)/t), from noise to data."""
    law, step = torch.full((V**L,), 1 / V**L, dtype=torch.float64), 0.05
    neighbours = ROWS.unsqueeze(1).unsqueeze(1).repeat(1, L, V, 1)  # [x, l, y, L]: y at l
    for position in range(L):
        neighbours[:, position, :, position] = torch.arange(V)
    target = (neighbours * V ** torch.arange(L - 1, -1, -1)).sum(3).flatten(1)

    def flow(law: Tensor, logit: float) -> Tensor:
        t = torch.sigmoid(torch.tensor(-logit, dtype=torch.float64))
        nu, here = network_nu(t), ROWS.unsqueeze(2)
        q = (1 - t) * nu + t / V
        ratio = (nu * t / V if jumps == "fewest" else q / V) / q.gather(2, here)
        rate = ratio * (1 - t if jumps == "fewest" else t)  # dt = t (1 - t) dlogit
        moves = law.unsqueeze(1) * rate.flatten(1)
        return torch.zeros_like(law).index_add(0, target.flatten(), moves.flatten()) - moves.sum(1)

    for k in range(500):
        logit = -12.5 + step * k
        one = flow(law, logit)
        two = flow(law + step / 2 * one, logit + step / 2)
        three = flow(law + step / 2 * two, logit + step / 2)
        law = law + step / 6 * (one + 2 * two + 2 * three + flow(law + step * three, logit + step))
    return law


def test_the_oracle_is_bayes_rule_for_the_other_positions() -> None:
    time = torch.full((V**L,), 0.4, dtype=torch.float64)
    torch.testing.assert_close(oracle()(ROWS, time).exp(), nu_by_bayes(0.4), rtol=1e-12, atol=0)
    two = torch.tensor([[2, 0]])
    asked = oracle()(ROWS[4:5], time[:1], two)
    torch.testing.assert_close(asked[0].exp(), nu_by_bayes(0.4)[4, [2, 0]])


def test_the_oracle_of_a_chain_is_that_of_its_joint() -> None:
    random = torch.Generator().manual_seed(2)
    first, moves = torch.rand(V, generator=random).double(), torch.rand(V, V, generator=random).double()
    first, moves = first / first.sum(), moves / moves.sum(1, keepdim=True)
    table = first[:, None, None] * moves[:, :, None] * moves[None]
    time = torch.rand(V**L, generator=random, dtype=torch.float64)
    chain = UniformOracle(unmask.MarkovOracle(first, moves))
    listed = UniformOracle(unmask.EnumeratedOracle(table))
    torch.testing.assert_close(chain(ROWS, time), listed(ROWS, time))


def test_the_bound_of_the_optimal_network_is_minus_log_p() -> None:
    torch.testing.assert_close(integrated(nu_by_bayes), -joint().log(), rtol=0, atol=1e-6)


def test_both_reverse_processes_of_the_optimal_network_have_the_joint() -> None:
    for jumps in ("fewest", "all"):
        torch.testing.assert_close(law_of(nu_by_bayes, jumps), joint(), rtol=0, atol=2e-5)


def test_the_bound_is_of_the_law_of_all_jumps() -> None:
    """For a wrong network too, and for every sequence; the process of the fewest jumps then has another law."""
    law = law_of(wrong(1.0, 3), "all")
    gap = integrated(wrong(1.0, 3)) + law.log()
    assert float(gap.min()) > 0.01 and float(gap.max()) < 3
    assert float((law - law_of(wrong(1.0, 3), "fewest")).abs().sum()) > 0.02


def test_the_optimum_predicts_from_the_other_positions() -> None:
    """E[x0^l | x], which knows the token of l as well, has a larger mean bound: it is not what a network learns."""

    def mu(t: Tensor) -> Tensor:
        here = torch.nn.functional.one_hot(ROWS, V).double()
        weights = nu_by_bayes(t) * (here * (1 - t) + t / V)
        return weights / weights.sum(2, keepdim=True)

    for nu in (mu, wrong(0.2, 4), wrong(0.2, 5)):
        assert float((joint() * (integrated(nu) + joint().log())).sum()) > 1e-4


def test_the_terms_are_those_of_udlm() -> None:
    """Equation 15 of UDLM (2412.10193) as DUO writes it, with all sums over the ids as printed."""
    random, alpha = torch.Generator().manual_seed(4), torch.tensor(0.3, dtype=torch.float64)
    logits = torch.randn(200, 5, generator=random, dtype=torch.float64)
    x, x0 = torch.randint(5, (2, 200), generator=random)
    bar, true = (5 * alpha * p + 1 - alpha for p in (logits.softmax(1), torch.nn.functional.one_hot(x0, 5).double()))
    here = x.unsqueeze(1)
    bar_i, true_i = bar.gather(1, here), true.gather(1, here)
    logs = (true / true_i * (bar_i.log() + true.log() - bar.log() - true_i.log())).sum(1)
    printed = -(5 / true_i - 5 / bar_i).squeeze(1) + logs
    torch.testing.assert_close(score_entropies(logits, x, x0, alpha.expand(200)), printed / 5)


def test_the_estimate_is_unbiased_under_every_schedule() -> None:
    """The mean over sequences of p is the entropy: a z score below 5, a false alarm in 1.7 million."""
    entropy = float(-(joint() * joint().log()).sum())
    rows = ROWS[torch.multinomial(joint(), 4000, replacement=True, generator=torch.Generator().manual_seed(5))]
    truth = -joint()[(rows * V ** torch.arange(L - 1, -1, -1)).sum(1)].log()
    for name, schedule in SCHEDULES.items():
        model = UniformOracle(oracle().joint, Stretched(schedule))
        bound = unmask.nelbo(model, rows, passes=8, schedule=schedule)
        off = (bound.nats - truth).mean()
        assert abs(float(off / bound.errors.square().mean().sqrt() * math.sqrt(4000))) < 5, name
        assert entropy - 0.2 < float(bound.nats.mean()) < entropy + 0.2
        assert bound.law == "by jumps back and forth (by default, sampling draws with the fewest jumps)"


class Stretched(Linear):
    """alpha of the time that a network is told: what ``inverse`` undoes, from 1 to 0."""

    def __init__(self, schedule: object) -> None:
        object.__setattr__(self, "schedule", schedule)

    def alpha(self, t: float | Tensor) -> Tensor:
        return self.schedule.alpha(t)  # type: ignore[attr-defined,no-any-return]


def test_the_masking_replaces_by_uniform_ids() -> None:
    """Chi-square of 40,000 states given one token, 4 degrees of freedom: 33.4 has a false alarm in a million."""
    process, size = Uniform(), 40_000
    random = torch.Generator().manual_seed(6)
    keys = torch.rand(size, 1, generator=random, dtype=torch.float64)
    u = Uniforms(torch.full((size,), 0.6, dtype=torch.float64), keys, keys)
    masking = process.masking("time", u, batch=size, length=1, schedule=Linear())
    assert masking.when is not None
    x = noised(torch.full((size, 1), 2), masking.when[..., 0], 5)
    expected = size * noisy(torch.eye(5, dtype=torch.float64)[2:3], torch.tensor([0.4]))[0]
    counts = torch.bincount(x[:, 0], minlength=5)
    assert float(((counts - expected) ** 2 / expected).sum()) < 33.4
    torch.testing.assert_close(masking.weight, torch.full((size,), 1 / 0.4, dtype=torch.float64))


def test_the_posterior_is_bayes_rule() -> None:
    """For the true nu, p(x_s^l | x_t) of each position by summing over all x0 and x_s."""
    alpha_s, alpha_t = torch.tensor(0.7, dtype=torch.float64), torch.tensor(0.4, dtype=torch.float64)
    kept = alpha_t / alpha_s
    step = (kept * (ROWS[:, None] == ROWS[None]).double() + (1 - kept) / V).prod(2)  # [x_s, x_t]
    both = (joint() @ likelihood(alpha_s))[:, None] * step
    nu = nu_by_bayes(0.6)
    for position in range(L):
        truth = torch.zeros(V, V**L, dtype=torch.float64).index_add(0, ROWS[:, position], both) / both.sum(0)
        weights = posterior(nu[:, position], ROWS[:, position], alpha_s.expand(V**L), alpha_t.expand(V**L))
        torch.testing.assert_close(weights / weights.sum(1, keepdim=True), truth.T)


def test_a_score_says_the_same_as_a_mean() -> None:
    alpha = torch.tensor([0.2, 0.9], dtype=torch.float64)
    nu = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], dtype=torch.float64)
    scores = noisy(nu, alpha).log() + 3.0
    torch.testing.assert_close(clean(scores.log_softmax(1), alpha, scores=True), nu)
    torch.testing.assert_close(log_noisy(scores, alpha, scores=True), log_noisy(nu.log(), alpha, scores=False))


def test_every_schedule_is_stretched_from_one_to_zero() -> None:
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    for schedule in SCHEDULES.values():
        alpha, slope = stretched(schedule, t)
        assert float(alpha[0]) > 1 - 1e-15 and float(alpha[-1]) < 1e-15
        middle = (alpha[2:] - alpha[:-2])[1:-1] / 0.02
        torch.testing.assert_close(slope[2:-2], middle, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    ("option", "how"),
    [
        ("plan", {"plan": plans.parallel}),
        ("canvas", {"canvas": torch.tensor([[0, V, V]])}),
        ("sampler", {"sampler": decoding.confidence()}),
        ("steps", {"steps": 4, "sampler": Uniformised()}),
        ("presence_penalty", {"presence_penalty": 1.0}),
        ("stop", {"stop": 1}),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(option: str, how: dict[str, object]) -> None:
    how = {"length": L} | how if option != "canvas" else how
    with pytest.raises(unmask.OptionError) as error:
        unmask.sample(oracle(), **how)  # type: ignore[arg-type]
    assert error.value.option == option


def test_other_models_refuse_its_samplers() -> None:
    with pytest.raises(unmask.OptionError, match="needs a model of the process 'uniform'; this is a masked model"):
        unmask.sample(oracle().joint, length=L, sampler=Uniformised())


def test_a_bound_by_count_or_of_a_part_is_refused() -> None:
    with pytest.raises(unmask.OptionError, match="no masked tokens to count"):
        unmask.nelbo(oracle(), ROWS, by="count")
    with pytest.raises(unmask.OptionError, match="takes no where"):
        unmask.nelbo(oracle(), ROWS[:1], where=torch.tensor([[True, False, True]]))


def test_the_ddit_states_it() -> None:
    """Without conditioning it does not read the time; with a mask id below V it is refused."""
    config = preset("tiny", 5, 8)
    assert process_of(UniformDDiT(config)) == Uniform(reads_time=False)
    assert process_of(UniformDDiT(replace(config, conditioning="time"))) == Uniform(reads_time=True)
    with pytest.raises(ValueError, match="has no mask"):
        UniformDDiT(replace(config, mask_id=4))
    assert process_of(AtOneTime(oracle())).name == "uniform"
