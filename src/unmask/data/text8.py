"""text8's cleaning of a Wikipedia dump to the letters a-z and single spaces.

The rules are those of Matt Mahoney's public-domain filter, by which text8 is defined, in its order and on its records
(up to each ">"): what a browser shows is kept, tables and foreign links go, digits are spelt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
        (rb"\[http:[^\] ]*", b"["),  # addresses; the text shown for them stays
        (rb"(?i)\|thumb", b""),
        (rb"(?i)\|left", b""),
        (rb"(?i)\|right", b""),
        (rb"(?i)\|\d+px", b""),
        (rb"(?i)\[\[image:[^\[\]]*\|", b""),  # images; the caption stays
        (rb"(?i)\[\[category:([^|\]]*)[^\]]*\]\]", rb"[[\1]]"),
        (rb"\[\[[a-z\-]*:[^\]]*\]\]", b""),  # links to other languages
        (rb"\[\[[^|\]]*\|", b"[["),  # links; the text shown for them stays
        (rb"\{\{[^}]*\}\}", b""),  # icons and tables
        (rb"\{[^}]*\}", b""),
        (rb"[\[\]]", b""),
        (rb"&[^;]*;", b" "),
    )
]
DIGITS = [b" " + word + b" " for word in b"zero one two three four five six seven eight nine".split()]
NOT_LETTERS = re.compile(rb"[^a-z]+")


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
        # Every record begins with one space; the one at its end is the next one's.
        yield NOT_LETTERS.sub(b" ", b" " + record + b" ")[:-1].decode("ascii")


def _records(dump: Readable, block: int) -> Iterator[bytes]:
    rest = b""
    while data := dump.read(block):
        *whole, rest = (rest + data).split(b">")
        for record in whole:
            yield record + b">"
    if rest:
        yield rest
