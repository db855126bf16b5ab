"""The display of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from unmask.cli.prepare import SECONDS_BETWEEN_UPDATES, STAGES, plain_lines
from unmask.data.prepare import Progress
from unmask.training.events import Event, Finished, Replanned, Report, Started, Stepped, Validated
from unmask.training.lines import Lines, RecentSpeed, opening, told


@contextmanager
def display(stream: TextIO | None = None) -> Iterator[tuple[Report, Progress]]:
    """The callbacks for ``train``: rich's progress bar if the stream is a terminal, otherwise plain lines."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield Lines(stream), plain_lines(stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(file=stream)
    what, shown = TextColumn("{task.description}"), TextColumn("{task.fields[shown]}")
    with Bar(what, BarColumn(), TimeRemainingColumn(compact=True), shown, console=console) as bar:
        console.show_cursor(True)  # a second Ctrl-C exits at once, and would leave it hidden
        live = Live(bar)
        yield live, live.prepare


class Live:
    """The progress bar, with lasting messages printed above it."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.speed, self.bound = bar, RecentSpeed(1), ""
        self.stage, self.shown = "", 0.0
        self.task: Any = None

    def prepare(self, stage: str, done: int, total: int | None) -> None:
        """One bar for everything before the first step."""
        if stage != self.stage:
            self._begin(STAGES.get(stage, stage), total)
            self.stage = stage
        # Rows are reported one by one, a million times.
        if time.monotonic() - self.shown > SECONDS_BETWEEN_UPDATES:
            self.bar.update(self.task, completed=done, total=total)
            self.shown = time.monotonic()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.speed = RecentSpeed(event.tokens_per_step)
            self._begin(_count(event.step, event.config.steps), event.config.steps, event.step)
            self.stage = ""
            self._print(opening(event))
        elif isinstance(event, Stepped):
            self.speed.add(event)
            count, shown = _count(event.step, self.bar.tasks[-1].total), f"{self.speed.text()}{self.bound}"
            self.bar.update(self.task, completed=event.step, description=count, shown=shown)
        elif isinstance(event, Replanned):
            self.bar.update(self.task, total=event.steps)
        elif (text := told(event)) is not None:
            if isinstance(event, Finished):
                self.bar.stop()  # or it would be drawn once more below what comes next
            if isinstance(event, Validated):
                self.bound = f"  bound {event.bound.nats_per_token:.3f}"
            self._print(text)

    def _begin(self, what: str, total: int | None, done: int = 0) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(what, total=total, completed=done, shown="")

    def _print(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)


def _count(step: int, steps: float | None) -> str:
    return f"step {step:,}/{steps or 0:,.0f}"
