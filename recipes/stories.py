"""Trains the adapters of ``stories``, block diffusion, by the distributions of its teacher.

    python -m recipes.stories_start runs/stories-start
    python -m recipes.stories runs/stories-start runs/stories

A term of the bound is -log mu(x^l) for a token of the corpus. Where nothing is visible to the right of l in its block,
x^l was drawn from a distribution that the teacher gives exactly, p(. | x^<l), and the term's mean over x^l is the
cross-entropy of mu with p. The mean has the same gradient in expectation and less noise. Tokens of the block that are
masked as well change nothing: averaging over them is what training does anyway. Where something is visible to the
right, the teacher does not know the posterior in closed form, and the term stays as it is.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import unmask
from recipes.corpora import stories
from unmask.masking import Masking
from unmask.networks.llama import Llama
from unmask.processes import BlockByBlock, process_of
from unmask.training.config import read_toml

RECIPE = Path(__file__).with_suffix(".toml")


@dataclass
class Taught:
    """A loss for ``unmask.train``: each sequence's bound in nats, with the teacher's distributions where they apply."""

    teacher: stories.Teacher
    _network: Llama = field(init=False, repr=False)

    def __post_init__(self) -> None:
        theirs = self.teacher.network
        self._network = Llama(replace(theirs.config, causal=False))  # the mask below is causal, within each story
        self._network.load_state_dict(theirs.state_dict())
        self._network.requires_grad_(False)

    def __call__(self, network: nn.Module, x0: Tensor, masking: Masking) -> Tensor:
        process = process_of(network)
        assert isinstance(process, BlockByBlock)
        targets = self.probabilities(x0)[masking.masked]
        drawn = sees_right(masking.masked, process.size)[masking.masked]
        drawn |= (torch.arange(x0.shape[1]) == 0).expand_as(x0)[masking.masked]  # the teacher is given the first token
        targets[drawn] = nn.functional.one_hot(x0[masking.masked][drawn], targets.shape[1]).to(targets)
        log_p = process.logits(network, x0, masking).log_softmax(-1)
        products = torch.where(targets > 0, targets * log_p, 0.0)  # of the first token all other logits are -inf
        return masking.weighted(process.summed(masking, -products.sum(-1)))

    @torch.no_grad()
    def probabilities(self, x0: Tensor) -> Tensor:
        """p(. | x^<l) at every l, [B, L, V]; of no meaning at l = 0."""
        network, ids = self._network, self.teacher.ids
        story = (x0 == self.teacher.eos).cumsum(1)
        mask = (story.unsqueeze(2) == story.unsqueeze(1)).tril().unsqueeze(1)
        x, table = network.embed(ids[x0]), network.angles(x0.shape[1], x0.device)
        for one in network.blocks:
            x = one(x, table, mask=mask)
        assert network.head is None
        logits = nn.functional.linear(network.norm(x), network.embed.weight[ids])
        return logits.float().softmax(-1).roll(1, 1)


def sees_right(masked: Tensor, block: int) -> Tensor:
    """Where a token to the right, in the same block, is visible: bool [B, L]."""
    visible = (~masked).unflatten(1, (-1, block)).int()
    behind = visible.flip(2).cumsum(2).flip(2) - visible
    return (behind > 0).flatten(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", help="the checkpoint to begin with")
    parser.add_argument("out", help="the run's folder")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--decay", choices=("constant", "cosine"))
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument(
        "--data", help="prepared token files, by default data/stories (python -m recipes.prepare stories data/stories)"
    )
    parser.add_argument("--resume", action="store_true")
    chosen = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    settings = read_toml(RECIPE) | chosen
    unmask.train(
        settings.pop("data"),
        out=settings.pop("out"),
        init=settings.pop("start"),
        loss=Taught(stories.law()),
        **settings,
    )


if __name__ == "__main__":
    main()
