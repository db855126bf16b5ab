"""LLaDA and Dream in a GGUF file, as llama.cpp's converter writes them: read under their authors' names.

Tensors in 16 or 32 bits stay mapped; quantised ones become float32 when they are read. llama.cpp rotates adjacent
features of LLaDA's heads together, so the rows of its queries and keys are put back in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.extras import needed

KINDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # others are dequantised
SETTINGS = (
    *("embedding_length", "block_count", "attention.head_count", "attention.head_count_kv", "feed_forward_length"),
    *("context_length", "rope.freq_base", "attention.layer_norm_rms_epsilon"),
)
PARTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


@dataclass(frozen=True)
class Architecture:
    """How an architecture's settings (in the order of SETTINGS) and modules are named by its authors."""

    settings: tuple[str, ...]
    top: tuple[str, str, str]  # token_embd, output_norm, output
    blocks: str
    parts: tuple[str, ...]  # in the order of PARTS
    permuted: bool  # queries and keys

    def name(self, name: str) -> str | None:
        """The authors' name of a tensor."""
        module, _, kind = name.rpartition(".")
        if module.startswith("blk."):
            _, number, part = module.split(".", 2)
            theirs = dict(zip(PARTS, self.parts, strict=True)).get(part)
            return theirs and f"{self.blocks}.{number}.{theirs}.{kind}"
        theirs = dict(zip(("token_embd", "output_norm", "output"), self.top, strict=True)).get(module)
        return theirs and f"{theirs}.{kind}"


ARCHITECTURES = {
    "llada": Architecture(
        (
            *("d_model", "n_layers", "n_heads", "n_kv_heads", "mlp_hidden_size", "max_sequence_length"),
            *("rope_theta", "rms_norm_eps"),
        ),
        ("model.transformer.wte", "model.transformer.ln_f", "model.transformer.ff_out"),
        "model.transformer.blocks",
        ("attn_norm", "q_proj", "k_proj", "v_proj", "attn_out", "ff_norm", "ff_proj", "up_proj", "ff_out"),
        permuted=True,
    ),
    "dream": Architecture(
        (
            *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
            *("max_position_embeddings", "rope_theta", "rms_norm_eps"),
        ),
        ("model.embed_tokens", "model.norm", "lm_head"),
        "model.layers",
        (
            *("input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
            *("post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
        ),
        permuted=False,
    ),
}


@dataclass(frozen=True)
class GgufFile:
    """Names, shapes and types of the tensors, and their values on request."""

    file: Path
    config: dict[str, Any]
    tensors: Mapping[str, Any]  # the gguf package's records by the authors' names
    heads: Mapping[str, int]  # of the tensors whose rows are permuted

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self.tensors[name].shape))

    def dtype(self, name: str) -> str:
        return KINDS.get(self.tensors[name].tensor_type.name, "float32")

    def read(self) -> dict[str, Tensor]:
        return {name: self._value(name) for name in self.tensors}

    def _value(self, name: str) -> Tensor:
        record, shape = self.tensors[name], self.shape(name)
        if record.tensor_type.name in KINDS:
            value = torch.from_numpy(record.data).view(getattr(torch, self.dtype(name))).view(shape)
        else:
            quants = needed("gguf.quants", f"{self.file} is quantised", "judge")
            try:
                value = torch.from_numpy(quants.dequantize(record.data, record.tensor_type)).view(shape)
            except NotImplementedError:
                kind = record.tensor_type.name
                raise ValueError(f"{self.file}: the gguf package does not read {kind}, the type of {name}") from None
        if (heads := self.heads.get(name)) is not None:
            value = value.view(heads, -1, 2, *shape[1:]).transpose(1, 2).reshape(shape)
        return value


def read(file: Path) -> GgufFile:
    gguf = needed("gguf", f"{file} is a GGUF file, which needs the gguf package", "judge")
    try:
        reader = gguf.GGUFReader(file, "c")
        said = {
            name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.ggml.t")
        }
    except Exception as error:  # whatever a damaged file leads to
        raise ValueError(f"{file} is a GGUF file that cannot be read: {type(error).__name__} {error}") from None
    kind = said.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(f"{file} is a GGUF file of a {kind}: of these only {' and '.join(ARCHITECTURES)} are read")
    for setting in (f"{kind}.rope.scaling.type", "split.count"):
        if said.get(setting) not in (None, "none", 0, 1):
            raise ValueError(f"{file}: a GGUF file with {setting}={said[setting]!r} is not supported")
    its = ARCHITECTURES[kind]
    said.setdefault(f"{kind}.attention.head_count_kv", said.get(f"{kind}.attention.head_count"))
    config: dict[str, Any] = {"model_type": "Dream" if kind == "dream" else kind}
    for name, theirs in zip(SETTINGS, its.settings, strict=True):
        value = config[theirs] = said.get(f"{kind}.{name}")
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"{file}: its {kind}.{name} must be a positive number, got {value!r}")
    for name in ("mask", "eos"):
        if (token := said.get(f"tokenizer.ggml.{name}_token_id")) is not None:
            config[f"{name}_token_id"] = token
    if kind == "dream" and said.get("dream.diffusion.shift_logits") is False:
        raise ValueError(f"{file}: a GGUF file of a dream without shifted outputs is not supported")
    tensors, heads = {}, {}
    for record in reader.tensors:
        if (known := its.name(record.name)) is None:
            raise ValueError(f"{file} has the tensor {record.name}, which a {kind} does not have")
        tensors[known] = record
        for part, count in (("attn_q", "head_count"), ("attn_k", "head_count_kv")):
            if its.permuted and f".{part}." in record.name:
                heads[known] = int(said[f"{kind}.attention.{count}"])
    return GgufFile(file, config, tensors, heads)
