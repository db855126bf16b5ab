"""What a newcomer types: the README's code, the demo, the command line, the wheel."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command, cwd, **environment):
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_the_python_of_the_readme_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        done = run("-c", block, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "tensor(" in done.stdout


def test_the_demo_shows_the_canvas_the_fault_and_what_to_type_next(tmp_path):
    done = run("-m", "unmask.demo", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "call 48 of 48" in done.stdout
    counts = dict(re.findall(r"^  (exact|float32 Gumbel)\s+(\d+)", done.stdout, re.MULTILINE))
    assert int(counts["exact"]) > int(counts["float32 Gumbel"])
    assert "unmask --help" in done.stdout
    assert (tmp_path / "fault.png").stat().st_size > 10_000


def test_make_help_names_every_target():
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split()
    for target in set(targets) - {"help"}:
        assert f"make {target}" in text


class TestCommandLine:
    def test_help_lists_every_verb(self, tmp_path):
        from unmask.cli import VERBS

        done = run("-m", "unmask.cli", "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert all(f"  {verb}" in done.stdout for verb in VERBS)
        assert run("-m", "unmask.cli", cwd=tmp_path).stdout == done.stdout

    def test_every_verb_has_a_help_page(self, capsys):
        from unmask.cli import VERBS, main

        for verb in VERBS:
            with pytest.raises(SystemExit) as left:
                raise SystemExit(main([verb, "--help"]))
            assert left.value.code in (0, None)
            assert verb in capsys.readouterr().out

    def test_a_misspelt_verb_is_told_which_was_meant(self, capsys):
        from unmask.cli import main

        assert main(["trian"]) == 2
        assert "did you mean 'train'?" in capsys.readouterr().err
        assert main(["xyzzy"]) == 2
        assert "the verbs are" in capsys.readouterr().err

    def test_version(self, capsys):
        import unmask
        from unmask.cli import main

        assert main(["--version"]) == 0
        assert capsys.readouterr().out.strip() == unmask.__version__


def test_the_wheel_holds_the_whole_package(tmp_path):
    done = run("-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path), cwd=ROOT)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    wanted = {str(p.relative_to(ROOT / "src")) for p in (ROOT / "src/unmask").rglob("*.py")} | {"unmask/py.typed"}
    assert wanted <= names
    required = re.findall(r"^Requires-Dist: ([a-z0-9_-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert sorted(required) == ["numpy", "torch"]
