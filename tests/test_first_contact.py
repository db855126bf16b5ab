"""What a newcomer types: the README's code, the demo, the command line, the wheel."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.forked import python

ROOT = Path(__file__).parents[1]


def run(*command, cwd, **environment):
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_python_of_the_readme_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        done = run("-c", block, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def commands_of_the_readme():
    """The commands that need only the bundled models."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in fenced if not language]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if re.match(r"unmask (sample|infill|models)\b", line) and "runs/" not in line]


@pytest.mark.parametrize("command", commands_of_the_readme())
def test_the_commands_of_the_readme_run(command, tmp_path):
    verb, *arguments = shlex.split(command)[1:]
    own = {"HOME": str(tmp_path), "UNMASK_CACHE": str(tmp_path / "cache")}
    done = python("-m", "unmask", verb, *arguments, cwd=tmp_path, **own)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if verb == "infill" and "stories" in arguments:
        assert re.fullmatch(r"Once upon a time there was a .* who could not .*\.\n", done.stdout, re.DOTALL)
    if "--number" in arguments:
        assert len(done.stdout.splitlines()) == int(arguments[arguments.index("--number") + 1])


def test_there_are_commands_to_run():
    assert len(commands_of_the_readme()) >= 4


def test_make_help_names_every_target():
    text = (ROOT / "Makefile").read_text()
    targets = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE).group(1).split()
    for target in set(targets) - {"help"}:
        assert f"make {target}" in text


class TestCommandLine:
    def test_help_lists_every_verb(self, tmp_path):
        from unmask.cli import VERBS

        done = run("-m", "unmask", "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert all(f"  {verb}" in done.stdout for verb in VERBS)
        assert run("-m", "unmask", cwd=tmp_path).stdout == done.stdout

    def test_every_verb_has_a_help_page(self, capsys):
        from unmask.cli import VERBS, main

        for verb in VERBS:
            with pytest.raises(SystemExit) as left:
                raise SystemExit(main([verb, "--help"]))
            assert left.value.code in (0, None)
            assert verb in capsys.readouterr().out

    def test_a_misspelt_verb_gets_a_suggestion(self, capsys):
        from unmask.cli import main

        assert main(["trian"]) == 2
        assert "did you mean 'train'?" in capsys.readouterr().err
        assert main(["xyzzy"]) == 2
        assert "the commands are" in capsys.readouterr().err

    def test_version(self, capsys):
        import unmask
        from unmask.cli import main

        assert main(["--version"]) == 0
        assert capsys.readouterr().out.strip() == unmask.__version__


WALK = """
import contextlib, inspect, io, os, sys, threading
import unmask
{imports}

base, files, inside = os.path.dirname(unmask.__file__), set(), {inside}

def called(frame, event, argument):
    global inside
    code = frame.f_code
    if not code.co_filename.startswith(base):
        return None
    inside = inside or code.co_qualname == {first!r}
    if inside and code.co_flags & inspect.CO_OPTIMIZED:  # a function, and not the body of a module or a class
        files.add(os.path.relpath(code.co_filename, base))
    return until_it_returns if code.co_qualname == {last!r} else None

def until_it_returns(frame, event, argument):
    global inside
    inside = inside and event != "return"

threading.settrace(called)
sys.settrace(called)
with contextlib.redirect_stdout(io.StringIO()):
    {command}
sys.settrace(None)
print(*sorted(files))
"""


def files_of(tmp_path, imports, command, first=None, last=None):
    """The files of the package whose functions are entered, all of them or between a first and a last call."""
    code = WALK.format(imports=imports, command=command, inside=first is None, first=first, last=last)
    done = run("-c", code, cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_short_sample_runs_functions_of_at_most_46_files(tmp_path):
    command = 'main(["sample", "kjv", "--steps", "2", "--length", "16", "--json"])'
    files = files_of(tmp_path, "from unmask.cli import main", command)
    assert "sampling.py" in files and len(files) <= 46, files


def test_a_training_batch_up_to_its_gradient_runs_functions_of_at_most_30_files(tmp_path):
    imports = (
        "from pathlib import Path; from tests.training.runs import settings, write_tokens; "
        "from unmask.training.loop import train"
    )
    command = 'train(settings(write_tokens(Path("data")), Path("run"), steps=1))'
    files = files_of(tmp_path, imports, command, "Learner.update", "Learner._accumulate")
    assert {"masking.py", "networks/ddit.py", "data/batches.py"} <= {*files} and len(files) <= 30, files
