"""What comes before the first step: the machine, the effective configuration, and where a run continues."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask import devices
from unmask.data.prepare import Progress
from unmask.extras import needed
from unmask.training import checkpoint as checkpoints
from unmask.training.config import TrainConfig
from unmask.training.data import Data
from unmask.training.defaults import completed, resolve
from unmask.training.finetune import Base
from unmask.training.learner import Learner
from unmask.training.masking import Loss
from unmask.training.network import Network, of_config, of_user
from unmask.training.run import Run, stored_config

TIMED_STEPS = 3  # after one warm-up step, to plan a run of given minutes
PART_FOR_STEPS = 0.9  # of the minutes; the rest is for validations
PART_FOR_TIMING = 0.05  # after which no further step is timed
FEW_STEPS = 500  # with fewer, a smaller network learns more in the same time
SMALLER = {"small": "compact", "compact": "mini", "mini": "tiny"}


def make_accelerator(config: TrainConfig) -> Any:
    """Hugging Face accelerate's view of this process: alone, or one of those of ``accelerate launch``."""
    accelerate = needed("accelerate", "training needs accelerate", "train")
    device = _device(config.device)
    cpu = device.type == "cpu"
    precision = config.precision or ("float32" if cpu else "bf16")
    accelerator = accelerate.Accelerator(cpu=cpu, mixed_precision="bf16" if precision == "bf16" else "no")
    if accelerator.device.type != device.type:
        raise ValueError(f"device={config.device!r}: accelerate has chosen {accelerator.device} on this machine")
    kind = accelerator.distributed_type.value
    if (kind == "FSDP" and not accelerator.is_fsdp2) or kind in ("DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise ValueError(f"accelerate was configured for {kind}: use DDP, or FSDP with fsdp_version 2")
    return accelerator


def _device(name: str) -> torch.device:
    """The device of this name, which must be here. Of several accelerators that with this index becomes the current."""
    try:
        device = torch.device(devices.chosen(name))
    except RuntimeError as error:
        raise ValueError(f"device={name!r}: {str(error).splitlines()[0]}") from error
    there = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device.type != "cpu" and (there is None or there.type != device.type):
        raise ValueError(f"device={name!r}: this machine has {'no accelerator' if there is None else there.type}")
    if device.index is not None and device.type != "cpu":
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise ValueError(f"device={name!r}: of several processes each takes its own, leave the index out")
        torch.accelerator.set_device_index(device.index)
    return device


def resolved(config: TrainConfig, data: Data, run: Run, accelerator: Any, small: bool | None = None) -> TrainConfig:
    """The effective configuration: open settings come from the resumed run, or from the table of defaults."""
    before = stored_config(run.folder)
    return settled(config if before is None else completed(config, before), data, accelerator, small)


def settled(config: TrainConfig, data: Data, accelerator: Any, small: bool | None = None) -> TrainConfig:
    """Open settings, filled in for the data and the machine; small as in ``defaults.resolve``."""
    if accelerator.distributed_type.value == "FSDP" and config.optimizer is None:
        config = replace(config, optimizer="adamw")  # muon needs whole matrices
    tokens = len(data.train) * data.train.length
    config = resolve(config, tokens=tokens, length=data.train.length, device=accelerator.device.type, small=small)
    assert config.batch is not None
    if config.batch % accelerator.num_processes:
        raise ValueError(f"batch={config.batch}: it must be a multiple of the {accelerator.num_processes} processes")
    return config


def plan(
    asked: TrainConfig,
    data: Data,
    network: Network,
    accelerator: Any,
    small: bool | None,
    report: Progress | None,
    spent: float = 0.0,
) -> tuple[TrainConfig, Network]:
    """The configuration with the steps that fit into its minutes, by timing a few of them with a separate learner.

    If few would fit, and the size of the network was left open, the next smaller size is tried. spent: the seconds that
    the preparation of the data and timing larger ones have taken.
    """
    assert asked.minutes is not None
    budget = 60 * asked.minutes
    one = settled(replace(asked, steps=TIMED_STEPS + 1), data, accelerator, small)
    learner = Learner(one, network, accelerator)
    times: list[float] = []  # of each step, in the slowest process
    while len(times) <= TIMED_STEPS and sum(times) <= PART_FOR_TIMING * budget:
        if report is not None:
            report("timing", len(times), TIMED_STEPS + 1)
        before = time.perf_counter()
        learner.update(data.train, Path(asked.out))
        seconds = torch.tensor([time.perf_counter() - before], device=accelerator.device)
        times.append(float(accelerator.gather(seconds).max()))
    accelerator.free_memory()
    spent += sum(times)
    warm = times[1:] or times  # the first one is a warm-up
    steps = max(1, int(PART_FOR_STEPS * (budget - spent) * len(warm) / sum(warm)))
    free = small is None and not any((asked.init, asked.preset, asked.layers, asked.width, asked.heads))
    if steps < FEW_STEPS and free and one.preset in SMALLER:
        chosen = replace(asked, preset=SMALLER[one.preset])
        network = of_config(settled(chosen, data, accelerator), data.train.vocab_size, data.train.length)
        return plan(chosen, data, network, accelerator, small, report, spent)
    return settled(replace(asked, steps=steps), data, accelerator, small), network


def network_of(
    config: TrainConfig, data: Data, base: Base | None, module: nn.Module | None, loss: Loss | None
) -> Network:
    """The network of a run: that of a checkpoint, the user's module, or the project's."""
    length = data.train.length
    if base is not None:
        return replace(base.made(config, length), loss=loss)
    return of_config(config, data.train.vocab_size, length) if module is None else of_user(module, length, loss)


def restored(learner: Learner, run: Run, config: TrainConfig) -> int:
    """Continue from the requested checkpoint, or the newest sound one; return its number of metrics lines."""
    if config.resume_from is not None:
        checkpoint: checkpoints.Checkpoint | None = checkpoints.read(run.checkpoints / Path(config.resume_from).name)
    else:
        with warnings.catch_warnings():
            if not learner.accelerator.is_main_process:
                warnings.simplefilter("ignore")
            checkpoint = checkpoints.newest(run.checkpoints)
    if checkpoint is None:
        return 0
    learner.restore(checkpoint)
    if learner.step > learner.plan.steps:
        raise ValueError(
            f"steps={learner.plan.steps}: {checkpoint.path} has {learner.step} steps already; ask for more"
        )
    return int(checkpoint.state.get("metrics_lines", 0))
