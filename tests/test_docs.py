"""Every Python block of the docs runs as it is printed, the blocks of a page one after the other."""

import json
import re
from pathlib import Path

import pytest

from tests.forked import python
from tests.hf.test_hf import tiny_bert
from tests.small_models import TEXT, folder

ROOT = Path(__file__).parents[1]
PAGES = sorted(page for page in (ROOT / "docs").rglob("*.md") if "```python" in page.read_text())
ELSEWHERE = {"serving.md": "needs a server; tests/serve runs the openai client against one"}


def blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with what the pages name: a run, its held-out tokens, samples, and a masked LM of transformers."""
    from unmask.data.prepare import prepare

    path = tmp_path_factory.mktemp("docs")
    folder(path / "runs" / "kjv" / "model", "bytes")
    (path / "benchmarks").symlink_to(ROOT / "benchmarks")  # as in a checkout
    (path / "text.txt").write_text(TEXT * 8)
    prepare(path / "text.txt", path / "runs" / "kjv" / "data", tokenizer="bytes", length=24, holdout=0.3)
    record = {"text": "In the beginning God created.", "tokens": [5, 6, 7], "model": "x", "trace": []}
    (path / "samples.jsonl").write_text("".join(json.dumps(record) + "\n" for _ in range(3)))
    model, tokenizer = tiny_bert()
    for part in (model, tokenizer):
        part.save_pretrained(path / "bert-base-uncased")
    return path


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ELSEWHERE], ids=lambda page: page.name)
def test_its_python_runs(page, place):
    done = python("-c", "\n".join(blocks(page)), cwd=place, HOME=str(place))
    assert done.returncode == 0, done.stderr


def test_a_page_that_fails_is_seen(tmp_path):
    done = python("-c", "print('before')\n1 / 0", cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == "before\n" and "ZeroDivisionError" in done.stderr


def test_there_are_pages_to_run():
    assert len(PAGES) - len(ELSEWHERE) >= 6
