"""fairseq's RoBERTa over an alphabet, the architecture of Sapiens: two masked language models of antibody chains.

Post-norm transformer with learned positions that start at 2 (fairseq's padding_idx + 1), exact GELU, and a head of
dense, GELU, layer norm and linear. The head is computed only for the requested rows. transformers is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.framed import Framed
from unmask.tokenizers import external_files
from unmask.tokenizers.external import ExternalTokenizer

NAME = "fairseq's RoBERTa over an alphabet (Sapiens)"
NEEDS = "decoder.sentence_encoder.* tensors and, beside the file, fairseq's dict.txt"

PREFIX = re.compile(r"^(decoder|encoder)\.")  # fairseq's name was decoder first, later encoder
PAD = 1  # fairseq's id of padding
FIRST = 2  # the first token's position: fairseq's padding_idx + 1
DICTIONARY = "dict.txt"


class Layer(nn.Module):
    """Self-attention and MLP, each followed by a residual and a layer norm."""

    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.self_attn = nn.ModuleDict(
            {name: nn.Linear(width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        )
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """x [B, T, width]; seen bool [B, 1, 1, T]: the tokens that are not padding, if there is any."""
        q, k, v = (
            self.self_attn[name](x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for name in ("q_proj", "k_proj", "v_proj")
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)
        x = self.self_attn_layer_norm(x + self.self_attn["out_proj"](mixed))
        x = self.final_layer_norm(x + self.fc2(F.gelu(self.fc1(x))))
        return x


class Head(nn.Linear):
    """Dense, GELU, layer norm, and the linear map to logits, which fairseq stores under the head's name."""

    def __init__(self, width: int, vocab: int) -> None:
        super().__init__(width, vocab)
        self.dense, self.layer_norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.layer_norm(F.gelu(self.dense(x))))


class Roberta(nn.Module):
    """fairseq's RoBERTa with its tensor names: (ids [B, T], rows [B, R]) -> logits [B, R, V]."""

    def __init__(self, vocab: int, positions: int, width: int, hidden: int, layers: int, heads: int) -> None:
        super().__init__()
        self.pad_id = PAD
        self.sentence_encoder = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(vocab, width),
                "embed_positions": nn.Embedding(positions, width),
                "emb_layer_norm": nn.LayerNorm(width),
                "layers": nn.ModuleList(Layer(width, hidden, heads) for _ in range(layers)),
            }
        )
        self.lm_head = Head(width, vocab)

    def forward(self, ids: Tensor, rows: Tensor) -> Tensor:
        encoder = self.sentence_encoder
        position = torch.arange(FIRST, FIRST + ids.shape[1], device=ids.device)
        x = encoder["emb_layer_norm"](encoder["embed_tokens"](ids) + encoder["embed_positions"](position))
        padded = ids == self.pad_id
        seen = ~padded[:, None, None] if bool(padded.any()) else None
        for layer in encoder["layers"]:  # type: ignore[attr-defined]
            x = layer(x, seen)
        logits: Tensor = self.lm_head(x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1])))
        return logits


def recognises(scan: Scan) -> bool:
    shapes = _shapes(scan)
    return {"sentence_encoder.embed_tokens.weight", "sentence_encoder.embed_positions.weight"} <= shapes.keys()


def load(scan: Scan, **override: Any) -> Loaded:
    """The network with its alphabet."""
    facts, tokenizer, sizes = _facts(scan, override)
    network = Roberta(**sizes)
    state = {PREFIX.sub("", name): tensor.float() for name, tensor in scan.read().items()}
    network.load_state_dict({name: state[name] for name in network.state_dict()})
    limit = sizes["positions"] - FIRST
    made = Framed(
        network,
        vocab_size=sizes["vocab"],
        mask_id=facts["mask_id"],
        special_ids=tokenizer.special_ids,
        around=tokenizer.around,
        limit=limit,
        pad_id=PAD,
    )
    names = {name: f"network.{PREFIX.sub('', name)}" for name in _own(scan, network.state_dict())}
    return Loaded(made.eval(), tokenizer, layout="rows", names=names, about=facts)


