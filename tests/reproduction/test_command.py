"""``python -m reproduction``: what it lists, what it writes, and what it does when something fails."""

import json
import sys
from types import ModuleType

import pytest
from reproduction.__main__ import main

from reproduction import ITEMS, ItemResult, Settings, Table, files, run
from reproduction import __main__ as command


def test_list_names_every_item(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == list(ITEMS)
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(ITEMS) + 1))


def test_nothing_asked_is_the_list(capsys):
    assert main([]) == 0
    assert ITEMS[0] in capsys.readouterr().out


def test_a_misspelt_item_is_refused_before_anything_is_computed(tmp_path, capsys):
    assert main(["beta_densities", "largest_gumble", "--out", str(tmp_path / "out")]) == 2
    assert "largest_gumble" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_item_writes_its_picture_its_numbers_and_the_sum_of_claims(tmp_path, capsys):
    assert main(["beta_densities", "--fast", "--out", str(tmp_path), "--seed", "3", "--json"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "beta_densities.png",
        "beta_densities.md",
        "beta_densities.json",
        "CLAIMS.md",
    }
    about = json.loads((tmp_path / "beta_densities.json").read_text())
    assert about["settings"]["size"] == "fast" and about["settings"]["seed"] == 3
    line = json.loads(capsys.readouterr().out)
    assert line["item"] == "beta_densities" and line["seconds"] >= 0 and line["claims"] == ["holds"] * 3
    assert "[The Beta densities" in (tmp_path / "CLAIMS.md").read_text()
    assert "python -m reproduction beta_densities --fast --seed 3" in (tmp_path / "beta_densities.md").read_text()


def test_each_claim_is_a_sentence_at_the_end(tmp_path, capsys):
    assert main(["beta_densities", "--fast", "--out", str(tmp_path)]) == 0
    claims = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  holds: ")]
    assert len(claims) == 3 and all(len(line.split()) > 5 for line in claims)


@pytest.fixture
def broken(monkeypatch):
    """An item that fails on request: while it computes, or while its picture is drawn."""

    def make(error, *, while_drawing):
        item = ModuleType("broken")
        item.TITLE, item.PAPER = "broken", "nowhere"

        def fail(*_):
            raise error

        good = ItemResult({"t": Table(("a",), ((1,),))}, {"": fail})
        item.claims = lambda tables: []
        item.run = (lambda settings: good) if while_drawing else fail
        monkeypatch.setitem(sys.modules, "reproduction.items.largest_gumbel", item)

    return make


def test_a_failed_item_leaves_nothing_and_the_others_go_on(tmp_path, capsys, broken):
    broken(OSError("no network here"), while_drawing=False)
    assert command.reproduce(["largest_gumbel", "beta_densities"], Settings("tiny"), tmp_path) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "CLAIMS.md",
        "beta_densities.json",
        "beta_densities.md",
        "beta_densities.png",
    ]
    assert "no network here" in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_leaves_no_numbers_either(tmp_path, broken):
    broken(RuntimeError("bug"), while_drawing=True)
    with pytest.raises(RuntimeError, match="bug"):
        command.reproduce(["largest_gumbel"], Settings("tiny"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_there_are_numbers(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    settings = Settings("tiny")
    written = files.rendered("beta_densities", "title", "paper", settings, run("beta_densities", settings), 0.0)
    assert set(written) == {"beta_densities.md", "beta_densities.json"}


def test_tables_are_markdown():
    table = Table(("a|b", "c"), ((1234567, 0.123456), (None, 1e-9), (True, "x|y"), (float("nan"), float("inf"))))
    assert files.table_markdown(table).splitlines() == [
        "| a\\|b | c |",
        "| --- | --- |",
        "| 1,234,567 | 0.1235 |",
        "| - | 1e-09 |",
        "| yes | x\\|y |",
        "| - | inf |",
    ]


@pytest.mark.parametrize("change", [{"size": "huge"}, {"seed": -1}, {"workers": 0}])
def test_settings_say_what_is_wrong(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Settings(**change)


class TestOneSubject:
    def test_the_stored_rows_of_other_subjects_are_kept(self, tmp_path):
        """A second subject is stored beside an oracle with a wrong number; the oracle alone is measured anew."""
        whole = Settings("tiny", workers=1)
        assert command.reproduce(["precisions"], whole, tmp_path) == 0
        path = tmp_path / "precisions.json"
        about = json.loads(path.read_text())
        right = about["tables"]["cells"]["rows"]
        other = [["kjv", *row[1:]] for row in right]
        wrong = [[*row[:5], 99.0, *row[6:]] for row in right]
        about["tables"]["cells"]["rows"] = [*wrong, *other]
        about["notes"].append("of kjv")
        path.write_text(json.dumps(about))
        assert command.reproduce(["precisions"], Settings("tiny", workers=1, subject="oracle"), tmp_path) == 0
        again = json.loads(path.read_text())

        def numbers(rows):
            return [row[:-1] for row in rows]  # but for the seconds

        assert numbers(again["tables"]["cells"]["rows"]) == numbers([*right, *other])
        assert "of kjv" in again["notes"] and len(again["notes"]) == len(set(again["notes"]))
        assert [one["on"].split(":")[0] for one in again["claims"]] == ["oracle"] * 3 + ["kjv"] * 3
        assert "| kjv |" in (tmp_path / "precisions.md").read_text()

    def test_results_of_other_sizes_are_not_joined(self, tmp_path, capsys):
        assert command.reproduce(["precisions"], Settings("tiny", workers=1), tmp_path) == 0
        before = (tmp_path / "precisions.json").read_bytes()
        assert command.reproduce(["precisions"], Settings("fast", subject="oracle"), tmp_path) == 1
        assert "size tiny and not fast" in capsys.readouterr().err
        assert (tmp_path / "precisions.json").read_bytes() == before

    @pytest.mark.parametrize(
        ("item", "subject", "told"),
        [("beta_densities", "oracle", "items with several subjects"), ("precisions", "kvj", "one of oracle, kjv")],
    )
    def test_what_it_does_not_know_is_refused(self, tmp_path, capsys, item, subject, told):
        assert main([item, "--fast", "--subject", subject, "--out", str(tmp_path / "out")]) != 0
        assert told in capsys.readouterr().err
        assert not (tmp_path / "out").exists()


def test_a_sampler_that_could_not_be_run_now_keeps_its_stored_rows():
    """As SEDD's on kjv, without its network: the sampler's stored row stays, and one that was measured is replaced."""
    about = {"settings": {"size": "full", "seed": 0, "judge": "truth"}, "notes": [], "pictures": [], "texts": {}}

    def result(*rows):
        return about | {
            "tables": {"cells": {"columns": ["subject", "sampler", "N"], "rows": [list(row) for row in rows]}}
        }

    before = result(("oracle", "MDLM", 1), ("kjv", "SEDD", 2), ("kjv", "MDLM", 3))
    joined = files.joined(result(("kjv", "MDLM", 4), ("kjv", "new", 5)), before)["tables"]["cells"]["rows"]
    assert joined == [["oracle", "MDLM", 1], ["kjv", "SEDD", 2], ["kjv", "MDLM", 4], ["kjv", "new", 5]]
