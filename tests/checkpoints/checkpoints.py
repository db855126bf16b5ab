"""Small random checkpoints with the published names, and their forward passes from the formats' descriptions.

Nothing here calls the package: a state dict and a few lines of plain torch.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

WIDTH, HEADS, BLOCKS, COND, LENGTH = 16, 2, 2, 8, 12
State = dict[str, Tensor]


def state(vocab: int, *, adaln: bool = True, norm_bias: bool = False, seed: int = 0) -> State:
    """Tensors in the order in which the published module registers them, the rotary buffer among them."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int, mean: float = 0.0, std: float = 0.3) -> Tensor:
        return mean + std * torch.randn(*shape, generator=random)

    d, made = WIDTH, {}
    made["vocab_embed.embedding"] = normal(vocab, d, std=1.0)
    if adaln:
        made["sigma_map.mlp.0.weight"], made["sigma_map.mlp.0.bias"] = normal(COND, 256, std=0.1), normal(COND)
        made["sigma_map.mlp.2.weight"], made["sigma_map.mlp.2.bias"] = normal(COND, COND), normal(COND)
    made["rotary_emb.inv_freq"] = 1 / 10000 ** (torch.arange(0, d // HEADS, 2).float() / (d // HEADS))
    for i in range(BLOCKS):
        b = f"blocks.{i}."
        made |= _norm(b + "norm1", norm_bias, normal)
        made[b + "attn_qkv.weight"], made[b + "attn_out.weight"] = normal(3 * d, d), normal(d, d)
        made |= _norm(b + "norm2", norm_bias, normal)
        made[b + "mlp.0.weight"], made[b + "mlp.0.bias"] = normal(4 * d, d), normal(4 * d)
        made[b + "mlp.2.weight"], made[b + "mlp.2.bias"] = normal(d, 4 * d), normal(d)
        if adaln:
            made[b + "adaLN_modulation.weight"], made[b + "adaLN_modulation.bias"] = normal(6 * d, COND), normal(6 * d)
    made |= _norm("output_layer.norm_final", norm_bias, normal)
    made["output_layer.linear.weight"], made["output_layer.linear.bias"] = normal(vocab, d), normal(vocab)
    if adaln:
        made["output_layer.adaLN_modulation.weight"] = normal(2 * d, COND)
        made["output_layer.adaLN_modulation.bias"] = normal(2 * d)
    return made


def _norm(name: str, bias: bool, normal: Any) -> State:
    made = {f"{name}.weight": normal(WIDTH, mean=1.0)}
    return made | ({f"{name}.bias": normal(WIDTH)} if bias else {})


def forward(
    weights: State, tokens: Tensor, sigma: Tensor | None = None, *, causal: bool = False, block: int = 0
) -> Tensor:
    """The published network's raw output [B, L, V]. sigma [B], or None for a network without a noise level.

    block: the number of positions in a block, each of which sees itself and those before it.
    """
    w, (batch, length) = weights, tokens.shape
    x = w["vocab_embed.embedding"][tokens]
    c = None
    if sigma is not None:
        f = torch.exp(-math.log(10000) * torch.arange(128) / 128)
        angles = sigma[:, None].float() * f
        e = torch.cat((torch.cos(angles), torch.sin(angles)), 1)
        hidden = F.silu(e @ w["sigma_map.mlp.0.weight"].T + w["sigma_map.mlp.0.bias"])
        c = F.silu(hidden @ w["sigma_map.mlp.2.weight"].T + w["sigma_map.mlp.2.bias"])

    def vectors(name: str, parts: int) -> list[Tensor]:
        if c is None:
            return [torch.zeros(1), torch.zeros(1), torch.ones(1)] * 2
        out = c @ w[f"{name}.adaLN_modulation.weight"].T + w[f"{name}.adaLN_modulation.bias"]
        return list(out[:, None].chunk(parts, 2))

    def norm(h: Tensor, name: str) -> Tensor:
        h = (h - h.mean(-1, keepdim=True)) / (h.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return h * w[f"{name}.weight"] + w.get(f"{name}.bias", torch.zeros(()))

    d = WIDTH // HEADS
    theta = torch.outer(torch.arange(length).float(), 1 / 10000 ** (torch.arange(0, d, 2).float() / d))
    cos, sin = torch.cat((theta, theta), 1).cos(), torch.cat((theta, theta), 1).sin()

    def rotary(q: Tensor) -> Tensor:  # [B, H, L, d], halves rotated
        first, second = q[..., : d // 2], q[..., d // 2 :]
        return q * cos + torch.cat((-second, first), -1) * sin

    for i in range(BLOCKS):
        b = f"blocks.{i}"
        shift1, scale1, gate1, shift2, scale2, gate2 = vectors(b, 6)
        h = norm(x, f"{b}.norm1") * (1 + scale1) + shift1
        q, k, v = (h @ w[f"{b}.attn_qkv.weight"].T).view(batch, length, 3, HEADS, d).permute(2, 0, 3, 1, 4)
        scores = rotary(q) @ rotary(k).transpose(-1, -2) / math.sqrt(d)
        if causal:
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        if block:
            number = torch.arange(length) // block
            scores = scores.masked_fill(number.unsqueeze(1) < number, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, WIDTH)
        x = x + gate1 * (mixed @ w[f"{b}.attn_out.weight"].T)
        h = norm(x, f"{b}.norm2") * (1 + scale2) + shift2
        h = h @ w[f"{b}.mlp.0.weight"].T + w[f"{b}.mlp.0.bias"]
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        x = x + gate2 * (h @ w[f"{b}.mlp.2.weight"].T + w[f"{b}.mlp.2.bias"])
    shift, scale = vectors("output_layer", 2)[:2]
    x = norm(x, "output_layer.norm_final") * (1 + scale) + shift
    return x @ w["output_layer.linear.weight"].T + w["output_layer.linear.bias"]


def log_linear(t: Tensor, eps: float = 1e-3) -> Tensor:
    """The noise level of MDLM and SEDD at time t."""
    return -torch.log1p(-(1 - eps) * t)


def without(logits: Tensor, mask_id: int) -> Tensor:
    """log-softmax over the data tokens: the mask's column at -inf."""
    logits = logits.clone()
    logits[..., mask_id] = -torch.inf
    return logits.log_softmax(-1)


def canvas(vocab: int, mask_id: int, *, batch: int = 3, length: int = LENGTH, seed: int = 5) -> Tensor:
    """Tokens of which about half are masked."""
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab, (batch, length), generator=random)
    tokens[tokens == mask_id] = (mask_id + 1) % vocab
    return torch.where(torch.rand(batch, length, generator=random) < 0.5, mask_id, tokens)


def hub_config(vocab: int, **changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["MDLM"],
        "model_type": "mdlm",
        "vocab_size": vocab,
        "model_length": LENGTH,
        "hidden_dim": WIDTH,
        "cond_dim": COND,
        "n_blocks": BLOCKS,
        "n_heads": HEADS,
        "dropout": 0.1,
        "time_conditioning": False,
        "torch_dtype": "float32",
        "transformers_version": "4.38.2",
    } | changes


def hub_folder(path: Path, weights: State, config: dict[str, Any]) -> Path:
    """model.safetensors and config.json, as the hub keeps MDLM."""
    return written(path, {f"backbone.{name}": tensor for name, tensor in weights.items()}, config)


def written(path: Path, weights: State, config: dict[str, Any] | None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path / "model.safetensors")
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def nested_config(**model: Any) -> dict[str, Any]:
    """The nested configuration of SEDD and RADD, and of MDLM's runs."""
    return {
        "tokens": 0,
        "graph": {"type": "absorb"},
        "noise": {"type": "loglinear"},
        "model": {
            "hidden_size": WIDTH,
            "cond_dim": COND,
            "length": LENGTH,
            "n_blocks": BLOCKS,
            "n_heads": HEADS,
            "scale_by_sigma": True,
            "dropout": 0.1,
        }
        | model,
    }
