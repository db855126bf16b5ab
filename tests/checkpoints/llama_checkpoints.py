"""Small random checkpoints of LLaDA's and Dream's architectures and names, and their forward pass written out.

The forward pass is in float64, for one sequence, head by head, with rotary positions as complex numbers: plain, and
sharing nothing with ``unmask.networks.llama``.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.helpers import generator

WIDTH, LAYERS, HEADS, HIDDEN = 16, 2, 4, 24


def llada_weights(vocab: int, *, seed: int = 0) -> dict[str, Tensor]:
    draw = _normal(seed)
    weights = {
        "wte.weight": draw(vocab, WIDTH),
        "ln_f.weight": 1 + draw(WIDTH),
        "ff_out.weight": 0.5 * draw(vocab, WIDTH),
    }
    for i in range(LAYERS):
        weights |= {
            f"blocks.{i}.{name}.weight": tensor
            for name, tensor in {
                "attn_norm": 1 + 0.1 * draw(WIDTH),
                "ff_norm": 1 + 0.1 * draw(WIDTH),
                "q_proj": draw(WIDTH, WIDTH),
                "k_proj": draw(WIDTH, WIDTH),
                "v_proj": draw(WIDTH, WIDTH),
                "attn_out": draw(WIDTH, WIDTH),
                "ff_proj": draw(HIDDEN, WIDTH),
                "up_proj": draw(HIDDEN, WIDTH),
                "ff_out": draw(WIDTH, HIDDEN),
            }.items()
        }
    return {f"model.transformer.{name}": tensor for name, tensor in weights.items()}


def dream_weights(vocab: int, *, key_heads: int = 2, seed: int = 0) -> dict[str, Tensor]:
    draw, keys = _normal(seed), key_heads * WIDTH // HEADS
    weights = {
        "model.embed_tokens.weight": draw(vocab, WIDTH),
        "model.norm.weight": 1 + draw(WIDTH),
        "lm_head.weight": 0.5 * draw(vocab, WIDTH),
    }
    for i in range(LAYERS):
        weights |= {
            f"model.layers.{i}.{name}": tensor
            for name, tensor in {
                "input_layernorm.weight": 1 + 0.1 * draw(WIDTH),
                "self_attn.q_proj.weight": draw(WIDTH, WIDTH),
                "self_attn.q_proj.bias": draw(WIDTH),
                "self_attn.k_proj.weight": draw(keys, WIDTH),
                "self_attn.k_proj.bias": draw(keys),
                "self_attn.v_proj.weight": draw(keys, WIDTH),
                "self_attn.v_proj.bias": draw(keys),
                "self_attn.o_proj.weight": draw(WIDTH, WIDTH),
                "post_attention_layernorm.weight": 1 + 0.1 * draw(WIDTH),
                "mlp.gate_proj.weight": draw(HIDDEN, WIDTH),
                "mlp.up_proj.weight": draw(HIDDEN, WIDTH),
                "mlp.down_proj.weight": draw(WIDTH, HIDDEN),
            }.items()
        }
    return weights


LLADA = {
    "model_type": "llada",
    "architectures": ["LLaDAModelLM"],
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
    "d_model": WIDTH,
    "n_heads": HEADS,
    "n_kv_heads": HEADS,
    "n_layers": LAYERS,
    "mlp_hidden_size": HIDDEN,
    "max_sequence_length": 32,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "weight_tying": False,
    "rope": True,
    "block_type": "llama",
    "layer_norm_type": "rms",
    "activation_type": "silu",
    "include_bias": False,
}
DREAM = {
    "model_type": "Dream",
    "architectures": ["DreamModel"],
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "num_hidden_layers": LAYERS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "rope_scaling": None,
    "tie_word_embeddings": False,
}


def llada(folder: Path, vocab: int, mask_id: int, **changes: object) -> dict[str, Tensor]:
    return _saved(folder, llada_weights(vocab), LLADA | {"vocab_size": vocab, "mask_token_id": mask_id} | changes)


def dream(folder: Path, vocab: int, mask_id: int, **changes: object) -> dict[str, Tensor]:
    return _saved(folder, dream_weights(vocab), DREAM | {"vocab_size": vocab, "mask_token_id": mask_id} | changes)


Kept = list[tuple[Tensor, Tensor]]  # keys and values [L, D] of each block


def _or_kept(i: int, k: Tensor, v: Tensor, kept: Kept | None, live: Tensor | None) -> tuple[Tensor, Tensor]:
    """The keys and values of block i: new ones where live (bool [L]), and the kept ones elsewhere."""
    if kept is None:
        return k, v
    if live is None:
        kept.append((k, v))
        return k, v
    return torch.where(live[:, None], k, kept[i][0]), torch.where(live[:, None], v, kept[i][1])


def llada_logits(
    weights: dict[str, Tensor], tokens: list[int], kept: Kept | None = None, live: Tensor | None = None
) -> Tensor:
    """LLaDA's logits [L, V]: RMSNorm 1e-5, rotary base 500,000, no bias anywhere, every position sees every other.

    kept: a list that the keys and values are written to, or, with live, read from where it is false.
    """
    w = {name.removeprefix("model.transformer."): tensor.double() for name, tensor in weights.items()}
    x = w["wte.weight"][tokens]
    for i in range(LAYERS):
        b = {
            name: w[f"blocks.{i}.{name}.weight"]
            for name in (
                "attn_norm",
                "ff_norm",
                "q_proj",
                "k_proj",
                "v_proj",
                "attn_out",
                "ff_proj",
                "up_proj",
                "ff_out",
            )
        }
        h = _rms(x, b["attn_norm"], 1e-5)
        q, k, v = (h @ b[name].T for name in ("q_proj", "k_proj", "v_proj"))
        k, v = _or_kept(i, k, v, kept, live)
        x = x + _attention(q, k, v, HEADS, 500000.0) @ b["attn_out"].T
        x = x + _swiglu(_rms(x, b["ff_norm"], 1e-5), b["ff_proj"], b["up_proj"], b["ff_out"])
    return _rms(x, w["ln_f.weight"], 1e-5) @ w["ff_out.weight"].T


def dream_logits(
    weights: dict[str, Tensor], tokens: list[int], kept: Kept | None = None, live: Tensor | None = None
) -> Tensor:
    """Dream's logits [L, V]: Qwen2's network, all positions visible, the outputs moved by one to the right."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    key_heads = len(w["model.layers.0.self_attn.k_proj.bias"]) // (WIDTH // HEADS)
    x = w["model.embed_tokens.weight"][tokens]
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        h = _rms(x, w[f"{p}input_layernorm.weight"], 1e-6)
        q, k, v = (h @ w[f"{p}self_attn.{n}_proj.weight"].T + w[f"{p}self_attn.{n}_proj.bias"] for n in "qkv")
        k, v = _or_kept(i, k, v, kept, live)
        x = x + _attention(q, k, v, key_heads, 1000000.0) @ w[f"{p}self_attn.o_proj.weight"].T
        mlp = [w[f"{p}mlp.{name}_proj.weight"] for name in ("gate", "up", "down")]
        x = x + _swiglu(_rms(x, w[f"{p}post_attention_layernorm.weight"], 1e-6), *mlp)
    logits = _rms(x, w["model.norm.weight"], 1e-6) @ w["lm_head.weight"].T
    return torch.cat([logits[:1], logits[:-1]])


