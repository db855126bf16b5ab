"""/v1/unmask: the progress of a sequence, as text and as JSON.

Pieces of text never split a character, and each event has the current entropy.
"""

from __future__ import annotations

import codecs
import math
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from unmask.serve.engine.change import Change
from unmask.serve.engine.job import Done, Filled, Forecast, Refused
from unmask.serve.engine.work import Work
from unmask.serve.http.exchange import Exchange, error_of, sse
from unmask.serve.http.final_text import FinalText
from unmask.serve.http.refusals import ApiError
from unmask.serve.http.structure import structure
from unmask.tokenizers.molecules import verdict


async def collected(exchange: Exchange, stops: Sequence[str], trace: bool) -> list[dict[str, Any]]:
    """The choices of a plain answer, each with its calls."""
    traces: dict[int, list[dict[str, Any]]] = defaultdict(list)
    results: dict[int, dict[str, Any]] = {}
    async for name, event in told(exchange, stops):
        if name == "step":
            traces[event["index"]].append(event)
        else:
            results[event["index"]] = event
            del event["seconds"]
    return [results[i] | ({"trace": traces[i]} if trace else {}) for i in sorted(results)]


async def streamed(exchange: Exchange, stops: Sequence[str], about: dict[str, Any]) -> AsyncIterator[str]:
    """The events of a stream."""
    for forecast in exchange.forecasts:
        yield sse(Transcript(exchange.works[0]).plan_event(forecast, **about), "plan")
    try:
        async for name, event in told(exchange, stops):
            yield sse(event, name)
    except (ApiError, Refused) as error:
        yield sse(error_of(error), "error")
    yield sse({}, "end")


