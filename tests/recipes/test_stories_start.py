"""stories15m's weights in a DDiT: from left to right they are the teacher, whatever the adapters are."""

from __future__ import annotations

import pytest
import torch
from recipes.stories_start import adapted_by, weights
from torch import Tensor

from unmask.networks.causal import Causal
from unmask.networks.config import TransformerConfig, preset
from unmask.networks.llama import Llama, LlamaConfig

IDS = torch.tensor([3, 8, 5, 12, 1])
V = len(IDS)
SIZE = {"width": 24, "layers": 2, "heads": 3, "hidden": 40}
START = V - 1


@pytest.fixture(scope="module")
def teacher() -> Llama:
    torch.manual_seed(0)
    made = Llama(LlamaConfig(14, 14, 9, 24, 2, 3, 3, 40, theta=10_000.0, eps=1e-5, tied=True, causal=True))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.4)
    return made.eval()


def tokens() -> Tensor:
    made = torch.randint(V, (3, 8), generator=torch.Generator().manual_seed(1))
    made[:, 0] = START
    return made


def test_without_adapters_it_is_the_teacher(teacher: Llama) -> None:
    config = preset("stories15m", V, 8, kind=TransformerConfig, tie_embeddings=True, dropout=0.0, **SIZE)
    x = tokens()
    with torch.inference_mode():
        got = Causal.built(config, weights(teacher, IDS, config)).next_logits(x)
        torch.testing.assert_close(got, teacher(IDS[x])[..., IDS], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("known", range(1, 8))
def test_filled_from_left_to_right_it_is_the_teacher(teacher: Llama, known: int) -> None:
    x, network = tokens(), adapted_by(teacher, IDS, adapters=4, block=4, **SIZE)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("1.weight") and "adapters" in name:
                parameter.fill_(1.0)
    canvas = torch.where(torch.arange(8) < known, x, V)
    with torch.inference_mode():
        expected = teacher(IDS[x])[:, known - 1][:, IDS]
        got = network.eval()(canvas)[:, known]
        torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
