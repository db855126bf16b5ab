import json

import pytest
import torch

import unmask
from tests.small_models import TOKENIZERS, network
from unmask import Model
from unmask.cli import texts, trace

MODEL = Model(network(TOKENIZERS["characters"]), TOKENIZERS["characters"], name="small")
ENTRY = '{"positions": [%d], "tokens": %s, "probabilities": [1], "tau": [1]}'
RECORD = '{"text": "a", "model": "m", "tokens": [1], "trace": [' + ENTRY + "]}"


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"steps": 5},
        {"steps": 5, "predict": unmask.predict.correct},
        {"steps": 7, "plan": unmask.plan.ancestral},
        {"ahead": 4},
    ],
    ids=["first-hitting", "parallel", "correct", "ancestral", "ahead"],
)
def test_a_record_holds_the_whole_story(options):
    """Replayed on the canvas that it implies, a saved trace gives the saved tokens."""
    made = MODEL.infill("the ____ and the ______", 3, seed=4, batch=2, **options)
    mask_id = MODEL.denoiser.mask_id
    for i, saved in enumerate(texts.records(made, model="small", seed=4)):
        record = trace.parse(json.dumps(saved))
        assert record == saved
        assert (record["index"], record["seed"], record["model"]) == (i, 4, "small")
        assert record["text"] == made.text[i] and record["tokens"] == made.tokens[i].tolist()
        assert record["nfe"] == int(made.nfe[i]) == len(record["trace"])
        canvas = trace.canvas(record, mask_id)
        assert canvas[0].tolist() == list(MODEL.rows.blanks("the ____ and the ______").ids)
        steps = trace.steps(record)
        for step in steps:
            unmask.apply(step, canvas, mask_id)
        assert canvas[0].tolist() == record["tokens"]
        assert sum(int(step.draws.sum()) for step in steps) == record["ncs"] == int(made.ncs[i])
        assert [step.calls for step in steps] == list(range(1, len(steps) + 1)) and steps[0].planned == len(steps)
        own = [step for step in made.trace if i in step.sequences.tolist()]
        for entry, step, again in zip(record["trace"], own, steps, strict=True):
            row = step.sequences.tolist().index(i)
            real = step.positions[row] >= 0
            assert entry["call"] == again.calls and set(entry) >= {"positions", "tokens", "probabilities", "tau"}
            assert torch.equal(again.tau[0], step.tau[row][real])
            assert torch.equal(again.probabilities[0], step.probabilities[row][real])
            assert all(0 < p <= 1 for p in entry["probabilities"])


def test_the_same_seed_is_the_same_json():
    first, second = (list(texts.records(MODEL.sample(2, seed=3), model="m", seed=3)) for _ in range(2))
    assert json.dumps(first) == json.dumps(second)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"text": "a", "model": "m", "tokens": [1], "trace": 3}',
        '{"text": 1, "model": "m", "tokens": [1], "trace": []}',
        RECORD % (4, "[1]"),
        RECORD % (0, "[]"),
    ],
)
def test_what_json_did_not_write_is_refused(line):
    assert trace.parse(RECORD % (0, "[1]"))["tokens"] == [1]
    with pytest.raises(ValueError, match="not a line that --json wrote"):
        trace.parse(line)
