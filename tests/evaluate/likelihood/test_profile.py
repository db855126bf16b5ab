"""The entropy profile of a network, against the exact one of models with a known answer."""

from __future__ import annotations

from itertools import combinations
from math import inf, nan

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from tests.helpers import FALSE_ALARM, generator, oracle, random_orders
from tests.networks.test_ddit import LENGTH, V, network
from tests.small_models import TOKENIZERS
from tests.small_models import network as small
from unmask import nelbo
from unmask.evaluate.likelihood.profile import EntropyProfile, entropy_by_count
from unmask.likelihood import along_orders
from unmask.networks.oracles.enumerated import EnumeratedOracle
from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle
from unmask.processes import AnyOrder
from unmask.schedule import Cosine
from unmask.theory import parallel_loss

THRESHOLD = 5.2  # sigma, two-sided: false alarm 2e-7 for each count; every seed is fixed


def profile_of(model, tokens, **how):
    return EntropyProfile.of(entropy_by_count(model, tokens, **how))


def exact(model: EnumeratedOracle) -> Tensor:
    """h(n) = H_{n+1} - H_n, where H_n is the mean entropy of n positions."""
    length, means = model.length, []
    for n in range(length + 1):
        tables = [
            model.joint.sum([i for i in range(length) if i not in chosen]) if n < length else model.joint
            for chosen in combinations(range(length), n)
        ]
        means.append(sum(-float(torch.xlogy(t, t).sum()) for t in tables) / len(tables))
    return torch.tensor(means, dtype=torch.float64).diff()


@pytest.mark.parametrize("passes", [None, 2, 10])
def test_the_profile_of_an_oracle_is_the_exact_one_within_its_errors(passes: int | None) -> None:
    model = oracle(vocab=3, length=5, seed=7)
    tokens = model.sample(4000, generator=generator(1))
    made = profile_of(model, tokens, passes=passes, batch=1000)
    truth, nats, errors = exact(model), torch.tensor(made.nats), torch.tensor(made.errors)
    assert made.sequences == 4000 and len(nats) == 5
    assert bool(((nats - truth).abs() < THRESHOLD * errors).all())
    # These errors are small enough to see a shift by one count, either way.
    assert bool(((nats[1:] - truth[:-1]).abs() > THRESHOLD * errors[1:]).any())
    assert bool(((nats[:-1] - truth[1:]).abs() > THRESHOLD * errors[:-1]).any())


def test_the_stated_errors_are_the_spread_over_repetitions() -> None:
    """200 profiles of 50 sequences each: the spread is known to 5%, so 25% off is 5 sigma."""
    model = oracle(vocab=2, length=4, seed=3)
    made = [profile_of(model, model.sample(50, generator=generator(k)), seed=k, batch=200) for k in range(200)]
    spread = torch.tensor([profile.nats for profile in made]).std(0)
    stated = torch.tensor([profile.errors for profile in made]).square().mean(0).sqrt()
    assert bool(((stated / spread - 1).abs() < 0.25).all())


def test_the_mean_of_the_profile_is_the_bound_of_equation_7() -> None:
    model = network(seed=3)
    tokens = torch.randint(V, (40, LENGTH), generator=generator(0))
    values = entropy_by_count(model, tokens)
    bound = nelbo(model, tokens, passes=64, seed=5)
    mine = values.sum(1)
    error = ((mine - bound.nats).std() / 40**0.5).item()
    assert abs(float((mine - bound.nats).mean())) < THRESHOLD * error


class Watched:
    """A network whose attention follows an order, and that writes down what it is shown."""

    vocab_size, mask_id, process = 3, 3, AnyOrder()

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor, Tensor]] = []

    def packed(self, tokens: Tensor, time: Tensor, where: Tensor, *, when: Tensor) -> Tensor:
        assert torch.equal(where, tokens == 3)
        self.seen.append((tokens, time, when))
        return torch.zeros(int(where.sum()), 3)

    def chain(self, tokens: Tensor, when: Tensor | None = None) -> Tensor:
        raise AssertionError("a profile has one pass for each count")

    logits = chain


def test_every_row_compares_counts_along_one_order() -> None:
    """The visible tokens at n are the first n of the order that the network gets, the same one at every n."""
    model = Watched()
    entropy_by_count(model, torch.zeros(1, 9, dtype=torch.int64), passes=18, batch=1)  # type: ignore[arg-type]
    orders = {tuple(order[0].argsort().tolist()) for _, _, order in model.seen}
    assert len(orders) == 2  # 18 passes are every count in two orders
    for tokens, _, order in model.seen:
        visible = (tokens[0] != 3).nonzero().flatten().tolist()
        assert sorted(order[0].argsort().tolist()[: len(visible)]) == visible
    assert sorted(int((tokens != 3).sum()) for tokens, _, _ in model.seen) == sorted([*range(9)] * 2)


