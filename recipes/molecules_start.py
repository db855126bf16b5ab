"""A left-to-right network of molecules as the start of a masked one.

    unmask train --config recipes/molecules-ar.toml --out runs/molecules-ar
    python -m recipes.molecules_start runs/molecules-ar runs/molecules-start
    unmask train --config recipes/molecules.toml --init runs/molecules-start --out runs/molecules

Filled from left to right, the network is the one that it starts from. For all other orders it has adapters
(``unmask.networks.adapters``), which change nothing at first and are all that the last command trains.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

import unmask
from unmask.networks.adapters import AdaptedDDiT, AdaptersConfig
from unmask.networks.causal import Causal
from unmask.networks.config import blocks_of

RANK = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the left-to-right network")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=RANK)
    chosen = parser.parse_args()
    model = unmask.load(chosen.model)
    if not isinstance(model.denoiser, Causal):
        parser.error(f"{chosen.model} is no left-to-right network of this project")
    replace(model, denoiser=with_adapters(model.denoiser, chosen.rank)).save_pretrained(chosen.out)


def with_adapters(network: Causal, rank: int) -> AdaptedDDiT:
    """The same weights in a network that sees everything, with adapters that change nothing yet."""
    made = AdaptedDDiT(blocks_of(network.config, AdaptersConfig, adapters=rank, dropout=0.0))
    with torch.no_grad():
        torch.nn.init.eye_(made.own_token.weight)
    made.load_state_dict({**made.state_dict(), **network.state_dict()})
    return made


if __name__ == "__main__":
    main()