def over_orders(logits: object, vocab: int, mask_id: int, length: int) -> Tensor:
    """The distribution of first-hitting by enumeration: one token at a time, averaged over all orders."""
    data = [i for i in range(vocab) if i != mask_id]
    law = torch.zeros([vocab] * length, dtype=torch.float64)
    known: dict[tuple[int, ...], Tensor] = {}
    for order in itertools.permutations(range(length)):
        for tokens in itertools.product(data, repeat=length):
            canvas, p = [mask_id] * length, 1.0
            for position in order:
                if tuple(canvas) not in known:
                    known[tuple(canvas)] = _without(logits(canvas), mask_id).softmax(-1)  # type: ignore[operator]
                p *= float(known[tuple(canvas)][position, tokens[position]])
                canvas[position] = tokens[position]
            law[tokens] += p / math.factorial(length)
    return law


def _without(logits: Tensor, mask_id: int) -> Tensor:
    return logits.index_fill(-1, torch.tensor([mask_id]), -torch.inf)


def _attention(q: Tensor, k: Tensor, v: Tensor, key_heads: int, theta: float) -> Tensor:
    """q [L, D], k and v [L, fewer]: head by head, each of the queries with its group's keys and values."""
    size = WIDTH // HEADS
    heads = []
    for head in range(HEADS):
        mine = slice(head * size, (head + 1) * size)
        group = head * key_heads // HEADS
        theirs = slice(group * size, (group + 1) * size)
        # The real part of <q, k> as complex numbers is their inner product as pairs.
        scores = (_turned(q[:, mine], theta) @ _turned(k[:, theirs], theta).conj().T).real / math.sqrt(size)
        heads.append(scores.softmax(-1) @ v[:, theirs])
    return torch.cat(heads, 1)


def _turned(x: Tensor, theta: float) -> Tensor:
    """Rotary positions: x_k + i x_{k + D/2}, turned by the angle position * theta^(-2k/D)."""
    half = x.shape[1] // 2
    speed = theta ** (-2 * torch.arange(half, dtype=torch.float64) / x.shape[1])
    angle = torch.arange(len(x), dtype=torch.float64)[:, None] * speed
    return torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angle), angle)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def _swiglu(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    gated = x @ gate.T
    return (gated / (1 + torch.exp(-gated)) * (x @ up.T)) @ down.T


def _normal(seed: int):
    g = generator(seed)
    return lambda *shape: torch.randn(*shape, generator=g) * 0.5


def _saved(folder: Path, weights: dict[str, Tensor], config: dict[str, object]) -> dict[str, Tensor]:
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return weights


def canvases(batch: int, prompt: int, masked: int, vocab: int, mask: int, seed: int = 3) -> Tensor:
    """Random prompts of data tokens, with masks behind them."""
    tokens = torch.randint(0, vocab - 2, (batch, prompt + masked), generator=torch.Generator().manual_seed(seed))
    tokens[:, prompt:] = mask
    return tokens
