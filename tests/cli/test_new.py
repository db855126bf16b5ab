"""``unmask new`` writes a project whose test passes, whose training goes on, and which samples."""

from pathlib import Path

import pytest

from tests.forked import python
from tests.small_models import TEXT
from unmask.cli import main


def test_a_new_project_passes_its_test_trains_and_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project = tmp_path / "mine"
    assert main(["new", str(project)]) == 0
    assert "python train.py" in capsys.readouterr().out
    (project / "text.txt").write_text(TEXT * 100)

    def run(*arguments: str) -> str:
        done = python(*arguments, cwd=project)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "2 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "finished" in (said := run("train.py", "text.txt", "--minutes", "0.02")) or "ended early" in said
    assert "nats" in run("sample.py")
    unmask = ("-m", "unmask")
    refused = python(*unmask, "sample", "run", cwd=project)
    assert (
        refused.returncode == 2 and "give its class with --network MODULE:Net, or load it in Python" in refused.stderr
    )
    own = ("run", "--network", "network:Net")
    assert len(run(*unmask, "sample", *own, "--steps", "4").strip()) > 20
    assert "its own valid part" in run(*unmask, "evaluate", *own, "--number", "8", "--passes", "1")
    assert main(["new", str(project)]) == 2
    assert "choose another name" in capsys.readouterr().err
