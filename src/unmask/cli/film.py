"""A saved run as an animated SVG: each token appears at the network call that filled it, in a loop.

Browsers and GitHub play it as an image; it follows the reader's dark or light theme.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING, Any

from unmask.cli.view import END, lines_of, text_spans

if TYPE_CHECKING:
    from unmask.tokenizers.external import ExternalTokenizer
    from unmask.tokenizers.tokenizer import Tokenizer

COLUMNS, WIDE, HIGH, MARGIN = 84, 8.43, 22, 16  # characters per line, and pixels: of a character, a line, the margin
SECONDS, STILL = 6.0, 3.0  # of the run, and of the finished text
FONT = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace'
STYLE = f"""text {{ font: 14px {FONT}; fill: #1f2328; white-space: pre }}
rect.blank {{ fill: #d0d7de }}
rect.new {{ fill: #4ac26b }}
@media (prefers-color-scheme: dark) {{
text {{ fill: #e6edf3 }}
rect.blank {{ fill: #30363d }}
rect.new {{ fill: #238636 }}
}}"""


def svg(record: dict[str, Any], tokenizer: Tokenizer | ExternalTokenizer) -> str:
    """The animation of one record of ``unmask sample --json``."""
    if tokenizer.kind == "levels":
        raise ValueError("--svg draws texts, and these tokens are grey levels")
    calls = max((entry["call"] for entry in record["trace"]), default=0)
    filled = {position: entry["call"] for entry in record["trace"] for position in entry["positions"]}
    marks = (str(filled.get(position, 0)) for position in range(len(record["tokens"])))
    spans = ((text.replace(END, ""), mark) for text, mark in text_spans(record["tokens"], marks, tokenizer, "", -1))
    lines, _ = lines_of(spans, COLUMNS, room=1 << 30)
    width, height = round(2 * MARGIN + COLUMNS * WIDE), 2 * MARGIN + HIGH * len(lines)
    body = "\n".join(part for row, line in enumerate(lines) for part in _line(line, row, max(calls, 1)))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img">\n<title>{escape(record["text"])}</title>\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _line(line: list[tuple[str, str]], row: int, calls: int) -> Iterator[str]:
    """Each piece of a line: blank until its call, a flash, then its text. Call 0 is what was given."""
    column = 0
    for text, mark in line:
        x, y, wide = MARGIN + column * WIDE, MARGIN + row * HIGH, len(text) * WIDE
        column += len(text)
        when = int(mark or 0) / calls * SECONDS / (SECONDS + STILL)
        place = f'x="{x + 1:.1f}" y="{y + 3}" width="{max(wide - 2, 1):.1f}" height="{HIGH - 6}" rx="3"'
        if when:
            yield f'<rect class="blank" {place}>{_shown(((0.0, 1), (when, 0)))}</rect>'
            yield f'<rect class="new" {place}>{_shown(((0.0, 0), (when, 1), (min(when + 0.06, 1), 0)))}</rect>'
        given = _shown(((0.0, 0), (when, 1))) if when else ""
        yield f'<text x="{x:.1f}" y="{y + 16}" textLength="{wide:.1f}">{escape(text)}{given}</text>'


def _shown(points: tuple[tuple[float, int], ...]) -> str:
    """An opacity animation that changes at these fractions of the duration."""
    times, values = (";".join(f"{point[i]:.4g}" for point in points) for i in (0, 1))
    return (
        f'<animate attributeName="opacity" calcMode="discrete" dur="{SECONDS + STILL:g}s" '
        f'repeatCount="indefinite" keyTimes="{times}" values="{values}"/>'
    )
