"""Counts beside a network: the law of a Markov chain, the formula, the weights, and the files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import unmask
from tests.small_models import small
from unmask.networks import counted, pretrained
from unmask.networks.counted import FEATURES, SHOWN, Counted, tables
from unmask.networks.ddit import DDiT
from unmask.networks.ngram import kneser_ney
from unmask.training import counts

V, L = 5, 8


def chain(rows: int, seed: int = 0) -> Tensor:
    """Sequences of a Markov chain that prefers the next token, and sometimes skips one."""
    drawn = torch.Generator().manual_seed(seed)
    x = torch.randint(V, (rows, L), generator=drawn)
    for i in range(1, L):
        step = 1 + (torch.rand(rows, generator=drawn) < 0.2).long()
        stays = torch.rand(rows, generator=drawn) < 0.9
        x[:, i] = torch.where(stays, (x[:, i - 1] + step) % V, x[:, i])
    return x


def network(mask_id: int = V, **changes: Any) -> Any:
    sizes: dict[str, Any] = {"width": 8, "layers": 1, "heads": 2, "length": L}
    return small(DDiT, std=0.2, vocab_size=V if mask_id == V else V + 1, mask_id=mask_id, **(sizes | changes))


def weights(first: float, others: float) -> Tensor:
    made = torch.full((SHOWN**2, FEATURES), others)
    made[:, 0] = first
    return made


def test_without_the_network_it_is_the_posterior_of_kneser_ney_on_both_sides() -> None:
    """One masked position: p(x | a', a) q(x | b', b) / p(x), from the log-probabilities of the n-grams."""
    x = chain(300)
    model = Counted(network(), tables(x.numpy(), V), weights(0.0, 1.0))
    row, at = x[0].clone(), 4
    row[at] = V
    actual = model(row.unsqueeze(0), None, torch.tensor([[at]]))[0, 0].log_softmax(-1)
    left, right = kneser_ney(x.numpy(), 3, V), kneser_ney(x.numpy()[:, ::-1].copy(), 3, V)
    expected = []
    for token in range(V):
        filled = np.array(row)
        filled[at] = token
        single = np.log(counted._single(left)[token])
        expected.append(left.log_prob(filled)[at] + right.log_prob(filled[::-1].copy())[L - 1 - at] - single)
    torch.testing.assert_close(actual, torch.tensor(expected).log_softmax(-1).float(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mask_id", [V, 2])
def test_without_counts_it_is_the_network(mask_id: int) -> None:
    net = network(mask_id)
    x = chain(50) + (chain(50) >= 2) * (mask_id == 2)
    alone = torch.zeros(SHOWN**2, FEATURES)
    alone[:, 0] = 1
    model = Counted(net, tables(x.numpy(), net.vocab_size), alone)
    canvas = x[:3].clone()
    canvas[:, ::2] = mask_id
    rows = torch.arange(0, L, 2).expand(3, -1)
    expected, actual = (one(canvas, None, rows) for one in (net, model))
    if mask_id == 2:
        expected = expected.index_fill(-1, torch.tensor([2]), -torch.inf)
        assert bool((actual[..., 2] == -torch.inf).all())
    torch.testing.assert_close(actual.softmax(-1), expected.softmax(-1))


def test_what_is_not_visible_changes_nothing() -> None:
    x = chain(100)
    model = Counted(network(), tables(x.numpy(), V), weights(0.0, 1.0))
    canvas = torch.full((2, L), V)
    logits = model(canvas, None, torch.tensor([[4], [4]]))
    single = torch.from_numpy(counted._single(kneser_ney(x.numpy(), 3, V))).float()
    torch.testing.assert_close(logits[0, 0].softmax(-1), single / single.sum())


def test_fitted_weights_beat_both_alone_and_samples_follow() -> None:
    """On held-out sequences of a chain, with a network that knows little."""
    train, held_out = chain(400), chain(200, seed=1)
    net = network()

    class Tokens:
        length = L

        def __len__(self) -> int:
            return len(train)

        def sequences(self, index: Any) -> Tensor:
            return train[torch.as_tensor(index)]

    model = counts.counted(net, Tokens(), seed=0)  # type: ignore[arg-type]
    bounds = [
        unmask.nelbo(one, held_out, seed=3).nats_per_token
        for one in (net, Counted(net, model.counts(), weights(0.0, 1.0)), model)
    ]
    assert bounds[2] < min(bounds[:2]) - 0.01, bounds
    follows = [
        float(((rows[:, 1:] - rows[:, :-1]) % V == 1).double().mean())
        for rows in (unmask.sample(one, num=200, length=L, seed=1).tokens for one in (net, model))
    ]
    assert follows[1] > follows[0] + 0.15, "1,400 pairs: a standard error of 0.013"


def test_it_is_saved_and_loaded_and_damage_is_refused(tmp_path: Path) -> None:
    net = network()
    model = Counted(net, tables(chain(50).numpy(), V), weights(0.5, 0.5))
    pretrained.save(tmp_path, net)
    counted.save(tmp_path, model)
    again = counted.load(tmp_path, net)
    canvas = chain(2)
    canvas[:, 1::2] = V
    assert torch.equal(again(canvas), model(canvas))
    for name, value in (("single", torch.ones(V + 1)), ("left_keys2", model.left_keys2.flip(0))):
        broken = model.counts() | {"weights": model.weights}
        broken[name] = value
        save_file({n: t.contiguous() for n, t in broken.items()}, tmp_path / counted.FILE)
        with pytest.raises(ValueError, match="does not fit the network"):
            counted.load(tmp_path, net)


def test_other_kinds_of_network_are_refused() -> None:
    with pytest.raises(ValueError, match="counts are for masked models, and this is a block model"):
        Counted(network(attention="block", block=4), {}, weights(0, 0))
