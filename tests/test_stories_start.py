"""stories15m's weights in a DDiT: left to right they are the teacher, and without its causal mask the same Llama."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from recipes.stories_start import shape, weights
from torch import Tensor

from unmask.models.causal import Causal
from unmask.models.config import DDiTConfig
from unmask.models.ddit import DDiT
from unmask.models.llama import Llama, LlamaConfig

IDS = torch.tensor([3, 8, 5, 12, 1])
V = len(IDS)
CONFIG = replace(shape(V), length=9, width=24, layers=2, heads=3, hidden=40)


@pytest.fixture(scope="module")
def teacher() -> Llama:
    torch.manual_seed(0)
    made = Llama(LlamaConfig(14, 14, 9, 24, 2, 3, 3, 40, theta=10_000.0, eps=1e-5, tied=True, causal=True))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0, 0.4)
    return made.eval()


def tokens() -> Tensor:
    return torch.randint(V, (3, 9), generator=torch.Generator().manual_seed(1))


def test_left_to_right_it_is_the_teacher(teacher: Llama) -> None:
    config: DDiTConfig = replace(CONFIG, shifted=False)
    x = tokens()
    with torch.inference_mode():
        got = Causal.built(config, weights(teacher, IDS, config)).next_logits(x)
        torch.testing.assert_close(got, teacher(IDS[x])[..., IDS], atol=1e-5, rtol=1e-5)


def read_without(teacher: Llama, causal: bool, x: Tensor) -> Tensor:
    """The teacher's logits for what follows the mask, x^0, x^1, ...: row l says what is at l."""
    embedding = teacher.embed.weight.detach()[IDS]
    state = teacher.state_dict() | {"embed.weight": torch.cat((embedding, embedding.mean(0, keepdim=True)))}
    bare = Llama(replace(teacher.config, vocab_size=V, mask_id=V, causal=causal))
    bare.load_state_dict(state)
    read: Tensor = bare(torch.nn.functional.pad(x[:, :-1], (1, 0), value=V))
    return read


def start(teacher: Llama, config: DDiTConfig) -> DDiT:
    return DDiT.built(config, weights(teacher, IDS, config))


def test_the_start_is_the_teacher_without_its_causal_mask(teacher: Llama) -> None:
    x = tokens().masked_fill(torch.rand(3, 9, generator=torch.Generator().manual_seed(2)) < 0.5, V)
    with torch.inference_mode():
        got = start(teacher, CONFIG)(x)
        torch.testing.assert_close(got, read_without(teacher, False, x), atol=1e-5, rtol=1e-5)


def test_with_blocks_of_one_it_is_the_teacher(teacher: Llama) -> None:
    config = replace(CONFIG, attention="block", block=1)
    x = tokens()
    with torch.inference_mode():
        network, everywhere = start(teacher, config), torch.ones_like(x, dtype=torch.bool)
        got = network.packed(torch.full_like(x, V), None, everywhere, clean=x).view(3, 9, V)
        torch.testing.assert_close(got, read_without(teacher, True, x), atol=1e-5, rtol=1e-5)
