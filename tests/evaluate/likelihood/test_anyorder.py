"""The likelihood along orders in one pass, and the bounds made of it."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from tests.helpers import generator, random_orders
from tests.networks.test_ddit import LENGTH, V, canvas, network
from unmask import objective
from unmask.likelihood import along_orders, importance_weighted
from unmask.masking import all_tokens
from unmask.networks.attention import usual_order
from unmask.networks.ddit import DDiT
from unmask.processes import any_order


def by_hand(model: DDiT, x0: Tensor, order: Tensor) -> Tensor:
    """The chain rule, one call with its own order for each token."""
    total = torch.zeros(len(x0), dtype=torch.float64)
    became = (usual_order(x0.shape[1]) - 1000).expand_as(x0).clone()
    hidden = torch.zeros_like(x0, dtype=torch.bool).scatter(1, order, True)
    for k in range(order.shape[1]):
        at = order[:, k : k + 1]
        logits = model(torch.where(hidden, model.mask_id, x0), rows=at, when=became)[:, 0].double()
        total -= torch.log_softmax(logits, -1).gather(1, x0.gather(1, at)).squeeze(1)
        hidden.scatter_(1, at, False)
        became.scatter_(1, at, k)
    return total


@pytest.mark.parametrize("shown", [0, 4])
@pytest.mark.parametrize("neighbours", [0, 2])
@torch.inference_mode()
def test_one_pass_is_the_chain_rule(neighbours: int, shown: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x0 = network(attention="order", neighbours=neighbours, mask_id=3), canvas(V) % V
    x0[x0 == 3] = 4
    orders = random_orders(len(x0), 5, LENGTH, generator=generator(2))[..., shown:]
    calls = []
    model.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    nats = along_orders(model, x0, orders)
    assert nats.shape == (len(x0), 5) and len(calls) == 1  # of 15 rows
    for k in range(5):
        torch.testing.assert_close(nats[:, k], by_hand(model, x0, orders[:, k]), rtol=1e-5, atol=1e-5)
    assert float(nats.std(1).min()) > 1e-4  # the order does matter
    monkeypatch.setattr(any_order, "LOGITS", 40)  # a piece of the logits at a time
    torch.testing.assert_close(along_orders(model, x0, orders), nats)


def every_sequence_and_order(model: DDiT, length: int) -> tuple[Tensor, Tensor]:
    every = torch.cartesian_prod(*[torch.arange(3)] * length)
    orders = torch.tensor(list(permutations(range(length))))
    return every, along_orders(model, every, orders)


def test_over_all_orders_the_weighted_bound_is_the_likelihood_itself() -> None:
    model = network(attention="order", vocab_size=3, mask_id=3, seed=4)
    with torch.no_grad():
        model.output_layer.linear.weight.mul_(5)
    _, nats = every_sequence_and_order(model, 3)
    torch.testing.assert_close((-nats).exp().sum(0), torch.ones(6, dtype=torch.float64), rtol=1e-5, atol=1e-5)
    exact = importance_weighted(nats)
    assert exact.shape == (27, 1)
    torch.testing.assert_close(exact[:, 0], -(-nats).exp().mean(1).log())
    # In expectation over random choices of K of them, the bounds come down from the mean to the truth.
    bounds = [float(importance_weighted(nats[:, list(order)], k).mean()) for k in (1, 2, 3, 6) for order in [range(6)]]
    assert bounds[0] == pytest.approx(float(nats.mean())) and bounds[0] > bounds[-1] + 1e-4
    pairs = torch.stack([nats[:, [i, j]] for i in range(6) for j in range(6)], 1).flatten(0, 1)
    assert float(exact.mean()) < float(importance_weighted(pairs).mean()) < float(nats.mean())


def test_equation_7_is_the_mean_over_orders() -> None:
    """20,000 draws of n, x_n and an order: within 5 standard errors of the enumerated mean, false alarm rate 6e-7."""
    model = network(attention="order", vocab_size=3, mask_id=3, seed=4, dropout=0.0)
    with torch.no_grad():
        model.output_layer.linear.weight.mul_(5)
    every, nats = every_sequence_and_order(model, 3)
    x0 = every[5:6].expand(20_000, -1)
    n = torch.randint(1, 4, (len(x0),), generator=generator(1))
    with torch.inference_mode():
        values = objective.nelbo_by_count(model, x0, n, generator=generator(2)).double()
        fixed = objective.cross_entropy(model, x0[:1], all_tokens(usual_order(3).double().expand(1, 3)))
    assert abs(float(values.mean()) - float(nats[5].mean())) < 5 * float(values.std()) / len(x0) ** 0.5
    assert float(fixed) == pytest.approx(float(values[n == 3][0]), abs=1e-5)  # with nothing visible no order counts


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="size must divide"):
        importance_weighted(torch.zeros(2, 6), 4)
    with pytest.raises(ValueError, match="sequences, orders"):
        importance_weighted(torch.zeros(6))
