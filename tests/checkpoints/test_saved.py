"""A Model saved, pushed, and loaded again; and texts beyond its training length."""

import shutil
from pathlib import Path

import pytest
import torch

import unmask
from tests.small_models import LENGTH, folder


@pytest.mark.parametrize("kind", ["bpe", "smiles"])
def test_what_was_saved_loads_as_the_same_model(kind, tmp_path):
    model = unmask.load(folder(tmp_path / "first", kind, extra={"objective": "score-entropy", "schedule": "cosine"}))
    model.save_pretrained(tmp_path / "again")
    back = unmask.load(tmp_path / "again")
    assert back.sample(2, seed=5).text == model.sample(2, seed=5).text
    assert (back.schedule, back.layout, back.tokenizer) == (model.schedule, model.layout, model.tokenizer)
    assert back.extra["objective"] == "score-entropy" and back.denoiser.card == model.denoiser.card


def test_push_uploads_the_folder_that_load_knows(tmp_path, monkeypatch):
    """The hub's two calls are replaced, at the edge of the network; everything before them is real."""
    from huggingface_hub import HfApi

    made = []

    def create_repo(self, repo_id, **options):
        made.append(repo_id)
        return type("Url", (), {"repo_id": repo_id})

    def upload_folder(self, *, repo_id, folder_path, **options):
        shutil.copytree(folder_path, tmp_path / "uploaded")
        return f"https://hub/{repo_id}"

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    model = unmask.load(folder(tmp_path / "first"))
    assert model.push_to_hub("someone/words") == "https://hub/someone/words" and made == ["someone/words"]
    assert sorted(path.name for path in (tmp_path / "uploaded").iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert unmask.load(tmp_path / "uploaded").sample(seed=2).text == model.sample(seed=2).text


def test_what_is_not_ours_says_what_to_do(tmp_path):
    model = unmask.load(folder(tmp_path / "first"))
    theirs = unmask.Model(lambda_network(model.denoiser), model.tokenizer)
    with pytest.raises(ValueError, match="unmask convert"):
        theirs.save_pretrained(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def lambda_network(network):
    class Wrapped:
        vocab_size, mask_id = network.vocab_size, network.mask_id

        def __call__(self, tokens, time=None, rows=None):
            return network(tokens, time=time, rows=rows)

    return Wrapped()


def test_beyond_the_training_length_there_is_a_warning(tmp_path, capfd):
    from unmask.cli import main

    path = folder(tmp_path / "first", "characters")
    with pytest.warns(UserWarning, match=f"{LENGTH + 1} tokens: .* was trained on {LENGTH} at a time"):
        unmask.load(path).sample(length=LENGTH + 1, steps=2)
    assert main(["sample", str(path), "--length", str(LENGTH + 1), "--steps", "2"]) == 0
    said = capfd.readouterr().err
    assert said.startswith("warning: ") and said.count("\n") == 1


class TestNamesForClients:
    def test_a_run_has_a_short_name_and_no_path(self, tmp_path):
        from unmask.cli.serve import served

        folder(tmp_path / "runs" / "book" / "model")
        one = served(str(tmp_path / "runs" / "book"), "cpu")
        assert one.model.name == "book"
        assert str(tmp_path) not in str(one.card)

    def test_two_of_one_name_are_distinguished(self, tmp_path):
        from unmask.cli.serve import short_names

        names = [str(folder(tmp_path / where / "book")) for where in ("a", "b")]
        assert short_names([*names, "kjv"]) == ["a-book", "b-book", "kjv"]

    @pytest.mark.parametrize(
        ("said", "told"),
        [
            ("/home/me/data/book.txt", "book.txt"),
            ("unmask train /home/me/book.txt --out runs/book", "unmask train book.txt --out runs/book"),
            ("https://example.org/a/b", "https://example.org/a/b"),
            ("bits and/or nats", "bits and/or nats"),
        ],
    )
    def test_folders_are_cut_off(self, said, told):
        from unmask.cli.serve import FOLDERS

        assert FOLDERS.sub("", said) == told


def test_weights_are_the_same_in_half_to_its_precision(tmp_path):
    model = unmask.load(folder(tmp_path / "first"))
    model.save_pretrained(Path(tmp_path / "half"), half=True)
    back = unmask.load(tmp_path / "half").denoiser
    for one, two in zip(model.denoiser.parameters(), back.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=2e-3, atol=1e-4)
