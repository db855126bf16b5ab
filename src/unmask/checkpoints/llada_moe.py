"""LLaDA's mixtures of experts: LLaDA-MoE, and LLaDA2 with blocks."""

from __future__ import annotations

from unmask.checkpoints.contents import Scan
from unmask.checkpoints.llamas import Names, number
from unmask.checkpoints.qwens import BLOCK, MLP, TOP, Family, begins
from unmask.networks.experts import Experts

SHARED = {f"shared_expert.{theirs}": f"mixture.shared.{ours}" for theirs, ours in MLP.items()}
BLOCK2 = {
    "input_layernorm": "norm1",
    "attention.query_key_value": "qkv",
    "attention.query_layernorm": "q_norm",
    "attention.key_layernorm": "k_norm",
    "attention.dense": "out",
    "post_attention_layernorm": "norm2",
    "mlp.gate": "mixture.router",
    "mlp.gate.expert_bias": "mixture.bias",
    **{f"mlp.{theirs}": ours for theirs, ours in MLP.items()},
    **{f"mlp.shared_experts.{theirs}": f"mixture.shared.{ours}" for theirs, ours in MLP.items()},
}
TOP2 = {"model.word_embeddings": "embed", "model.norm": "norm", "lm_head": "head"}


def _experts(scan: Scan) -> Experts:
    """A softmax over all experts, whose probabilities are the weights as they are."""
    there = scan.config.get("moe_layer_freq") or ()
    return Experts(
        count=number(scan, "num_experts", {}),
        used=number(scan, "num_experts_per_tok", {}),
        hidden=number(scan, "expert_intermediate_size", {}),
        shared=scan.config.get("shared_expert_intermediate_size") or 0,
        dense=tuple(i for i, has_experts in enumerate(there) if not has_experts),
    )


def _experts2(scan: Scan) -> Experts:
    """Sigmoids, a bias for the choice, the best groups, normalised weights, and a shared expert."""
    config, hidden = scan.config, number(scan, "moe_intermediate_size", {})
    used = number(scan, "num_experts_per_tok", {})
    return Experts(
        count=number(scan, "num_experts", {}),
        used=used,
        hidden=hidden,
        scores="sigmoid",
        normalised=used > 1,
        scale=float(config.get("routed_scaling_factor", 1)),
        biased=any(name.endswith("mlp.gate.expert_bias") for name in scan.tensors),
        groups=config.get("n_group") or 1,
        groups_used=config.get("topk_group") or 1,
        shared=hidden * (config.get("num_shared_experts") or 0),
        dense=tuple(range(config.get("first_k_dense_replace") or 0)),
    )


FAMILIES = (
    Family(
        "LLaDA-MoE",
        "model_type lladamoe",
        begins("lladamoe", "llada_moe"),
        # Their code does not read the last three.
        known=(
            *("dense_intermediate_size", "expert_intermediate_size", "shared_expert_intermediate_size"),
            *("moe_layer_freq", "qk_layernorm", "router_num_group", "router_topk_group", "norm_topk_prob"),
        ),
        fixed={
            "moe_router_score_function": "softmax",
            "moe_router_enable_expert_bias": False,
            "routed_scaling_factor": 1,
        },
        names=Names(TOP, "model.layers", BLOCK | SHARED, MLP),
        experts=_experts,
        hidden="dense_intermediate_size",
    ),
    Family(
        "LLaDA2",
        "model_type llada2_moe",
        begins("llada2"),
        block=32,
        mask_id=156895,
        known=(
            *("use_qkv_bias", "use_qk_norm", "use_bias", "embedding_dropout", "output_dropout", "n_group"),
            *("topk_group", "num_shared_experts", "routed_scaling_factor", "first_k_dense_replace", "rotary_dim"),
            *("moe_router_enable_expert_bias", "router_dtype", "use_rmsnorm", "num_nextn_predict_layers"),
            *("mtp_loss_scaling_factor", "moe_shared_expert_intermediate_size", "moe_router_topk_scaling_factor"),
        ),
        fixed={"norm_head": False, "score_function": "sigmoid", "norm_topk_prob": True},
        names=Names(TOP2, "model.layers", BLOCK2, MLP),
        experts=_experts2,
    ),
)
