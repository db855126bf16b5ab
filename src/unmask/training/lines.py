"""Plain lines about a run; the command's display shows the same texts."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, TextIO

from unmask.bound import Bound
from unmask.training.events import Event, Finished, Previewed, Replanned, Saved, Started, Stepped, Validated

WINDOW = 50  # steps over which the speed and the shown loss are averaged
SECONDS_BETWEEN_LINES = 10.0
LONGEST = 24 * 60  # minutes that a forecast may name


class RecentSpeed:
    """Loss and tokens per second over the last steps."""

    def __init__(self, tokens_per_step: int) -> None:
        self.tokens_per_step = tokens_per_step
        self.recent: deque[Stepped] = deque(maxlen=WINDOW)

    def add(self, event: Stepped) -> None:
        self.recent.append(event)

    @property
    def seconds_per_step(self) -> float:
        return sum(event.seconds for event in self.recent) / len(self.recent)

    def text(self) -> str:
        loss = sum(event.loss for event in self.recent) / len(self.recent)
        return f"loss {loss:.3f}  {_count(self.tokens_per_step / max(self.seconds_per_step, 1e-9))} tokens/s"


class Lines:
    """An occasional plain line."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.speed, self.steps, self.last = RecentSpeed(1), 0, -1e9

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            self.speed, self.steps = RecentSpeed(event.tokens_per_step), event.config.steps or 0
            self._print(opening(event))
        elif isinstance(event, Stepped):
            self.speed.add(event)
            if time.monotonic() - self.last > SECONDS_BETWEEN_LINES or event.step == self.steps:
                self.last = time.monotonic()
                left = _duration(self.speed.seconds_per_step * (self.steps - event.step))
                self._print(f"step {event.step:,}/{self.steps:,}  {self.speed.text()}  {left} left")
        elif isinstance(event, Replanned):
            self.steps = event.steps
        elif (text := told(event)) is not None:
            self._print(text)

    def _print(self, text: str) -> None:
        print(text, file=self.stream, flush=True)


def bound_text(bound: Bound) -> str:
    """A bound in all its units."""
    text = f"{bound.nats_per_token:.4f} ± {bound.error:.4f} nats per token"
    text += f", perplexity {bound.perplexity:.4g} ± {bound.perplexity_error:.2g}"
    if bound.bits_per_character is not None:
        text += f", {bound.bits_per_character:.4f} ± {bound.bits_per_character_error:.4f} bits per character"
    return text


def opening(event: Started) -> str:
    """The first line."""
    resumed = f"resumed after step {event.step:,}; " if event.step else ""
    return f"{resumed}{event.note}"


def told(event: Event) -> str | None:
    """Events that deserve a separate line."""
    if isinstance(event, Validated):
        return f"step {event.step:,}  held-out bound {bound_text(event.bound)}"
    if isinstance(event, Previewed):
        return f"step {event.step:,}  sample: {_short(event.text)}"
    if isinstance(event, Saved):
        return f"step {event.step:,}  saved {event.path}"
    if isinstance(event, Finished):
        return "\n".join(_ending(event))
    return None


def _ending(event: Finished) -> Iterator[str]:
    """The model, its bound next to a trigram's, the figure, samples, and commands to try next."""
    if event.why:
        yield f"ended early, because {event.why}; the model of step {event.step:,} is in {event.model}"
    else:
        yield f"finished after {event.step:,} step{'s' * (event.step != 1)}; the model is in {event.model}"
    if event.overfit:
        yield event.overfit
    if event.bound is not None and event.trigram is not None:
        if event.alone is not None:
            yield f"joined with counts; the network alone has {event.alone['nats_per_token']:.3f} nats per token"
        yield _beside_trigram(event.bound, event.trigram, event)
        yield from event.notes
    if event.picture is not None:
        yield f"the curve of the run: {event.picture}"
    for i, text in enumerate(event.samples, 1):
        yield f"sample {i}: {_short(text)}"
    run = event.model.parent
    if event.own:
        yield f"next:  model = unmask.load({str(run)!r}, network={event.own})"
    elif not event.overfit:
        yield f"next:  unmask sample {run}\n       unmask evaluate {run}\n       unmask serve {run}"


def _short(text: str) -> str:
    return " ".join(text.split())[:300] or "(an empty text)"


def _beside_trigram(bound: dict[str, Any], trigram: float, event: Finished) -> str:
    value, error = bound["nats_per_token"], bound["error"]
    beside = (
        f"{value:.3f} ± {error:.3f} nats per token held out; a Kneser-Ney trigram of the same data has {trigram:.3f}"
    )
    if value < trigram - 2 * error:
        return f"{beside}: the network has learned more than counting gives"
    if value > trigram + 2 * error:
        return f"{beside}: counting is still better; {_until(event)}"
    return f"{beside}: they are about equal"


def _until(event: Finished) -> str:
    """The way on for a run that is not as good as counting."""
    minutes = None if event.forecast is None else event.forecast / 60
    if minutes is None:
        way = "train longer, or on more data"
    elif minutes > LONGEST:
        way = "the curve is too flat to say when it passes it: give it more minutes, or more data"
    else:
        way = f"if the curve goes on, passing it takes {math.ceil(minutes)} minutes or more on this machine (--minutes)"
    join = event.countable and event.alone is None
    return f"{way}; --resume --counts joins the network with counts" if join else way


def _count(value: float) -> str:
    return f"{value / 1e3:.1f}k" if value >= 1e3 else f"{value:.0f}"


def _duration(seconds: float) -> str:
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{int(seconds) % 60:02d}s"
