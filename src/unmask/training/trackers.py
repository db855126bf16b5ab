"""TensorBoard and Weights & Biases, as readers of the run's events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from unmask.extras import needed
from unmask.training.config import TrainConfig
from unmask.training.events import Event, Previewed, Report, Stepped, Validated
from unmask.training.run import Run


@contextmanager
def trackers(config: TrainConfig, run: Run, step: int, accelerator: Any) -> Iterator[list[Report]]:
    """The trackers of the configuration, in the main process; steps after ``step`` are overwritten."""
    if not accelerator.is_main_process:
        yield []
        return
    board = _tensorboard(run, step) if config.tensorboard else None
    wandb = _wandb(config, run) if config.wandb else None

    def track(event: Event) -> None:
        values = _scalars(event)
        if values and board is not None:
            for name, value in values.items():
                board.add_scalar(name, value, event.step)
        if values and wandb is not None:
            wandb.log(values, step=event.step)
        if isinstance(event, Previewed) and board is not None:
            board.add_text("preview", event.text, event.step)

    try:
        yield [track]
    finally:
        if board is not None:
            board.close()
        if wandb is not None:
            wandb.finish()


def _scalars(event: Event) -> dict[str, float]:
    if isinstance(event, Stepped):
        return {
            "train/loss": event.loss,
            "train/gradient_norm": event.gradient_norm,
            "train/learning_rate": event.learning_rate,
            "train/seconds": event.seconds,
        }
    if isinstance(event, Validated):
        return {f"validation/{name}": value for name, value in event.bound.record().items() if value is not None}
    return {}


def _tensorboard(run: Run, step: int) -> Any:
    why = "TensorBoard, which --no-tensorboard switches off, needs tensorboard"
    return needed("torch.utils.tensorboard", why, "train").SummaryWriter(
        str(run.folder / "tensorboard"), purge_step=step + 1
    )


def _wandb(config: TrainConfig, run: Run) -> Any:
    wandb = needed("wandb", "--wandb needs wandb", "wandb")
    name, folder = run.folder.name, str(run.folder)
    return wandb.init(project="unmask", name=name, dir=folder, config=asdict(config), resume="allow")
