"""The distribution of stories as a judge: its own rows, and rows that do not begin like a story."""

import torch

from tests.recipes.test_stories import teacher
from unmask.evaluate.judge.judge import OracleJudge, Samples, judge


def test_rows_have_the_nats_recorded_when_they_were_drawn() -> None:
    tokens, nats = teacher().rows(0, "judge", 0, 40, 9)
    found = judge(Samples(tokens=tokens), OracleJudge(teacher(), "truth"))
    torch.testing.assert_close(found.nats, nats.sum(1), rtol=0, atol=1e-5)
    assert found.tokens.tolist() == [8] * 40, "the first token is given"


def test_a_row_that_begins_otherwise_is_judged_from_its_second_token_on() -> None:
    found = judge(Samples(tokens=torch.tensor([[0, 1, 1, 2]])), OracleJudge(teacher(), "truth"))
    assert found.tokens.tolist() == [3] and bool(found.nats.isfinite().all())
