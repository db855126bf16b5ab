"""Public names: each stands for one thing."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import unmask

SOURCE = Path(unmask.__file__).parent


def test_no_two_public_classes_have_one_name():
    homes = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(str(path.relative_to(SOURCE)))
    assert {name: sorted(files) for name, files in homes.items() if len(files) > 1} == {}


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_dir_shows_the_public_names_alone():
    shown = [name for name in dir(unmask) if not name.startswith("__")]
    assert sorted(unmask.__all__) == shown and len(shown) <= 36
    for name in shown:
        assert getattr(unmask, name) is not None


def test_what_is_a_function_is_no_module():
    """A module of the name of a public function would take its place as soon as it is imported."""
    for name in unmask.__all__:
        there = (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()
        assert there == isinstance(getattr(unmask, name), type(sys)), name


def test_importing_unmask_imports_no_torch_and_changes_no_variable():
    code = "import os; before = dict(os.environ); import unmask, unmask.theory, unmask.cli, sys; "
    assert run(code + "print('torch' in sys.modules, before == dict(os.environ))") == ["False", "True"]


def test_a_name_that_is_not_there_is_an_attribute_error():
    assert not hasattr(unmask, "xyzzy")
