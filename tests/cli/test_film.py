"""``unmask sample --watch FILE --svg FILE``: a film in which each token appears at its call."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

from tests.small_models import folder
from unmask.cli import main

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def saved(tmp_path):
    model = folder(tmp_path / "model", "bytes")
    assert main(["sample", str(model), "--length", "12", "--json", "--output", str(tmp_path / "run.jsonl")]) == 0
    return tmp_path / "run.jsonl"


def test_tokens_appear_in_the_order_of_their_calls(saved, tmp_path):
    record = json.loads(saved.read_text().splitlines()[0])
    assert main(["sample", "--watch", str(saved), "--svg", str(tmp_path / "film.svg")]) == 0
    drawing = ET.parse(tmp_path / "film.svg").getroot()
    times = [float(text[0].get("keyTimes").split(";")[1]) for text in drawing.iter(f"{SVG}text")]
    called = {p: entry["call"] for entry in record["trace"] for p in entry["positions"]}
    assert len(set(times)) == len(set(times) | {0.0}) - 1  # nothing was given, so nothing is there from the start
    assert len(times) <= len(called) and sorted(times)[-1] == pytest.approx(6 / 9, abs=1e-3)
    assert len(set(times)) > 6


def test_a_prompt_is_there_from_the_start(tmp_path):
    model = folder(tmp_path / "model", "bytes")
    run, film = str(tmp_path / "run.jsonl"), tmp_path / "film.svg"
    assert main(["sample", str(model), "--prompt", "God", "--length", "12", "--json", "--output", run]) == 0
    assert main(["sample", "--watch", run, "--svg", str(film)]) == 0
    given = [text for text in ET.parse(film).getroot().iter(f"{SVG}text") if not len(text)]
    assert [text.text for text in given] == ["God"]


def test_markup_in_a_text_is_text(saved, tmp_path):
    record = json.loads(saved.read_text().splitlines()[0])
    record["text"] = record["text"] + "<script>alert(1)</script>"
    saved.write_text(json.dumps(record) + "\n")
    assert main(["sample", "--watch", str(saved), "--svg", str(tmp_path / "film.svg")]) == 0
    assert not re.search(r"<script", (tmp_path / "film.svg").read_text())


def test_it_needs_a_saved_run(capsys, tmp_path):
    assert main(["sample", "kjv", "--svg", str(tmp_path / "film.svg")]) == 2
    assert "--watch" in capsys.readouterr().err
