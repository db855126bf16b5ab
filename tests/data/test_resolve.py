"""What the word DATA names: one rule for training and evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.runs import write_tokens
from unmask.data.resolve import resolve


def test_tokens_prepared_data_and_a_runs_own_are_found(tmp_path: Path) -> None:
    folder = write_tokens(tmp_path / "run" / "data")
    assert resolve(str(folder / "valid.tokens")) == ("tokens", folder / "valid.tokens")
    assert resolve(str(folder)) == resolve(str(tmp_path / "run")) == ("prepared", folder)
    (folder / "train.tokens").unlink()
    assert resolve(str(folder)) == ("prepared", folder)


def test_a_corpus_is_its_name_unless_a_file_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("kjv")[0] == "corpus"
    Path("kjv").mkdir()
    assert resolve("kjv")[0] == "corpus" and resolve("./kjv")[0] == "text"
    Path("digits").write_text("0 1 2")
    assert resolve("digits")[0] == "text"
    write_tokens(Path("moses"))
    assert resolve("moses") == ("prepared", Path("moses"))


def test_other_files_folders_and_datasets_are_text(tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text("the quick brown fox")
    for name in (tmp_path, tmp_path / "fox.txt", "datasets:wikitext"):
        assert resolve(str(name)) == ("text", Path(name))


@pytest.mark.parametrize("name", ["missing/file.txt", "kjvv", "nothing.tokens"])
def test_what_is_not_there_is_one_clear_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"data='{name}': there is no such file or folder, and no such corpus .*kjv"):
        resolve(name)
