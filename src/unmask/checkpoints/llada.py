"""LLaDA: Llama's blocks without the causal mask, with OLMo's names. ``decoding.llada`` decodes as its authors do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.checkpoints.contents import Scan
from unmask.checkpoints.llamas import LlamaFormat, Names, mask_of, number
from unmask.networks.llama import LlamaConfig
from unmask.tokenizers import external_files
from unmask.tokenizers.external import ExternalTokenizer

NAME = "LLaDA"
NEEDS = "model.transformer.wte and model.transformer.blocks.i.{attn_norm, q_proj, ff_proj, up_proj, ...}"

PREFIX = "model.transformer."
TOP = {f"{PREFIX}wte": "embed", f"{PREFIX}ln_f": "norm", f"{PREFIX}ff_out": "head"}
BLOCK = {
    "attn_norm": "norm1",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "attn_out": "out",
    "ff_norm": "norm2",
    "ff_proj": "gate",
    "up_proj": "up",
    "ff_out": "down",
}
# Config fields with the only value that this network supports.
FIXED = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "scale_logits": False,
    "block_group_size": 1,
    "multi_query_attention": False,
    "bias_for_layer_norm": False,
}

KNOWN = frozenset(
    (
        *FIXED,
        *("d_model", "n_heads", "n_kv_heads", "n_layers", "mlp_ratio", "mlp_hidden_size", "vocab_size"),
        *("embedding_size", "weight_tying", "max_sequence_length", "train_max_sequence_length", "rope_theta"),
        *("rms_norm_eps", "rope_full_precision", "layer_norm_with_affine", "attention_layer_norm_with_affine"),
        # for training, and for how it is computed
        *("alibi_bias_max", "flash_attention", "residual_dropout", "embedding_dropout", "init_device", "init_fn"),
        *("init_std", "init_cutoff_factor", "precision", "hidden_size", "num_hidden_layers"),
    )
)


def recognises(scan: Scan) -> bool:
    needed = ("wte.weight", "blocks.0.attn_norm.weight", "blocks.0.ff_proj.weight", "blocks.0.up_proj.weight")
    return all(PREFIX + name in scan.tensors for name in needed)


def _config(scan: Scan, tokenizer: ExternalTokenizer | None, override: Mapping[str, Any]) -> LlamaConfig:
    config = scan.config
    embedding = scan.tensors[f"{PREFIX}wte.weight"].shape
    heads = number(scan, "n_heads", {})
    return LlamaConfig(
        vocab_size=embedding[0],
        mask_id=mask_of(scan, tokenizer, override),
        length=number(scan, "max_sequence_length", override, "length"),
        width=embedding[1],
        layers=len([name for name in scan.tensors if name.endswith(".attn_norm.weight")]),
        heads=heads,
        key_heads=config.get("n_kv_heads") or heads,
        hidden=scan.tensors[f"{PREFIX}blocks.0.ff_proj.weight"].shape[0],
        theta=number(scan, "rope_theta", override, "theta"),
        eps=number(scan, "rms_norm_eps", {}),
        tied=f"{PREFIX}ff_out.weight" not in scan.tensors,
    )


_FORMAT = LlamaFormat(NAME, Names(TOP, f"{PREFIX}blocks", BLOCK), FIXED, KNOWN, _config, external_files.load)
load, about = _FORMAT.load, _FORMAT.about
