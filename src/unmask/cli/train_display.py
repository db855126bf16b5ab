"""What a person sees of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from unmask.training.events import Event, Report, Started, Stepped, Validated
from unmask.training.lines import Lines, RecentSpeed, opening, told


@contextmanager
def display(stream: TextIO | None = None) -> Iterator[Report]:
    """A report to hand to ``train``: rich's progress bar where the stream is a terminal, otherwise plain lines."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield Lines(stream)
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield Lines(stream)
        return
    console = Console(file=stream)
    count, shown = TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"), TextColumn("{task.fields[shown]}")
    with Progress(count, BarColumn(), TimeRemainingColumn(compact=True), shown, console=console) as progress:
        console.show_cursor(True)  # a second Ctrl-C leaves at once, and nobody would bring it back
        yield Live(progress)


class Live:
    """The progress bar, with everything that is worth keeping printed above it."""

    def __init__(self, progress: Any) -> None:
        self.progress, self.speed, self.bound = progress, RecentSpeed(1), ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.speed = RecentSpeed(event.tokens_per_step)
            self._print(opening(event))
            self.task = self.progress.add_task("", total=event.config.steps, completed=event.step, shown="")
        elif isinstance(event, Stepped):
            self.speed.add(event)
            self.progress.update(self.task, completed=event.step, shown=f"{self.speed.text()}{self.bound}")
        elif (text := told(event)) is not None:
            if isinstance(event, Validated):
                self.bound = f"  bound {event.bound.nats_per_token:.3f}"
            self._print(text)

    def _print(self, text: str) -> None:
        self.progress.console.print(text, markup=False, highlight=False)
