"""Tiny networks with random weights, in folders as ``unmask train`` leaves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from unmask.networks.any_order import OneStream
from unmask.networks.causal import Causal
from unmask.networks.ddit import DDiT
from unmask.networks.kinds import described
from unmask.networks.llama import Llama, LlamaConfig
from unmask.networks.pretrained import Card, save
from unmask.networks.transformer import Transformer
from unmask.tokenizers import vocabularies as make
from unmask.tokenizers.tokenizer import Tokenizer

TEXT = "In the beginning God created the heaven and the earth. And the earth was without form, and void; é ü 神.\n" * 4
LENGTH = 24

TOKENIZERS = {
    "bpe": make.bpe([TEXT], 300),
    "characters": make.characters([TEXT + "abcdefghijklmnopqrstuvwxyz0123456789 _#"]),
    "bytes": make.bytes_of_utf8(),
    "smiles": make.smiles(["CCO", "c1ccccc1Br", "[nH]N=O"]),
    "selfies": make.selfies(["[C][=C][N][=N][O][=O][F][Ring1][=Branch1][Branch1][=C][C]"]),
    "levels": make.levels(17),
}


def network(tokenizer: Tokenizer, *, length: int = LENGTH, causal: bool = False, seed: int = 0, **changes: Any) -> Any:
    """One or two blocks of width 16, with a head that is not shy: its samples differ."""
    sizes = {"width": 16, "layers": 1, "heads": 2} | changes
    in_order = changes.get("attention") == "order"
    settings = {"vocab_size": tokenizer.vocab_size, "mask_id": tokenizer.vocab_size, "length": length, **sizes}
    if causal or in_order:
        settings["adaln"] = False
    torch.manual_seed(seed)
    made = built(settings, Causal if causal else OneStream if in_order else DDiT)
    with torch.no_grad():
        made.output_layer.linear.weight.normal_(std=0.2)
    return made.eval()


def scrambled(model: Any, std: float = 0.1) -> Any:
    """Noise on every parameter, so that each matters: none is left at the zero it starts with."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(std * torch.randn_like(parameter))
    return model


def small(kind: type[Transformer], seed: int = 0, *, std: float = 0.1, **config: Any) -> Any:
    """A network in which every parameter matters, for evaluation: of this kind, or one that the settings describe."""
    torch.manual_seed(seed)
    return scrambled(built(config, kind), std).eval()


def built(settings: dict[str, Any], kind: type[Transformer] = DDiT) -> Any:
    """A network by settings in one row, such as those of a training run; of the paper's kind they may make another."""
    if kind is DDiT and settings.get("attention") == "order":
        kind = OneStream
    found, config = described(settings, kind.architecture)
    return (kind if issubclass(kind, found) else found)(config)


def folder(path: Path, kind: str = "bpe", *, extra: dict[str, Any] | None = None, **options: Any) -> Path:
    """A saved model with its tokenizer."""
    made = network(TOKENIZERS[kind], **options)
    card = Card(data="four sentences", bound=3.25, bound_error=0.5)
    save(path, made, card=card, extra={"schedule": "linear", "objective": "time"} | (extra or {}))
    TOKENIZERS[kind].save(path / "tokenizer.json")
    return path


def small_llama(*, causal: bool = True) -> Llama:
    """Eleven ids, two layers, and fewer heads of keys than of queries."""
    config = LlamaConfig(11, 11, 12, 16, 2, 4, 2, 24, theta=10_000.0, eps=1e-5, tied=True, causal=causal)
    torch.manual_seed(0)
    made = Llama(config)
    torch.nn.init.normal_(made.embed.weight, std=0.2)  # it comes without values
    return scrambled(made, 0.15).requires_grad_(False)
