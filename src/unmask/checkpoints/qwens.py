"""Masked and block models with the tensor names of Llama, Qwen2 and Qwen3, each a row of a table.

A row has what neither tensors nor settings show: whether outputs are shifted, the attention's blocks, and how a config
is told from that of a left-to-right model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.llama_configs import FIXED, KNOWN, llama_config
from unmask.checkpoints.llamas import OVERRIDES, LlamaFormat, Names, number
from unmask.networks.experts import Experts
from unmask.networks.llama import LlamaConfig
from unmask.tokenizers import qwen2
from unmask.tokenizers.external import ExternalTokenizer

BLOCKS = ("block_size", "bd_size")  # the names of a block's size in a config
TOP = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"}
MLP = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
BLOCK = {
    "input_layernorm": "norm1",
    "self_attn.q_proj": "q",
    "self_attn.k_proj": "k",
    "self_attn.v_proj": "v",
    "self_attn.o_proj": "out",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "post_attention_layernorm": "norm2",
    "mlp.gate": "mixture.router",
    **{f"mlp.{theirs}": ours for theirs, ours in MLP.items()},
}
NAMES = Names(TOP, "model.layers", BLOCK, MLP)


def qwen_experts(scan: Scan) -> Experts | None:
    """Qwen3's mixture of experts: a softmax over all of them."""
    config = scan.config
    count = config.get("num_experts") or config.get("num_local_experts")
    if not count:
        return None
    step, alone = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
    return Experts(
        count=count,
        used=number(scan, "num_experts_per_tok", {}),
        hidden=number(scan, "moe_intermediate_size", {}),
        normalised=bool(config.get("norm_topk_prob", False)),
        dense=tuple(i for i in range(number(scan, "num_hidden_layers", {})) if i in alone or (i + 1) % step),
    )


def named(scan: Scan) -> tuple[str, ...]:
    """The config's names for its network, in lower case."""
    kinds = (scan.config.get("model_type"), *(scan.config.get("architectures") or ()))
    return tuple(str(kind).lower() for kind in kinds if kind)


@dataclass(frozen=True)
class Family:
    """A format of the table, with the interface of ``checkpoints.formats``."""

    NAME: str
    NEEDS: str
    is_it: Callable[[Scan], bool]
    shifted: bool = False
    block: int | None = 0  # None: the size differs between models, so it must be given
    mask_id: int | None = None  # where neither config nor tokenizer has it
    known: tuple[str, ...] = ()  # more settings
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings with the only value that is supported
    names: Names = NAMES
    experts: Callable[[Scan], Experts | None] = qwen_experts
    hidden: str = "intermediate_size"  # the name of the MLP's width

    def recognises(self, scan: Scan) -> bool:
        return self.is_it(scan) and any(self.names.ours(name) == "blocks.0.norm1.weight" for name in scan.tensors)

    def load(self, scan: Scan, **override: Any) -> Loaded:
        """override: mask_id, length, theta, block, shifted and dtype."""
        return self._format.load(scan, **override)

    def about(self, scan: Scan, **override: Any) -> dict[str, Any]:
        return self._format.about(scan, **override)

    @cached_property
    def _format(self) -> LlamaFormat:
        return LlamaFormat(
            self.NAME,
            self.names,
            {**FIXED, **self.fixed},
            KNOWN | {*self.known, *self.fixed, *BLOCKS},
            self._config,
            qwen2.load,
            (*OVERRIDES, "block", "shifted"),
        )

    def _config(self, scan: Scan, tokenizer: ExternalTokenizer | None, override: Mapping[str, Any]) -> LlamaConfig:
        block = override.get("block")
        if block is None:
            block = next((scan.config[name] for name in BLOCKS if scan.config.get(name)), self.block)
        if type(block) is not int or block < 0:
            raise ValueError(
                f"{scan.path}: its config does not say the size of a block (got {block!r}): give block, as in "
                "unmask.load(path, block=4), or write block_size into its config.json"
            )
        if self.mask_id is not None and scan.config.get("mask_token_id") is None:
            known = tokenizer is not None and tokenizer.mask_id is not None
            override = override if known else {"mask_id": self.mask_id, **override}
        shifted = bool(override.get("shifted", self.shifted))
        return llama_config(
            scan,
            tokenizer,
            override,
            self.names,
            hidden=self.hidden,
            experts=self.experts(scan),
            shifted=shifted,
            block=block,
        )


def begins(*names: str) -> Callable[[Scan], bool]:
    """Whether a config's model_type or an architecture begins with one of these names, in lower case."""
    return lambda scan: any(kind.startswith(names) for kind in named(scan))


def _qwen2_with_a_mask(scan: Scan) -> bool:
    """Open-dLLM's configs are those of Qwen2; its tokenizer has a mask, which left-to-right models lack."""
    if scan.config.get("model_type") != "qwen2":
        return False
    tokenizer = qwen2.load(scan.folder)
    return scan.config.get("mask_token_id") is not None or (tokenizer is not None and tokenizer.mask_id is not None)


FAMILIES = (
    Family(
        "dLLM's conversion (a2d)",
        "a config.json with model_type a2d-qwen3, a2d-qwen2 or a2d-llama",
        begins("a2d-qwen3", "a2d-qwen2", "a2d-llama", "a2dqwen", "a2dllama"),
    ),
    Family("SDAR", "model_type sdar or sdar_moe", begins("sdar"), block=None, mask_id=151669),
    Family("Fast-dLLM v2", "model_type Fast_dLLM_Qwen", begins("fast_dllm"), shifted=True, block=32, mask_id=151665),
    Family("RND1", "model_type rnd1", begins("rnd1"), mask_id=151669),
    Family(
        "Efficient-DLM",
        "model_type qwen3 with dlm_paradigm bidirectional",
        lambda scan: scan.config.get("model_type") == "qwen3" and "dlm_paradigm" in scan.config,
        mask_id=151662,
        fixed={"dlm_paradigm": "bidirectional"},
    ),
    Family("Open-dLLM", "model_type qwen2 and a tokenizer with a mask", _qwen2_with_a_mask, shifted=True),
)
