"""The display of sampling: the canvas as it fills, and a bar with a known end.

Everything is drawn from Steps. The canvas is wrapped at the terminal's width, so that a line moves only if a token is
longer or shorter than its blank; between words where a token has several characters.
"""

from __future__ import annotations

import codecs
import itertools
import math
import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from torch import Tensor

from unmask.sampler import Step, apply

if TYPE_CHECKING:
    from unmask.tokenizers.external import ExternalTokenizer
    from unmask.tokenizers.tokenizer import Tokenizer

FOG = "░"  # a blank, with the average width of a token
END = "¶"  # eos and padding
SHADES = " ░▒▓█"  # grey levels, from black to white
NEW, RECENT, OLD, GIVEN, BLANK, GUESS = "bold black on green", "green", "", "bold", "dim", "dim italic"
REFRESHES_PER_SECOND = 10
MOST_FOG = 6

Span = tuple[str, str]  # text and its style


@contextmanager
def view(
    tokenizer: Tokenizer | ExternalTokenizer | None,
    canvas: Tensor,
    mask_id: int,
    *,
    stream: TextIO,
    with_canvas: bool = True,
    width: float = 1.0,
) -> Iterator[Callable[[Step], None]]:
    """A callback that shows sequence 0 of the canvas [B, L] and the bar on a terminal, and nothing elsewhere.

    width: average number of characters per token. with_canvas=False shows only the bar, and needs no tokenizer.
    Everything is erased at the end.
    """
    console = _console(stream)
    if console is None:
        yield lambda step: None
        return
    from rich.live import Live

    shown = CanvasView(tokenizer, canvas, mask_id, with_canvas=with_canvas, width=width)
    with Live(
        get_renderable=lambda: shown.render(console.size.width, console.size.height),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        vertical_overflow="crop",
    ):
        yield shown


