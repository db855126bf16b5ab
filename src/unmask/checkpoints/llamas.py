"""Common to LLaDA, Dream and their kin: their weights in one network, with every shape checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.settings import end_ids, refuse_unknown
from unmask.networks.llama import Llama, LlamaConfig
from unmask.networks.llama_blocks import BlockLlama
from unmask.tokenizers.external import ExternalTokenizer

OVERRIDES = ("mask_id", "length", "theta")


@dataclass(frozen=True)
class LlamaCheckpoint:
    """A checkpoint read as a Llama: its tensor names (the keys) and ours."""

    name: str  # of the format
    scan: Scan
    config: LlamaConfig
    names: Mapping[str, str]
    tokenizer: ExternalTokenizer | None

    def network(self) -> Llama:
        """Without weights yet. The output matrix is often wider than the vocabulary: the ids beyond it have no text."""
        with torch.device("meta"):
            kind = BlockLlama if self.config.block else Llama
            return kind(self.config, never=self.without_text)

    @property
    def without_text(self) -> range:
        """The ids beyond the tokenizer's."""
        size = self.config.vocab_size
        return range(self.tokenizer.vocab_size if self.tokenizer else size, size)

    def about(self) -> dict[str, Any]:
        config, own = self.config, self.network().state_dict().keys()
        return {
            "format": self.name,
            "parameters": sum(tensor.count for tensor in self.scan.tensors.values()),
            "vocab_size": config.vocab_size,
            "mask_id": config.mask_id,
            "special_ids": sorted({config.mask_id, *self.without_text}),
            "length": config.length,
            "width": config.width,
            "layers": config.layers,
            "heads": config.heads,
            "block": config.block or None,
            "time": "none",
            "ema": self.scan.ema,
            "missing": sorted(own - set(self.names.values())),
            "unexpected": sorted(name for name in self.scan.tensors if self.names.get(name) not in own),
        }

    def load(self, dtype: torch.dtype | None = None) -> Loaded:
        """Weights keep their stored precision, unless a dtype is given; norms and logits are in float32."""
        about, network, path = self.about(), self.network(), self.scan.path
        if missing := about["missing"]:
            raise ValueError(f"{path} lacks {len(missing)} of the network's tensors, the first is our {missing[0]}")
        if unknown := [name for name in about["unexpected"] if not name.endswith(".inv_freq")]:
            raise ValueError(f"{path} has {len(unknown)} tensors that a {self.name} does not have: {unknown[0]}, ...")
        shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        for name, ours in self.names.items():
            shape, wanted = self.scan.tensors[name].shape, shapes[ours]
            if shape != wanted:
                raise ValueError(f"{path}: {name} is {list(shape)}, by the config it should be {list(wanted)}")
        weights = {self.names[name]: tensor for name, tensor in self.scan.read().items() if name in self.names}
        network.load_state_dict(weights if dtype is None else {n: w.to(dtype) for n, w in weights.items()}, assign=True)
        return Loaded(
            network.eval().requires_grad_(False), self.tokenizer, layout="rows", names=self.names, about=about
        )


@dataclass(frozen=True)
class Names:
    """How a format names its modules: those outside of the blocks, the prefix of block i, and those inside a block."""

    top: Mapping[str, str]
    blocks: str
    block: Mapping[str, str]
    expert: Mapping[str, str] = field(default_factory=dict)  # inside an expert

    def ours(self, name: str) -> str | None:
        """Our name for one of their tensors."""
        module, _, kind = name.rpartition(".")
        if module in self.top:
            return f"{self.top[module]}.{kind}"
        number, _, part = module.removeprefix(f"{self.blocks}.").partition(".")
        if not number.isdigit():
            return None
        if (whole := f"{part}.{kind}") in self.block:  # a tensor that is not of a linear map or a norm
            return f"blocks.{number}.{self.block[whole]}"
        if part in self.block:
            return f"blocks.{number}.{self.block[part]}.{kind}"
        holder, _, own = part.rpartition(".")
        experts, _, expert = holder.rpartition(".")
        if own in self.expert and experts == "mlp.experts" and expert.isdigit():
            return f"blocks.{number}.mixture.experts.{expert}.{self.expert[own]}.{kind}"
        return None


@dataclass(frozen=True)
class LlamaFormat:
    """A checkpoint format that is a Llama under other names."""

    name: str
    names: Names
    fixed: Mapping[str, Any]  # config fields with the only value that our network supports
    known: frozenset[str]  # settings
    config: Callable[[Scan, ExternalTokenizer | None, Mapping[str, Any]], LlamaConfig]
    tokenizer: Callable[[Path], ExternalTokenizer | None]
    overrides: tuple[str, ...] = OVERRIDES

    def load(self, scan: Scan, *, dtype: torch.dtype | None = None, **override: Any) -> Loaded:
        """The network with its tokenizer. override: mask_id, length, theta, and what else this format lists."""
        return self._read(scan, override).load(dtype)

    def about(self, scan: Scan, **override: Any) -> dict[str, Any]:
        """What the files say, without reading the weights."""
        return self._read(scan, override).about()

    def _read(self, scan: Scan, override: Mapping[str, Any]) -> LlamaCheckpoint:
        given = {key: value for key, value in override.items() if value is not None}
        if unknown := sorted(given.keys() - set(self.overrides)):
            takes = ", ".join(self.overrides)
            raise ValueError(f"{self.name} takes {takes} and dtype, not {unknown[0]}={given[unknown[0]]!r}")
        refuse_unknown(scan.path, scan.config, self.known)
        for name, wanted in self.fixed.items():
            if (stored := scan.config.get(name)) not in (wanted, None):
                raise ValueError(f"{scan.path}: a {self.name} with {name}={stored!r} is not known, only {wanted!r}")
        tokenizer = ending(self.tokenizer(scan.folder), scan)
        names = {name: ours for name in scan.tensors if (ours := self.names.ours(name)) is not None}
        return LlamaCheckpoint(self.name, scan, self.config(scan, tokenizer, given), names, tokenizer)


def ending(tokenizer: ExternalTokenizer | None, scan: Scan, mask_id: int | None = None) -> ExternalTokenizer | None:
    """A text ends with any of the ends, which are drawn like other tokens; nothing comes before it, and no padding."""
    if tokenizer is None:
        return None
    mask_id = scan.config.get("mask_token_id") if mask_id is None else mask_id
    mask_id = tokenizer.mask_id if mask_id is None else mask_id
    ends = [one for one in end_ids(scan.config, scan.folder) if one < tokenizer.vocab_size and one != mask_id]
    eos_id, others = (ends[0], tuple(ends[1:])) if ends else (None, ())
    return replace(tokenizer, mask_id=mask_id, eos_id=eos_id, other_ends=others, pad_id=None, around=((), ()))


def number(scan: Scan, name: str, override: Mapping[str, Any], other: str | None = None) -> Any:
    """A number from the config, or its override; nothing is guessed."""
    value = override.get(other or name, scan.config.get(name))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{scan.path}: its config has no number {name} (found {value!r}): give {other or name}")
    return value


def mask_of(scan: Scan, tokenizer: ExternalTokenizer | None, override: Mapping[str, Any]) -> int:
    mask_id = override.get("mask_id", scan.config.get("mask_token_id"))
    if mask_id is None and tokenizer is not None:
        mask_id = tokenizer.mask_id
    if isinstance(mask_id, bool) or not isinstance(mask_id, int):
        raise ValueError(f"{scan.path}: neither config nor tokenizer says which id is the mask: give mask_id")
    return mask_id
