"""Insertion by the command: texts of different lengths in, texts of different lengths out, and what it refuses."""

import pytest
import torch

import unmask
from unmask.evaluate.frontier.sweep import SampledModel, settings
from unmask.evaluate.likelihood.profile import entropy_by_count
from unmask.processes import process_of
from unmask.serve.engine.work import Served

SETTINGS = {"preview": False, "tensorboard": False, "preset": "tiny", "tokenizer": "characters"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two texts, one and four letters long, each half of the rows."""
    folder = tmp_path_factory.mktemp("insertion")
    (folder / "rows.txt").write_text("a\nbbcb\n" * 200)
    settings = {"steps": 600, "batch": 32, "patience": 0, "held_out": "end", "seed": 1, **SETTINGS}
    return unmask.train(folder / "rows.txt", out=folder / "run", objective="insertion", **settings)


def test_it_learns_the_texts_their_lengths_and_their_bound(run):
    """The least bound is log 2. Of 60 texts of two kinds, one or the other has under 12 once in 1e6."""
    assert process_of(run.denoiser).draws_length and run.layout == "rows"
    assert run.denoiser.vocab_size == run.tokenizer.vocab_size + 1
    made = run.sample(60, seed=3)
    known = [text for text in made.text if text in ("a", "bbcb")]
    assert len(known) > 50 and min(known.count("a"), known.count("bbcb")) > 11
    assert made.nfe.tolist() == [run.length + len(text) for text in made.text]
    bound = run.bound(["a", "bbcb"] * 20, passes=16)
    assert 0.5 < float(bound.nats.mean()) < 1.2, "log 2 = 0.69, and what was not learned"


def test_a_folder_of_it_is_loaded_again(run, tmp_path):
    run.save_pretrained(tmp_path / "again")
    again = unmask.load(tmp_path / "again")
    assert torch.equal(again.sample(4, seed=1).tokens, run.sample(4, seed=1).tokens)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda model: model.sample(1, prompt="a"), "takes no prompt"),
        (lambda model: model.sample(1, steps=3), "takes no steps"),
        (lambda model: model.sample(1, contains=["b"]), "takes no guide"),
        (lambda model: model.infill("a__"), "cannot fill blanks"),
        (lambda model: Served(model), "it cannot be served"),
        (lambda model: unmask.nelbo(model.denoiser, torch.tensor([[0, 3, 3, 3, 3]]), by="order"), "takes no by"),
        (lambda model: entropy_by_count(model.denoiser, torch.tensor([[0, 3, 3, 3, 3]])), "no profile"),
        (lambda model: settings(SampledModel("m", model), ["ancestral"], [4]), "cannot be measured by steps"),
    ],
)
def test_what_it_does_not_do_is_refused_in_a_sentence(run, call, says):
    with pytest.raises(ValueError, match=says):
        call(run)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layout": "wrapped", "length": 8}, "learns where texts end"),
        ({"attention": "order"}, "an any-order model is trained with objective"),
        ({"conditioning": "time"}, "needs conditioning='none'"),
        ({"init": "kjv", "tokenizer": None, "preset": None}, "a masked model is trained with objective"),
    ],
)
def test_what_it_cannot_be_trained_with_is_refused(tmp_path, changes, says):
    (tmp_path / "rows.txt").write_text("a\nbbcb\n" * 200)
    with pytest.raises(ValueError, match=says):
        unmask.train(tmp_path / "rows.txt", out=tmp_path / "run", objective="insertion", **{**SETTINGS, **changes})
