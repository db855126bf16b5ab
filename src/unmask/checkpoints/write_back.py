"""Checkpoints of other projects with new weights, such as fine-tuned ones, written in their original format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from unmask.checkpoints.contents import Scan
from unmask.networks.pretrained import CONFIG, WEIGHTS, apart

# Files beside the weights of a checkpoint that belong to its tokenizer.
BESIDE = (
    *(
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "generation_config.json",
    ),
    *("vocab.txt", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", "dict.txt", "chat_template.jinja"),
    *("spiece.model", "sentencepiece.bpe.model"),
)


def files_beside(scan: Scan) -> dict[str, bytes]:
    """The tokenizer's files, by name."""
    return {name: (scan.folder / name).read_bytes() for name in BESIDE if (scan.folder / name).is_file()}


def write(
    folder: Path, scan: Scan, names: Mapping[str, str], state: Mapping[str, Tensor], files: Mapping[str, bytes]
) -> None:
    """Write the weights ``state`` with the checkpoint's names and dtypes, its config, and these files.

    names: their names -> ours, as in ``Loaded``.
    """
    from safetensors.torch import save_file

    stored = {name: getattr(torch, tensor.dtype) for name, tensor in scan.tensors.items()}
    weights = {
        theirs: state[ours].detach().to("cpu", stored.get(theirs, state[ours].dtype)) for theirs, ours in names.items()
    }
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has values that are not finite in {tensor.dtype}: the model was not saved")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(apart(weights), folder / WEIGHTS, metadata={"format": "pt"})
    (folder / CONFIG).write_text(json.dumps(scan.config, indent=2) + "\n", encoding="utf-8")
    for name, content in files.items():
        (folder / name).write_bytes(content)
