"""text8's cleaning of a Wikipedia dump to the letters a-z and single spaces.

The rules are those of Matt Mahoney's public-domain filter, which defines text8, in its order and on its records (up to
each ">"): what a browser shows is kept, tables and links to other languages are removed, digits are spelled out.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ONCE_PER_RECORD = re.compile(rb"<.*>")
RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rb"&amp;", b"&"),
        (rb"&lt;", b"<"),
        (rb"&gt;", b">"),
        (rb"<ref[^<]*</ref>", b""),  # references
        (rb"<[^>]*>", b""),  # tags
        (rb"\[http:[^\] ]*", b"["),  # addresses; their link text stays
        (rb"(?i)\|thumb", b""),
        (rb"(?i)\|left", b""),
        (rb"(?i)\|right", b""),
        (rb"(?i)\|\d+px", b""),
        (rb"(?i)\[\[image:[^\[\]]*\|", b""),  # images; the caption stays
        (rb"(?i)\[\[category:([^|\]]*)[^\]]*\]\]", rb"[[\1]]"),
        (rb"\[\[[a-z\-]*:[^\]]*\]\]", b""),  # links to other languages
        (rb"\[\[[^|\]]*\|", b"[["),  # links; their link text stays
        (rb"\{\{[^}]*\}\}", b""),  # icons and tables
        (rb"\{[^}]*\}", b""),
        (rb"[\[\]]", b""),
        (rb"&[^;]*;", b" "),
    )
]
DIGITS = [b" " + word + b" " for word in b"zero one two three four five six seven eight nine".split()]
NOT_LETTERS = re.compile(rb"[^a-z]+")

OPENING_SHA256 = "e5bc9580d197612032534e743716f44813367eaabd73165f4691b7a9d3490eb0"
# Bits per character of MD4 (Shi et al.), SEDD (Lou et al.), MDLM (Sahoo et al.) and D3PM (Austin et al.).
PUBLISHED = {"MD4": 1.37, "SEDD": 1.39, "MDLM": 1.40, "D3PM": 1.45}


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def clean(dump: Readable, block: int = 1 << 20) -> Iterator[str]:
    """The clean text of a dump, piece by piece."""
    inside = False
    for record in _records(dump, block):
        inside = inside or b"<text " in record
        if b"#redirect" in record.lower():
            inside = False
        if not inside:
            continue
        inside = b"</text>" not in record
        record = ONCE_PER_RECORD.sub(b"", record, count=1)
        for pattern, replacement in RULES:
            record = pattern.sub(replacement, record)
        record = record.lower()
        for digit, word in enumerate(DIGITS):
            record = record.replace(b"%d" % digit, word)
        # Every record begins with one space; the space at its end belongs to the next one.
        yield NOT_LETTERS.sub(b" ", b" " + record + b" ")[:-1].decode("ascii")


def _records(dump: Readable, block: int) -> Iterator[bytes]:
    rest = b""
    while data := dump.read(block):
        *whole, rest = (rest + data).split(b">")
        for record in whole:
            yield record + b">"
    if rest:
        yield rest


@dataclass(frozen=True)
class Official:
    """text8 itself, which no package contains in full, and its usual training, validation and test parts."""

    characters: int = 100_000_000
    ends: tuple[int, int, int] = (90_000_000, 95_000_000, 100_000_000)
    opening: int = 10_000_000  # characters whose checksum is known, from cleaning the dump
    sha256: str = OPENING_SHA256
    name: str = "text8, 90M/5M/5M"

    def is_file(self, source: object) -> bool:
        """Whether a source is that file, by its size and its beginning."""
        path = Path(source) if isinstance(source, str | Path) else None
        if path is None or not path.is_file() or path.stat().st_size != self.characters:
            return False
        with path.open("rb") as file:
            return hashlib.sha256(file.read(self.opening)).hexdigest() == self.sha256


OFFICIAL = Official()


def compared(source: str, bits_per_character: float) -> str:
    """A number on text8 compared with the published ones, if comparable; "" for other data."""
    if source == OFFICIAL.name:
        beside = ", ".join(f"{name} {bits:.2f}" for name, bits in PUBLISHED.items())
        return f"{bits_per_character:.3f} bits per character; published, on the test part: {beside}"
    if source == "text8":
        return (
            "note: this is the opening 74% of text8, and its own last 5%: its numbers do not compare with published "
            "ones. With the whole file (100,000,000 characters), unmask train PATH takes the field's parts"
        )
    return ""
