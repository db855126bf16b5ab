"""Two processes on the CPU train as one does: the same batches, masks and times, and so the same losses."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import accelerate_launch
from tests.training.runs import metrics, run, settings, write_tokens
from unmask.checkpoints.folder import load_network as load
from unmask.training.checkpoint import newest


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


def sharded(block: str = "Block") -> dict[str, Any]:
    """accelerate's FSDP2 over gloo. accelerate reserves it for GPUs, so this is declared to be one."""
    from accelerate import Accelerator
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        cpu_ram_efficient_loading=False,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=[block],
    )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = DistributedType.FSDP, plugin
    assert accelerator.is_fsdp2
    return {"accelerator": accelerator}


def sharded_llama() -> dict[str, Any]:
    return sharded("LlamaBlock")


def assert_close(one: Path, other: Path) -> None:
    """The same losses, gradient norms, bounds and final weights, to the rounding of float32."""
    for a, b in zip(metrics(one, "train"), metrics(other, "train"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-4)
    for a, b in zip(metrics(one, "validation"), metrics(other, "validation"), strict=True):
        assert a["nats_per_token"] == pytest.approx(b["nats_per_token"], rel=1e-5)
        assert a["error"] == pytest.approx(b["error"], rel=1e-4) and a["sequences"] == b["sequences"]
    x, y = newest(one / "checkpoints"), newest(other / "checkpoints")
    assert x is not None and y is not None and x.step == y.step
    for group in ("model", "ema"):
        for name, tensor in x.tensors[group].items():
            assert torch.allclose(tensor, y.tensors[group][name], atol=2e-4), name


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": "count", "times": "adaptive", "micro_batch": 3},
        {"objective": "left-to-right", "optimizer": "muon", "validate_sequences": 7},
    ],
)
def test_two_processes_have_the_losses_of_one(changes: dict[str, Any], letters: Path, tmp_path: Path) -> None:
    """Stratified times included; an odd number of held-out sequences, too."""
    config = settings(letters, tmp_path / "one", **({"dropout": 0.0, "eps": 1e-3} | changes))
    assert config.times in ("stratified", "adaptive")
    assert run(config) == [0]
    assert run(replace(config, out=str(tmp_path / "two")), world=2) == [0, 0]
    assert_close(tmp_path / "one", tmp_path / "two")


def test_shards_have_the_losses_of_one_process_and_resume_on_it(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "one", dropout=0.0, eps=1e-3)
    assert run(config) == [0]
    shards = replace(config, out=str(tmp_path / "shards"))
    assert run(replace(shards, steps=2), sharded, world=2) == [0, 0]
    assert run(replace(shards, steps=4, resume=True), sharded, world=2) == [0, 0]
    load(tmp_path / "shards" / "model")
    assert run(replace(shards, resume=True)) == [0], "a checkpoint is whole, whoever wrote it"
    assert metrics(tmp_path / "shards", "train")[-1]["step"] == 6
    for a, b in zip(metrics(tmp_path / "one", "train"), metrics(tmp_path / "shards", "train"), strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-5)
        assert a["gradient_norm"] == pytest.approx(b["gradient_norm"], rel=1e-4)


@pytest.mark.parametrize("changes", [{}, {"lora": 2, "gradient_checkpointing": True}])
def test_llada_is_fine_tuned_in_shards_as_in_one_process(changes: dict[str, Any], tmp_path: Path) -> None:
    from tests.training.families import made, texts

    own = {"preset": None, "layers": None, "width": None, "heads": None, "convolution": None, "length": None}
    begin = {"init": str(made(tmp_path / "base", "llada")), "eps": 1e-3, "validate_every": 6, "save_every": 6}
    config = settings(texts(tmp_path, "llada"), tmp_path / "one", **own | begin | changes)
    assert run(config) == [0]
    assert run(replace(config, out=str(tmp_path / "two")), sharded_llama, world=2) == [0, 0]
    assert_close(tmp_path / "one", tmp_path / "two")
    for folder in ("one", "two"):
        assert (tmp_path / folder / "model" / "model.safetensors").is_file()


@pytest.mark.slow
def test_accelerate_launch_runs_the_command(letters: Path, tmp_path: Path) -> None:
    command = accelerate_launch(
        "unmask.cli.train",
        str(letters),
        "--out",
        str(tmp_path / "run"),
        "--preset",
        "tiny",
        "--steps",
        "4",
        "--batch",
        "4",
        "--no-tensorboard",
    )
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("finished after 4 steps") == 1
    assert len(metrics(tmp_path / "run", "train")) == 4


def test_a_batch_that_cannot_be_shared_is_refused(letters: Path, tmp_path: Path) -> None:
    assert run(settings(letters, tmp_path / "run", batch=5), world=2) == [1, 1]
    assert not (tmp_path / "run").exists()
