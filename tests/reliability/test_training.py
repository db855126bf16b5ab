"""What must not break in training, each shown on real processes, real signals and real files."""

import itertools
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.training.runs import metrics, run, settings, start, write_tokens
from unmask import files
from unmask.training import checkpoint, learner, validate
from unmask.training.checkpoint import CheckpointError, listed, newest, read, verify, write
from unmask.training.config import TrainConfig
from unmask.training.data import find
from unmask.training.defaults import resolve
from unmask.training.events import Event, Stepped, Validated
from unmask.training.learner import Learner, NotFinite
from unmask.training.loop import make_accelerator, train
from unmask.training.network import of_config


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


def assert_same(one: Path, other: Path, step: int) -> None:
    """Two runs have the same weights, averages, optimiser, state and metrics at a step, bit for bit."""
    a, b = (read(out / "checkpoints" / f"step-{step:08d}") for out in (one, other))
    assert a.state == b.state and a.tensors.keys() == b.tensors.keys()
    for group in a.tensors:
        assert a.tensors[group].keys() == b.tensors[group].keys()
        for name, tensor in a.tensors[group].items():
            assert torch.equal(tensor, b.tensors[group][name]), f"{group}: {name}"
    assert metrics(one) == metrics(other)


# 1. kill -9 at random points


STEPS_BEFORE_IT_WAITS = 4


def wait_after_a_few_steps() -> dict[str, Any]:
    """However late the kill comes, the run has not ended by then: after a few steps it stops and waits for it."""
    seen = itertools.count(1)

    def report(event: Event) -> None:
        if isinstance(event, Stepped) and next(seen) > STEPS_BEFORE_IT_WAITS:
            signal.pause()

    return {"report": report}


def killed_at_random_points(letters: Path, tmp_path: Path, kills: int) -> None:
    # A save takes about as long as a step here, and there is one after each.
    last = 2 * STEPS_BEFORE_IT_WAITS * kills
    config = settings(letters, tmp_path / "killed", steps=last, width=32, save_every=1, keep=3, validate_every=20)
    checkpoints, delays = tmp_path / "killed" / "checkpoints", random.Random(0)
    steps = [0]
    for _ in range(kills):
        process, before = start(replace(config, resume=True), wait_after_a_few_steps), f"step-{steps[-1]:08d}"
        while process.is_alive() and max((path.name for path in listed(checkpoints)), default="") <= before:
            time.sleep(0.001)
        time.sleep(delays.uniform(0, 0.03))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        for path in listed(checkpoints):
            verify(path)
        found = newest(checkpoints)  # a warning would be an error here
        assert found is not None and found.step > steps[-1]
        steps.append(found.step)
    assert run(replace(config, resume=True)) == [0]
    assert [path for path in checkpoints.iterdir() if path.name.startswith(".")] == []
    assert run(replace(config, out=str(tmp_path / "whole"))) == [0]
    assert_same(tmp_path / "killed", tmp_path / "whole", last)


def test_kill_9_at_random_points(letters: Path, tmp_path: Path) -> None:
    killed_at_random_points(letters, tmp_path, 4)


@pytest.mark.slow
def test_kill_9_at_many_random_points(letters: Path, tmp_path: Path) -> None:
    killed_at_random_points(letters, tmp_path, 20)


def kill(module: Any, name: str, call: int) -> dict[str, Any]:
    """SIGKILL to this process at a call of this function after step 4, where the second save is next."""

    def report(event: Event) -> None:
        if isinstance(event, Validated):
            raising(module, name, signal.SIGKILL, 1, nth(call))

    return {"report": report}


def kill_while_writing_tensors() -> dict[str, Any]:
    return kill(checkpoint, "_plain", 30)


def kill_while_summing() -> dict[str, Any]:
    return kill(checkpoint, "sha256_of", 3)


def kill_before_the_first_sync() -> dict[str, Any]:
    return kill(files, "sync", 1)


def kill_before_the_last_sync() -> dict[str, Any]:
    return kill(files, "sync", 6)


def kill_before_the_renaming() -> dict[str, Any]:
    return kill(os, "rename", 1)


