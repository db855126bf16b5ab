"""The samplers of uniform-state models against exact laws. The chi-square tests state their false alarms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from tests.processes.test_uniform import law_of as law_of_process
from tests.uniform_models import ROWS, AtOneTime, L, V, chi_square, frequencies, joint, oracle
from unmask.noise import Streams
from unmask.samplers.uniform import Ancestral, Uniformised, jump, poisson_events, psi
from unmask.theory import maximum_gumbel, shifted_probabilities
from unmask.uniform import noisy, posterior

NUMBER = 20_000
LARGEST = 83.7  # of a chi-square with 26 degrees of freedom: a false alarm in ten million


def law_of(steps: int, sampler: Ancestral, maximum: float | None = None) -> Tensor:
    """The distribution of N steps, as a product of transition matrices between all sequences.

    maximum: the largest Gumbel of a truncated draw, by Prop. 5.2.
    """
    law, alpha = torch.full((V**L,), 1 / V**L, dtype=torch.float64), torch.arange(steps + 1).double() / steps
    for k in range(steps):
        nu = oracle()(ROWS, (1 - alpha[k]).expand(V**L)).exp().flatten(0, 1)
        at_t, at_s = (alpha[i].expand(len(nu)) for i in (k, k + 1))
        weights = posterior(nu, ROWS.flatten(), at_s, at_t)
        weights = weights / weights.sum(1, keepdim=True)
        if sampler.kappa is not None:
            mu = posterior(nu, ROWS.flatten(), torch.ones_like(at_s), at_t)
            kappa = sampler.kappa(at_s, at_t).unsqueeze(1)
            weights = kappa * weights + (1 - kappa) * noisy(mu / mu.sum(1, keepdim=True), at_s)
        if sampler.last == "greedy" and k + 1 == steps:
            weights = torch.nn.functional.one_hot(nu.argmax(1), V).double()
        if maximum is not None:
            weights = torch.stack([torch.from_numpy(shifted_probabilities(row.numpy(), maximum)) for row in weights])
        per_position = weights.view(V**L, L, V)
        move = torch.stack([per_position[:, at, ROWS[:, at]] for at in range(L)]).prod(0)  # [x_t, x_s]
        law = law @ move
    return law


@pytest.mark.parametrize("jumps", ["fewest", "all"])
def test_uniformisation_has_the_law_of_the_joint(jumps: Any) -> None:
    sample = unmask.sample(oracle(), num=NUMBER, length=L, seed=3, sampler=Uniformised(jumps=jumps))
    assert chi_square(sample.tokens, joint()) < LARGEST


@pytest.mark.parametrize("jumps", ["fewest", "all"])
def test_uniformisation_has_the_law_of_the_reverse_process_of_any_network(jumps: Any) -> None:
    """A wrong network's law, which the Runge-Kutta method gives; ``tail`` is smaller than the test can see."""
    change = torch.randn(V, L, V, generator=torch.Generator().manual_seed(12), dtype=torch.float64)

    class Wrong(AtOneTime):
        def __call__(self, tokens: Tensor, rows: Tensor | None = None) -> Tensor:
            every = super().__call__(tokens) + change[tokens[:, :1].expand_as(tokens), torch.arange(L)]
            return every if rows is None else every[torch.arange(len(tokens)).unsqueeze(1), rows]

    network = Wrong(oracle())
    law = law_of_process(lambda t: network(ROWS).softmax(2), jumps)
    assert float((law - joint()).abs().sum()) > 0.3
    sample = unmask.sample(network, num=NUMBER // 4, length=L, seed=13, sampler=Uniformised(1e-4, jumps))
    assert chi_square(sample.tokens, law) < LARGEST


def test_an_event_of_all_jumps_changes_the_token_at_the_rates_of_the_reverse_process() -> None:
    """(1 - alpha)/V q(y | nu)/q(x | nu) is the probability of y, and the rest is that of x."""
    nu = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64)
    alpha, x = torch.tensor([0.3, 0.9], dtype=torch.float64), torch.tensor([2, 0])
    probabilities, q = jump(nu, x, alpha), noisy(nu, alpha)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(2, dtype=torch.float64))
    for row, here in enumerate(x.tolist()):
        for y in {0, 1, 2} - {here}:
            rate = (1 - alpha[row]) / V * q[row, y] / q[row, here]
            torch.testing.assert_close(probabilities[row, y], rate)


