"""The training loop: validate, save, stop or step, in that order, until the last step is done."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unmask.data.prepare import Progress
from unmask.protocol import is_left_to_right
from unmask.sampling import sample
from unmask.train import checkpoint as checkpoints
from unmask.train import curve
from unmask.train import data as find_data
from unmask.train.config import TrainConfig, completed, explained, resolve
from unmask.train.data import Data
from unmask.train.events import Finished, Previewed, Report, Saved, Started, Stepped, Validated
from unmask.train.export import beside, export
from unmask.train.learner import Learner
from unmask.train.run import Metrics, Run, stored_config
from unmask.train.signals import Interrupted, Signals
from unmask.train.trackers import trackers
from unmask.train.validate import validate

PREVIEW_STEPS = 64


def train(
    config: TrainConfig,
    *,
    report: Report = lambda event: None,
    progress: Progress | None = None,
    accelerator: Any = None,
) -> Path:
    """Train, and return the folder of the finished model.

    report is called with every event of ``events``, in the main process; progress while text is prepared. Raises
    Interrupted after SIGTERM or SIGINT, when a last checkpoint is saved, and NotFinite before a bad update.
    """
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    accelerator = accelerator or make_accelerator(config)
    run = Run(Path(config.out))
    resumed = run.occupied(config)
    with accelerator.main_process_first():
        data = find_data.find(config, progress if accelerator.is_main_process else None)
    asked, config = config, _resolved(config, data, run, accelerator)
    network = config.network(data.train.vocab_size, data.train.length)
    if resumed:
        run.check(config, data, network)
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        if accelerator.is_main_process:
            stack.enter_context(run.locked())
        learner = Learner(config, network, accelerator)
        accelerator.wait_for_everyone()  # everybody has looked at the folder before it changes
        lines = _restore(learner, run, config) if resumed else 0
        if config.init is not None and learner.step == 0:
            learner.begin_with(config.init)
        metrics = None
        if accelerator.is_main_process:
            run.start(config, data, network)
            metrics = stack.enter_context(closing(Metrics(run.metrics, lines)))
        tracked = stack.enter_context(trackers(config, run, learner.step, accelerator))
        training = Training(config, data, run, learner, metrics, (report, *tracked))
        training.tell(_started(asked, training))
        with Signals() as signals:
            training.loop(signals)
        return training.finish()


@dataclass
class Training:
    """A run in progress."""

    config: TrainConfig
    data: Data
    run: Run
    learner: Learner
    metrics: Metrics | None  # the main process's
    reports: tuple[Report, ...]

    def loop(self, signals: Signals) -> None:
        """Validate, save, stop or step. What was done for a step is remembered, so a resumed run does it once."""
        config, learner = self.config, self.learner
        assert config.steps is not None and config.validate_every and config.save_every
        while True:
            end = learner.step == config.steps
            if learner.step and (end or learner.step % config.validate_every == 0) and learner.validated < learner.step:
                self.validate(signals)
            stop = self._agreed(signals)
            due = stop or (learner.step and (end or learner.step % config.save_every == 0))
            if due and learner.saved < learner.step:
                self.save()
                stop = stop or self._agreed(signals)
            if stop:
                raise Interrupted(stop, learner.step)
            if end:
                return
            self.step()

    def step(self) -> None:
        started = time.perf_counter()
        result = self.learner.update(self.data.train, self.run.folder)
        seconds = time.perf_counter() - started
        step = self.learner.step
        if step % self.config.log_every == 0 or step == self.config.steps:
            self.log(
                "train",
                loss=result.loss,
                gradient_norm=result.gradient_norm,
                learning_rate=result.learning_rate,
                seconds=seconds,
            )
        self.tell(Stepped(step, result.loss, result.gradient_norm, result.learning_rate, seconds))

    def validate(self, signals: Signals) -> None:
        """The bound on held-out data, and a sampled preview, with the averaged weights."""
        config, learner = self.config, self.learner
        assert config.micro_batch is not None
        with learner.with_average():
            bound = validate(
                learner.losses,
                self.data.valid,
                learner.accelerator,
                kind=config.objective,
                sequences=config.validate_sequences,
                micro_batch=config.micro_batch,
                schedule=learner.schedule,
                stop=lambda: self._agreed(signals),
            )
            if bound is None:
                return
            learner.validated, learner.bound = learner.step, bound.record()
            self.log("validation", **bound.record())
            self.tell(Validated(learner.step, bound))
            if config.preview and self.metrics is not None and not learner.sharded:
                self.preview(lambda: signals.received)

    def preview(self, stop: Callable[[], object]) -> None:
        """One sampled sequence, always from the same seed; broken off quietly by a signal."""
        learner, length = self.learner, self.data.train.length
        network = learner.network

        def check(step: object) -> None:
            if stop():
                raise _Stopped

        try:
            steps = None if is_left_to_right(network) else min(length, PREVIEW_STEPS)
            made = sample(
                network, length=length, steps=steps, seed=self.config.seed, schedule=learner.schedule, callback=check
            )
        except _Stopped:
            return
        text = self.data.train.tokenizer.decode(made.tokens[0].tolist())
        self.log("preview", text=text)
        self.tell(Previewed(learner.step, text))

    def save(self) -> None:
        """A checkpoint of this step; a failure in the main process is everybody's."""
        learner, accelerator = self.learner, self.learner.accelerator
        tensors, failure = learner.tensors(), None
        if self.metrics is not None:
            self.metrics.sync()
            try:
                state = {**learner.state(), "metrics_lines": self.metrics.lines}
                texts = beside(learner.network, self.config, self.data, learner)
                path = checkpoints.write(self.run.checkpoints, learner.step, tensors, state, texts)
                checkpoints.prune(self.run.checkpoints, self.config.keep)
                self.tell(Saved(learner.step, path))
            except Exception as error:
                failure = error
        failed = accelerator.gather(torch.tensor([int(failure is not None)], device=accelerator.device))
        if bool(failed.any()):
            raise OSError(f"step {learner.step} could not be saved: {failure or 'see the main process'}") from failure
        learner.saved = learner.step

    def finish(self) -> Path:
        network = self.learner.averaged()
        if self.metrics is not None:
            export(self.run.model, network, self.config, self.data, self.learner)
            with suppress(ImportError):  # matplotlib is an extra
                curve.draw(self.run.metrics, self.run.folder / "curve.png")
        self.tell(Finished(self.learner.step, self.run.model))
        self.learner.accelerator.wait_for_everyone()
        return self.run.model

    def log(self, kind: str, **values: Any) -> None:
        if self.metrics is not None:
            self.metrics.write({"step": self.learner.step, "kind": kind, **values})

    def tell(self, event: Any) -> None:
        if self.metrics is not None:
            for report in self.reports:
                report(event)

    def _agreed(self, signals: Signals) -> int:
        """The number of a signal that any process received, or 0; they must all stop at the same step."""
        accelerator = self.learner.accelerator
        if accelerator.num_processes == 1:
            return signals.received
        return int(accelerator.gather(torch.tensor([signals.received], device=accelerator.device)).max())


