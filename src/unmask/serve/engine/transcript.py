"""/v1/unmask: what happens to a sequence, as text and as JSON.

Pieces of text never split a character, and the entropy runs along.
"""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import torch

from unmask.sampling import Sample
from unmask.serve.engine.job import Done, Filled, Planned
from unmask.serve.engine.lane import Entry
from unmask.serve.engine.session import Session, sse
from unmask.serve.engine.work import Work
from unmask.serve.http.request import Wrong
from unmask.text.blanks import Blanks
from unmask.text.model import Model


def text_of(model: Model, tokens: Sequence[int], blanks: Blanks | None) -> str:
    """The text of a finished sequence, as ``Model.sample`` and ``Model.infill`` give it."""
    none = torch.zeros(1, dtype=torch.int64)
    return model._with_text(Sample(torch.tensor([tokens], dtype=torch.int64), (), none, none, 0, 0.0), blanks).text[0]


async def collected(session: Session, trace: bool) -> list[dict[str, Any]]:
    """The choices of a plain answer, each with its calls."""
    transcripts = [Transcript(work) for work in session.works for _ in range(work.number)]
    traces: list[list[dict[str, Any]]] = [[] for _ in transcripts]
    made: dict[int, dict[str, Any]] = {}
    async for _, event in session.events():
        if isinstance(event, Filled):
            traces[event.index].append(transcripts[event.index].step_event(event))
        else:
            made[event.index] = transcripts[event.index].done_event(event)
            del made[event.index]["seconds"]
    return [made[i] | ({"trace": traces[i]} if trace else {}) for i in range(len(transcripts))]


async def streamed(session: Session, about: dict[str, Any]) -> AsyncIterator[str]:
    """The events of a stream."""
    transcripts = [Transcript(work) for work in session.works for _ in range(work.number)]
    for planned in session.planned[0]:
        yield sse(transcripts[planned.index].plan_event(planned, **about), "plan")
    try:
        async for _, event in session.events():
            transcript = transcripts[event.index]
            if isinstance(event, Filled):
                yield sse(transcript.step_event(event), "step")
            else:
                yield sse(transcript.done_event(event), "done")
    except Wrong as wrong:
        yield sse(wrong.body, "error")
    yield sse({}, "end")


