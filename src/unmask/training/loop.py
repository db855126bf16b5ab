"""The training loop: validate, save, stop or step, in that order, until the last step is done."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unmask.checkpoints.user_network import Make
from unmask.data.parts import Progress
from unmask.data.text8 import compared
from unmask.model import Model
from unmask.training import checkpoint as checkpoints
from unmask.training import data as find_data
from unmask.training.config import USER_NETWORK, TrainConfig
from unmask.training.counts import joined
from unmask.training.data import Data
from unmask.training.defaults import explained
from unmask.training.events import Finished, Previewed, Replanned, Report, Saved, Started, Stepped, Validated
from unmask.training.export import beside, export
from unmask.training.finetune import Base, opened
from unmask.training.learner import Learner
from unmask.training.lora import merged, save_adapters
from unmask.training.masking import Loss
from unmask.training.network import SMALL, made
from unmask.training.pace import Now, Pace, agreed, forecast
from unmask.training.report import Plain, by_heart, draw_curve, samples_of, trigram
from unmask.training.run import MetricsFile, Run
from unmask.training.signals import Interrupted, Signals
from unmask.training.start import make_accelerator, network_of, plan, resolved, restored
from unmask.training.trackers import trackers
from unmask.training.validate import validate


def train(
    config: TrainConfig,
    *,
    own: Make | None = None,
    loss: Loss | None = None,
    report: Report = lambda event: None,
    progress: Progress | None = None,
    accelerator: Any = None,
) -> Path:
    """Train, and return the folder of the finished model.

    own: a network instead of the project's; loss: instead of the objective's (see ``unmask.train``). report is called
    with every event of ``events``, in the main process; progress while text is prepared. Raises Interrupted after
    SIGTERM or SIGINT, when a last checkpoint is saved, and NotFinite before a bad update.
    """
    started = time.monotonic()
    torch.set_num_threads(config.threads or torch.get_num_threads())
    accelerator = accelerator or make_accelerator(config)
    main, run = accelerator.is_main_process, Run(Path(config.out))
    progress = progress if main else None
    resumed = run.occupied(config)
    base = opened(config, resumed=resumed)
    if base is not None and own is not None:
        raise ValueError(f"init={config.init!r} brings a network, and so does the caller: give one of them")
    config = config if base is None else base.fitted(config)
    with accelerator.main_process_first():
        data = find_data.find(config, progress, None if base is None else base.reads())
    devices = [accelerator.device] if accelerator.device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices))
        module = None if own is None else made(own, data, config)
        given = module if base is None else base.network
        small = None if given is None else sum(parameter.numel() for parameter in given.parameters()) < SMALL
        asked, config = config, resolved(config, data, run, accelerator, small)
        if config.overfit:
            with accelerator.main_process_first():
                data = find_data.few(data, Path(config.out))
        network = network_of(config, data, base, module, loss)
        if resumed:
            run.check(config, data, network)
        if main:
            stack.enter_context(run.locked())
        if planned := config.minutes is not None and asked.steps is None and not resumed:
            spent = time.monotonic() - started
            config, network = plan(asked, data, network, accelerator, small, progress, spent)
        learner = Learner(config, network, accelerator)
        accelerator.wait_for_everyone()  # all processes have looked at the folder before it changes
        lines = restored(learner, run, config) if resumed else 0
        if config.init is not None and base is None and learner.step == 0:
            learner.begin_with(config.init)
        metrics = None
        if main:
            run.start(config, data, network)
            metrics = stack.enter_context(closing(MetricsFile(run.metrics, lines)))
        tracked = stack.enter_context(trackers(config, run, learner.step, accelerator))
        training = Training(config, data, run, learner, metrics, (report, *tracked), started, planned, base=base)
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
    metrics: MetricsFile | None  # of the main process
    reports: tuple[Report, ...]
    started: float  # by time.monotonic: the minutes count from here, including the preparation of the data
    planned: bool  # whether the steps were chosen for the minutes, and may change with the speed
    why: str = ""  # the run ended before its last step
    base: Base | None = None  # the fine-tuned checkpoint
    begun: float = 0.0  # when its loop began, by time.monotonic
    alone: dict[str, Any] | None = None  # the bound of the network without its counts
    bounds: list[tuple[float, float]] = field(default_factory=list)  # seconds of the loop, nats per token

    def __post_init__(self) -> None:
        minutes = self.config.minutes
        self.pace = Pace(math.inf if minutes is None else 60 * minutes)

    def loop(self, signals: Signals) -> None:
        """Validate, save, stop or step. What was done at a step is recorded, so a resumed run does it once."""
        config, learner = self.config, self.learner
        assert config.validate_every and config.save_every
        self.begun = time.monotonic()
        while True:
            now = self._agreed(signals)
            if now.left is not None:
                self.replan(now.left)
            end = learner.step == learner.plan.steps or (now.late and learner.step > 0)
            first = now.waiting and learner.validated < 0
            wanted = end or first or learner.step % config.validate_every == 0
            if learner.step and wanted and learner.validated < learner.step:
                self.validate(signals)
            given_up = bool(config.patience) and learner.worse >= (config.patience or 0)
            best = bool(config.patience) and learner.best is not None and learner.best["step"] == learner.step
            stop = self._agreed(signals).signal
            end = end or given_up
            due = stop or (learner.step and (end or first or best or learner.step % config.save_every == 0))
            if due and learner.saved < learner.step:
                self.save()
                stop = stop or self._agreed(signals).signal
            if stop:
                raise Interrupted(stop, learner.step)
            if end:
                self.why = self._reason(given_up)
                return
            self.step()

    def _reason(self, given_up: bool) -> str:
        """Why the run ends here, if not at its last step."""
        if self.learner.step == self.learner.plan.steps:
            return ""
        if given_up:
            return f"{self.learner.worse} validations in a row were no better than that of an earlier step"
        return f"the {self.config.minutes:g} minutes are over"

    def replan(self, left: int) -> None:
        """Plan this many more steps, for they fit into the rest of the minutes."""
        learner = self.learner
        self.pace.planned = time.monotonic() - self.started
        learner.plan = learner.plan.again(learner.step, learner.step + left, self.config.warmup or 0)
        self.tell(Replanned(learner.step, learner.plan.steps))

    def step(self) -> None:
        started = time.perf_counter()
        result = self.learner.update(self.data.train, self.run.folder)
        seconds = time.perf_counter() - started
        self.pace.steps.append(seconds)
        step = self.learner.step
        values = {**asdict(result), "seconds": seconds}
        if step % self.config.log_every == 0 or step == self.learner.plan.steps:
            self.log("train", **values)
        self.tell(Stepped(step, **values))

    def validate(self, signals: Signals) -> None:
        """The bound on held-out data, and a sampled preview, with the averaged weights."""
        config, learner = self.config, self.learner
        assert config.micro_batch is not None
        started = time.monotonic()
        with learner.with_average():
            bound = validate(
                learner.losses,
                self.data.valid,
                learner.accelerator,
                objective=config.objective,
                sequences=config.validate_sequences,
                micro_batch=config.micro_batch,
                schedule=learner.schedule,
                stop=lambda: self._agreed(signals).signal,
            )
            if bound is None:
                return
            learner.judge(bound.record())
            self.log("validation", **bound.record())
            self.bounds.append((started - self.begun, bound.nats_per_token))
            self.tell(Validated(learner.step, bound))
            if config.preview and self.metrics is not None and not learner.sharded:
                before = time.monotonic()
                self.preview(lambda: signals.received)
                self.pace.sample = time.monotonic() - before
            self.pace.validation = time.monotonic() - started
            if self.metrics is not None:
                _ = self.counted  # now, because nothing may take long after the last step

    def preview(self, stop: Callable[[], object]) -> None:
        """One sampled sequence, always from the same seed; a signal stops it silently."""
        # Optimised networks read the weights directly, and would miss the adapters.
        network = self.learner.network if self.config.lora is None else Plain(self.learner.network)
        texts = samples_of(self._model(network), self.config.seed, num=1, stop=stop)
        if texts:
            self.log("preview", text=texts[0])
            self.tell(Previewed(self.learner.step, texts[0]))

    @cached_property
    def counted(self) -> float | None:
        """Nats per token of a trigram, for comparison."""
        few = self.config.validate_sequences
        return trigram(self.data.train, self.data.valid, few) if self.config.preview else None

    def save(self) -> None:
        """A checkpoint of this step; a failure in the main process fails all."""
        learner, accelerator = self.learner, self.learner.accelerator
        started = time.monotonic()
        tensors, failure = learner.tensors(), None
        if self.metrics is not None:
            self.metrics.sync()
            try:
                state = {**learner.state(), "metrics_lines": self.metrics.lines}
                texts = beside(learner.network, self.config, self.data, learner, self.base)
                path = checkpoints.write(self.run.checkpoints, learner.step, tensors, state, texts)
                checkpoints.prune(self.run.checkpoints, self.config.keep, (learner.best or {}).get("step"))
                self.tell(Saved(learner.step, path))
            except Exception as error:
                failure = error
        failed = accelerator.gather(torch.tensor([int(failure is not None)], device=accelerator.device))
        if bool(failed.any()):
            raise OSError(f"step {learner.step} could not be saved: {failure or 'see the main process'}") from failure
        learner.saved = learner.step
        self.pace.saving = time.monotonic() - started

    def finish(self) -> Path:
        """Publish the model, the best one if validations can end the run, and report the result."""
        config, learner = self.config, self.learner
        if config.patience and learner.best is not None and learner.best["step"] != learner.step:
            learner.restore(checkpoints.read(self.run.checkpoints / f"step-{learner.best['step']:08d}"))
        network = learner.averaged()
        if self.metrics is not None:
            if config.lora is not None:
                assert self.base is not None
                save_adapters(self.run.folder / "adapter", network, config.lora, self.base.loaded.names)
                network = merged(network)
            if config.counts:
                network, bound = joined(network, self.data, config, learner)
                self.alone, learner.bound = learner.bound, bound.record()
                self.log("counts", **learner.bound)
            export(self.run.model, network, config, self.data, learner, self.base)
            self.tell(self._finished(network))
        learner.accelerator.wait_for_everyone()
        return self.run.model

    def _finished(self, network: nn.Module) -> Finished:
        config, data, learner = self.config, self.data, self.learner
        own = type(network).__name__ if config.preset == USER_NETWORK else ""
        ended = Finished(learner.step, self.run.model, self.why, learner.bound, own=own, notes=self._notes())
        picture = draw_curve(self.run.metrics, self.run.folder / "curve.png")
        if config.overfit and learner.bound is not None:
            lines = map(json.loads, self.run.metrics.read_text(encoding="utf-8").splitlines())
            bounds = [line["nats_per_token"] for line in lines if line["kind"] == "validation"]
            return replace(ended, picture=picture, overfit=by_heart(data.train, bounds))
        return replace(
            ended,
            picture=picture,
            trigram=self.counted,
            forecast=None if self.counted is None else forecast(self.bounds, self.counted),
            alone=self.alone,
            countable=config.counts or (config.kind.joins_counts and config.init is None and not own),
            samples=samples_of(self._model(network), config.seed) if config.preview else (),
        )

    def _model(self, network: Any) -> Model:
        tokens = self.data.train
        about: dict[str, Any] = {"layout": tokens.header.layout, "extra": {"length": tokens.length}}
        return Model(network, tokens.tokenizer, self.learner.schedule, **about)

    def _notes(self) -> tuple[str, ...]:
        """Notes about the bound's units, and whether it is comparable with published numbers."""
        bits, tokens = (self.learner.bound or {}).get("bits_per_character"), self.data.valid
        beside = "" if bits is None else compared(tokens.header.source, bits)
        return tuple(note for note in (tokens.units_note and f"note: {tokens.units_note}", beside) if note)

    def log(self, kind: str, **values: Any) -> None:
        if self.metrics is not None:
            self.metrics.write({"step": self.learner.step, "kind": kind, **values})

    def tell(self, event: Any) -> None:
        if self.metrics is not None:
            for report in self.reports:
                report(event)

    def _agreed(self, signals: Signals) -> Now:
        """The signals and clocks of all processes."""
        clock, every = time.monotonic(), self.config.validate_every or 1
        times = clock - self.started, clock - self.begun
        return agreed(self.learner.accelerator, signals.received, self.pace, *times, every if self.planned else None)


def _started(asked: TrainConfig, training: Training) -> Started:
    config, parameters = training.config, training.learner.network.parameters()
    assert config.batch is not None
    processes = training.learner.accelerator.num_processes
    note = explained(asked, config, sum(parameter.numel() for parameter in parameters), processes)
    return Started(config, training.learner.step, config.batch * training.data.train.length, note)
