"""/v1/completions: OpenAI's format, for sequences that are not filled from left to right.

A stream sends only text that can no longer change: the text up to the first masked position, without incomplete
characters, trailing spaces, or the beginning of a possible stop sequence. The pieces concatenate to the plain answer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from unmask.model import Model
from unmask.serve.engine.change import Change
from unmask.serve.engine.job import Done, Filled, Refused
from unmask.serve.engine.work import Work
from unmask.serve.http.exchange import Exchange, error_of, sse
from unmask.serve.http.final_text import FinalText, first_stop, held_back
from unmask.serve.http.refusals import ApiError
from unmask.serve.http.request import Prompted

LEAST = -9999.0  # stands for log 0, because JSON has no infinity


Scores = tuple[int, float, tuple[tuple[int, float], ...]]
"""A token, its log-probability, and the likeliest ids with theirs."""


class Completion:
    """One choice: its tokens as they arrive, and its final text so far."""

    def __init__(self, prompted: Prompted, index: int, stops: Sequence[str] = (), logprobs: int | None = None) -> None:
        self.prompted, self.index, self.logprobs = prompted, index, logprobs
        self.work, self.model, self.prompt = prompted.work, prompted.served.model, prompted.prompt
        self.text, self.finish_reason, self.completion_tokens = "", "", 0
        self.ended: Filled | Done | None = None  # the event that finished it
        self.evidence: dict[str, float] | None = None  # of a guided sequence
        self._sequence = None if self.work is None else FinalText(self.work, stops)
        self._first = 0 if self._sequence is None else self._sequence.first
        self._sent, self._told = 0, self._first
        self._scores: dict[int, Scores] = {}  # by position
        self._given: dict[int, Scores] = {}  # those of the prompt
        if self.work is None:
            self.finish_reason = "length"

    @property
    def prompt_tokens(self) -> int:
        if self.work is not None:
            return len(self.work.canvas) - self.work.holes
        return len(self.prompted.score.canvas) if self.prompted.score is not None else 0

    @property
    def echoed(self) -> str:
        """The prompt as text."""
        return self.prompt if isinstance(self.prompt, str) else self.model.rows.written(self.prompt)

    def score(self, change: Change) -> None:
        """The model's scores for a part of the prompt."""
        self._given |= scores(change)

    def told(self, *, echo: bool = False) -> dict[str, Any] | None:
        """OpenAI's logprobs of the tokens that became final since the last call, with ``echo`` also the prompt's."""
        if self.logprobs is None:
            return None
        settled = 0 if self._sequence is None else self._sequence.settled
        end = self._first + self.completion_tokens if self.finished else settled
        positions, self._told = range(self._told, end), max(end, self._told)
        listed = [self._given[i] for i in sorted(self._given)] if echo else []
        listed += [self._scores[i] for i in positions if i in self._scores]
        at = 0 if echo else len(self.echoed) + sum(map(len, self._written(range(self._first, positions.start))))
        return logprobs(self.model, listed, self.logprobs, at)

    def _written(self, positions: Iterable[int]) -> list[str]:
        return [piece(self.model, self._scores[i][0]) for i in positions if i in self._scores]

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    @property
    def reported(self) -> dict[str, Any]:
        """What an entry of ``choices`` says of the constraint."""
        return {} if self.evidence is None else {"unmask": self.evidence}

    def fill(self, change: Change) -> str:
        """Apply a step and return the text that became final; a complete stop sequence ends the choice."""
        if self.logprobs is not None:
            self._scores |= scores(change)
        sequence = self._sequence
        assert sequence is not None
        sequence.fill(change)
        if self.finished or not sequence.grown() or sequence.cut is not None:
            return ""
        text, stop = sequence.text_to(sequence.settled)[sequence.given :], sequence.stop(sequence.settled)
        if stop is not None:
            return self._stopped(text[: stop - sequence.given], sequence.settled)
        text = text.rstrip("\ufffd \t\n\r\x0b\x0c")
        text = text[: len(text) - held_back(text, sequence.stops)]
        new, self._sent = text[self._sent :], max(self._sent, len(text))
        return new

    def done(self, done: Done) -> str:
        """The sequence is complete: return the rest of the text."""
        sequence = self._sequence
        if self.finished or sequence is None:
            return ""
        sequence.ids, self.evidence = list(done.tokens), done.evidence
        text, ids = self._whole(done.tokens), done.tokens[sequence.first : sequence.end]
        stop = first_stop(text, sequence.stops)
        if stop is not None:
            return self._stopped(text[:stop], sequence.end)
        if sequence.cut is not None:  # the text satisfies its schema, so nothing is missing
            eos = self.model.tokenizer.eos_id
            return self._finish(text, "stop", ids.index(eos) if eos in ids else len(ids))
        return self._finish(text, "stop" if self.model.rows.ended(ids) else "length", len(ids))

    def _stopped(self, text: str, end: int) -> str:
        assert self._sequence is not None
        return self._finish(text, "stop", self._sequence.tokens_to_stop(end) - self._first)

    def _finish(self, text: str, reason: str, tokens: int) -> str:
        self.text, self.finish_reason, self.completion_tokens = text, reason, tokens
        return text[self._sent :]

    def _whole(self, tokens: Sequence[int]) -> str:
        assert self._sequence is not None
        if isinstance(self.prompt, list) and self.prompt:
            return self.model.rows.written(tokens[self._first : self._sequence.end])
        blanks = self._sequence.blanks
        text = self.model.rows.texts([tokens], blanks)[0]
        if blanks is not None and blanks.smiles:
            return text  # of a molecule continued from a SMILES, no part is the continuation
        return text[len(self.prompt) : len(text) - len(self.prompted.suffix)]


