"""Samples as ``unmask sample`` writes them, and as others do."""

import json
from pathlib import Path

import pytest
import torch

from unmask.evaluate.judge.samples import Samples


def lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_json_lines_bring_tokens_and_what_is_known() -> None:
    first = {"text": "a b", "seed": 0, "index": 0, "nfe": 3, "ncs": 4, "model": "kjv", "tokens": [1, 2], "trace": []}
    found = Samples.parse(lines(first, first | {"index": 1, "text": "", "nfe": 4, "tokens": [3, 4]}))
    assert found.texts == ["a b", ""]
    assert found.tokens is not None and found.tokens.tolist() == [[1, 2], [3, 4]]
    assert found.about == {"model": "kjv", "nfe": 3.5, "ncs": 4.0}
    assert found.draw == "draw not recorded"


def test_lengths_that_differ_are_padded_and_settings_that_differ_are_reported() -> None:
    found = Samples.parse(
        lines(
            {"text": "x", "tokens": [1, 2, 3], "draw": "inverse-cdf", "steps": 8},
            {"text": "y", "tokens": [4], "draw": "gumbel-float32", "steps": 8},
        )
    )
    assert [row.tolist() for row in found.rows] == [[1, 2, 3], [4]]
    assert found.draw == "mixed: inverse-cdf, gumbel-float32, dtype not recorded"
    assert found.about["steps"] == 8
    assert found.part([1]).texts == ["y"]
    assert [row.tolist() for row in found.part([1, 0]).rows] == [[4], [1, 2, 3]]


@pytest.mark.parametrize(
    ("content", "separation", "texts"),
    [
        ("one\ntwo\n", "auto", ["one", "two"]),
        ("one\nstill one\n\ntwo\n", "auto", ["one\nstill one", "two"]),
        ("one\n\n\n\ntwo\n", "auto", ["one", "", "two"]),  # an empty text is a text
        ("CCO\n\nCC\n", "lines", ["CCO", "", "CC"]),
        ("one\ntwo\n", "paragraphs", ["one\ntwo"]),
        (" no newline", "auto", [" no newline"]),
        ("one\r\ntwo\u2028too\r\n", "auto", ["one", "two\u2028too"]),
    ],
)
def test_plain_text(content: str, separation: str, texts: list[str], tmp_path: Path) -> None:
    (tmp_path / "samples.txt").write_bytes(content.encode())
    found = Samples.read(tmp_path / "samples.txt", separation=separation)  # type: ignore[arg-type]
    assert found.texts == texts and len(found) == len(texts)
    assert found.tokens is None


def test_wrong_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2: it looks like JSON"):
        Samples.parse('{"text": "a"}\n{"text": \n')
    with pytest.raises(ValueError, match="line 1: a sample has a field text"):
        Samples.parse('{"txt": "a"}\n')
    with pytest.raises(ValueError, match="holds no sample"):
        Samples.parse("\n\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        Samples.read(tmp_path / "binary")
    with pytest.raises(ValueError, match="2 texts and 1 rows"):
        Samples(["a", "b"], torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match="must be int64"):
        Samples(tokens=torch.zeros(1, 4))