def test_the_number_of_calls_is_poisson() -> None:
    """Mean and variance are L log(L/tail): z scores below 5. The forecast is exact."""
    sample = unmask.sample(oracle(), num=NUMBER, length=L, seed=4)
    mean = L * math.log(L / 1e-3)
    assert abs(float(sample.nfe.double().mean()) - mean) < 5 * math.sqrt(mean / NUMBER)
    spread = math.sqrt((2 * mean**2 + mean) / NUMBER)
    assert abs(float(sample.nfe.double().var()) - mean) < 5 * spread
    assert sample.trace[-1].planned == sample.calls == len(sample.trace)
    assert int(sample.nfe.min()) >= 1


def test_a_network_without_time_gets_the_same_tokens_in_fewer_calls() -> None:
    process = AtOneTime(oracle()).process
    slow = AtOneTime(oracle(), type(process)(reads_time=True))
    one, many = (unmask.sample(model, num=500, length=L, seed=5) for model in (slow, AtOneTime(oracle())))
    assert torch.equal(one.tokens, many.tokens)
    assert float(many.nfe.double().mean()) < 0.4 * float(one.nfe.double().mean())


def test_the_mean_number_of_changes() -> None:
    """L (1 - 1/V) (1 - tail/L): a z score below 5."""
    shown = (Streams.of(6, NUMBER).at("state", L).uniform() * V).long()
    changes = torch.zeros(NUMBER, dtype=torch.float64)
    for step in unmask.stream(oracle(), canvas=torch.full((NUMBER, L), V), seed=6):
        before = shown.clone()
        unmask.sampling.apply(step, shown, V)
        changes += (shown != before).sum(1)
    mean = L * (1 - 1 / V) * (1 - 1e-3 / L)
    assert abs(float(changes.mean()) - mean) < 5 * float(changes.std()) / math.sqrt(NUMBER)


@pytest.mark.parametrize("steps", [1, 2, 8])
@pytest.mark.parametrize(
    "sampler", [Ancestral(), Ancestral(last="greedy"), psi(0.5, "constant"), psi(0.3), psi(0.3, "rescaled")]
)
def test_the_published_samplers_have_their_exact_law(steps: int, sampler: Ancestral) -> None:
    """Chi-square over the sequences with an expected count of 5; the others must not be more frequent than chance."""
    law = law_of(steps, sampler)
    torch.testing.assert_close(law.sum(), torch.ones((), dtype=torch.float64))
    sample = unmask.sample(oracle(), num=NUMBER, length=L, steps=steps, sampler=sampler, seed=7)
    counts, expected = frequencies(sample.tokens), NUMBER * law
    usual = expected >= 5
    assert float(((counts - expected) ** 2 / expected)[usual].sum()) < LARGEST
    assert float(counts[~usual].sum()) <= float(expected[~usual].sum()) + 6 * math.sqrt(
        float(expected[~usual].sum()) + 1
    )
    assert sample.nfe.tolist() == [steps] * NUMBER


def test_truncated_draws_have_the_law_of_proposition_5_2() -> None:
    """At every position of every step; it is another law than the exact one."""
    law = law_of(4, Ancestral(), 1.5)
    sample = unmask.sample(oracle(), num=NUMBER, length=L, steps=4, seed=14, draw=unmask.draw.truncated(1.5))
    usual = NUMBER * law >= 5
    off = (frequencies(sample.tokens) - NUMBER * law) ** 2 / (NUMBER * law)
    assert float(off[usual].sum()) < LARGEST
    assert float((law - law_of(4, Ancestral())).abs().sum()) > 0.1