class Transcript:
    """One sequence as it is filled. ``ids`` and ``pieces`` have None in the holes."""

    def __init__(self, work: Work) -> None:
        self.model, self.blanks = work.model, work.blanks
        self.mask_id = work.model.denoiser.mask_id
        self.ids: list[int | None] = [None if i == self.mask_id else i for i in work.canvas]
        self._bytes: dict[int, tuple[bytes, bool]] = {}
        self.pieces: list[str | None] = [None] * len(self.ids)
        self._show(range(len(self.ids)))
        self._count = Counter(i for i in self.ids if i is not None)

    def apply(self, entry: Entry) -> list[tuple[int, str | None]]:
        """Write an entry into the sequence; the positions whose pieces it changed, though it did not fill them."""
        hidden = [p for p in entry.hidden or () if self.ids[p] is not None]
        for position in hidden:
            self._count[self._known(position)] -= 1
            self.ids[position] = None
        for position, token in zip(entry.positions, entry.tokens, strict=True):
            if self.ids[position] is not None:
                self._count[self._known(position)] -= 1
            self.ids[position] = token
            self._count[token] += 1
        own = {*entry.positions, *hidden}
        return [(p, piece) for p, piece in self._show([*hidden, *entry.positions]) if p not in own]

    @property
    def entropy(self) -> float:
        """-sum_k p_k log p_k over the tokens that are there, in nats."""
        counts = [count for count in self._count.values() if count > 0]
        total = sum(counts)
        return math.log(total) - sum(c * math.log(c) for c in counts) / total if total else 0.0

    def plan_event(self, planned: Planned, **about: Any) -> dict[str, Any]:
        return {
            **about, "index": planned.index, "calls": planned.calls, "canvas": list(self.ids),
            "pieces": list(self.pieces), "order": planned.order, "tau": planned.tau,
            "queue_seconds": planned.queue_seconds, "seconds_left": planned.seconds_left,
        }  # fmt: skip

    def step_event(self, filled: Filled) -> dict[str, Any]:
        entry, revised = filled.entry, self.apply(filled.entry)
        return {
            "index": filled.index, "call": filled.call, "planned": filled.planned, "positions": entry.positions,
            "tokens": entry.tokens, "pieces": [self.pieces[p] for p in entry.positions], "revised": revised,
            "probabilities": entry.probabilities, "tau": entry.tau, "hidden": entry.hidden, "entropy": self.entropy,
            "seconds": filled.seconds,
        }  # fmt: skip

    def done_event(self, done: Done) -> dict[str, Any]:
        self._count = Counter(done.tokens)
        return {
            "index": done.index, "text": text_of(self.model, done.tokens, self.blanks), "tokens": done.tokens,
            "nfe": done.nfe, "ncs": done.ncs, "entropy": self.entropy, "seconds": done.seconds, "calls": done.calls,
        }  # fmt: skip

    def _known(self, position: int) -> int:
        token = self.ids[position]
        assert token is not None
        return token

    def _show(self, positions: Iterable[int]) -> list[tuple[int, str | None]]:
        """Make the pieces of these positions, and of neighbours that may share a character with them."""
        changed = []
        todo = sorted({q for p in positions for q in self._around(p)})
        runs: list[list[int]] = []
        for position in todo:
            if runs and runs[-1][-1] == position - 1 and self.ids[position] is not None:
                runs[-1].append(position)
            else:
                runs.append([position])
        for run in runs:
            for position, piece in zip(run, self._decoded(run), strict=True):
                if piece != self.pieces[position]:
                    self.pieces[position] = piece
                    changed.append((position, piece))
        return changed

    def _around(self, position: int) -> Iterable[int]:
        """The position, and the stretches of parts of characters to its left and right."""
        first = end = position
        while first > 0 and self._is_part(first - 1):
            first -= 1
        while end + 1 < len(self.ids) and self._is_part(end + 1):
            end += 1
        return range(first, end + 1)

    def _is_part(self, position: int) -> bool:
        token = self.ids[position]
        return token is not None and not self._piece(token)[1]

    def _decoded(self, run: Sequence[int]) -> list[str | None]:
        """Neighbouring positions as text: a character is at the last of its tokens, and nowhere until it is whole."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        after_hole = run[0] > 0 and self.ids[run[0] - 1] is None
        found: list[str | None] = []
        for position in run:
            token = self.ids[position]
            if token is None:
                found.append(None)
                after_hole = True
                continue
            data, whole = self._piece(token)
            if whole and found and found[-1] is not None:  # what came before it can no longer become a character
                found[-1] += decoder.decode(b"", final=True)
            if after_hole:  # what continues a character that has not come yet
                rest = data.lstrip(_CONTINUATION)
                after_hole, data = not rest, rest
            found.append(decoder.decode(data))
        last, behind = run[-1], run[-1] + 1
        ends = behind == len(self.ids) or self.ids[behind] is not None
        if found[-1] is not None and ends and self.ids[last] is not None:
            found[-1] += decoder.decode(b"", final=True)
        return found

    def _piece(self, token: int) -> tuple[bytes, bool]:
        """The bytes of a token, and whether they are whole characters, one at least."""
        if token not in self._bytes:
            tokenizer = self.model.tokenizer
            if token == tokenizer.eos_id:
                data = b"\n" if self.model.layout == "wrapped" else b""
            else:
                data = tokenizer.pieces([token])[0] if token < tokenizer.vocab_size else b""
            try:
                self._bytes[token] = data, bool(data.decode())
            except UnicodeDecodeError:
                self._bytes[token] = data, False
        return self._bytes[token]


_CONTINUATION = bytes(range(0x80, 0xC0))
