"""The network of a config.json that has Llama's settings, as transformers and the projects that build on it write them.

What the tensors show is read off them: sizes, biases, norms of queries and keys, a tied head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.checkpoints.contents import Scan
from unmask.checkpoints.llamas import Names, mask_of, number
from unmask.networks import rope
from unmask.networks.experts import Experts
from unmask.networks.llama import LlamaConfig
from unmask.tokenizers.external import ExternalTokenizer

LENGTH = 2048  # at most: a config has the length of the left-to-right model, up to 131,072
# Config fields with the only value that this network supports.
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "use_sliding_window": False,
    "use_mrope": False,
    "mlp_bias": False,
    "clip_qkv": None,
    "use_relay": False,
}
SIZES = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("vocab_size", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings", "head_dim"),
    *("rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "attention_bias", "layer_types"),
    *("num_experts", "num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    *("mlp_only_layers", "decoder_sparse_step"),
)
# Read elsewhere, used only with another setting, or used only in training.
UNUSED = (
    *("sliding_window", "max_window_layers", "use_bidirectional_attention", "is_causal", "pretraining_tp"),
    *("output_router_logits", "router_aux_loss_coef", "fuse_cross_entropy", "num_diffusion_steps", "moe_backend"),
    *("debug", "ep_size", "micro_forward", "skip_checkpoint", "use_deepep", "chunk_size_feed_forward"),
    *("output_hidden_states", "output_attentions", "is_encoder_decoder", "id2label", "label2id", "problem_type"),
)
KNOWN = frozenset((*FIXED, *SIZES, *UNUSED))


def llama_config(
    scan: Scan,
    tokenizer: ExternalTokenizer | None,
    override: Mapping[str, Any],
    names: Names,
    *,
    hidden: str = "intermediate_size",
    experts: Experts | None = None,
    shifted: bool = False,
    block: int = 0,
    causal: bool = False,
) -> LlamaConfig:
    """The network of a config and tensors with Llama's names."""
    config = scan.config
    theirs = {ours: name for name in scan.tensors if (ours := names.ours(name)) is not None}
    embedding = scan.tensors[theirs["embed.weight"]].shape
    heads, layers = number(scan, "num_attention_heads", {}), layers_of(theirs)
    if config.get("num_hidden_layers", layers) != layers:
        raise ValueError(
            f"{scan.path}: its config says num_hidden_layers={config['num_hidden_layers']}, and there are {layers}"
        )
    if "head.weight" not in theirs and config.get("tie_word_embeddings") is False:
        raise ValueError(f"{scan.path} lacks the matrix of its head, and its config says tie_word_embeddings=false")
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise ValueError(f"{scan.path}: layer_types={config['layer_types']!r}: only full_attention is known")
    theta, scaling, part = rotary_of(scan, override)
    size = config.get("head_dim") or embedding[1] // heads
    return LlamaConfig(
        vocab_size=embedding[0],
        mask_id=mask_of(scan, tokenizer, override),
        length=override.get("length", min(config.get("max_position_embeddings") or LENGTH, LENGTH)),
        width=embedding[1],
        layers=layers,
        heads=heads,
        key_heads=config.get("num_key_value_heads") or heads,
        hidden=config.get(hidden) or embedding[1],
        theta=theta,
        eps=number(scan, "rms_norm_eps", {}),
        bias="blocks.0.q.bias" in theirs or "blocks.0.qkv.bias" in theirs,
        out_bias="blocks.0.out.bias" in theirs,
        tied="head.weight" not in theirs,
        shifted=shifted,
        causal=causal,
        head=size,
        rotary=int(size * part) if part != 1 else 0,
        scaling=scaling,
        normed="blocks.0.q_norm.weight" in theirs,
        fused="blocks.0.qkv.weight" in theirs,
        block=block,
        experts=experts,
    )


def rotary_of(scan: Scan, override: Mapping[str, Any]) -> tuple[float, rope.Scaling | None, float]:
    """Base, scaling and rotated part of the rotary positions, under old and new names."""
    config = scan.config
    both = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or both
    theta = override.get("theta", config.get("rope_theta", both.get("rope_theta")))
    if isinstance(theta, bool) or not isinstance(theta, int | float):
        raise ValueError(f"{scan.path}: its config has no number rope_theta (found {theta!r}): give theta")
    part = config.get("partial_rotary_factor", both.get("partial_rotary_factor", 1))
    return theta, rope.read(scaling, scan.path), float(part)


def layers_of(theirs: Mapping[str, str]) -> int:
    return len([name for name in theirs if name.endswith(".norm1.weight")])
