"""A Llama with a KV cache against the plain one, row by row and from every beginning."""

import pytest
import torch

from tests.small_models import small_llama
from unmask.networks.cache.llama import CachedLlama

START = 1


@pytest.mark.parametrize("ids", [None, [5, 2, 1]])
def test_every_call_gives_what_the_plain_network_says_of_the_text_since_its_beginning(ids: list[int] | None) -> None:
    network = small_llama()
    tokens = torch.randint(0, network.vocab_size, (9, 12), generator=torch.Generator().manual_seed(0))
    tokens[:, 0] = START
    tokens[3, 5] = tokens[4, 11] = tokens[4, 1] = START
    kept = None if ids is None else torch.tensor(ids)
    cached = CachedLlama(network, 9, 12, start=START, ids=kept)
    for at in range(12):
        found = cached(tokens[:, at])
        for row in range(9):
            begin = int((tokens[row, : at + 1] == START).nonzero().max())
            plain = torch.nn.functional.linear(
                network.states(tokens[row : row + 1, begin : at + 1])[0, -1], network.embed.weight[: network.vocab_size]
            )
            torch.testing.assert_close(found[row], plain if kept is None else plain[kept], rtol=1e-5, atol=1e-5)


def test_what_the_network_cannot_do_is_refused() -> None:
    with pytest.raises(ValueError, match="reads at most 12"):
        CachedLlama(small_llama(), 2, 13, start=START)
    with pytest.raises(ValueError, match="causal"):
        CachedLlama(small_llama(causal=False), 2, 4, start=START)
