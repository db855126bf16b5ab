"""The packages of CONTRIBUTING: imports among them go one way, those for type checking included.

import-linter checks the order of the packages for what runs. Types alone may also not go in a circle.
"""

import re
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

TESTS = Path(__file__).parent
BESIDE = ("benchmarks", "recipes", "reproduction", "examples")
IMPORT = re.compile(rf"^\s*(?:from|import) ({'|'.join(BESIDE)})\b", re.MULTILINE)


def order_of(imports):
    """The packages and files directly below unmask, each after those that it imports."""
    needs = defaultdict(set)
    for importer, imported in imports:
        here, there = importer.split(".")[1:2], imported.split(".")[1:2]
        if here and there and here != there:
            needs[here[0]].add(there[0])
    return list(TopologicalSorter(needs).static_order())


def every_import():
    graph = grimp.build_graph("unmask", cache_dir=None)
    return [(module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module)]


def test_packages_import_each_other_in_no_circle_not_even_for_their_types():
    order = order_of(every_import())
    assert (
        order.index("theory")
        < order.index("plan")
        < order.index("sampling")
        < order.index("text")
        < order.index("model")
    )
    assert order[-1] in ("__main__", "cli", "hf")


def test_a_type_that_the_core_takes_from_a_sampler_is_a_circle():
    with pytest.raises(CycleError):
        order_of([*every_import(), ("unmask.sampler", "unmask.samplers.guided")])


def test_tests_of_the_package_need_nothing_beside_it():
    importing = [path.relative_to(TESTS) for path in TESTS.rglob("*.py") if IMPORT.search(path.read_text())]
    assert importing and {path.parts[0] for path in importing} <= {*BESIDE}
