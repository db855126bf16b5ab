"""``unmask prepare`` as it is typed."""

import io

import pytest

from unmask.cli import main, prepare
from unmask.cli.prepare import display
from unmask.data.tokens import TokenFile

pytest.importorskip("tyro")


def test_prepare_a_file(tmp_path, capsys) -> None:
    (tmp_path / "a.csv").write_text("id,body\n" + "1,some words and more words\n" * 40)
    out = tmp_path / "out"
    command = ["prepare", str(tmp_path / "a.csv"), str(out), "--column", "body", "--tokenizer", "characters"]
    assert main([*command, "--length", "16", "--eos", "False"]) == 0
    train = TokenFile.open(out / "train.tokens")
    assert (train.length, train.tokenizer.kind, train.tokenizer.eos_id) == (16, "characters", None)
    printed = capsys.readouterr()
    assert f"{out / 'train.tokens'}: {len(train)} sequences of 16 tokens, characters of" in printed.out
    assert printed.err.splitlines() == [
        "reading the text",
        "making the tokenizer",
        "writing the training part",
        "writing the held-out part",
    ]


def test_errors_are_one_line(tmp_path, capsys) -> None:
    (tmp_path / "empty.txt").write_text("")
    assert main(["prepare", str(tmp_path / "empty.txt"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"unmask prepare: {tmp_path / 'empty.txt'}: there is no text in it\n"
    assert [path.name for path in tmp_path.iterdir()] == ["empty.txt"]


def test_help_names_every_setting(capsys) -> None:
    with pytest.raises(SystemExit) as leaving:
        main(["prepare", "--help"])
    assert leaving.value.code == 0
    shown = capsys.readouterr().out
    for word in ("SOURCE", "OUT", "--tokenizer", "--length", "--layout", "--holdout", "--column", "kjv"):
        assert word in shown


def test_a_terminal_sees_a_bar_for_every_stage(monkeypatch) -> None:
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with display(terminal) as progress:
        for done in range(1, 1001):
            progress("count", done, None)
        for done in range(1, 501):
            progress("train", done, 500)
    shown = terminal.getvalue()
    assert "reading the text" in shown and "writing the training part" in shown
    assert "1,000" in shown and "500" in shown


def test_long_stages_are_reported_even_if_not_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation prepares its text in seconds and says nothing of it; after half a minute it does."""
    now = 0.0
    monkeypatch.setattr(prepare.time, "monotonic", lambda: now)
    stream = io.StringIO()
    line = prepare.plain_lines(stream, stages_are_told=False)
    for now in (1.0, 20.0, 31.0, 40.0, 62.0):
        line("count", int(now), None)
    line("fetch", 0, None)
    assert stream.getvalue().splitlines() == ["reading the text: 31", "reading the text: 62", "fetching the corpus"]
