import json
import shutil
import subprocess
import sys

import pytest
import torch

import unmask
from tests.small_models import LENGTH, TOKENIZERS, folder
from tests.training.runs import settings, write_tokens
from unmask import loading as find
from unmask.tokenizers.vocabularies import characters
from unmask.training.loop import train


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(find, "BOX", tmp_path / "box")
    return tmp_path / "cache" / "models"


def test_a_run_of_unmask_train_is_loaded_by_its_folder_and_by_its_models(tmp_path):
    data = write_tokens(tmp_path / "data")
    train(settings(data, tmp_path / "run", steps=1, schedule="cosine"))
    model = unmask.load(tmp_path / "run")
    same = unmask.load(str(tmp_path / "run" / "model"))
    assert model.schedule == same.schedule == unmask.Cosine() and model.name == same.name
    assert model.tokenizer.vocab == tuple("abcdefg") and model.length == 12
    text = model.sample(3, seed=1).text
    assert text == same.sample(3, seed=1).text and all(len(line) == 12 and set(line) <= set("abcdefg") for line in text)
    shutil.rmtree(tmp_path / "run" / "model")
    with pytest.warns(UserWarning, match="run has not finished: its newest checkpoint, of step 1, is used"):
        unfinished = unmask.load(tmp_path / "run")
    assert unfinished.sample(3, seed=1).text == text, "a checkpoint is sampled with its averaged weights"
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    assert unmask.load(checkpoint).sample(3, seed=1).text == text
    shutil.rmtree(checkpoint)
    with pytest.raises(ValueError, match="a run that has not finished and has no checkpoint yet"):
        unmask.load(tmp_path / "run")


def test_a_swapped_tokenizer_is_noticed(tmp_path):
    train(settings(write_tokens(tmp_path / "data"), tmp_path / "run", steps=1))
    characters("gfedcba", eos=False).save(tmp_path / "run" / "model" / "tokenizer.json")
    assert unmask.load(tmp_path / "run").tokenizer.vocab == tuple("abcdefg"), "the alphabet is sorted: the same one"
    characters("tuvwxyz", eos=False).save(tmp_path / "run" / "model" / "tokenizer.json")
    with pytest.raises(ValueError, match="is not the tokenizer that the model was trained with"):
        unmask.load(tmp_path / "run")


def test_bundled_and_cached_models_are_loaded_by_name(tmp_path, cache):
    folder(tmp_path / "box" / "kjv", "bpe", extra={"characters_per_token": 3.5})
    folder(cache / "mine", "smiles")
    folder(cache / "rows", "bpe", extra={"layout": "rows"})
    folder(cache / "kjv", "bytes")
    model = unmask.load("kjv")
    assert (model.name, model.tokenizer.kind, model.layout, model.rows.token_width) == ("kjv", "bpe", "wrapped", 3.5)
    assert unmask.load("mine").layout == unmask.load("rows").layout == "rows"
    names = [(found.name, found.where) for found in find.available() if found.where != "hub"]
    assert names == [("kjv", "box"), ("kjv", "cache"), ("mine", "cache"), ("rows", "cache")]


def test_both_architectures_come_back(tmp_path):
    masked, causal = folder(tmp_path / "masked"), folder(tmp_path / "causal", causal=True)
    assert [unmask.load(one).process.name for one in (masked, causal)] == ["masked", "left-to-right"]
    assert unmask.load(causal).sample(2).tokens.shape == (2, LENGTH)
    assert unmask.load(masked, device="cpu").sample(2).tokens.shape == (2, LENGTH)


def test_what_cannot_be_loaded_is_reported_in_a_line(tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder(cache / "verses")
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("verse", "did you mean 'verses'?"),
        ("xyzzy", "by name there are verses"),
        ("empty", "empty is neither a model nor a run"),
        ("empty/bok", "there is no model 'empty/bok'"),  # a misspelt folder is not looked for on the hub
        ("./no/such/folder", "there is no model"),
        ("/no/such", "there is no model"),
    ):
        with pytest.raises(ValueError, match=message):
            unmask.load(name)
    (cache / "verses" / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        unmask.load("verses")
    path = folder(tmp_path / "odd", extra={"schedule": "zigzag"})
    with pytest.raises(ValueError, match=r"schedule must be one of linear, .*, got 'zigzag'"):
        unmask.load(path)
    good = folder(tmp_path / "good")
    for device in ("nonsense", "cuda:9" if not torch.cuda.is_available() else "nonsense"):
        with pytest.raises(ValueError, match=f"device='{device}'"):
            unmask.load(good, device=device)


def test_the_hub_is_asked_through_its_cache(tmp_path):
    """A repository as huggingface_hub keeps it, and no network."""
    hub = tmp_path / "hf" / "hub"
    for name, kind in (("me--tiny", "bpe"), ("me--bare", "bytes")):
        repository, revision = hub / f"models--{name}", "a" * 40
        (repository / "refs").mkdir(parents=True)
        (repository / "blobs").mkdir()
        (repository / "refs" / "main").write_text(revision)
        folder(repository / "snapshots" / revision, kind)
    (hub / "models--me--bare" / "snapshots" / ("a" * 40) / "tokenizer.json").unlink()
    program = """
import json, unmask
from unmask import loading as find
from unmask.tokenizers.vocabularies import characters
said = {"text": unmask.load("me/tiny").sample(2, seed=1).text, "vocab": find.tokenizer_of("me/tiny").vocab_size,
        "found": [(f.name, f.where) for f in find.available()]}
for name in ("me/none", "me/bare", "me/bad--name"):
    try:
        unmask.load(name)
    except ValueError as error:
        said[name] = str(error)
print(json.dumps(said))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PATH": "",
            "HOME": str(tmp_path),
            "PYTHONPATH": ":".join(sys.path),
            "OMP_NUM_THREADS": "1",
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_OFFLINE": "1",
            "UNMASK_CACHE": str(tmp_path / "none"),
        },
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    local = unmask.load(hub / "models--me--tiny" / "snapshots" / ("a" * 40))
    assert said["text"] == local.sample(2, seed=1).text
    assert said["vocab"] == TOKENIZERS["bpe"].vocab_size
    assert [pair for pair in said["found"] if pair[1] != "box"] == [["me/tiny", "hub"]]
    assert said["me/none"].endswith("not a folder, and could not be downloaded from the hub: it cannot be reached")
    assert "tokenizer.json" in said["me/bare"] and "me/bad--name" in said["me/bad--name"]


def test_no_end_is_drawn_inside_of_a_row(tmp_path):
    folder(tmp_path / "m", "smiles", extra={"layout": "rows"})
    model = unmask.load(tmp_path / "m")
    end = model.tokenizer.eos_id
    made = model.infill("CC____O", 200, seed=3)
    assert not (made.tokens[:, 2:6] == end).any(), "about 200 x 4 / V of them would be there by chance"
    assert all(
        text == model.tokenizer.decode(row[:7]) for text, row in zip(made.text, made.tokens.tolist(), strict=True)
    )
