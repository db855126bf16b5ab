"""The overlap of two data sets, known by construction."""

from pathlib import Path

import numpy as np
import pytest

from unmask.data import overlap as module
from unmask.data.overlap import Overlap, overlap
from unmask.data.prepare import prepare
from unmask.data.tokens import TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.tokenizers.vocabularies import characters

LETTERS = characters("abcdefgh")


def words(count: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    return " ".join("".join(random.choice(list("abcdefgh"), size=4)) for _ in range(count))


def wrapped(folder: Path, text: str, length: int) -> TokenFile:
    """The whole text, however it is cut."""
    path = folder.with_suffix(".txt")
    path.write_text(text)
    return prepare(str(path), folder, tokenizer=characters("abcdefgh "), length=length, valid=str(path))[0]


def rows(path: Path, block: np.ndarray) -> TokenFile:
    with TokenWriter(path, LETTERS, block.shape[1], "rows") as writer:
        writer.write(block)
        return writer.finish(characters=block.size, bytes=block.size)


@pytest.mark.parametrize("block", [100, 1 << 22])
def test_half_a_text_is_found_wherever_it_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    shared, own, other = words(400, 1), words(400, 2), words(400, 3)
    training = wrapped(tmp_path / "training", f"{other} {shared}", 48)
    both = overlap(wrapped(tmp_path / "both", f"{shared} {own}", 20), training)
    assert both.copied == both.found == pytest.approx(0.47, abs=0.03), "a window of 128 begins nowhere near the end"
    assert overlap(wrapped(tmp_path / "own", own, 48), training) == Overlap(0, 0)
    assert overlap(wrapped(tmp_path / "all", shared, 20), training).copied > 0.95, "all but what was cut off at the end"
    assert overlap(training, training) == Overlap(1, 1)


@pytest.mark.parametrize(("times", "copied"), [(1, True), (2, True), (3, False)])
def test_what_the_training_text_often_has_is_no_copy(tmp_path: Path, times: int, copied: bool) -> None:
    licence, chapters = words(100, 1), [words(200, seed) for seed in range(2, 6)]
    training = wrapped(tmp_path / "training", " ".join(f"{licence} {text}" for text in chapters[:times]), 48)
    part = overlap(wrapped(tmp_path / "other", f"{licence} {chapters[3]}", 48), training)
    assert part.found == pytest.approx((500 - 127) / 1370, abs=0.02)
    assert part.copied == pytest.approx(part.found if copied else 0, abs=0.003)  # but for a letter at its end


def test_a_text_of_less_than_a_window_is_compared_whole(tmp_path: Path) -> None:
    short = wrapped(tmp_path / "short", "abcd efgh", 6)
    assert overlap(short, wrapped(tmp_path / "long", "abcd efgh " * 10, 6)).found in (0, 1)


def test_rows_are_compared_whole(tmp_path: Path) -> None:
    block = np.random.default_rng(0).integers(8, size=(40, 11))
    training = rows(tmp_path / "training.tokens", block)
    nearly = block[:10].copy()
    nearly[:, 10] = (nearly[:, 10] + 1) % 8
    mixed = rows(tmp_path / "mixed.tokens", np.concatenate([block[30:], nearly, nearly[:, ::-1]]))
    assert overlap(mixed, training).copied == pytest.approx(1 / 3)