class _Stopped(Exception):
    """Leaves a preview."""


def make_accelerator(config: TrainConfig) -> Any:
    """Hugging Face accelerate's view of this process: alone, or one of those that ``accelerate launch`` started."""
    try:
        from accelerate import Accelerator  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError("training needs accelerate: pip install 'unmask[train]'") from error
    cpu = config.device == "cpu" or not torch.accelerator.is_available()
    precision = config.precision or ("float32" if cpu else "bf16")
    accelerator = Accelerator(cpu=cpu, mixed_precision="bf16" if precision == "bf16" else "no")
    kind = accelerator.distributed_type.value
    if (kind == "FSDP" and not accelerator.is_fsdp2) or kind in ("DEEPSPEED", "MEGATRON_LM", "XLA"):
        raise ValueError(f"accelerate was configured for {kind}: use DDP, or FSDP with fsdp_version 2")
    return accelerator


def _resolved(config: TrainConfig, data: Data, run: Run, accelerator: Any) -> TrainConfig:
    """The effective configuration: what is open comes from the run that is resumed, or from the table of defaults."""
    before = stored_config(run.folder)
    if before is not None:
        config = completed(config, before)
    tokens = len(data.train) * data.train.length
    config = resolve(config, tokens=tokens, length=data.train.length, device=accelerator.device.type)
    assert config.batch is not None
    if config.batch % accelerator.num_processes:
        raise ValueError(f"batch={config.batch}: it must be a multiple of the {accelerator.num_processes} processes")
    return config


def _restore(learner: Learner, run: Run, config: TrainConfig) -> int:
    """Continue from the checkpoint that was asked for, or the newest sound one; return its count of metrics' lines."""
    if config.resume_from is not None:
        found: checkpoints.Checkpoint | None = checkpoints.read(run.checkpoints / Path(config.resume_from).name)
    else:
        with warnings.catch_warnings():
            if not learner.accelerator.is_main_process:
                warnings.simplefilter("ignore")
            found = checkpoints.newest(run.checkpoints)
    if found is None:
        return 0
    learner.restore(found)
    if config.steps is not None and learner.step > config.steps:
        raise ValueError(f"steps={config.steps}: {found.path} has {learner.step} steps already; ask for more")
    return int(found.state.get("metrics_lines", 0))


def _started(asked: TrainConfig, training: Training) -> Started:
    config, parameters = training.config, training.learner.network.parameters()
    assert config.batch is not None
    note = explained(asked, config, sum(parameter.numel() for parameter in parameters))
    return Started(config, training.learner.step, config.batch * training.data.train.length, note)
