"""LLaDA-MoE and LLaDA2 on random tiny weights: their files, and their forward passes written out token by token.

The forward passes share nothing with ``unmask.networks``: float64, one sequence, one head and one token's expert at a
time. The networks were compared with the authors' classes too (``modeling_lladamoe.py``, ``modeling_llada2_moe.py``).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.checkpoints.llama_checkpoints import _normal, _rms, _saved, _swiglu

V, WIDTH, HEADS, KEY_HEADS, LAYERS, EXPERTS = 13, 16, 4, 2, 3, 8
MASK = 11
LLADA_MOE: dict[str, Any] = {
    "model_type": "lladamoe",
    "architectures": ["LLaDAMoEModelLM"],
    "auto_map": {"AutoModel": "modeling_lladamoe.LLaDAMoEModelLM"},
    "vocab_size": V,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "num_hidden_layers": LAYERS,
    "dense_intermediate_size": 20,
    "expert_intermediate_size": 12,
    "shared_expert_intermediate_size": 6,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 3,
    "moe_layer_freq": [0, 1, 1],
    "moe_router_score_function": "softmax",
    "moe_router_enable_expert_bias": False,
    "qk_layernorm": True,
    "rope_theta": 50000,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32,
    "mask_token_id": MASK,
    "tie_word_embeddings": False,
}
LLADA2: dict[str, Any] = {
    "model_type": "llada2_moe",
    "architectures": ["LLaDA2MoeModelLM"],
    "auto_map": {"AutoModelForCausalLM": "modeling_llada2_moe.LLaDA2MoeModelLM"},
    "vocab_size": V,
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "num_hidden_layers": LAYERS,
    "head_dim": 8,
    "intermediate_size": 20,
    "moe_intermediate_size": 12,
    "num_shared_experts": 1,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "use_bias": False,
    "use_qkv_bias": False,
    "use_qk_norm": True,
    "rope_theta": 600000,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32,
    "mask_token_id": MASK,
    "block_size": 4,
    "tie_word_embeddings": False,
}


def llada_moe(folder: Path, **changes: object) -> dict[str, Tensor]:
    draw, size = _normal(1), WIDTH // HEADS
    weights = {"model.embed_tokens.weight": draw(V, WIDTH), "model.norm.weight": 1 + draw(WIDTH)}
    weights["lm_head.weight"] = draw(V, WIDTH)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        weights |= _norms(p, draw) | {
            f"{p}self_attn.q_proj.weight": draw(WIDTH, WIDTH),
            f"{p}self_attn.k_proj.weight": draw(KEY_HEADS * size, WIDTH),
            f"{p}self_attn.v_proj.weight": draw(KEY_HEADS * size, WIDTH),
            f"{p}self_attn.o_proj.weight": draw(WIDTH, WIDTH),
            f"{p}self_attn.q_norm.weight": 1 + draw(size),
            f"{p}self_attn.k_norm.weight": 1 + draw(size),
        }
        if i == 0:
            weights |= _mlp(f"{p}mlp.", 20, draw)
        else:
            weights[f"{p}mlp.gate.weight"] = draw(EXPERTS, WIDTH)
            weights |= _mlp(f"{p}shared_expert.", 6, draw)
            for e in range(EXPERTS):
                weights |= _mlp(f"{p}mlp.experts.{e}.", 12, draw)
    return _saved(folder, weights, LLADA_MOE | changes)


def llada2(folder: Path, **changes: object) -> dict[str, Tensor]:
    draw, size = _normal(2), 8
    weights = {"model.word_embeddings.weight": draw(V, WIDTH), "model.norm.weight": 1 + draw(WIDTH)}
    weights["lm_head.weight"] = draw(V, WIDTH)
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        weights |= _norms(p, draw) | {
            f"{p}attention.query_key_value.weight": draw((HEADS + 2 * KEY_HEADS) * size, WIDTH),
            f"{p}attention.dense.weight": draw(WIDTH, HEADS * size),
            f"{p}attention.query_layernorm.weight": 1 + draw(size),
            f"{p}attention.key_layernorm.weight": 1 + draw(size),
        }
        if i == 0:
            weights |= _mlp(f"{p}mlp.", 20, draw)
        else:
            weights[f"{p}mlp.gate.weight"], weights[f"{p}mlp.gate.expert_bias"] = draw(EXPERTS, WIDTH), draw(EXPERTS)
            weights |= _mlp(f"{p}mlp.shared_experts.", 12, draw)
            for e in range(EXPERTS):
                weights |= _mlp(f"{p}mlp.experts.{e}.", 12, draw)
    return _saved(folder, weights, LLADA2 | changes)


def llada_moe_logits(weights: dict[str, Tensor], tokens: list[int]) -> Tensor:
    """[L, V]: all positions see all; an expert's weight is its probability among all experts."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        h = _rms(x, w[f"{p}input_layernorm.weight"], 1e-5)
        q, k, v = (h @ w[f"{p}self_attn.{n}_proj.weight"].T for n in "qkv")
        norms = w[f"{p}self_attn.q_norm.weight"], w[f"{p}self_attn.k_norm.weight"]
        mixed = _attend(q, k, v, norms, 4, 4, 50000.0, 1e-5, len(tokens))
        x = x + mixed @ w[f"{p}self_attn.o_proj.weight"].T
        h = _rms(x, w[f"{p}post_attention_layernorm.weight"], 1e-5)
        if i == 0:
            x = x + _dense(h, w, f"{p}mlp.")
            continue
        fed = []
        for token in h:
            scores = (w[f"{p}mlp.gate.weight"] @ token).softmax(0)
            best = sorted(range(EXPERTS), key=lambda e, scores=scores: -float(scores[e]))[:3]
            fed.append(sum(scores[e] * _dense(token, w, f"{p}mlp.experts.{e}.") for e in best))
        x = x + torch.stack(fed) + _dense(h, w, f"{p}shared_expert.")
    return _rms(x, w["model.norm.weight"], 1e-5) @ w["lm_head.weight"].T


