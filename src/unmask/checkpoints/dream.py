"""Dream: Qwen2's network without the causal mask, its outputs shifted. ``decoding.dream`` decodes as its authors do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.checkpoints.contents import Found
from unmask.checkpoints.llamas import LlamaFormat, Names, mask_of, number
from unmask.networks.llama import LlamaConfig
from unmask.tokenizers import external, external_files
from unmask.tokenizers.external import ExternalTokenizer
from unmask.tokenizers.tokenizer import import_tokenizers

NAME = "Dream"
NEEDS = "a config.json with model_type Dream, and Qwen2's tensors (model.layers.i.self_attn.q_proj, ...)"

LENGTH = 2048  # of its training sequences; its config has Qwen2's, which is 131,072
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
# Config fields with the only value that this network supports.
FIXED: dict[str, Any] = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False, "use_mrope": False}
KNOWN = frozenset(
    (
        *FIXED,
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings"),
        *("sliding_window", "max_window_layers"),  # used only with use_sliding_window
    )
)
# How Qwen2 splits a text before its BPE: contractions, words, single digits, marks, newlines, spaces.
PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def recognises(found: Found) -> bool:
    """Qwen2's tensors and a config that says Dream: the tensors alone would be a left-to-right model."""
    kinds = [found.config.get("model_type"), *(found.config.get("architectures") or ())]
    named = any(str(kind).lower().startswith("dream") for kind in kinds)
    return named and "model.layers.0.self_attn.q_proj.weight" in found.tensors


def _config(found: Found, tokenizer: ExternalTokenizer | None, override: Mapping[str, Any]) -> LlamaConfig:
    config = found.config
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


def _tokenizer(folder: Path) -> ExternalTokenizer | None:
    """The folder's tokenizer, from vocab.json, merges.txt and the special tokens in tokenizer_config.json.

    Dream has code in place of a tokenizer.json. The code is not run.
    """
    if (folder / "tokenizer.json").is_file() or not (folder / "vocab.json").is_file():
        return external_files.load(folder)
    return external.wrapped(_qwen2(folder), {})


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


_FORMAT = LlamaFormat(NAME, Names(TOP, "model.layers", BLOCK), FIXED, KNOWN, _config, _tokenizer)
load, about = _FORMAT.load, _FORMAT.about
