import pytest
import torch

from unmask import objective
from unmask.masking import Masking, all_tokens
from unmask.networks.causal import Causal, twin
from unmask.networks.ddit import DDiT, preset
from unmask.processes import process_of
from unmask.training import head
from unmask.training.head import cross_entropy


def networks() -> list[DDiT | Causal]:
    """With the mask one past the data, among them, and with one matrix for embedding and head; and left to right."""
    torch.manual_seed(0)
    options = {"width": 16, "dropout": 0.0}
    made: list[DDiT | Causal] = [
        DDiT(preset("tiny", 7, 12, **options)),
        DDiT(preset("tiny", 7, 12, mask_id=3, **options)),
        DDiT(preset("tiny", 7, 12, tie_embeddings=True, conditioning="time", **options)),
        Causal(twin(preset("tiny", 7, 12, **options))),
    ]
    with torch.no_grad():
        for network in made:
            for parameter in network.parameters():
                parameter.add_(torch.randn_like(parameter) / 20)
    return made


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("piece", [1, 5 * 7, 10**6])
def test_loss_and_gradients_are_those_of_the_plain_way(which: int, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "PIECE", piece)
    monkeypatch.setattr(head, "LEAST_ROWS", 1)
    network = networks()[which]
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(7, (5, 12), generator=generator)
    x0 = torch.where(x == network.mask_id, 0, x)
    where = torch.rand(5, 12, generator=generator) < 0.5
    time = torch.rand(5, generator=generator)
    weight = torch.rand(5, generator=generator)
    masking = Masking(where, time, weight)

    states = process_of(network).states(network, x0, masking, "time")
    total, losses = cross_entropy(network, states, x0, masking)
    (3 * total).backward()
    found = {name: parameter.grad for name, parameter in network.named_parameters()}
    network.zero_grad()
    expected = objective.cross_entropy(network, x0, masking)
    (3 * (weight * expected).sum()).backward()
    assert torch.allclose(losses, expected, rtol=1e-5) and not losses.requires_grad
    assert torch.allclose(total, (weight * expected).sum(), rtol=1e-5)
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and found[name] is not None, name
        assert torch.allclose(found[name], parameter.grad, rtol=1e-4, atol=1e-6), name


def test_no_masked_position_is_no_loss_and_a_zero_gradient() -> None:
    network = networks()[0]
    x = torch.zeros(2, 12, dtype=torch.int64)
    nowhere = torch.zeros(2, 12, dtype=torch.bool)
    masking = Masking(nowhere, torch.ones(2), torch.ones(2))
    total, losses = cross_entropy(network, network.states(x, None, nowhere.nonzero(as_tuple=True)), x, masking)
    total.backward()
    assert float(total.detach()) == 0 and losses.tolist() == [0, 0]
    assert all(parameter.grad is not None and not parameter.grad.any() for parameter in network.parameters())


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    network = networks()[0]
    x = torch.full((2, 12), network.mask_id)
    with torch.no_grad():
        states = network.states(x, None, (x == network.mask_id).nonzero(as_tuple=True))
        total, _ = cross_entropy(network, states, torch.zeros_like(x), all_tokens(torch.rand(2, 12)))
    assert total.grad_fn is None and float(total) > 0


def test_a_precision_that_cannot_hold_the_target_is_finite() -> None:
    """A logit 1,000 below the best has probability 0 in float32, and a loss of 1,000 nats."""
    network = networks()[0]
    with torch.no_grad():
        network.output_layer.linear.weight.zero_()
        network.output_layer.linear.bias.copy_(torch.tensor([0.0, 1000, 0, 0, 0, 0, 0]))
    states = torch.randn(3, 16, requires_grad=True)
    total, losses = cross_entropy(network, states, torch.tensor([[0], [1], [2]]), all_tokens(torch.rand(3, 1)))
    total.backward()
    assert losses.tolist() == [1000.0, 0.0, 1000.0] and states.grad is not None and bool(states.grad.isfinite().all())
