"""recipes/molecules_start.py: a left-to-right network becomes a masked one that is the same from left to right."""

from __future__ import annotations

import torch
from recipes.molecules_start import with_adapters

import unmask
from tests.helpers import generator
from tests.small_models import small
from unmask.networks.adapters import train_alone
from unmask.networks.causal import Causal

V, LENGTH = 7, 8


def test_from_left_to_right_it_is_the_network_that_it_starts_from() -> None:
    sizes = {"vocab_size": V, "mask_id": V, "length": LENGTH, "width": 16, "layers": 2, "heads": 2}
    start = small(Causal, **sizes, adaln=False, convolution=3)
    made = with_adapters(start, 4).eval()
    x = torch.randint(V, (5, LENGTH), generator=generator(1))
    expected = unmask.nelbo(start, x)
    torch.testing.assert_close(unmask.nelbo(made, x, by="left-to-right").nats, expected.nats, rtol=1e-5, atol=1e-5)
    trained = [name for name, one in train_alone(made).named_parameters() if one.requires_grad]
    assert trained
    assert all("adapters" in name or name == "own_token.weight" for name in trained)