@pytest.mark.parametrize(
    "before",
    [
        kill_while_writing_tensors,
        kill_while_summing,
        kill_before_the_first_sync,
        kill_before_the_last_sync,
        kill_before_the_renaming,
    ],
)
def test_kill_9_at_each_stage_of_a_save(before: Callable[[], Any], letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", save_every=2, validate_every=4, steps=4)
    checkpoints = tmp_path / "run" / "checkpoints"
    assert run(config, before) == [-signal.SIGKILL]
    assert [path.name for path in listed(checkpoints)] == ["step-00000002"] and any(checkpoints.glob(".*.partial"))
    assert newest(checkpoints) is not None
    assert run(replace(config, resume=True)) == [0]
    assert sorted(path.name for path in checkpoints.iterdir()) == ["step-00000002", "step-00000004"]


# 2. A save that fails midway


def small_files_from_the_third_step_on() -> dict[str, Any]:
    """The disk takes files of up to 20 kB: a real failure of the kernel's, in the middle of a write."""

    def report(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    return {"report": report}


def test_a_disk_that_is_full_leaves_the_old_checkpoint_and_no_litter(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", width=32)
    assert run(config, small_files_from_the_third_step_on) == [1]
    checkpoints = tmp_path / "run" / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["step-00000002"]
    assert run(replace(config, resume=True)) == [0]
    assert run(replace(config, out=str(tmp_path / "whole"))) == [0]
    assert_same(tmp_path / "run", tmp_path / "whole", 6)


@pytest.mark.parametrize(
    ("tensors", "state"),
    [
        ({"model": {"a": torch.eye(2).to_sparse()}}, {}),
        ({"model": {"a": torch.eye(2)}}, {"unwritable": object()}),
        ({"model": {"a": "no tensor"}}, {}),
    ],
)
def test_an_object_that_cannot_be_written_leaves_no_litter(tensors: Any, state: Any, tmp_path: Path) -> None:
    write(tmp_path, 1, {"model": {"a": torch.eye(2)}}, {})
    with pytest.raises(Exception):  # noqa: B017 - whatever the writer says
        write(tmp_path, 2, tensors, state)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


# 3. 2k steps equal k steps, a new process, and k more


def stop_in_the_middle() -> dict[str, Any]:
    """SIGTERM to this process when step 4 is done; in the first process of a run that has several."""

    def report(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    return {"report": report}


@pytest.mark.parametrize("world", [1, 2])
def test_a_new_process_continues_bit_for_bit(world: int, letters: Path, tmp_path: Path) -> None:
    """With dropout, two passes per step and process, and 8 steps of 8 over 20 sequences: three epochs' ends inside."""
    config = settings(letters, tmp_path / "halves", steps=8, batch=8, micro_batch=4 // world, save_every=100)
    assert config.dropout > 0
    assert run(config, stop_in_the_middle, world) == [143] * world
    assert [path.name for path in listed(tmp_path / "halves" / "checkpoints")] == ["step-00000004"]
    assert run(replace(config, resume=True), world=world) == [0] * world
    assert run(replace(config, out=str(tmp_path / "whole")), world=world) == [0] * world
    assert_same(tmp_path / "halves", tmp_path / "whole", 8)


# 4. Signals in a step, in an evaluation, in a save


def raising(module: Any, name: str, number: int, times: int, when: Callable[[], bool] = lambda: True) -> None:
    """Send this process the signal from within a function of the program, once it is called and ``when`` holds."""
    original = getattr(module, name)
    sent = []

    def wrapped(*arguments: Any, **named: Any) -> Any:
        if not sent and when():
            sent.append(number)
            for _ in range(times):
                os.kill(os.getpid(), number)
        return original(*arguments, **named)

    setattr(module, name, wrapped)


def nth(number: int) -> Callable[[], bool]:
    calls = itertools.count(1)
    return lambda: next(calls) == number


def in_a_step(number: int, times: int = 1) -> None:
    raising(Learner, "_accumulate", number, times, nth(3))


def in_an_evaluation(number: int, times: int = 1) -> None:
    raising(validate, "_pass", number, times, nth(3))


def in_a_save(number: int, times: int = 1) -> None:
    raising(checkpoint, "sha256_of", number, times)


def term_in_a_step() -> None:
    in_a_step(signal.SIGTERM)


def int_in_a_step() -> None:
    in_a_step(signal.SIGINT)


def term_in_an_evaluation() -> None:
    in_an_evaluation(signal.SIGTERM)


def int_in_an_evaluation() -> None:
    in_an_evaluation(signal.SIGINT)


def term_in_a_save() -> None:
    in_a_save(signal.SIGTERM)


def int_in_a_save() -> None:
    in_a_save(signal.SIGINT)


def twice_in_a_step() -> None:
    in_a_step(signal.SIGTERM, 2)


def twice_in_a_save() -> None:
    in_a_save(signal.SIGINT, 2)


SIGNALLED = {"steps": 8, "save_every": 5, "validate_every": 4}


@pytest.fixture(scope="module")
def undisturbed(letters: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that no signal reaches."""
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(settings(letters, out, **SIGNALLED)) == [0]
    return out


@pytest.mark.parametrize(
    ("before", "code", "step"),
    [
        (term_in_a_step, 143, 3),
        (int_in_a_step, 130, 3),
        (term_in_an_evaluation, 143, 4),
        (int_in_an_evaluation, 130, 4),
        (term_in_a_save, 143, 5),
        (int_in_a_save, 130, 5),
    ],
)
def test_a_signal_is_answered_with_one_last_checkpoint(
    before: Callable[[], None], code: int, step: int, letters: Path, undisturbed: Path, tmp_path: Path
) -> None:
    config = settings(letters, tmp_path / "run", **SIGNALLED)
    assert run(config, before) == [code]
    assert [path.name for path in listed(tmp_path / "run" / "checkpoints")] == [f"step-{step:08d}"]
    assert run(replace(config, resume=True)) == [0]
    assert_same(tmp_path / "run", undisturbed, 8)


@pytest.mark.parametrize(("before", "code"), [(twice_in_a_step, 143), (twice_in_a_save, 130)])
def test_a_second_signal_leaves_at_once(before: Callable[[], None], code: int, letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", save_every=3)
    assert run(config, before) == [code]
    assert listed(tmp_path / "run" / "checkpoints") == []
    assert len(metrics(tmp_path / "run", "train")) in (2, 3)
    assert run(replace(config, resume=True)) == [0]


def test_the_commands_exit_code_is_the_signals(letters: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "unmask.cli.train",
        str(letters),
        "--out",
        str(out),
        "--preset",
        "tiny",
        "--steps",
        "100000",
        "--no-preview",
        "--no-tensorboard",
        "--validate-every",
        "100000",
        "--threads",
        "1",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not ((out / "metrics.jsonl").is_file() and (out / "metrics.jsonl").stat().st_size):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, text = process.communicate()
    assert process.returncode == 143, text
    last = newest(out / "checkpoints")
    assert last is not None and last.step == len(metrics(out, "train")) and f"SIGTERM after step {last.step}" in text


# 5. Corrupt and missing checkpoints


def test_a_corrupt_newest_checkpoint_is_skipped_and_named(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run")
    train(config)
    train(replace(config, out=str(tmp_path / "whole")))
    damaged = tmp_path / "run" / "checkpoints" / "step-00000006" / "optimizer.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.warns(UserWarning, match=r"skipping a damaged checkpoint: .*step-00000006/optimizer\.safetensors"):
        train(replace(config, resume=True))
    assert_same(tmp_path / "run", tmp_path / "whole", 6)


def test_a_checkpoint_asked_for_by_name(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run")
    train(config)
    train(replace(config, out=str(tmp_path / "whole")))
    with pytest.raises(CheckpointError, match=r"step-00000003: no such checkpoint"):
        train(replace(config, resume_from="step-00000003"))
    (tmp_path / "run" / "checkpoints" / "step-00000004" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"step-00000004.*is damaged"):
        train(replace(config, resume_from="step-00000004"))
    train(replace(config, resume_from="step-00000002"))
    assert_same(tmp_path / "run", tmp_path / "whole", 6)


# 6 is shown in tests/training/test_loop.py, for every kind of difference; here, that a checkpoint itself is checked.


def test_a_checkpoint_of_another_network_is_refused(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", steps=2)
    train(config)
    train(replace(config, out=str(tmp_path / "wide"), width=32))
    path = tmp_path / "run" / "checkpoints" / "step-00000002"
    for file in path.iterdir():
        file.write_bytes((tmp_path / "wide" / "checkpoints" / path.name / file.name).read_bytes())
    with pytest.raises(CheckpointError, match=r"model.safetensors does not fit this run: .* is \[.*32.*\] and not \["):
        train(replace(config, resume=True))


# 7. Not a number


def new_learner(config: TrainConfig) -> tuple[Learner, Any]:
    data, accelerator = find(config), make_accelerator(config)
    config = resolve(config, tokens=240, length=12, device="cpu")
    return Learner(config, of_config(config, data.train.vocab_size, data.train.length), accelerator), data.train


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stops_before_the_update(what: str, value: float, letters: Path, tmp_path: Path) -> None:
    made, tokens = new_learner(settings(letters, tmp_path))
    made.update(tokens, tmp_path)
    head = made.network.output_layer.linear
    if what == "loss":
        with torch.no_grad():
            head.bias[0] = value
    else:
        head.bias.register_hook(lambda gradient: gradient * value)
    before = {group: {name: t.clone() for name, t in tensors.items()} for group, tensors in made.tensors().items()}
    with pytest.raises(NotFinite, match=r"step 1 has the loss .* stopped before the update"):
        made.update(tokens, tmp_path)
    assert made.step == 1
    for group, tensors in made.tensors().items():
        assert all(torch.equal(t, before[group][name]) or not t.isfinite().all() for name, t in tensors.items())
    note = json.loads((tmp_path / "not-finite-step-00000001.json").read_text())
    expected = learner.global_batch(len(tokens), 6, 0, 1)
    assert note["sequences"] == expected.tolist() and note["step"] == 1
    assert bool(note["sequences_not_finite"]) == (what == "loss")


def test_a_run_that_diverges_ends_with_its_last_good_checkpoint(letters: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFinite):
        train(settings(letters, tmp_path / "run", learning_rate=1e38, warmup=0, save_every=1, dropout=0.0))
    found = newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    assert [path.name for path in (tmp_path / "run").glob("not-finite-*")] == [f"not-finite-step-{found.step:08d}.json"]


# 8. No pickle is executed, and every bad file is one clear error


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def resum(path: Path) -> None:
    """Make the checksums agree with whatever the files are."""
    files = [file for file in sorted(path.iterdir()) if file.name != checkpoint.SUMS]
    (path / checkpoint.SUMS).write_text("".join(f"{checkpoint.sha256_of(file)}  {file.name}\n" for file in files))


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "extra.pt"])
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_a_pickle_is_refused_and_not_run(name: str, how: str, letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", steps=4)
    train(config)
    path, mark = tmp_path / "run" / "checkpoints" / "step-00000004", tmp_path / "the payload ran"
    if how == "pickle":
        (path / name).write_bytes(pickle.dumps(Payload(mark)))
    else:
        torch.save({"weight": Payload(mark)}, path / name)
    pickle.loads(pickle.dumps(Payload(mark)))
    assert mark.exists(), "the payload works"
    mark.unlink()
    resum(path)
    with pytest.raises(CheckpointError, match="step-00000004"):
        train(replace(config, resume_from="step-00000004"))
    with pytest.warns(UserWarning, match="skipping a damaged checkpoint: .*step-00000004"):
        train(replace(config, resume=True))
    assert not mark.exists()


def header(content: dict[str, Any] | bytes, length: int | None = None) -> bytes:
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        header(b"{}", 1 << 62),
        header(b"not json"),
        header(b"[]"),
        header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}) + b"\0" * 8,
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}) + b"\0" * 4,
    ],
)
def test_a_bad_header_is_one_clear_error(content: bytes, tmp_path: Path) -> None:
    path = write(tmp_path, 1, {"model": {"a": torch.eye(2)}}, {})
    (path / "model.safetensors").write_bytes(content)
    resum(path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file"):
        read(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("output_layer.linear.bias"), r"output_layer\.linear\.bias is missing"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "extra does not belong"),
        (lambda tensors: tensors.update({"rotary_emb.inv_freq": torch.ones(3)}), r"inv_freq is \[3\] and not \[4\]"),
    ],
)
def test_wrong_tensors_are_one_clear_error(
    change: Callable[[dict[str, Any]], Any], message: str, letters: Path, tmp_path: Path
) -> None:
    config = settings(letters, tmp_path / "run", steps=2)
    train(config)
    found = newest(tmp_path / "run" / "checkpoints")
    assert found is not None
    change(found.tensors["model"])
    save_file(found.tensors["model"], found.path / "model.safetensors")
    resum(found.path)
    with pytest.raises(CheckpointError, match=rf"model\.safetensors does not fit this run: .*{message}"):
        train(replace(config, resume=True))


def test_a_missing_group_is_one_clear_error(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", steps=2)
    train(config)
    path = tmp_path / "run" / "checkpoints" / "step-00000002"
    (path / "ema.safetensors").unlink()
    resum(path)
    with pytest.raises(CheckpointError, match=r"holds \['model', 'optimizer'\] and not \['ema', 'model', 'opt"):
        train(replace(config, resume=True))