def llada2_logits(weights: dict[str, Tensor], tokens: list[int], block: int = 4) -> Tensor:
    """[L, V]: blocks see themselves and those before; sigmoids, groups by their two best, weights that sum to 2.5."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x, size = w["model.word_embeddings.weight"][tokens], 8
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        h = _rms(x, w[f"{p}input_layernorm.weight"], 1e-6)
        q, k, v = (h @ w[f"{p}attention.query_key_value.weight"].T).split([HEADS * size, 2 * size, 2 * size], 1)
        norms = w[f"{p}attention.query_layernorm.weight"], w[f"{p}attention.key_layernorm.weight"]
        x = x + _attend(q, k, v, norms, size, 4, 600000.0, 1e-6, block) @ w[f"{p}attention.dense.weight"].T
        h = _rms(x, w[f"{p}post_attention_layernorm.weight"], 1e-6)
        if i == 0:
            x = x + _dense(h, w, f"{p}mlp.")
            continue
        fed = []
        for token in h:
            scores = torch.sigmoid(w[f"{p}mlp.gate.weight"] @ token)
            rank = scores + w[f"{p}mlp.gate.expert_bias"]
            groups = sorted(range(4), key=lambda g, rank=rank: -float(rank[2 * g] + rank[2 * g + 1]))[:2]
            there = [e for e in range(EXPERTS) if e // 2 in groups]
            best = sorted(there, key=lambda e, rank=rank: -float(rank[e]))[:3]
            total = sum(float(scores[e]) for e in best)
            fed.append(sum(2.5 * scores[e] / total * _dense(token, w, f"{p}mlp.experts.{e}.") for e in best))
        x = x + torch.stack(fed) + _dense(h, w, f"{p}mlp.shared_experts.")
    return _rms(x, w["model.norm.weight"], 1e-6) @ w["lm_head.weight"].T


def _norms(p: str, draw: Any) -> dict[str, Tensor]:
    return {f"{p}{name}.weight": 1 + 0.1 * draw(WIDTH) for name in ("input_layernorm", "post_attention_layernorm")}


def _mlp(p: str, hidden: int, draw: Any) -> dict[str, Tensor]:
    shapes = {"gate_proj": (hidden, WIDTH), "up_proj": (hidden, WIDTH), "down_proj": (WIDTH, hidden)}
    return {f"{p}{name}.weight": draw(*shape) for name, shape in shapes.items()}


def _dense(x: Tensor, w: dict[str, Tensor], p: str) -> Tensor:
    return _swiglu(x, *(w[f"{p}{name}_proj.weight"] for name in ("gate", "up", "down")))


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    norms: tuple[Tensor, Tensor],
    size: int,
    rotated: int,
    theta: float,
    eps: float,
    block: int,
) -> Tensor:
    heads = []
    number = torch.arange(len(q)) // block
    hidden = number > number[:, None]
    for head in range(HEADS):
        group = head * KEY_HEADS // HEADS
        mine = _rms(q[:, head * size : (head + 1) * size], norms[0], eps)
        theirs = _rms(k[:, group * size : (group + 1) * size], norms[1], eps)
        scores = _rotated(mine, rotated, theta) @ _rotated(theirs, rotated, theta).T / math.sqrt(size)
        heads.append(scores.masked_fill(hidden, -math.inf).softmax(-1) @ v[:, group * size : (group + 1) * size])
    return torch.cat(heads, 1)


def _rotated(x: Tensor, size: int, theta: float) -> Tensor:
    """Pairs (k, k + size / 2) of the first features, turned one by one."""
    out = x.clone()
    for position in range(len(x)):
        for k in range(size // 2):
            angle = position * theta ** (-2 * k / size)
            a, b = x[position, k], x[position, k + size // 2]
            out[position, k] = a * math.cos(angle) - b * math.sin(angle)
            out[position, k + size // 2] = a * math.sin(angle) + b * math.cos(angle)
    return out
