"""Corpora that are drawn: their files, their truth, and what the commands say of it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from recipes.corpora import sudoku, synthetic
from recipes.corpora.nae_sat import NaeSat

import unmask
from recipes import box, prepare
from unmask.cli import main
from unmask.data import corpora
from unmask.data.tokens import TokenFile

SUDOKU4 = {"tokens": 1_600, "held_out_tokens": 320}


def test_sudoku_becomes_token_files_with_the_truth_beside_them(tmp_path: Path) -> None:
    train, valid = synthetic.prepare("sudoku4", tmp_path / "made", **SUDOKU4)
    assert (len(train), len(valid), train.length, train.vocab_size) == (100, 20, 16, 4)
    rows = train.sequences(range(100)).numpy()
    assert sudoku.is_valid(rows, sudoku.SHAPES["sudoku4"]).all()
    assert train.tokenizer.decode(rows[0]) == "".join(str(cell + 1) for cell in rows[0])
    truth = valid.truth([0, 7])
    assert truth is not None and truth.tolist() == pytest.approx([math.log(288)] * 2, rel=1e-6)
    assert (train.characters_per_token, train.header.layout) == (1.0, "rows")


def test_nae_sat_takes_its_numbers_and_refuses_others(tmp_path: Path) -> None:
    options = {"latents": 6, "observations": 10, "tokens": 160, "held_out_tokens": 16, "seed": 3}
    train, _ = synthetic.prepare("nae-sat", tmp_path / "made", **options)
    law = NaeSat(6, 10, seed=3)
    assert (len(train), train.length) == (10, 16)
    assert law.right(train.sequences(range(10)).numpy()).all()
    with pytest.raises(ValueError, match="latents: sudoku4 takes only tokens, held_out_tokens, seed"):
        synthetic.prepare("sudoku4", tmp_path / "other", latents=3)


def test_evaluate_says_how_far_a_model_is_from_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "made")
    assert prepare.main(["sudoku4", folder, "--tokens", "1600", "--held-out-tokens", "320"]) == 0
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
    _, valid = synthetic.prepare("sudoku4", tmp_path / "made", **SUDOKU4)
    beside = valid.path.with_suffix(".nats.npy")
    np.save(beside, np.zeros(3))
    with pytest.raises(ValueError, match="is of 3 sequences"):
        TokenFile.open(valid.path).truth([0])
    beside.unlink()
    assert valid.truth([0]) is None
    assert main(["evaluate", "truth", str(tmp_path / "made")]) == 2
    assert "has no true likelihood" in capsys.readouterr().err


def test_a_wrong_name_or_option_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare.main(["sudoku5", str(tmp_path / "a")]) == 2
    assert "the synthetic corpora are stories, sudoku4" in capsys.readouterr().err
    assert prepare.main(["sudoku4", str(tmp_path / "a"), "--latents", "5"]) == 2
    assert capsys.readouterr().err.startswith("python -m recipes.prepare: latents: sudoku4 takes only")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", synthetic.NAMES)
def test_the_package_says_who_makes_a_synthetic_corpus(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that takes data; that the package knows exactly the names which the program has."""
    assert synthetic.NAMES == corpora.SYNTHETIC == tuple(synthetic.ABOUT)
    commands = ["prepare", name, str(tmp_path / "a")], ["train", name], ["evaluate", "ngram:2", name]
    for command in commands:
        assert main(command) == 2
        said = f"{name} is drawn by a program beside the package: python -m recipes.prepare {name} FOLDER"
        assert said in capsys.readouterr().err


def test_a_drawn_folder_trains(tmp_path: Path) -> None:
    synthetic.prepare("sudoku4", tmp_path / "data", **SUDOKU4)
    sizes = {"layers": 1, "width": 16, "heads": 1, "steps": 2, "batch": 4}
    unmask.train(str(tmp_path / "data"), out=str(tmp_path / "run"), **sizes)
    assert unmask.load(tmp_path / "run").sample(1).tokens.shape == (1, 16)


def test_a_card_says_by_which_command_its_data_are_made() -> None:
    about, _ = box.described("data/sudoku6")
    assert about.startswith("sudoku6: 6 x 6") and "`python -m recipes.prepare sudoku6 data/sudoku6`" in about
    for folder, arguments in box.SYNTHETIC.items():
        assert arguments.split()[0] in synthetic.NAMES and arguments.split()[1] == folder