@pytest.mark.parametrize(("size", "kept"), [(256, 0.99), (50_257, 0.22)])
def test_float32_loses_the_moves_to_random_ids_of_a_large_vocabulary(size: int, kept: float) -> None:
    """docs/uniform.md: with N V beyond 2^24 such a move is rarer than float32's largest Gumbel allows."""
    nu = torch.full((1, size), 0.5 / (size - 1), dtype=torch.float64)
    nu[0, 1], now = 0.5, torch.tensor([0.5], dtype=torch.float64)
    weights = posterior(nu, torch.tensor([0]), now + 1 / 1024, now)
    exact = (weights / weights.sum())[0].numpy()
    low = shifted_probabilities(exact, maximum_gumbel("float32"))
    assert low[2:].sum() / exact[2:].sum() == pytest.approx(kept, abs=0.01)
    assert low[1] / exact[1] == pytest.approx(1, abs=0.01)


def test_the_bias_of_n_steps_falls_as_one_over_n_and_that_of_the_greedy_tail_does_not() -> None:
    """In total variation, exactly. The most likely token given the others is not the token that is there."""
    distance = {n: float((law_of(n, Ancestral()) - joint()).abs().sum() / 2) for n in (16, 32, 64)}
    assert 1.8 < distance[16] / distance[32] < 2.2 and 1.8 < distance[32] / distance[64] < 2.2
    greedy = [float((law_of(n, Ancestral(last="greedy")) - joint()).abs().sum() / 2) for n in (16, 64)]
    assert min(greedy) > 0.3


def test_one_draw_for_each_position_is_not_exact() -> None:
    """Why there is no first hitting: of two equal tokens, nu at the hitting times gives 5/6 instead of 1.

    The times of two hits have 1 - alpha uniform, so that the second, which decides, has E[alpha] = 2/3; it agrees with
    the first token with probability alpha + (1 - alpha)/2.
    """
    network = type(oracle())(unmask.EnumeratedOracle(torch.eye(2).double() / 2))
    random = torch.Generator().manual_seed(8)
    levels = torch.rand(NUMBER, 2, generator=random, dtype=torch.float64).sort(1, descending=True)
    x = torch.randint(2, (NUMBER, 2), generator=random)
    for hit in range(2):
        at = levels.indices[:, hit : hit + 1]
        nu = network(x, levels.values[:, hit], at).exp().squeeze(1)
        x.scatter_(1, at, torch.multinomial(nu, 1, generator=random))
    equal = float((x[:, 0] == x[:, 1]).double().mean())
    assert abs(equal - 5 / 6) < 5 * math.sqrt(5 / 36 / NUMBER)


def test_events_are_a_poisson_process_of_each_position() -> None:
    """Gaps in w are exponential: a Kolmogorov-Smirnov distance below 2.6/sqrt(n) has a false alarm in 370,000."""
    position, w, visit = poisson_events(Streams.of(9, 500).at("event", 4), math.log(4e3))
    assert bool((w.diff(dim=1)[position[:, 1:] >= 0] >= 0).all())
    first = torch.stack([w[i][(position[i] == 2) & (visit[i] == 0)][0] for i in range(500)]).sort().values
    distance = (1 - torch.exp(-first) - torch.arange(500) / 500).abs().max()
    assert float(distance) < 2.6 / math.sqrt(500)
    assert abs(float((position == 2).sum()) / 500 - math.log(4e3)) < 5 * math.sqrt(math.log(4e3) / 500)


def test_a_seed_gives_the_same_tokens_in_any_batch() -> None:
    whole = unmask.sample(oracle(), num=7, length=L, seed=10)
    parts = unmask.sample(oracle(), num=7, length=L, seed=10, batch=2)
    alone = unmask.sample(oracle(), num=1, length=L, seed=10, index=[5])
    assert torch.equal(whole.tokens, parts.tokens) and torch.equal(whole.tokens[5:6], alone.tokens)


def test_temperature_acts_on_the_network() -> None:
    """At temperature 0 a redrawn position is the most likely id given the others or keeps its token."""
    cold = unmask.sample(oracle(), num=2000, length=L, seed=11, temperature=0.0)
    warm = unmask.sample(oracle(), num=2000, length=L, seed=11)
    assert int((frequencies(cold.tokens) > 0).sum()) < int((frequencies(warm.tokens) > 0).sum())