def test_the_network_gets_the_times_of_equation_8() -> None:
    """alpha ~ Beta(L - n + 1, n) with n masked tokens: Kolmogorov-Smirnov at a false alarm of 1e-6 for each n."""
    model = Watched()
    entropy_by_count(model, torch.zeros(2000, 4, dtype=torch.int64), schedule=Cosine())  # type: ignore[arg-type]
    masked = torch.cat([(tokens == 3).sum(1) for tokens, _, _ in model.seen])
    alpha = Cosine().alpha(torch.cat([time for _, time, _ in model.seen]))
    for n in range(1, 5):
        assert stats.kstest(alpha[masked == n].numpy(), stats.beta(4 - n + 1, n).cdf).pvalue > FALSE_ALARM


def test_what_makes_a_sequence_hard_cancels_in_its_paired_losses() -> None:
    """Half of the sequences are noise and half are nearly constant: h differs between them, and its falls hardly do."""
    model = HiddenMarkovOracle(
        torch.tensor([0.5, 0.5]), torch.eye(2), torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.97, 0.01, 0.01, 0.01]])
    )
    values = entropy_by_count(model, model.sample(500, 16, generator(1)))
    profile, sizes = EntropyProfile.of(values), (4,) * 4
    losses = np.array([parallel_loss(row.numpy(), sizes) for row in values])
    assert losses.mean() == pytest.approx(parallel_loss(profile.nats, sizes))
    weights = np.array([3.0, -1.0, -1.0, -1.0] * 4)
    independent = np.linalg.norm(weights * profile.errors)
    assert losses.std() / 500**0.5 < 0.7 * independent


def test_the_profile_of_an_order_following_network_is_that_of_its_chain_rule() -> None:
    """The sum of its profile is the bound along orders."""
    model = network(attention="order", seed=2)
    with torch.no_grad():
        model.output_layer.linear.weight.mul_(5)
    tokens = torch.randint(V, (150, LENGTH), generator=generator(0))
    total = entropy_by_count(model, tokens).sum(1)
    chain = along_orders(model, tokens, random_orders(150, 20, LENGTH, generator=generator(1))).mean(1)
    difference = total - chain
    assert abs(float(difference.mean())) < THRESHOLD * float(difference.std()) / 150**0.5


def test_a_sequence_depends_on_its_number_and_the_seed_alone() -> None:
    model = oracle(vocab=3, length=5)
    tokens = model.sample(9, generator=generator(0))
    values = entropy_by_count(model, tokens, batch=4)
    torch.testing.assert_close(entropy_by_count(model, tokens, batch=45), values)
    torch.testing.assert_close(entropy_by_count(model, tokens[:5], batch=7), values[:5])
    assert not torch.equal(entropy_by_count(model, tokens, seed=1), values)


def test_few_passes_are_shared_out_over_all_counts() -> None:
    model = oracle(vocab=3, length=5)
    values = entropy_by_count(model, model.sample(10, generator=generator(0)), passes=2)
    assert (~values.isnan()).sum(1).tolist() == [2] * 10
    assert (~values.isnan()).sum(0).tolist() == [4] * 5


def test_a_profile_survives_json() -> None:
    made = EntropyProfile((1.5, 0.1 + 0.2), (0.25, 1 / 3), 7)
    assert EntropyProfile.from_json(made.to_json()) == made
    for text in ("{}", "[]", "no", '{"nats": [1], "errors": [], "sequences": 2}', '{"nats": [NaN], "errors": [1]}'):
        with pytest.raises(ValueError, match="not an entropy profile"):
            EntropyProfile.from_json(text)


def test_what_is_wrong_is_said() -> None:
    model = oracle(vocab=3, length=5)
    tokens = model.sample(3, generator=generator(0))
    with pytest.raises(ValueError, match="more sequences or more passes"):
        profile_of(model, tokens, passes=2)
    with pytest.raises(ValueError, match="more sequences"):
        profile_of(model, tokens[:1])
    for bad in (tokens[0], tokens.int(), tokens[:0]):
        with pytest.raises(ValueError, match="tokens must be int64"):
            profile_of(model, bad)
    with pytest.raises(ValueError, match="must not contain the mask id 3"):
        profile_of(model, tokens.masked_fill(tokens == 0, 3))
    for bad_number in ({"passes": 0}, {"batch": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            profile_of(model, tokens, **bad_number)
    with pytest.raises(ValueError, match="left-to-right"):
        profile_of(small(TOKENIZERS["levels"], causal=True), tokens)
    for nats in ((), (nan, 1.0), (inf, 1.0), (1.0,)):
        with pytest.raises(ValueError):
            EntropyProfile(nats, (0.1, 0.1), 3)
