"""The tables of README and docs are those that ``make docs-tables`` generates."""

import re
from pathlib import Path

import pytest
from benchmarks.audits import SUBJECTS
from benchmarks.order_audits import OURS
from benchmarks.order_audits import SUBJECTS as ORDERS
from benchmarks.tables import RESULTS, stored
from benchmarks.tables import __main__ as tables

from unmask.auditing.subjects import BUILTIN

PAGES = {str(page.relative_to(tables.ROOT)): page.read_text() for page in tables.pages()}
WRITTEN = re.compile(r"^(?:\|.*\n)+", re.MULTILINE)  # a table
BY_ITEMS = [path.stem for path in RESULTS.glob("*.json") if "item" in stored(path.stem)]
BY_HAND = [name for name in PAGES if Path(name).stem not in (*BY_ITEMS, "CLAIMS", "speed-log")]


@pytest.mark.parametrize("name", PAGES)
def test_generation_changes_nothing(name):
    assert tables.generated(PAGES[name]) == PAGES[name]


def test_a_changed_number_and_an_unknown_table_are_seen():
    page = "<!-- table: coverage -->\n\n| 0.960 |\n\n<!-- end -->\n"
    assert tables.generated(page) != page
    assert tables.generated(tables.generated(page)) == tables.generated(page)
    with pytest.raises(ValueError, match="no table 'nothing'"):
        tables.generated(page.replace("coverage", "nothing"))


def test_every_table_is_in_one_page():
    found = [match["name"] for text in PAGES.values() for match in tables.MARKED.finditer(text)]
    assert sorted(found) == sorted(tables.TABLES)


def bare(name, text):
    """Tables of measured numbers that are neither generated nor below a comment with their command."""
    number = r"\d\.\d" if name.startswith("docs/results/") else r"\d ± \d"  # guides may tell defaults and sizes
    text = tables.MARKED.sub("", text)
    for match in WRITTEN.finditer(text):
        above = text[: match.start()].rstrip("\n").rpartition("\n")[2]
        if re.search(number, match[0]) and not above.startswith("<!-- by `"):
            yield match[0].partition("\n")[0]


@pytest.mark.parametrize("name", BY_HAND)
def test_other_tables_of_numbers_name_their_command(name):
    assert list(bare(name, PAGES[name])) == []


def test_a_bare_table_is_seen():
    table = "| a |\n|---|\n| 1.5 |\n"
    assert list(bare("docs/results/x.md", table)) == ["| a |"]
    assert not list(bare("docs/results/x.md", f"<!-- by `x` -->\n{table}"))


def test_the_tables_of_audits_have_every_subject():
    draws, orders = PAGES["docs/results/audits.md"].split("## Decoding orders")
    named, ordered = (set(re.findall(r"^\| `([\w-]+)` \|", part, re.MULTILINE)) for part in (draws, orders))
    assert set(BUILTIN) <= named
    assert set(stored("audits")) <= named <= {*BUILTIN, *SUBJECTS, "NAME"}
    assert ordered == {name.removeprefix("ours: ") for name in stored("audited-orders")} == {*OURS, *ORDERS}
