import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.training.runs import settings, write_tokens
from unmask.data.tokens import TokenFile
from unmask.training.data import find
from unmask.training.loop import train
from unmask.training.run import stored_config

TEXT = "the quick brown fox jumps over the lazy dog " * 200


def of_text(path: Path, out: Path, **changes: Any) -> Any:
    return settings(path, out, tokenizer="characters", length=16, steps=1, **changes)


def test_prepared_data_are_found_by_folder_and_by_file(tmp_path: Path) -> None:
    folder = write_tokens(tmp_path / "data")
    for name in (folder, folder / "train.tokens"):
        data = find(settings(name, tmp_path / "run"))
        assert (len(data.train), len(data.valid)) == (20, 16)
    other = write_tokens(tmp_path / "other", seed=1, valid=3)
    assert len(find(settings(folder, tmp_path / "run", valid=str(other / "valid.tokens"))).valid) == 3
    assert not (tmp_path / "run").exists()


def test_text_is_prepared_into_the_run_once(tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text(TEXT)
    config = of_text(text, tmp_path / "run")
    train(config)
    tokens = tmp_path / "run" / "data" / "train.tokens"
    made = tokens.stat().st_mtime_ns
    stored = stored_config(tmp_path / "run")
    assert stored is not None and stored.data == str(text)
    train(replace(config, resume=True, steps=2))
    text.unlink()
    train(replace(config, resume=True, steps=3))
    assert tokens.stat().st_mtime_ns == made
    text.write_text(TEXT + "and once more")
    with pytest.raises(ValueError, match=r"was not made from .*fox\.txt as it is now \(sha256: "):
        train(replace(config, resume=True, steps=4))
    text.write_text(TEXT)
    with pytest.raises(ValueError, match="length: 16 -> 8"):
        train(replace(config, resume=True, length=8, steps=4))


def test_a_dataset_of_the_hub_is_streamed_into_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a local repository: by its name in train as in prepare, and resumed without it."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repository = tmp_path / "mine"
    repository.mkdir()
    lines = [json.dumps({"story": f"{word} {TEXT}"}) + "\n" for word in ("one", "two", "three")]
    (repository / "train.jsonl").write_text("".join(lines))
    config = replace(of_text(repository, tmp_path / "run"), data=f"datasets:{repository}", column="story")
    train(config)
    opened = TokenFile.open(tmp_path / "run" / "data" / "train.tokens")
    assert opened.header.source == config.data and "one" in opened.tokenizer.decode(opened.sequences([0])[0].tolist())
    with pytest.raises(ValueError, match=r"column='nothing': .* has 'story'"):
        train(replace(config, out=str(tmp_path / "other"), column="nothing"))
    shutil.rmtree(repository)
    train(replace(config, resume=True, steps=2))


def test_a_start_that_was_broken_off_while_preparing_can_be_repeated(tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text(TEXT)
    config = of_text(text, tmp_path / "run")
    find(config)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"data", "source.json"}
    train(config)
    assert (tmp_path / "run" / "model").is_dir()


def test_a_folder_of_texts_is_prepared(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "texts" / name).write_text(TEXT)
    assert find(of_text(tmp_path / "texts", tmp_path / "run")).train.length == 16


def test_text_is_not_prepared_into_a_strangers_folder(tmp_path: Path) -> None:
    text = tmp_path / "fox.txt"
    text.write_text(TEXT)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="not empty"):
        train(of_text(text, tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/file.txt", r"data='.*missing/file\.txt': there is no such file or folder"),
        ("empty.tokens", r"empty\.tokens is not a whole token file"),
        ("lonely/train.tokens", r"lonely/valid\.tokens: there are no held-out tokens; give some with --valid"),
    ],
)
def test_what_is_no_data_is_one_clear_error(name: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "empty.tokens").touch()
    (tmp_path / "valid.tokens").touch()
    write_tokens(tmp_path / "lonely")
    (tmp_path / "lonely" / "valid.tokens").unlink()
    with pytest.raises(ValueError, match=message):
        train(settings(tmp_path / name, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_an_unknown_corpus_gets_the_list_of_corpora(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="kjv"):
        train(replace(settings(tmp_path, tmp_path / "run"), data="shakespeare"))


def test_another_length_than_the_files_is_refused(tmp_path: Path) -> None:
    folder = write_tokens(tmp_path / "data")
    with pytest.raises(ValueError, match=r"length=64: .* has sequences of 12 tokens"):
        train(settings(folder, tmp_path / "run", length=64))


@pytest.mark.parametrize(("content", "message"), [(b"", "no text"), (b"hi", "too few"), (b"\xff\xfeabc", "not UTF-8")])
def test_a_text_that_cannot_be_used_leaves_nothing_behind(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        train(settings(tmp_path / "text.txt", tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["train", "valid"])
def test_damaged_tokens_are_noticed_at_the_start_and_when_a_run_is_resumed(name: str, tmp_path: Path) -> None:
    folder = write_tokens(tmp_path / "data")
    config = settings(folder, tmp_path / "run", steps=1)
    train(config)
    path = folder / f"{name}.tokens"
    whole = path.read_bytes()
    path.write_bytes(whole[:-100] + bytes(100))
    for broken in (replace(config, resume=True, steps=2), replace(config, out=str(tmp_path / "new"))):
        with pytest.raises(ValueError, match=rf"{name}\.tokens is damaged"):
            train(broken)
    path.write_bytes(whole)
    train(replace(config, resume=True, steps=2))
