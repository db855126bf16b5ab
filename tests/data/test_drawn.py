"""Corpora that are drawn: their files, their truth, and what the commands say of it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from unmask.cli import main
from unmask.data import corpora, drawn, sudoku
from unmask.data.nae_sat import NaeSat
from unmask.data.tokens import TokenFile

SUDOKU4 = {"tokens": 1_600, "held_out_tokens": 320}


def test_sudoku_becomes_token_files_with_the_truth_beside_them(tmp_path: Path) -> None:
    train, valid = drawn.prepare("sudoku4", tmp_path / "made", **SUDOKU4)
    assert (len(train), len(valid), train.length, train.vocab_size) == (100, 20, 16, 4)
    rows = train.sequences(range(100)).numpy()
    assert sudoku.is_valid(rows, sudoku.SHAPES["sudoku4"]).all()
    assert train.tokenizer.decode(rows[0]) == "".join(str(cell + 1) for cell in rows[0])
    truth = valid.truth([0, 7])
    assert truth is not None and truth.tolist() == pytest.approx([math.log(288)] * 2, rel=1e-6)
    assert (train.characters_per_token, train.header.layout) == (1.0, "rows")


def test_nae_sat_takes_its_numbers_and_refuses_others(tmp_path: Path) -> None:
    options = {"latents": 6, "observations": 10, "tokens": 160, "held_out_tokens": 16, "seed": 3}
    train, _ = drawn.prepare("nae-sat", tmp_path / "made", **options)
    law = NaeSat(6, 10, seed=3)
    assert (len(train), train.length) == (10, 16)
    assert law.right(train.sequences(range(10)).numpy()).all()
    with pytest.raises(ValueError, match="latents: sudoku4 is drawn, and takes tokens, held_out_tokens, seed alone"):
        drawn.prepare("sudoku4", tmp_path / "other", latents=3)


def test_evaluate_says_how_far_a_model_is_from_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "made")
    assert main(["prepare", "sudoku4", folder, "--tokens", "1600", "--held-out-tokens", "320"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "truth", folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nats_per_token"]["value"] == pytest.approx(math.log(288) / 16, rel=1e-6)
    assert main(["evaluate", "ngram:2", folder]) == 0
    said = capsys.readouterr().out
    assert "truth: 0.353935 ±" in said and "distance from it (Kullback-Leibler):" in said
    assert main(["evaluate", "ngram:2", folder, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    apart = found["nats_per_token"]["value"] - found["truth_nats_per_token"]["value"]
    assert found["distance_from_truth_nats_per_token"]["value"] == pytest.approx(apart)
    assert apart > 0.1, "a bigram does not know the rules"


def test_a_truth_of_other_data_and_none_at_all_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, valid = drawn.prepare("sudoku4", tmp_path / "made", **SUDOKU4)
    beside = valid.path.with_suffix(".nats.npy")
    np.save(beside, np.zeros(3))
    with pytest.raises(ValueError, match="is of 3 sequences"):
        TokenFile.open(valid.path).truth([0])
    beside.unlink()
    assert valid.truth([0]) is None
    assert main(["evaluate", "truth", str(tmp_path / "made")]) == 2
    assert "has no true likelihood" in capsys.readouterr().err


def test_what_is_for_texts_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "sudoku4", str(tmp_path / "a"), "--vocab", "300"]) == 2
    assert "vocab: sudoku4 is drawn" in capsys.readouterr().err
    assert main(["prepare", "kjv", str(tmp_path / "b"), "--latents", "5"]) == 2
    assert "only for synthetic corpora" in capsys.readouterr().err


def test_a_drawn_corpus_is_found_by_its_name(tmp_path: Path) -> None:
    folder = corpora.prepared("sudoku4", tmp_path)
    assert len(TokenFile.open(folder / "train.tokens")) == 10_000
    assert corpora.prepared("sudoku4", tmp_path) == folder
    assert len(next(corpora.load("sudoku4", tmp_path).texts("valid"))) == 16
    with pytest.raises(ValueError, match="its own tokenizer and sequences of 16 tokens"):
        corpora.prepared("sudoku4", tmp_path, length=8)