class CanvasView:
    """The state of the display: the canvas, and the call that filled each position of sequence 0."""

    def __init__(
        self,
        tokenizer: Tokenizer | ExternalTokenizer | None,
        canvas: Tensor,
        mask_id: int,
        *,
        with_canvas: bool = True,
        width: float = 1.0,
    ) -> None:
        self.tokenizer, self.tokens, self.mask_id = tokenizer, canvas.cpu().clone(), mask_id
        self.with_canvas, self.fog = with_canvas, FOG * min(max(round(width), 1), MOST_FOG)
        self.filled_at: dict[int, int] = {}
        self.guesses: dict[int, int] | None = None  # of sequence 0, with look-ahead
        self.holes = self._masked()
        self.calls = self.planned = self.own_calls = 0
        self.tau = 1.0
        self.started = clock.monotonic()

    def __call__(self, step: Step) -> None:
        apply(step, self.tokens, self.mask_id)
        self.calls, self.planned = step.calls, step.planned
        for row in (step.sequences == 0).nonzero().flatten().tolist():
            self.own_calls += 1
            self.filled_at |= {p: self.own_calls for p in step.positions[row].tolist() if p >= 0}
            self.guesses = None if step.guessed is None else dict(step.guessed[row].tolist())
        real = step.positions >= 0
        self.tau = float(step.tau[real].min()) if bool(real.any()) else self.tau

    def render(self, width: int, height: int) -> Any:
        """As much of the canvas as fits, and the bar."""
        from rich.console import Group
        from rich.text import Text

        bar = self._bar()
        if not self.with_canvas:
            return bar
        note = self._note()
        room = max(height - 4, 1)
        lines, cut = lines_of(self.spans(), width - 1, room, words=len(self.fog) > 1)
        notes = [*([f"the first {room} lines of {self.tokens.shape[1]:,} tokens"] if cut else []), *note]
        shown = [Text.assemble(*line, no_wrap=True, overflow="crop") for line in lines]
        last = [Text("; ".join(notes), style="dim", no_wrap=True, overflow="ellipsis")] if notes else []
        return Group(*shown, Text(""), bar, *last)

    def spans(self) -> Iterable[Span]:
        """The canvas of sequence 0 in pieces of one style."""
        assert self.tokenizer is not None
        ids = self.tokens[0].tolist() if len(self.tokens) else []
        styles = [self._style(position, i) for position, i in enumerate(ids)]
        ids = [(self.guesses or {}).get(position, i) if i == self.mask_id else i for position, i in enumerate(ids)]
        side = square(len(ids)) if self.tokenizer.kind == "levels" else None
        if side is not None:
            return _picture(ids, styles, side, self.tokenizer.vocab_size)
        return text_spans(ids, styles, self.tokenizer, self.fog, self.mask_id)

    def _style(self, position: int, i: int) -> str:
        if i == self.mask_id:
            return GUESS if position in (self.guesses or {}) else BLANK
        if position not in self.filled_at:
            return GIVEN
        age = self.own_calls - self.filled_at[position]
        return NEW if age == 0 else RECENT if age <= 4 else OLD

    def _bar(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        elapsed = clock.monotonic() - self.started
        # The number of calls with look-ahead is not known in advance: tokens are counted instead.
        done, total, unit = self.calls, self.planned, "call"
        if self.guesses is not None:
            done, total, unit = self.holes - self._masked(), self.holes, f"call {self.calls:,}, token"
        left = duration(elapsed / done * (total - done)) if done else "?"
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(no_wrap=True)
        row.add_row(
            f"{unit} {done:,}/{f'{total:,}' if total else '?'}",
            ProgressBar(total=total or 1, completed=done),
            f"tau {self.tau:.3f}  {duration(elapsed)} elapsed, {left} left",
        )
        return row

    def _masked(self) -> int:
        return int((self.tokens == self.mask_id).sum())

    def _note(self) -> list[str]:
        if len(self.tokens) < 2:
            return []
        done = int((self.tokens != self.mask_id).all(1).sum())
        return [f"sequence 1 of {len(self.tokens):,}; {done:,} done"]


def square(length: int) -> int | None:
    """The side of a square image with this many pixels."""
    side = math.isqrt(length)
    return side if side > 1 and side * side == length else None


def shade(level: int, levels: int) -> str:
    """A pixel, two characters wide because characters are tall."""
    return SHADES[min(level * len(SHADES) // max(levels, 1), len(SHADES) - 1)] * 2


def picture(ids: Sequence[int], levels: int) -> str | None:
    """A square image in shaded blocks, or None if it is not square."""
    side = square(len(ids))
    if side is None:
        return None
    rows = (ids[start : start + side] for start in range(0, len(ids), side))
    return "\n".join("".join(shade(i, levels) for i in row).rstrip() for row in rows)


def printable(text: str) -> str:
    """Text without control characters."""
    text = text.replace("\t", "    ")
    return "".join("\ufffd" if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160) else c for c in text)


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(max(seconds, 0) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def text_spans(
    ids: Sequence[int], styles: Iterable[str], tokenizer: Tokenizer | ExternalTokenizer, fog: str, mask_id: int
) -> Iterator[Span]:
    """Characters appear when their last byte is known, in the style of its token."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    separator = b" " if tokenizer.kind == "levels" else b""
    for i, style in zip(ids, styles, strict=True):
        if i == mask_id:
            yield decoder.decode(b"", final=True), OLD
            decoder.reset()
            yield fog + separator.decode(), style
        else:
            special = i in (tokenizer.eos_id, tokenizer.pad_id)
            piece = END.encode() if special else tokenizer.pieces([i])[0]
            yield printable(decoder.decode(piece + separator)), BLANK if special and style == OLD else style
    yield decoder.decode(b"", final=True), OLD


def _picture(ids: Sequence[int], styles: Iterable[str], side: int, levels: int) -> Iterator[Span]:
    for position, (i, style) in enumerate(zip(ids, styles, strict=True)):
        if position and position % side == 0:
            yield "\n", OLD
        yield ("··" if i >= levels else shade(i, levels)), style


def lines_of(spans: Iterable[Span], width: int, room: int, words: bool = False) -> tuple[list[list[Span]], bool]:
    """Spans cut into lines of at most ``width`` cells, at most ``room`` of them, and whether there are more.

    words: a line ends at its last space, unless that is far from the end.
    """
    from rich.cells import cell_len

    lines: list[list[Span]] = [[]]  # of single characters
    cut = False
    used = 0
    for character, style in ((character, style) for text, style in spans for character in text):
        cells = 0 if character == "\n" else cell_len(character)
        if character == "\n" or used + cells > width:
            if cut := len(lines) == room:
                break
            start = _last_word(lines[-1]) if words and not character.isspace() else len(lines[-1])
            lines.append(lines[-1][start:])
            del lines[-2][start:]
            used = sum(cell_len(one) for one, _ in lines[-1])
            if character == "\n" or (words and character == " "):
                continue
        lines[-1].append((character, style))
        used += cells
    return [_joined(line) for line in lines], cut


def _last_word(line: Sequence[Span]) -> int:
    """Where the last word of a line begins; its end, if that is far from it."""
    start = max((at + 1 for at, (character, _) in enumerate(line) if character == " "), default=0)
    return start if 3 * start > 2 * len(line) else len(line)


def _joined(line: Iterable[Span]) -> list[Span]:
    """Neighbours of one style as one span."""
    groups = itertools.groupby(line, key=lambda span: span[1])
    return [("".join(text for text, _ in group), style) for style, group in groups]


def _console(stream: TextIO) -> Any:
    """rich's console for a terminal that can move its cursor, or None."""
    if not stream.isatty():
        return None
    from rich.console import Console

    console = Console(file=stream, highlight=False)
    return None if console.is_dumb_terminal or not console.is_terminal else console
