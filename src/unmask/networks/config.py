"""The settings of the blocks that all networks share, of the paper's network, and the named sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints, overload

Attention = Literal["bidirectional", "visible", "order", "block"]
SIGMA_MAX = -math.log(1e-3)  # of the published log-linear noise

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
class TransformerConfig:
    """What determines the parameters of a network of these blocks; a kind of network may add fields of its own."""

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
    convolution: int = 0  # taps of a depthwise convolution before each attention; 0 for none
    tie_embeddings: bool = False
    learned_positions: bool = False  # a vector for each of the positions, besides the rotary ones
    adaln: bool = True  # without it there is no conditioning and there are no gates
    norm: Literal["layer", "rms"] = "layer"
    norm_bias: bool = False
    eps: float = 1e-5  # of the norms
    head: int = 0  # features of a head; 0 for width / heads
    qkv_bias: bool = False  # of queries, keys and values
    head_norm: bool = False  # the queries and keys of each head have norms

    def __post_init__(self) -> None:
        self._check_types()
        for name in ("vocab_size", "length", "width", "layers", "heads", "cond_dim", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.hidden < 0:
            raise ValueError(f"hidden must be at least 1, or 0 for mlp_ratio * width, got {self.hidden}")
        if not 0 <= self.mask_id <= self.vocab_size:
            raise ValueError(f"mask_id must be in 0..vocab_size={self.vocab_size}, got {self.mask_id}")
        if self.head < 0 or self.head % 2 or self.eps <= 0:
            raise ValueError(f"a head has an even number of features, and eps is positive, got {self.head}, {self.eps}")
        if not self.head and self.width % (2 * self.heads):
            raise ValueError(f"width must be a multiple of 2 * heads = {2 * self.heads}, got {self.width}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be in [0, 1), got {self.dropout}")
        if self.convolution != 0 and (self.convolution < 3 or self.convolution % 2 == 0):
            raise ValueError(f"convolution must be 0 (none) or an odd number of taps from 3, got {self.convolution}")

    @property
    def head_size(self) -> int:
        """The features of a head."""
        return self.head or self.width // self.heads

    def _check_types(self) -> None:
        """Refuse values of other types: they may come from a file."""
        allowed = {"int": (int,), "bool": (bool,), "float": (int, float)}
        for field in fields(self):
            value, kind = getattr(self, field.name), str(field.type)
            if kind in allowed and type(value) not in allowed[kind]:
                raise ValueError(f"{field.name} must be of type {kind}, got {value!r}")
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                raise ValueError(f"{name} must be one of {', '.join(get_args(hint))}, got {getattr(self, name)!r}")


@dataclass(frozen=True)
class DDiTConfig(TransformerConfig):
    """Those of the paper's network: it may read the time."""

    conditioning: Literal["none", "time", "ratio"] = "none"  # "none" feeds sigma = 0
    time_embedding: Literal["sigma", "log-linear", "t"] = "sigma"  # which function of t is embedded: see DDiT.sigma
    sigma_max: float = SIGMA_MAX  # the noise level at t = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.sigma_max < math.inf:
            raise ValueError(f"sigma_max must be a positive number, got {self.sigma_max}")
        if not self.adaln and self.conditioning != "none":
            raise ValueError(f"conditioning={self.conditioning!r} acts through adaLN: it needs adaln=True")


C = TypeVar("C", bound=TransformerConfig)


@overload
def preset(
    name: str, vocab_size: int, length: int, mask_id: int | None = None, *, kind: type[C], **changes: Any
) -> C: ...
@overload
def preset(name: str, vocab_size: int, length: int, mask_id: int | None = None, **changes: Any) -> DDiTConfig: ...
def preset(
    name: str, vocab_size: int, length: int, mask_id: int | None = None, *, kind: Any = DDiTConfig, **changes: Any
) -> Any:
    """A named size of a kind of network. The mask id is V, one past the data, unless another is given.

    changes: other fields.
    """
    if name not in PRESETS:
        raise ValueError(f"no preset {name!r}; there are {', '.join(PRESETS)}")
    sizes: dict[str, Any] = {**PRESETS[name], **changes}
    return kind(vocab_size, vocab_size if mask_id is None else mask_id, length, **sizes)


def blocks_of(config: TransformerConfig, kind: type[C], **changes: Any) -> C:
    """The config of another kind of network with the same blocks."""
    shared = {field.name: getattr(config, field.name) for field in fields(TransformerConfig)}
    return kind(**{**shared, **changes})