async def told(exchange: Exchange, stops: Sequence[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Each step of each sequence, and its end; a sequence that stops frees its place."""
    (work,) = exchange.works
    transcripts, stopped = [Transcript(work, stops) for _ in range(work.number)], set[int]()
    async for number, event in exchange.events():
        transcript = transcripts[event.index]
        if event.index in stopped:  # a step that was already in progress
            continue
        if isinstance(event, Done):
            yield "done", transcript.done_event(event)
            continue
        yield "step", transcript.step_event(event)
        if transcript.stop is not None:
            stopped.add(event.index)
            exchange.end(number, event.index)
            yield "done", transcript.stopped_event(event)


class Transcript:
    """One sequence as it is filled. ``ids`` and ``pieces`` have None at masked positions."""

    def __init__(self, work: Work, stops: Sequence[str] = ()) -> None:
        self.model, self.blanks, self.display = work.model, work.blanks, work.served.display
        self.mask_id = work.model.denoiser.mask_id
        self.ids: list[int | None] = [None if i == self.mask_id else i for i in work.shown]
        self._bytes: dict[int, tuple[bytes, bool]] = {}
        self.pieces: list[str | None] = [None] * len(self.ids)
        self._show(range(len(self.ids)))
        self._count = Counter(i for i in self.ids if i is not None)
        self._sequence = FinalText(work, stops, begin=0) if stops else None
        self.stop: int | None = None  # where in the text a stop sequence begins

    def apply(self, change: Change) -> list[tuple[int, str | None]]:
        """Apply a change; returns further positions whose pieces changed although they were not filled."""
        hidden = [p for p in change.hidden or () if self.ids[p] is not None]
        for position in hidden:
            self._count[self._known(position)] -= 1
            self.ids[position] = None
        for position, token in zip(change.positions, change.tokens, strict=True):
            if self.ids[position] is not None:
                self._count[self._known(position)] -= 1
            self.ids[position] = token
            self._count[token] += 1
        own = {*change.positions, *hidden}
        return [(p, piece) for p, piece in self._show([*hidden, *change.positions]) if p not in own]

    @property
    def entropy(self) -> float:
        """-sum_k p_k log p_k over the visible tokens, in nats."""
        counts = [count for count in self._count.values() if count > 0]
        total = sum(counts)
        return math.log(total) - sum(c * math.log(c) for c in counts) / total if total else 0.0

    def plan_event(self, forecast: Forecast, **about: Any) -> dict[str, Any]:
        return {
            **about,
            "index": forecast.index,
            "calls": forecast.calls,
            "canvas": list(self.ids),
            "pieces": list(self.pieces),
            "order": forecast.order,
            "tau": forecast.tau,
            "queue_seconds": forecast.queue_seconds,
            "seconds_left": forecast.seconds_left,
        }

    def step_event(self, filled: Filled) -> dict[str, Any]:
        change, revised = filled.change, self.apply(filled.change)
        if self._sequence is not None:
            self._sequence.fill(change)
            self.stop = self._sequence.stop(self._sequence.settled) if self._sequence.grown() else None
        ahead: dict[str, Any] = {}
        if change.guessed is not None:
            guessed = [(p, token, self._piece(token)[0].decode(errors="ignore")) for p, token in change.guessed]
            ahead = {"guessed": guessed, "corrected": change.corrected}
        drawn = {"molecule": self._structure()} if self.display == "molecule" else {}
        return {
            "index": filled.index,
            "call": filled.nfe,
            "planned": filled.planned,
            "positions": change.positions,
            "tokens": change.tokens,
            "pieces": [self.pieces[p] for p in change.positions],
            "revised": revised,
            "probabilities": change.probabilities,
            "tau": change.tau,
            "hidden": change.hidden,
            "entropy": self.entropy,
            "seconds": filled.seconds,
            **ahead,
            **drawn,
        }

    def done_event(self, done: Done) -> dict[str, Any]:
        """The whole sequence; with a stop sequence in it, the text before that."""
        text, tokens = self.model.rows.texts([done.tokens], self.blanks)[0], done.tokens
        if self._sequence is not None:
            self._sequence.ids = list(tokens)
            self.stop = self._sequence.stop_of(text)
            if self.stop is not None:
                tokens = tokens[: self._sequence.tokens_to_stop(self._sequence.end)]
        return self._ended(done, text[: self.stop], tokens)

    def stopped_event(self, filled: Filled) -> dict[str, Any]:
        """The final text, up to the stop sequence; the tokens end with the one that completed it."""
        sequence = self._sequence
        assert sequence is not None
        end = sequence.tokens_to_stop(sequence.settled)
        tokens = [token for token in sequence.ids[:end] if token is not None]
        return self._ended(filled, sequence.text_to(sequence.settled)[: self.stop], tokens)

    def _ended(self, event: Filled | Done, text: str, tokens: list[int]) -> dict[str, Any]:
        self._count = Counter(tokens)
        return {
            "index": event.index,
            "text": text,
            "finish_reason": "stop" if self.stop is not None or self.model.rows.ended(tokens) else "length",
            "tokens": tokens,
            "nfe": event.nfe,
            "ncs": event.ncs,
            "entropy": self.entropy,
            "seconds": event.seconds,
            "calls": event.calls,
            **({} if not isinstance(event, Done) or event.evidence is None else event.evidence),
            **(verdict(text) if self.display == "molecule" else {}),
        }

    def _structure(self) -> dict[str, Any]:
        """The molecule so far; a row ends at its first eos."""
        eos = self.model.tokenizer.eos_id  # None in ids is a masked position
        end = self.ids.index(eos) if eos is not None and eos in self.ids else None
        return structure(self.pieces[:end], self.model.tokenizer.kind)

    def _known(self, position: int) -> int:
        token = self.ids[position]
        assert token is not None
        return token

    def _show(self, positions: Iterable[int]) -> list[tuple[int, str | None]]:
        """Compute the pieces of these positions, and of neighbours that may share a character with them."""
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
        """The position, and the adjacent runs of partial characters."""
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
        """Adjacent positions as text: a character is shown at its last token, once it is complete."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        after_hole = run[0] > 0 and self.ids[run[0] - 1] is None
        words: list[str | None] = []
        for position in run:
            token = self.ids[position]
            if token is None:
                words.append(None)
                after_hole = True
                continue
            data, whole = self._piece(token)
            if whole and words and words[-1] is not None:  # bytes before it can no longer become a character
                words[-1] += decoder.decode(b"", final=True)
            if after_hole:  # continues a character whose beginning is still masked
                rest = data.lstrip(_CONTINUATION)
                after_hole, data = not rest, rest
            words.append(decoder.decode(data))
        last, behind = run[-1], run[-1] + 1
        ends = behind == len(self.ids) or self.ids[behind] is not None
        if words[-1] is not None and ends and self.ids[last] is not None:
            words[-1] += decoder.decode(b"", final=True)
        return words

    def _piece(self, token: int) -> tuple[bytes, bool]:
        """The bytes of a token, and whether they are one or more complete characters."""
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
