"""stories15m as the start of a masked network: its weights, in the blocks of a DDiT.

    python -m recipes.stories_start runs/stories-start
    python -m recipes.stories runs/stories-start runs/stories

The network is the teacher's with the vocabulary of the corpus and a mask whose embedding is the mean of the others.
Filled from left to right it is the teacher. For all other orders within blocks of two tokens it has adapters of rank 64
(``unmask.networks.adapters``), which start at zero.

    python -m recipes.stories_start runs/stories-masked-start --masked
    unmask train --config recipes/stories-masked.toml --init runs/stories-masked-start --out runs/stories-masked

With --masked it sees every position from the beginning. An entry still reads the token to its left, which the teacher's
weights know how to continue, and its own token where that is visible.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from recipes.corpora.stories import LENGTH, kept_ids
from unmask.checkpoints import llama2c
from unmask.checkpoints.folder import TOKENIZER
from unmask.networks import pretrained
from unmask.networks.adapters import AdaptedDDiT, AdaptersConfig
from unmask.networks.config import TransformerConfig, preset
from unmask.networks.layers import Rotary
from unmask.networks.left_reading import LeftReadingDDiT
from unmask.networks.llama import Llama

SIZE: dict[str, Any] = {"tie_embeddings": True, "dropout": 0.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--masked", action="store_true", help="a bidirectional network without blocks and adapters")
    chosen = parser.parse_args()
    out = chosen.out
    teacher, pieces = llama2c.stories15m()
    ids = kept_ids()
    network = masked_by(teacher, ids) if chosen.masked else adapted_by(teacher, ids)
    pretrained.save(out, network, card=pretrained.Card(data="TinyStories, by stories15m", license="MIT"))
    llama2c.tokenizer(pieces, ids.tolist()).save(out / TOKENIZER)
    print(f"{out}: {sum(parameter.numel() for parameter in network.parameters()) / 1e6:.2f} M parameters")


def adapted_by(teacher: Llama, ids: Tensor, **changes: Any) -> AdaptedDDiT:
    """The teacher in blocks of two, with adapters; the last of the corpus's ids, eos, begins every sequence."""
    how: dict[str, Any] = {"block": 2, "adapters": 64, "start": len(ids) - 1, **SIZE, **changes}
    config = preset("stories15m", len(ids), LENGTH, kind=AdaptersConfig, **how)
    return AdaptedDDiT.built(config, with_own_token(AdaptedDDiT(config), teacher, ids))


def masked_by(teacher: Llama, ids: Tensor, **changes: Any) -> LeftReadingDDiT:
    """The teacher without blocks and adapters: it sees every position."""
    config = preset("stories15m", len(ids), LENGTH, **{**SIZE, **changes})
    return LeftReadingDDiT.built(config, with_own_token(LeftReadingDDiT(config), teacher, ids))


def with_own_token(fresh: nn.Module, teacher: Llama, ids: Tensor) -> dict[str, Tensor]:
    """The tensors of a network that also reads its own token: those of the teacher, and what does nothing yet."""
    config: Any = fresh.config
    return fresh.state_dict() | weights(teacher, ids, config) | {"own_token.weight": torch.eye(config.width)}


def weights(teacher: Llama, ids: Tensor, config: TransformerConfig) -> dict[str, Tensor]:
    """The teacher's tensors under the DDiT's names; what the teacher does not have does nothing yet."""
    theirs, width = teacher.state_dict(), config.width
    embedding = theirs["embed.weight"][ids]
    made = {
        "vocab_embed.embedding": torch.cat((embedding, embedding.mean(0, keepdim=True))),
        "rotary_emb.inv_freq": Rotary(width // config.heads).inv_freq,
        "output_layer.norm_final.weight": theirs["norm.weight"],
        "output_layer.linear.bias": torch.zeros(len(ids)),
    }
    for i in range(config.layers):
        block = {name.removeprefix(f"blocks.{i}."): w for name, w in theirs.items() if name.startswith(f"blocks.{i}.")}
        ours = {
            "norm1.weight": block["norm1.weight"],
            "attn_qkv.weight": torch.cat([block[f"{name}.weight"] for name in "qkv"]),
            "attn_out.weight": block["out.weight"],
            "norm2.weight": block["norm2.weight"],
            "mlp.0.weight": torch.cat((block["gate.weight"], block["up.weight"])),
            "mlp.0.bias": torch.zeros(2 * config.hidden),
            "mlp.2.weight": block["down.weight"],
            "mlp.2.bias": torch.zeros(width),
        }
        made |= {f"blocks.{i}.{name}": tensor for name, tensor in ours.items()}
    return made


if __name__ == "__main__":
    main()