def about(scan: Scan, **override: Any) -> dict[str, Any]:
    """What the file says, without using the weights."""
    return _facts(scan, override)[0]


def _facts(scan: Scan, override: dict[str, Any]) -> tuple[dict[str, Any], ExternalTokenizer, dict[str, int]]:
    if override:
        raise ValueError(f"{NAME}: there is no setting {sorted(override)[0]!r}")
    sizes = _sizes(scan)
    shapes = _shapes(scan)
    with torch.device("meta"):
        wanted = {name: tuple(tensor.shape) for name, tensor in Roberta(**sizes).state_dict().items()}
    wrong = [name for name, shape in wanted.items() if shapes.get(name) != shape]
    if wrong:
        raise ValueError(
            f"{scan.path}: {wrong[0]} should be {list(wanted[wrong[0]])} and is {shapes.get(wrong[0], 'missing')}; "
            f"{len(wrong)} of {len(wanted)} tensors do not fit"
        )
    if not (scan.folder / DICTIONARY).is_file():
        raise ValueError(
            f"{scan.path}: its ids have no meaning without fairseq's {DICTIONARY}; put it into the same folder"
        )
    tokenizer = external_files.fairseq(scan.folder / DICTIONARY)
    if tokenizer.vocab_size != sizes["vocab"] or tokenizer.mask_id is None:
        raise ValueError(
            f"{scan.path} knows {sizes['vocab']} ids, and {DICTIONARY} {tokenizer.vocab_size}: "
            "they do not belong together"
        )
    facts = {
        "format": NAME,
        "parameters": sum(scan.tensors[name].count for name in _own(scan, wanted)),
        "mask_id": tokenizer.mask_id,
        "special_ids": sorted(tokenizer.special_ids),
        "length": sizes["positions"] - FIRST - 2,
        "time": "none",
        "ema": scan.ema,
        "missing": [],
        "unexpected": sorted(name for name in shapes if name not in wanted),
    }
    return facts, tokenizer, sizes


def _sizes(scan: Scan) -> dict[str, int]:
    """Sizes from the tensors, and the number of heads, which they do not determine, from fairseq's arguments."""
    shapes = _shapes(scan)
    vocab, width = shapes["sentence_encoder.embed_tokens.weight"]
    layers = 1 + max((int(i) for i in _numbers(shapes)), default=-1)
    hidden = shapes.get("sentence_encoder.layers.0.fc1.weight", (0,))[0]
    settings = scan.config.get("model", scan.config)
    heads = settings.get("encoder_attention_heads") if isinstance(settings, dict) else None
    if not isinstance(heads, int) or heads < 1 or width % heads:
        raise ValueError(f"{scan.path}: encoder_attention_heads must divide {width}, and its arguments say {heads}")
    if isinstance(settings, dict) and settings.get("encoder_normalize_before"):
        raise ValueError(f"{scan.path}: encoder_normalize_before is set: only post-norm networks are read")
    return {
        "vocab": vocab,
        "positions": shapes["sentence_encoder.embed_positions.weight"][0],
        "width": width,
        "hidden": hidden,
        "layers": layers,
        "heads": heads,
    }


def _numbers(shapes: dict[str, tuple[int, ...]]) -> Iterator[str]:
    for name in shapes:
        if (layer := re.match(r"sentence_encoder\.layers\.(\d+)\.", name)) is not None:
            yield layer[1]


def _shapes(scan: Scan) -> dict[str, tuple[int, ...]]:
    return {PREFIX.sub("", name): tensor.shape for name, tensor in scan.tensors.items()}


def _own(scan: Scan, wanted: Mapping[str, Any]) -> Iterator[str]:
    return (name for name in scan.tensors if PREFIX.sub("", name) in wanted)
