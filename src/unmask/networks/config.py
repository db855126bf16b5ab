"""Everything that decides a DDiT's parameters and its function, and the named sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

SIGMA_MAX = -math.log(1e-3)  # of the published log-linear noise
Attention = Literal["bidirectional", "visible", "order", "block"]

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {"layers": 2, "heads": 2, "width": 64},
    "mini": {"layers": 5, "heads": 6, "width": 192},
    # The blocks of the Llama behind the corpus stories, to start from its weights (recipes/stories_start.py).
    "stories15m": {
        "layers": 6,
        "heads": 6,
        "width": 288,
        "hidden": 768,
        "mlp": "swiglu",
        "norm": "rms",
        "adaln": False,
    },
    "compact": {"layers": 8, "heads": 6, "width": 384},
    "small": {"layers": 12, "heads": 12, "width": 768},  # the paper's
    "medium": {"layers": 24, "heads": 16, "width": 1024},
}


@dataclass(frozen=True)
class DDiTConfig:
    """Everything that decides a network's parameters and its function."""

    vocab_size: int  # V, the number of logits
    mask_id: int  # V, or any id below it: it then has a column, which is -inf
    length: int  # of the training sequences; rotary positions work beyond it, learned ones do not
    width: int
    layers: int
    heads: int
    cond_dim: int = 128
    mlp_ratio: int = 4
    hidden: int = 0  # the width inside an MLP; 0 for mlp_ratio * width
    mlp: Literal["gelu", "swiglu"] = "gelu"
    dropout: float = 0.1
    conditioning: Literal["none", "time", "ratio"] = "none"  # "none" feeds sigma = 0
    time_embedding: Literal["sigma", "log-linear", "t"] = "sigma"  # which function of t is embedded: see sigma()
    sigma_max: float = SIGMA_MAX  # the noise level at t = 1
    self_conditioning: bool = False
    convolution: int = 0  # taps of a depthwise convolution before each attention; 0 for none
    tie_embeddings: bool = False
    learned_positions: bool = False  # a vector for each of the positions, besides the rotary ones
    reads_left: bool = False  # each entry reads the token to its left too: to start from a left-to-right network
    adaln: bool = True  # without it there is no conditioning and there are no gates
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = False
    attention: Attention = "bidirectional"  # the attention pattern: see anyorder.py
    block: int = 0  # block size, for attention="block"
    insertion: bool = False  # the last two ids are EMPTY and OPEN: see unmask.insertion
    uniform: bool = False  # tokens are replaced by random ones, not masked: see unmask.uniform
    adapters: int = 0  # the rank of the adapters of a left-to-right network (adapters.py); 0 for none
    start: int = -1  # the token that begins every sequence, for adapters and attention="order"; -1 for none
    neighbours: int = 0  # visible tokens on each side that a prediction reads, for attention="order" (any_order.py)

    def __post_init__(self) -> None:
        allowed = {"int": (int,), "bool": (bool,), "float": (int, float)}
        for field in fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            if kind in allowed and type(value) not in allowed[kind]:
                raise ValueError(f"{field.name} must be of type {kind}, got {value!r}")
        for name, hint in get_type_hints(DDiTConfig).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                raise ValueError(f"{name} must be one of {', '.join(get_args(hint))}, got {getattr(self, name)!r}")
        for name in ("vocab_size", "length", "width", "layers", "heads", "cond_dim", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden < 0:
            raise ValueError(f"hidden must be at least 1, or 0 for mlp_ratio * width, got {self.hidden}")
        if not 0 <= self.mask_id <= self.vocab_size:
            raise ValueError(f"mask_id must be in 0..vocab_size={self.vocab_size}, got {self.mask_id}")
        if self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads = {2 * self.heads}, got {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if not 0 < self.sigma_max < math.inf:
            raise ValueError(f"sigma_max must be a positive number, got {self.sigma_max}")
        if self.convolution != 0 and (self.convolution < 3 or self.convolution % 2 == 0):
            raise ValueError(f"convolution must be 0 (none) or an odd number of taps from 3, got {self.convolution}")
        if not self.adaln and self.conditioning != "none":
            raise ValueError(f"conditioning={self.conditioning!r} acts through adaLN: it needs adaln=True")
        self._check_attention()

    @property
    def first_token(self) -> int | None:
        """The id that begins every sequence, if one does."""
        return self.start if self.start >= 0 else None

    def _check_attention(self) -> None:
        """Refuse what cannot be combined with this attention."""
        if self.attention in ("order", "block") and self.conditioning != "none":
            raise ValueError(
                f"attention={self.attention!r} keeps what a token was when it became visible, and conditioning="
                f"{self.conditioning!r} would change it later: it needs conditioning='none'"
            )
        if (self.attention == "block") != (self.block > 0) or self.block < 0:
            raise ValueError(
                f"attention='block' needs block, the positions of a block, and no other attention takes one: "
                f"attention={self.attention!r}, block={self.block}"
            )
        if self.block and self.length % self.block:
            raise ValueError(f"length must be a multiple of block={self.block}, got {self.length}")
        one_block = self.attention == "bidirectional"
        if self.adapters and (not (one_block or self.attention == "block") or self.adaln or self.self_conditioning):
            raise ValueError(
                f"adapters={self.adapters} needs attention='bidirectional' or 'block', adaln=False and no "
                f"self_conditioning, got attention={self.attention!r}, adaln={self.adaln}, self_conditioning="
                f"{self.self_conditioning}"
            )
        if self.adapters and self.convolution and not one_block:
            raise ValueError("adapters with a convolution need attention='bidirectional': it would cross the blocks")
        begins = self.adapters > 0 or self.attention == "order"
        if self.adapters < 0 or not -1 <= self.start < (self.vocab_size if begins else 0):
            raise ValueError(
                f"start is the id that begins every sequence of a network with adapters or attention='order', or -1: "
                f"adapters={self.adapters}, attention={self.attention!r}, start={self.start}"
            )
        if self.neighbours < 0 or (self.neighbours and self.attention != "order"):
            raise ValueError(
                f"neighbours={self.neighbours} must be at least 0, and needs attention='order', got {self.attention!r}"
            )
        if self.reads_left and (not one_block or self.adapters):
            raise ValueError(
                f"reads_left=True needs attention='bidirectional' and no adapters, got attention={self.attention!r}, "
                f"adapters={self.adapters}"
            )
        plain = self.attention == "bidirectional" and self.conditioning == "none" and not self.self_conditioning
        if self.insertion and not (plain and self.mask_id == self.vocab_size > 1):
            raise ValueError(
                "insertion=True needs attention='bidirectional', conditioning='none', no self_conditioning, and the "
                f"mask behind EMPTY and OPEN, got mask_id={self.mask_id} and vocab_size={self.vocab_size}"
            )
        no_order = one_block and not (self.self_conditioning or self.adapters or self.reads_left or self.insertion)
        if self.uniform and not (no_order and self.conditioning != "ratio" and self.mask_id == self.vocab_size):
            raise ValueError(
                "uniform=True needs attention='bidirectional', conditioning 'none' or 'time', no self_conditioning, "
                f"adapters, reads_left or insertion, and mask_id = vocab_size: it has no mask, got {self.mask_id}"
            )
        if self.attention != "bidirectional" and self.self_conditioning:
            raise ValueError(
                f"self_conditioning needs every position, which attention={self.attention!r} does not compute"
            )


def preset(name: str, vocab_size: int, length: int, mask_id: int | None = None, **changes: Any) -> DDiTConfig:
    """A named size. The mask id is V, one past the data, unless another is given; ``changes`` are other fields."""
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    sizes: dict[str, Any] = {**PRESETS[name], **changes}
    return DDiTConfig(vocab_size, vocab_size if mask_id is None else mask_id, length, **sizes)
