"""llama2.c's files: a tiny one against a forward pass position by position, its tokenizer, and the real stories15m."""

import itertools
import math
import random
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.checkpoints.llama2c import FIRST_BYTE, read_model, read_tokenizer
from unmask.checkpoints.llama2c import tokenizer as own_tokenizer
from unmask.evaluate.judge.judge import Samples, judge, load_judge
from unmask.fetch import FetchError
from unmask.tokenizers.tokenizer import Tokenizer

WIDTH, HIDDEN, LAYERS, HEADS, NARROW, LENGTH = 16, 20, 2, 4, 2, 12
PIECES = [*" abcdehlnot", "th", "he", " t", " th", " the", "the", "an", "and", " a", " and", "ll", "ello", "él", "é"]
SCORES = {piece: -float(i) for i, piece in enumerate(reversed(PIECES))}
VOCAB = FIRST_BYTE + 256 + len(PIECES)


def tokenizer_file() -> bytes:
    entries = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    entries += [(f"<0x{byte:02X}>".encode(), 0.0) for byte in range(256)]
    entries += [(piece.encode(), SCORES[piece]) for piece in PIECES]
    return struct.pack("<i", 8) + b"".join(struct.pack("<fi", score, len(piece)) + piece for piece, score in entries)


def tensors(own_classifier: bool) -> dict[str, np.ndarray]:
    size = WIDTH // HEADS
    shapes = {
        "embedding": (VOCAB, WIDTH),
        "rms_att": (LAYERS, WIDTH),
        "wq": (LAYERS, WIDTH, WIDTH),
        "wk": (LAYERS, size * NARROW, WIDTH),
        "wv": (LAYERS, size * NARROW, WIDTH),
        "wo": (LAYERS, WIDTH, WIDTH),
        "rms_ffn": (LAYERS, WIDTH),
        "w1": (LAYERS, HIDDEN, WIDTH),
        "w2": (LAYERS, WIDTH, HIDDEN),
        "w3": (LAYERS, HIDDEN, WIDTH),
        "rms_final": (WIDTH,),
        "cosines": (LENGTH, size // 2),
        "sines": (LENGTH, size // 2),
    }
    if own_classifier:
        shapes["wcls"] = (VOCAB, WIDTH)
    normal = np.random.default_rng(0)
    made = {name: normal.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    angle = np.arange(LENGTH)[:, None] / 10_000 ** (np.arange(0, size, 2) / size)
    return made | {"cosines": np.cos(angle).astype(np.float32), "sines": np.sin(angle).astype(np.float32)}


def model_file(own_classifier: bool) -> bytes:
    header = (WIDTH, HIDDEN, LAYERS, HEADS, NARROW, -VOCAB if own_classifier else VOCAB, LENGTH)
    parts = tensors(own_classifier).values()
    return struct.pack("<7i", *header) + b"".join(np.ascontiguousarray(part, "<f4").tobytes() for part in parts)


def one_by_one(w: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """The same network as a loop over positions and heads with a cache, in float64, rotated by the file's tables."""
    size = WIDTH // HEADS

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / math.sqrt((x @ x) / len(x) + 1e-5) * weight

    def rotate(vector: np.ndarray, position: int) -> np.ndarray:
        turned = vector.copy()
        for i in range(0, len(vector), 2):
            c, s = float(w["cosines"][position, i % size // 2]), float(w["sines"][position, i % size // 2])
            turned[i], turned[i + 1] = vector[i] * c - vector[i + 1] * s, vector[i] * s + vector[i + 1] * c
        return turned

    keys, values = ([[] for _ in range(LAYERS)] for _ in range(2))
    logits = []
    for position, token in enumerate(ids):
        x = w["embedding"][token].astype(np.float64)
        for layer in range(LAYERS):
            y = norm(x, w["rms_att"][layer])
            q = rotate(w["wq"][layer] @ y, position)
            keys[layer].append(rotate(w["wk"][layer] @ y, position))
            values[layer].append(w["wv"][layer] @ y)
            heads = []
            for head in range(HEADS):
                shared = slice(head // (HEADS // NARROW) * size, (head // (HEADS // NARROW) + 1) * size)
                mine = q[head * size : (head + 1) * size]
                weight = np.exp([mine @ key[shared] / math.sqrt(size) for key in keys[layer]])
                heads.append(sum(a * v[shared] for a, v in zip(weight / weight.sum(), values[layer], strict=True)))
            x = x + w["wo"][layer] @ np.concatenate(heads)
            y = norm(x, w["rms_ffn"][layer])
            gate = w["w1"][layer] @ y
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ y))
        logits.append(w.get("wcls", w["embedding"]) @ norm(x, w["rms_final"]))
    return np.stack(logits)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.bin").write_bytes(tokenizer_file())
    (tmp_path / "model.bin").write_bytes(model_file(False))
    return tmp_path / "model.bin"


@pytest.mark.parametrize("own_classifier", [False, True])
def test_the_network_is_the_one_in_the_file(own_classifier: bool) -> None:
    ids = [1, 270, 262, 265, 3, 280, 281, 259]
    expected = one_by_one(tensors(own_classifier), ids)
    found = read_model(model_file(own_classifier))(torch.tensor([ids, ids[::-1]]))
    np.testing.assert_allclose(found[0].double().numpy(), expected, rtol=1e-3, atol=1e-3)


def test_a_judge_from_files(files: Path) -> None:
    known = load_judge(files)
    (found,) = known.nats(Samples(["the hat"]))
    ids = [1, *known.encode("the hat")]
    logits = one_by_one(tensors(False), ids)
    logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    expected = [-logp[j, ids[j + 1]] for j in range(len(ids) - 1)]
    assert found.tolist() == pytest.approx(expected, rel=1e-3)
    assert "first token is judged after the start token" in known.conventions and "beyond 12" in known.conventions
    assert len(known.nats(Samples(["the hat and a hat " * 5]))[0]) == len(known.encode("the hat and a hat " * 5))
    assert known.nats(Samples([""]))[0].shape == (0,)
    assert known.features(Samples(["a", ""])).shape == (2, WIDTH)


def slowly(text: str) -> list[int]:
    """The definition: of all neighbours whose union is a piece, join the best-scoring, the leftmost of equals."""
    number = {piece: FIRST_BYTE + 256 + i for i, piece in enumerate(PIECES)}
    symbols: list[str | int] = []
    for character in f" {text}":
        symbols += [character] if character in number else [FIRST_BYTE + byte for byte in character.encode()]
    while True:
        pairs = [
            (SCORES[a + b], -i)
            for i, (a, b) in enumerate(itertools.pairwise(symbols))
            if isinstance(a, str) and isinstance(b, str) and a + b in number
        ]
        if not pairs:
            return [number[s] if isinstance(s, str) else s for s in symbols]
        at = -max(pairs)[1]
        symbols[at : at + 2] = [f"{symbols[at]}{symbols[at + 1]}"]


def test_the_tokenizer_joins_the_best_first() -> None:
    pieces = read_tokenizer(tokenizer_file(), VOCAB)
    assert pieces.encode("") == []
    draw = random.Random(0)
    for _ in range(200):
        text = "".join(draw.choices(" abcdehlnoté\n神", k=draw.randrange(1, 30)))
        assert pieces.encode(text) == slowly(text), text
    assert pieces.encode("\n") == [FIRST_BYTE + 256, FIRST_BYTE + 10]
    assert 1 not in pieces.encode("\n<s>\n"), "a text cannot spell the start token"


def test_damaged_files(files: Path) -> None:
    whole = files.read_bytes()
    with pytest.raises(ValueError, match="its header says"):
        read_model(whole[:-4])
    with pytest.raises(ValueError, match="no header"):
        read_model(b"")
    with pytest.raises(ValueError, match="its header is"):
        read_model(b"\xff" * 100)
    with pytest.raises(ValueError, match="not a tokenizer"):
        read_tokenizer(tokenizer_file()[:-2], VOCAB)
    with pytest.raises(ValueError, match="reads at most 12"):
        load_judge(files, window=13)
    files.with_name("tokenizer.bin").unlink()
    with pytest.raises(ValueError, match="needs its tokenizer"):
        load_judge(files)


@pytest.mark.slow
def test_stories15m_knows_how_stories_begin() -> None:
    try:
        known = load_judge("stories15m")
    except FetchError as error:
        pytest.skip(f"the package index did not give it: {error}")
    story = (
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park with her friends. "
        "One day, she saw a big red ball."
    )
    words = story.split()
    random.Random(0).shuffle(words)
    told, shuffled = (judge(Samples([x]), known).perplexity.value for x in (story, " ".join(words)))
    assert told < 2.5 and shuffled > 1000


def test_some_of_the_pieces_make_a_tokenizer_of_our_own(tmp_path: Path) -> None:
    pieces = read_tokenizer(tokenizer_file(), VOCAB)
    everything = list(range(FIRST_BYTE, VOCAB))
    whole = own_tokenizer(pieces, [*everything, 1])
    for text in ("the hat and the ant", "hello thé\n", "tell the hen"):
        assert [everything[i] for i in whole.encode(text)] == pieces.encode(text)
        assert whole.decode(whole.encode(text)) == f" {text}"
    # Without " the" the joining goes on through it, and it is cut into the longest pieces that there are.
    fewer = own_tokenizer(pieces, [*(i for i in everything if i != pieces.ids[" the"]), 1])
    assert [fewer.vocab[i] for i in fewer.encode("the")] == [" th", "e"]
    fewer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json") == fewer
    with pytest.raises(ValueError, match="begins and ends a text"):
        own_tokenizer(pieces, everything)
