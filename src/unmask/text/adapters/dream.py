"""Dream: Qwen2's network without the causal mask, its outputs shifted. ``order.dream`` decodes as its authors do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.models.llama import LlamaConfig
from unmask.text import external
from unmask.text.adapters.found import Found, Loaded
from unmask.text.adapters.llamas import LlamaCheckpoint, checked, mask_of, number
from unmask.text.adapters.settings import refuse_unknown
from unmask.text.external import ExternalTokenizer
from unmask.text.tokenizer import import_tokenizers

NAME = "Dream"
NEEDS = "a config.json with model_type Dream, and Qwen2's tensors (model.layers.i.self_attn.q_proj, ...)"

LENGTH = 2048  # of its training sequences; its config tells Qwen2's, which is 131,072
TOP = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"}
BLOCK = {
    "input_layernorm": "norm1",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "out",
    "post_attention_layernorm": "norm2",
    "mlp.gate_proj": "gate",
    "mlp.up_proj": "up",
    "mlp.down_proj": "down",
}
# What the config may say, and the one answer that this network gives.
FIXED: dict[str, Any] = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False, "use_mrope": False}
KNOWN = frozenset(
    (
        *FIXED,
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings"),
        *("sliding_window", "max_window_layers"),  # of what use_sliding_window turns on
    )
)
# How Qwen2 cuts a text before its BPE: contractions, words, single digits, marks, new lines, spaces.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def recognises(found: Found) -> bool:
    """Qwen2's tensors and a config that says Dream: by its tensors alone it is a left-to-right model."""
    kinds = [found.config.get("model_type"), *(found.config.get("architectures") or ())]
    named = any(str(kind).lower().startswith("dream") for kind in kinds)
    return named and "model.layers.0.self_attn.q_proj.weight" in found.tensors


def load(found: Found, *, dtype: torch.dtype | None = None, **override: Any) -> Loaded:
    """The network with its tokenizer. override: mask_id, length, theta."""
    return _read(found, override).load(dtype)


def about(found: Found, **override: Any) -> dict[str, Any]:
    """What the files say, without the weights being read."""
    return _read(found, override).about()


def _read(found: Found, override: dict[str, Any]) -> LlamaCheckpoint:
    override, tokenizer = checked(NAME, override), _tokenizer(found)
    names = {name: ours for name in found.tensors if (ours := _renamed(name)) is not None}
    return LlamaCheckpoint(NAME, found, _config(found, tokenizer, override), names, tokenizer)


def _config(found: Found, tokenizer: ExternalTokenizer | None, override: dict[str, Any]) -> LlamaConfig:
    config = found.config
    refuse_unknown(found.path, config, KNOWN)
    for name, wanted in FIXED.items():
        if config.get(name, wanted) not in (wanted, None):
            raise ValueError(f"{found.path}: a Dream with {name}={config[name]!r} is not known, only {wanted!r}")
    embedding = found.tensors["model.embed_tokens.weight"].shape
    heads = number(found, "num_attention_heads", {})
    return LlamaConfig(
        vocab_size=embedding[0],
        mask_id=mask_of(found, tokenizer, override),
        length=override.get("length", min(config.get("max_position_embeddings") or LENGTH, LENGTH)),
        width=embedding[1],
        layers=len([name for name in found.tensors if name.endswith(".input_layernorm.weight")]),
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        hidden=found.tensors["model.layers.0.mlp.gate_proj.weight"].shape[0],
        theta=number(found, "rope_theta", override, "theta"),
        eps=number(found, "rms_norm_eps", {}),
        bias="model.layers.0.self_attn.q_proj.bias" in found.tensors,
        tied="lm_head.weight" not in found.tensors,
        shifted=True,
    )


def _renamed(name: str) -> str | None:
    """Our name of a tensor of theirs."""
    module, _, kind = name.rpartition(".")
    if module in TOP:
        return f"{TOP[module]}.{kind}"
    parts = module.split(".", 3)
    if len(parts) == 4 and parts[:2] == ["model", "layers"] and parts[3] in BLOCK:
        return f"blocks.{parts[2]}.{BLOCK[parts[3]]}.{kind}"
    return None


def _tokenizer(found: Found) -> ExternalTokenizer | None:
    """A text ends with eos, which is drawn like any other token; nothing stands before it, and no padding behind.

    The folder has vocab.json, merges.txt, the special tokens in tokenizer_config.json, and code instead of a
    tokenizer.json; the code is not run.
    """
    folder, config = found.folder, found.config
    if (folder / "tokenizer.json").is_file() or not (folder / "vocab.json").is_file():
        tokenizer = external.load(folder)
    else:
        tokenizer = external.wrapped(_qwen2(folder), {})
    if tokenizer is None:
        return None
    mask_id = config.get("mask_token_id", tokenizer.mask_id)
    return replace(tokenizer, mask_id=mask_id, eos_id=config.get("eos_token_id"), pad_id=None, around=((), ()))


def _qwen2(folder: Path) -> Any:
    tokenizers = import_tokenizers()
    try:
        model = tokenizers.models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt"))
        settings = folder / "tokenizer_config.json"
        added = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
        special = [
            entry["content"]
            for _, entry in sorted(added.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0]))
        ]
    except Exception as error:  # the tokenizers package raises bare Exceptions
        raise ValueError(f"{folder}: its tokenizer cannot be read: {error}") from error
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.NFC()
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(PIECES), "isolated")
    bytes_alone = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([split, bytes_alone])
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens(special)
    return made