class Choices:
    """The choices of a request, and the choice that each event belongs to."""

    def __init__(
        self, prompts: Sequence[Prompted], number: int, stops: Sequence[str], logprobs: int | None, *, echo: bool
    ) -> None:
        self.echo, self.all, self.works = echo, list[Completion](), list[Work]()
        self._scored: dict[int, list[Completion]] = {}  # by the number of a work
        self._first: dict[int, int] = {}  # by the number of a work: its first choice
        for prompted in prompts:
            mine = [Completion(prompted, i, stops, logprobs) for i in range(number)]
            if prompted.score is not None:
                self._scored[len(self.works)] = mine
                self.works.append(prompted.score)
            if prompted.work is not None:
                self._first[len(self.works)] = len(self.all)
                self.works.append(prompted.work)
            self.all += mine

    def progress(self, exchange: Exchange, number: int, event: Filled | Done) -> tuple[int, str] | None:
        """The choice of an event, and the text it adds; a choice that stops frees its place."""
        if number in self._scored:
            if isinstance(event, Filled):
                for one in self._scored[number]:
                    one.score(event.change)
            return None
        index = self._first[number] + event.index
        one = self.all[index]
        if one.ended is not None:
            return index, ""
        if isinstance(event, Done):
            text = one.done(event)
        else:
            text = one.fill(event.change)
            if one.finished:
                exchange.end(number, event.index)
        if one.finished:
            one.ended = event
        return index, text

    def usage(self) -> dict[str, int]:
        """Token counts: each prompt once, and every choice's completion."""
        prompts = sum(one.prompt_tokens for one in self.all if one.index == 0)
        completed = sum(one.completion_tokens for one in self.all)
        return {"prompt_tokens": prompts, "completion_tokens": completed, "total_tokens": prompts + completed}


Shape = Callable[[Completion, int, str, bool], dict[str, Any]]
"""A choice of an answer: of this completion, with this index and text, as a chunk of a stream or whole."""


async def collected(exchange: Exchange, choices: Choices, shape: Shape) -> dict[str, Any]:
    """A plain answer."""
    async for number, event in exchange.events():
        choices.progress(exchange, number, event)
    texts = [(one.echoed if choices.echo else "") + one.text for one in choices.all]
    entries = [shape(one, i, text, choices.echo) for i, (one, text) in enumerate(zip(choices.all, texts, strict=True))]
    return {"choices": entries, "usage": choices.usage()}


async def streamed(
    exchange: Exchange, choices: Choices, shape: Shape, head: dict[str, Any], *, with_usage: bool
) -> AsyncIterator[str]:
    """The chunks of a stream."""
    more = {"usage": None} if with_usage else {}
    for i, one in enumerate(choices.all if choices.echo else ()):
        yield sse(head | {"choices": [shape(one, i, one.echoed, False)]} | more)
    try:
        async for number, event in exchange.events():
            i, text = choices.progress(exchange, number, event) or (0, "")
            if text or choices.all[i].ended is event:
                yield sse(head | {"choices": [shape(choices.all[i], i, text, False)]} | more)
    except (ApiError, Refused) as error:
        yield sse(error_of(error))
        return
    if with_usage:
        yield sse(head | {"choices": [], "usage": choices.usage()})
    yield "data: [DONE]\n\n"


def text_choice(completion: Completion, index: int, text: str, echo: bool) -> dict[str, Any]:
    """One entry of ``choices`` of /v1/completions, whole or in a chunk."""
    scored = completion.told(echo=echo)
    choice = {"index": index, "text": text, "logprobs": scored, "finish_reason": completion.finish_reason or None}
    return choice | completion.reported


def chat_choice(completion: Completion, index: int, text: str, echo: bool) -> dict[str, Any]:
    """One entry of ``choices`` of /v1/chat/completions."""
    message = {"role": "assistant", "content": text}
    choice = {"index": index, "message": message, "logprobs": None, "finish_reason": completion.finish_reason}
    return choice | completion.reported


def chat_delta(completion: Completion, index: int, text: str, echo: bool) -> dict[str, Any]:
    """The same in a chunk of a stream."""
    delta = {"role": "assistant", "content": text}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": completion.finish_reason or None}
    return choice | completion.reported


def scores(change: Change) -> dict[int, Scores]:
    """The tokens of a change with their log-probabilities, by position."""
    by_position: dict[int, Scores] = {}
    for i, (position, token, p) in enumerate(zip(change.positions, change.tokens, change.probabilities, strict=True)):
        best = tuple(change.likeliest[i]) if change.likeliest else ()
        log_p = dict(best).get(token, math.log(p) if p > 0 else LEAST)
        by_position[position] = token, log_p, best
    return by_position


def logprobs(model: Model, entries: Sequence[Scores], number: int, at: int) -> dict[str, Any]:
    """OpenAI's format: the ``number`` most likely ids and the token. at: where the first begins in the text."""
    texts = [piece(model, token) for token, *_ in entries]
    starts = itertools.accumulate(map(len, texts), initial=at)
    top = [
        {piece(model, i): p for i, p in (*best[:number], (token, own))} if number else {piece(model, token): own}
        for token, own, best in entries
    ]
    return {
        "tokens": texts,
        "token_logprobs": [own for _, own, _ in entries],
        "top_logprobs": top,
        "text_offset": list(starts)[: len(texts)],
    }


def piece(model: Model, token: int) -> str:
    """A token as text; bytes that are not a character are escaped as OpenAI does."""
    tokenizer = model.tokenizer
    data = tokenizer.pieces([token], special=True)[0] if token < tokenizer.vocab_size else b""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
