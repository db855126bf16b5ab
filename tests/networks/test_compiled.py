"""Compiling changes no sample. The backend here traces and runs eagerly: no C++ compiler, and seconds, not minutes."""

import pytest
import torch

import unmask
from unmask.networks.compiled import Compiled
from unmask.networks.ddit import DDiT, DDiTConfig


def test_the_same_logits_and_samples():
    torch.manual_seed(0)
    network = DDiT(DDiTConfig(vocab_size=12, mask_id=12, length=6, width=16, layers=2, heads=2))
    compiled = Compiled(network, backend="eager")
    made = unmask.sample(compiled, num=2, length=6, seed=3)
    assert torch.equal(made.tokens, unmask.sample(network, num=2, length=6, seed=3).tokens)
    tokens = torch.full((1, 6), network.mask_id)
    with torch.inference_mode():
        assert torch.allclose(compiled(tokens), network.eval()(tokens), atol=1e-5)


def test_the_calls_of_a_run_share_few_shapes_and_a_second_run_compiles_nothing():
    """Steps of 1 to 7 rows, and a batch that shrinks from 5 to 1: 1, 2, 4 or 8 sequences with 1, 2, 4, 8 or 16 rows."""
    torch.manual_seed(0)
    network = DDiT(DDiTConfig(vocab_size=12, mask_id=12, length=16, width=16, layers=1, heads=2))
    canvas = torch.full((5, 16), 12)
    for row in range(5):
        canvas[row, : 3 * row] = 1
    torch._dynamo.reset()
    compiled, seen = Compiled(network, backend="eager"), []
    for seed in (3, 3, 4):
        torch._dynamo.utils.counters.clear()
        how = {"canvas": canvas, "steps": 6, "seed": seed, "plan": unmask.plan.ancestral}
        made = unmask.sample(compiled, **how)
        assert torch.equal(made.tokens, unmask.sample(network, **how).tokens)
        seen.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert seen[0] > 0 and seen[1] == 0 and seen[0] + seen[2] <= 20


def test_what_cannot_be_compiled_is_said():
    with pytest.raises(ValueError, match="bidirectional"):
        Compiled(unmask.MarkovOracle(torch.full((2,), 0.5), torch.full((2, 2), 0.5)))


def test_a_machine_that_cannot_compile_gets_an_error():
    def backend(graph, inputs):
        raise RuntimeError("no C++ compiler found")

    network = DDiT(DDiTConfig(vocab_size=12, mask_id=12, length=6, width=16, layers=2, heads=2)).eval()
    with pytest.raises(ValueError, match=r"cannot be compiled here.*no C\+\+ compiler"):
        unmask.sample(Compiled(network, backend=backend), num=1, length=6)
