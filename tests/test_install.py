"""The installation: the base can use the bundled models, a named extra exists, wheel and sdist are complete."""

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from unmask import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = {re.split(r"[>=\[ ]", one)[0].replace("_", "-") for one in PROJECT["dependencies"]}

# What a base installation can do, with every other distribution out of reach.
USES_THE_BOX = """
import importlib.metadata, re, sys

def needed(names):
    found, left = set(), list(names)
    while left:
        name = re.split(r"[^A-Za-z0-9_.-]", left.pop())[0].replace("_", "-").lower()
        if name in found:
            continue
        found.add(name)
        try:
            requires = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        left += [one for one in requires if "extra ==" not in one]
    return found

allowed = needed(sys.argv[1].split(","))
distributions = importlib.metadata.packages_distributions()

class Refuse:
    def find_spec(self, name, path=None, target=None):
        owners = {one.replace("_", "-").lower() for one in distributions.get(name.partition(".")[0], [])}
        if owners and not owners & (allowed | {"unmask", "pip", "setuptools"}):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
from unmask.cli import main

codes = [
    main(["sample", "kjv", "--steps", "2", "--length", "8"]),
    main(["infill", "kjv", "In the ____", "--steps", "1"]),
    main(["sample", "molecules", "--steps", "2"]),
    main(["sample", "digits", "--steps", "2"]),
    main(["models"]),
    main(["inspect", "kjv"]),
]
print(codes)
for command in sys.argv[2:]:
    print(main(command.split()))
"""


# Each needs an extra, and says so before it computes anything.
NEEDS = {
    "serve kjv": "serve",
    "train text.txt --out run": "train",
    "prepare table.parquet out": "tables",
    "prepare text.txt.zst out": "tables",
    "prepare datasets:some out": "datasets",
    "judge text.txt": "judge",
    "judge text.txt --judge kjv-ar --mauve text.txt": "mauve",
    "judge text.txt --judge kjv-ar --picture picture.png": "plot",
    "judge text.txt --judge kjv-ar --molecules text.txt": "molecules",
    "evaluate kjv-ar text.txt --picture picture.png": "plot",
    "sample kjv --pattern a.*b": "regex",
    "sample kjv --ray": "ray",
}


def test_the_base_uses_the_bundled_models_and_names_the_extra_that_a_command_lacks(tmp_path):
    (tmp_path / "text.txt").write_text("a text\n")
    for name in ("table.parquet", "text.txt.zst"):
        (tmp_path / name).write_text("unread")
    command = [sys.executable, "-c", USES_THE_BOX, ",".join(BASE), *NEEDS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-len(NEEDS) - 1 :] == [str([0] * 6), *["2"] * len(NEEDS)], done.stderr
    lines = done.stderr.strip().splitlines()[-len(NEEDS) :]
    for (command, extra), line in zip(NEEDS.items(), lines, strict=True):
        assert line.startswith(f"unmask {command.split()[0]}: ") and line.endswith(f"pip install 'unmask[{extra}]'")


def test_help_needs_no_extra(tmp_path):
    """Of the commands whose work needs one."""
    helped = "print([run(verb) for verb in ('serve', 'train', 'judge')])"
    lines = "def run(verb):", "    try:", "        main([verb, '--help'])", "    except SystemExit as end:"
    tries = "\n".join([*lines, "        return end.code", ""])
    code = USES_THE_BOX.partition("codes = [")[0] + tries + helped
    command = [sys.executable, "-c", code, ",".join(BASE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0]", done.stderr


def test_every_extra_that_is_named_is_there():
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    named = {(file.name, name) for file in files for name in re.findall(r"unmask\[(\w+)\]", file.read_text())}
    assert len(named) > 10
    missing = {(file, name) for file, name in named if name not in PROJECT["optional-dependencies"]}
    assert not missing


def built(kind, folder):
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


def test_the_wheel_holds_the_whole_package(tmp_path):
    with zipfile.ZipFile(built("wheel", tmp_path)) as archive:
        names = set(archive.namelist())
        metadata = archive.read(next(n for n in names if n.endswith("METADATA"))).decode()
    files = [p for p in (ROOT / "src/unmask").rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    wanted = {str(p.relative_to(ROOT / "src")) for p in files}
    assert {"unmask/py.typed", "unmask/box/kjv/model.safetensors"} <= wanted <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"unmask"}
    required = re.findall(r"^Requires-Dist: ([a-z0-9_-]+)[^;\n]*$", metadata, re.MULTILINE)
    assert {one.replace("_", "-") for one in required} == BASE


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_works_in_a_clean_venv(kind, tmp_path):
    """Minutes: torch is unpacked anew. pip's own index is asked, with the versions of constraints.txt."""
    made = built(kind, tmp_path / "dist")
    if kind == "sdist":
        with tarfile.open(made) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        assert {"pyproject.toml", "README.md", "Makefile", "constraints.txt", "tests/helpers.py"} <= names
        assert "examples/demo/__main__.py" in names
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", made], check=True)
    environment = {"HOME": str(tmp_path), "PATH": f"{python.parent}:/usr/bin:/bin"}

    def unmask(*arguments):
        done = subprocess.run(
            [python.with_name("unmask"), *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert unmask("--version").strip() == __version__
    assert unmask("sample", "kjv", "--steps", "2", "--length", "8").strip()
    assert unmask("infill", "kjv", "In the ____ God").startswith("In the ")
    assert len(unmask("sample", "molecules", "--number", "3", "--steps", "4").splitlines()) == 3
    assert "kjv" in unmask("models") and "serve" in unmask("--completion", "bash")
    packages = subprocess.run([python, "-m", "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert not re.search(r"^nvidia", packages, re.MULTILINE), "CUDA was pulled in"
