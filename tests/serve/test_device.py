"""The engine on an accelerator: the CPU's tokens, and one wait per call."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests import fake_device
from tests.serve.served import model as text_model
from unmask import plan
from unmask.draw import Pick
from unmask.samplers.planned import Planned
from unmask.serve.engine.batch import Batch
from unmask.serve.engine.job import Job
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.shared_state import SharedState
from unmask.serve.engine.work import Served, Work

pytestmark = pytest.mark.skipif(not fake_device.available(), reason="this torch cannot make a device of Python")


def test_the_server_reads_errors_once_per_call() -> None:
    """The engine's batch in this thread: the fake device does not reach into the engine's own."""
    model = text_model()
    expected = model.sample(3, length=8, steps=3, seed=3).tokens.tolist()
    with fake_device.present() as waits:
        served = Served(replace(model, denoiser=copy.deepcopy(model.denoiser).to(fake_device.NAME)))
        mask_id = model.denoiser.mask_id
        job = Job(Work(served, 3, 3, (mask_id,) * 8, None, Planned(plan.parallel), Pick(), 3), lambda event: None)
        members, batch = list(job.waiting), Batch(served, Limits())
        batch.arriving.append(SharedState.of(job.work.sampler, job.state, members))
        tokens: dict[int, Any] = {}
        calls = []
        while len(tokens) < 3:
            before = waits.total()
            outcomes = batch.call()
            done = {one.sequence.index: one.tokens for one in outcomes if one.tokens is not None}
            calls.append(waits.total() - before - len(done))  # a finished text is read
            tokens |= done
    assert [tokens[i] for i in range(3)] == expected
    assert calls == [1, 1, 1]
