"""``stories``: an any-order network that begins with its teacher's weights (``unmask.networks.any_order``).

    python -m recipes.stories_anyorder start runs/stories-start
    python -m recipes.stories_anyorder train runs/stories-start runs/stories --data DATA

From left to right the network is its teacher at step 0. Most sequences of a step are read in a uniform random order,
and a term is -log p of a token. A share of them is read from left to right, so that the network keeps what it knew: the
teacher gives the whole distribution there, and a term is the cross-entropy with that, which has the same mean and less
noise.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import unmask
from recipes.corpora import stories
from recipes.stories_start import weights
from unmask.checkpoints import llama2c
from unmask.checkpoints.folder import TOKENIZER
from unmask.masking import Masking
from unmask.networks import pretrained
from unmask.networks.any_order import AnyOrderConfig, OneStream
from unmask.networks.config import preset
from unmask.training.config import read_toml

RECIPE = Path(__file__).with_suffix(".toml")
SHARE = 0.25  # of the sequences, from left to right
NEIGHBOURS = 2
SPREAD = 1_000  # the fraction of a uniform number times this is uniform


def shape(teacher: stories.Teacher) -> AnyOrderConfig:
    """The teacher's shape; the last of the corpus's ids begins every sequence."""
    its, how = teacher.network.config, {"neighbours": NEIGHBOURS, "start": teacher.eos}
    size = {"width": its.width, "layers": its.layers, "heads": its.heads, "hidden": its.hidden}
    size |= {"tie_embeddings": True, "dropout": 0.0}
    return preset("stories15m", teacher.vocab_size, its.length, kind=AnyOrderConfig, **size, **how)


def taught_by(teacher: stories.Teacher) -> OneStream:
    """The network that is its teacher from left to right."""
    config = shape(teacher)
    fresh = OneStream(config).state_dict()
    return OneStream.built(config, fresh | weights(teacher.network, teacher.ids, config))


@dataclass
class Taught:
    """A loss for ``unmask.train``: each sequence's nats along a random order, or from left to right by the teacher."""

    teacher: stories.Teacher
    share: float = SHARE
    _network: OneStream = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._network = taught_by(self.teacher).eval().requires_grad_(False)

    def __call__(self, network: nn.Module, x0: Tensor, masking: Masking) -> Tensor:
        assert isinstance(network, OneStream) and masking.when is not None
        positions = torch.arange(x0.shape[1])
        taught = (masking.when[:, 1] * SPREAD).frac() < self.share  # nearly independent of the order
        when = torch.where(taught.unsqueeze(1), positions.double(), masking.when)
        log_p = network.logits(network.chain(x0, when)[:, 1:]).log_softmax(-1)  # [B, L - 1, V]
        losses = x0.new_zeros(len(x0), dtype=log_p.dtype)
        losses[~taught] = -log_p[~taught].gather(2, x0[~taught, 1:, None]).sum((1, 2))
        if bool(taught.any()):
            losses[taught] = (
                functional.cross_entropy(
                    log_p[taught].flatten(0, 1), self.probabilities(x0[taught]).flatten(0, 1), reduction="none"
                )
                .view(-1, x0.shape[1] - 1)
                .sum(1)
            )
        return losses

    @torch.no_grad()
    def probabilities(self, x0: Tensor) -> Tensor:
        """The teacher's p(. | x^<l) at l = 1 .. L - 1: [B, L - 1, V]."""
        network = self._network
        line = network.line(x0, torch.arange(x0.shape[1]))
        level = torch.arange(line.order.shape[1]).expand_as(line.order)
        story = (x0[:, :-1] == self.teacher.eos).cumsum(1)  # those before it are not seen
        mask = (story.unsqueeze(2) == story.unsqueeze(1)).tril().unsqueeze(1)
        return network.logits(network.final(network.entries(line, level, line.order), mask)).softmax(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="write the teacher's weights as an any-order network")
    start.add_argument("out", type=Path)
    train = commands.add_parser("train")
    train.add_argument("init", help="the checkpoint to begin with")
    train.add_argument("out", help="the run's folder")
    train.add_argument("--data", help="prepared token files in the place of the corpus")
    train.add_argument("--share", type=float, default=SHARE, help="of the sequences, from left to right")
    train.add_argument("--steps", type=int)
    train.add_argument("--decay", choices=("constant", "cosine"))
    train.add_argument("--learning-rate", type=float)
    train.add_argument("--warmup", type=int)
    train.add_argument("--ema", type=float)
    train.add_argument("--seed", type=int)
    train.add_argument("--resume", action="store_true")
    chosen = {name: value for name, value in vars(parser.parse_args()).items() if value is not None}
    if chosen.pop("command") == "start":
        begin(chosen["out"])
        return
    loss = Taught(stories.law(), chosen.pop("share"))
    settings = read_toml(RECIPE) | chosen
    unmask.train(settings.pop("data"), out=settings.pop("out"), loss=loss, **settings)


def begin(out: Path) -> None:
    teacher, (_, pieces) = stories.law(), llama2c.stories15m()
    network = taught_by(teacher)
    pretrained.save(out, network, card=pretrained.Card(data="TinyStories, by stories15m", license="MIT"))
    llama2c.tokenizer(pieces, teacher.ids.tolist()).save(out / TOKENIZER)
    print(f"{out}: {sum(parameter.numel() for parameter in network.parameters()) / 1e6:.2f} M parameters")


if __name__ == "__main__":
    main()
