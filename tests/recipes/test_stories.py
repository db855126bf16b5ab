"""The corpus of stories: its distribution against enumeration, its shards, and its files."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from recipes.corpora.stories import Store, Teacher
from scipy import stats

from tests.small_models import small_llama

IDS = torch.tensor([4, 7, 1])  # of the teacher; the last begins and ends a story


def teacher() -> Teacher:
    return Teacher(small_llama(), IDS)


def log_law(length: int) -> dict[tuple[int, ...], float]:
    """log p of every row by the plain network, one story after the other."""
    network = small_llama()
    found = {}
    for row in itertools.product(range(3), repeat=length - 1):
        total, story = 0.0, [1]
        for token in row:
            logits = network(torch.tensor([story]))[0, -1, IDS].double()
            total += float(logits.log_softmax(-1)[token])
            story = [1] if token == 2 else [*story, int(IDS[token])]
        found[row] = total
    return found


def test_rows_have_the_distribution_of_the_teacher_begun_anew_after_each_end() -> None:
    law, num = log_law(5), 20_000
    tokens, nats = teacher().rows(0, "test", 0, num, 5)
    assert (tokens[:, 0] == 2).all() and (nats[:, 0] == 0).all()
    rows = [tuple(row) for row in tokens[:, 1:].tolist()]
    truth = torch.tensor([law[row] for row in rows], dtype=torch.float64)
    torch.testing.assert_close(-nats.sum(1), truth, rtol=0, atol=1e-5)
    counts = np.array([rows.count(row) for row in law])
    expected = num * np.exp(np.array(list(law.values())))
    assert expected.min() > 5
    assert stats.chisquare(counts, expected * num / expected.sum()).pvalue > 1e-6


def test_the_distribution_of_any_row_is_that_of_the_plain_network() -> None:
    law = log_law(5)
    rows = torch.tensor([[2, *row] for row in law])
    found = teacher().nats(rows)
    torch.testing.assert_close(-found.sum(1), torch.tensor(list(law.values()), dtype=torch.float64), rtol=0, atol=1e-5)
    assert teacher().nats(torch.tensor([[0, 1]]))[0, 0] == torch.inf, "no row begins so"


def test_a_row_does_not_depend_on_its_company_nor_on_the_length() -> None:
    whole, _ = teacher().rows(3, "test", 0, 12, 9)
    parts = [teacher().rows(3, "test", first, 4, 9)[0] for first in (0, 4, 8)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(teacher().rows(3, "test", 0, 12, 6)[0], whole[:, :6])
    assert not torch.equal(teacher().rows(4, "test", 0, 12, 9)[0], whole)
    assert not torch.equal(teacher().rows(3, "other", 0, 12, 9)[0], whole)


def test_a_stopped_store_goes_on_and_gives_the_same_files(tmp_path: Path) -> None:
    counts = {"train": 3, "valid": 1}
    whole, stopped = (Store(tmp_path / name, rows=4, length=6) for name in "ab")
    seen: list[str] = []
    whole.fill(teacher(), counts, lambda stage, done, total: seen.append(stage))
    assert seen == ["draw valid", "draw train", "draw train", "draw train"]
    stopped.fill(teacher(), {"train": 1, "valid": 1}, lambda *_: None)
    seen.clear()
    stopped.fill(teacher(), counts, lambda stage, done, total: seen.append(stage))
    assert seen == ["draw train", "draw train"]
    for path in sorted((tmp_path / "a").iterdir()):
        with np.load(path) as ours, np.load(tmp_path / "b" / path.name) as theirs:
            assert all(np.array_equal(ours[name], theirs[name]) for name in ("tokens", "nats"))
    train = np.concatenate([shard.read()[0] for shard in whole.shards("train", 3)])
    assert len(np.unique(train, axis=0)) > 6, "shards are different rows"


def test_ids_must_end_with_the_one_that_begins_stories() -> None:
    with pytest.raises(ValueError, match="begins a story"):
        Teacher(small_llama(), torch.tensor([1, 4, 7]))
