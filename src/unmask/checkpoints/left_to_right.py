"""Left-to-right models of transformers (SmolLM2, TinyLlama, Qwen2, Qwen3) as this project's left-to-right network.

The same function exactly: heads that share keys and values get copies of them, and the token that the checkpoint's
texts begin with is the embedding of the mask, which every sequence of ours begins with. So such a model can be sampled,
evaluated, and be the start of a masked, block or any-order model (``unmask train --init MODEL --process ...``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.llamas import ending
from unmask.checkpoints.settings import refuse_unknown
from unmask.networks.causal import Causal
from unmask.networks.config import TransformerConfig
from unmask.tokenizers import qwen2

NAME = "Llama, left to right"
NEEDS = "a config.json with model_type llama, qwen2 or qwen3, and model.layers.i.self_attn.q_proj, mlp.gate_proj, ..."
KINDS = ("llama", "qwen2", "qwen3")
EPS = 1e-5  # of this project's norms, unless a config says otherwise
LENGTH = 2048  # of sequences, at most, unless another is asked for: attention needs the square of it
FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "pretraining_tp": 1,
    "rope_interleaved": False,
    "use_sliding_window": False,
    "use_mrope": False,
}
FIRST = "model.layers.0.self_attn"
KNOWN = frozenset(
    (
        *FIXED,
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("vocab_size", "max_position_embeddings", "rope_theta", "rope_parameters", "tie_word_embeddings", "head_dim"),
        *("is_llama_config", "unk_token_id", "rms_norm_eps", "sliding_window", "max_window_layers", "layer_types"),
    )
)


def recognises(scan: Scan) -> bool:
    plain = scan.config.get("model_type") in KINDS and "auto_map" not in scan.config
    return plain and "model.layers.0.self_attn.q_proj.weight" in scan.tensors


def load(scan: Scan, **override: Any) -> Loaded:
    """The network with its tokenizer. override: length."""
    facts, config = about(scan, **override), _config(scan, override)
    tokenizer = ending(qwen2.load(scan.folder), scan, config.mask_id)
    state = _state(scan, config)
    return Loaded(Causal.built(config, state).eval(), tokenizer, layout="rows", about=facts)


def about(scan: Scan, **override: Any) -> dict[str, Any]:
    """What the files say, without reading the weights."""
    config = _config(scan, override)
    names = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    return {
        "format": NAME,
        "parameters": sum(tensor.count for tensor in scan.tensors.values()),
        "vocab_size": config.vocab_size,
        "mask_id": config.mask_id,
        "special_ids": [config.mask_id],
        "length": config.length,
        "width": config.width,
        "layers": config.layers,
        "heads": config.heads,
        "time": "none",
        "ema": scan.ema,
        "missing": [],
        "unexpected": sorted(n for n in scan.tensors if n not in names and not n.startswith("model.layers.")),
    }


def _config(scan: Scan, override: Mapping[str, Any]) -> TransformerConfig:
    config = scan.config
    if unknown := sorted(override.keys() - {"length"}):
        raise ValueError(f"{NAME} takes length, not {unknown[0]}={override[unknown[0]]!r}")
    refuse_unknown(scan.path, config, KNOWN)
    rope = config.get("rope_parameters") or {}
    for name, wanted in FIXED.items():
        if (value := config.get(name, wanted)) != wanted:
            raise ValueError(f"{scan.path}: a Llama with {name}={value!r} is not supported, only {wanted!r}")
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise ValueError(f"{scan.path}: layer_types={config['layer_types']!r}: only full_attention is known")
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"{scan.path}: rotary positions of the type {rope['rope_type']!r} are not supported")
    width, heads = (_number(scan, name) for name in ("hidden_size", "num_attention_heads"))
    eps, size = config.get("rms_norm_eps", EPS), config.get("head_dim") or width // heads
    if isinstance(eps, bool) or not isinstance(eps, int | float):
        raise ValueError(f"{scan.path}: rms_norm_eps must be a number, got {eps!r}")
    vocab = scan.tensors["model.embed_tokens.weight"].shape[0]
    return TransformerConfig(
        vocab,
        vocab,
        int(override.get("length") or min(_number(scan, "max_position_embeddings"), LENGTH)),
        width,
        _number(scan, "num_hidden_layers"),
        heads,
        hidden=_number(scan, "intermediate_size"),
        mlp="swiglu",
        dropout=0.0,
        adaln=False,
        norm="rms",
        tie_embeddings="lm_head.weight" not in scan.tensors,
        eps=EPS if math.isclose(eps, EPS, rel_tol=1e-6) else eps,  # stored in float32
        head=0 if size == width // heads else size,
        qkv_bias=f"{FIRST}.q_proj.bias" in scan.tensors,
        head_norm=f"{FIRST}.q_norm.weight" in scan.tensors,
    )


def _number(scan: Scan, name: str) -> int:
    value = scan.config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{scan.path}: its config has no number {name} (found {value!r})")
    return value


def _state(scan: Scan, config: TransformerConfig) -> dict[str, Tensor]:
    """The weights in float32 under our names."""
    theirs = {name: tensor.float() for name, tensor in scan.read().items()}
    embedding, begin, size = theirs["model.embed_tokens.weight"], scan.config.get("bos_token_id"), config.head_size
    first = embedding.mean(0, keepdim=True) if not isinstance(begin, int) else embedding[begin : begin + 1]
    rope = scan.config.get("rope_parameters") or scan.config
    theta = float(rope.get("rope_theta", 10_000.0))
    made = {
        "vocab_embed.embedding": torch.cat((embedding, first)),
        "rotary_emb.inv_freq": torch.tensor([theta ** (-2 * k / size) for k in range(size // 2)]),
        "output_layer.norm_final.weight": theirs["model.norm.weight"],
        "output_layer.linear.bias": torch.zeros(config.vocab_size),
    }
    if not config.tie_embeddings:
        made["output_layer.linear.weight"] = theirs["lm_head.weight"]
    for i in range(config.layers):
        made |= {f"blocks.{i}.{name}": tensor for name, tensor in _block(theirs, f"model.layers.{i}.", config).items()}
    return made


def _block(theirs: Mapping[str, Tensor], prefix: str, config: TransformerConfig) -> dict[str, Tensor]:
    def of(name: str, kind: str = "weight") -> Tensor:
        if f"{prefix}{name}.{kind}" not in theirs:
            raise ValueError(f"the checkpoint lacks {prefix}{name}.{kind}")
        return theirs[f"{prefix}{name}.{kind}"]

    def projections(kind: str) -> Tensor:
        """Those of queries, keys and values, with copies of the keys and values that heads share."""
        whole = (of(f"self_attn.{name}_proj", kind) for name in "qkv")
        each = (one.view(-1, config.head_size, *one.shape[1:]) for one in whole)
        return torch.cat([heads.repeat_interleave(config.heads // len(heads), 0).flatten(0, 1) for heads in each])

    hidden, width = config.hidden, config.width
    more = {"attn_qkv.bias": projections("bias")} if config.qkv_bias else {}
    if config.head_norm:
        more["head_norm"] = torch.stack([of("self_attn.q_norm"), of("self_attn.k_norm")])
    return more | {
        "norm1.weight": of("input_layernorm"),
        "attn_qkv.weight": projections("weight"),
        "attn_out.weight": of("self_attn.o_proj"),
        "norm2.weight": of("post_attention_layernorm"),
        "mlp.0.weight": torch.cat((of("mlp.gate_proj"), of("mlp.up_proj"))),
        "mlp.0.bias": torch.zeros(2 * hidden),
        "mlp.2.weight": of("mlp.down_proj"),
        "mlp.2.bias": torch.zeros(width),
    }
