"""/v1/completions: OpenAI's shapes, from sequences that are not filled from left to right.

A stream sends what can no longer change: the text up to the first hole, without a character that may still be
incomplete, without spaces at its end, and without what may become a stop sequence. Together the pieces are the plain
answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from unmask.serve.engine.job import Change, Done, Filled
from unmask.serve.engine.work import Work
from unmask.serve.http.exchange import Exchange, sse
from unmask.serve.http.request import ApiError, Prompt


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop sequence begins that is complete first."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(found)[1] if found else None


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop sequence."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest


class Completion:
    """One choice: its tokens as they come, its text as far as it is settled."""

    def __init__(self, work: Work, index: int, prompt: Prompt, suffix: str, stops: Sequence[str]) -> None:
        self.work, self.index, self.stops = work, index, [stop for stop in stops if stop]
        self.prompt, self.suffix = prompt, suffix
        self.text, self.finish_reason, self.completion_tokens = "", "", 0
        self.ended: Filled | Done | None = None  # the event that finished it
        mask_id = work.model.denoiser.mask_id
        self._ids: list[int | None] = [None if i == mask_id else i for i in work.canvas]
        holes = [i for i, token in enumerate(self._ids) if token is None]
        self._first, self._end = (holes[0], holes[-1] + 1) if holes else (len(self._ids), len(self._ids))
        self._settled, self._sent = self._first, 0

    @property
    def prompt_tokens(self) -> int:
        return len(self._ids) - self.work.holes

    @property
    def echoed(self) -> str:
        """The prompt as text."""
        return self.prompt if isinstance(self.prompt, str) else self.work.model.written(self.prompt)

    @property
    def finished(self) -> bool:
        return bool(self.finish_reason)

    def fill(self, change: Change) -> None:
        """A step of the sequence; it may complete a stop sequence, which ends the choice."""
        for position in change.hidden or ():
            self._ids[position] = None
        for position, token in zip(change.positions, change.tokens, strict=True):
            self._ids[position] = token

    def news(self) -> str:
        """What has been settled since the last time."""
        if not self.work.settles:
            return ""
        settled = self._settled
        while settled < self._end and self._ids[settled] is not None:
            settled += 1
        if self.finished or settled == self._settled:
            return ""
        self._settled = settled
        text = self._up_to(settled)
        stop = first_stop(text, self.stops)
        if stop is not None:
            return self._finish(text[:stop], "stop", self._tokens_to_stop(settled))
        text = text.rstrip("\ufffd \t\n\r\x0b\x0c")
        text = text[: len(text) - held_back(text, self.stops)]
        new, self._sent = text[self._sent :], max(self._sent, len(text))
        return new

    def done(self, done: Done) -> str:
        """The sequence is complete: the rest of the text."""
        if self.finished:
            return ""
        self._ids = list(done.tokens)
        text = self._whole(done.tokens)
        stop = first_stop(text, self.stops)
        if stop is not None:
            return self._finish(text[:stop], "stop", self._tokens_to_stop(self._end))
        eos, ids = self.work.model.tokenizer.eos_id, done.tokens[self._first : self._end]
        ended = self.work.model.layout == "rows" and eos is not None and eos in ids
        return self._finish(text, "stop" if ended else "length", len(ids))

    def _finish(self, text: str, reason: str, tokens: int) -> str:
        self.text, self.finish_reason, self.completion_tokens = text, reason, tokens
        return text[self._sent :]

    def _whole(self, tokens: Sequence[int]) -> str:
        if isinstance(self.prompt, list):
            return self.work.model.written(tokens[self._first : self._end])
        text = self.work.model.texts([tokens], self.work.blanks)[0]
        return text[len(self.prompt) : len(text) - len(self.suffix)]

    def _up_to(self, end: int) -> str:
        """The text of the first tokens of the completion: a beginning of the whole, but for its last character."""
        model, blanks = self.work.model, self.work.blanks
        if model.tokenizer.kind in ("selfies", "levels"):
            return ""  # molecules are translated, and images laid out, as a whole
        written = model.written([token for token in self._ids[self._first : end] if token is not None])
        if isinstance(self.prompt, list):
            return written
        if model.tokenizer.kind in ("wordpiece", "metaspace") and (blanks is None or blanks.begins):
            written = written.removeprefix(" ")
        return ((blanks.visible[0] if blanks else "") + written)[len(self.prompt) :]

    def _tokens_to_stop(self, end: int) -> int:
        """The fewest tokens whose text has the stop sequence."""
        low, high = self._first, end
        while low < high:
            middle = (low + high) // 2
            if first_stop(self._up_to(middle), self.stops) is None:
                low = middle + 1
            else:
                high = middle
        return low - self._first


def usage(completions: Sequence[Completion]) -> dict[str, int]:
    """Tokens: each prompt once, every choice's completion."""
    prompts = sum(completion.prompt_tokens for completion in completions if completion.index == 0)
    made = sum(completion.completion_tokens for completion in completions)
    return {"prompt_tokens": prompts, "completion_tokens": made, "total_tokens": prompts + made}


async def collected(exchange: Exchange, completions: Sequence[Completion], echo: bool) -> dict[str, Any]:
    """A plain answer."""
    async for number, event in exchange.events():
        progress(exchange, completions, number, event)
    choices = [_choice(one, i, (one.echoed if echo else "") + one.text) for i, one in enumerate(completions)]
    return {"choices": choices, "usage": usage(completions)}


async def streamed(
    exchange: Exchange, completions: Sequence[Completion], head: dict[str, Any], *, echo: bool, with_usage: bool
) -> AsyncIterator[str]:
    """The chunks of a stream."""
    more = {"usage": None} if with_usage else {}
    for i, one in enumerate(completions if echo else ()):
        yield sse(head | {"choices": [_choice(one, i, one.echoed)]} | more)
    try:
        async for number, event in exchange.events():
            i, text = progress(exchange, completions, number, event)
            if text or completions[i].ended is event:
                yield sse(head | {"choices": [_choice(completions[i], i, text)]} | more)
    except ApiError as error:
        yield sse(error.body)
        return
    if with_usage:
        yield sse(head | {"choices": [], "usage": usage(completions)})
    yield "data: [DONE]\n\n"


def progress(
    exchange: Exchange, completions: Sequence[Completion], number: int, event: Filled | Done
) -> tuple[int, str]:
    """Which choice an event is for, and what it adds to its text; one that stops gives its place away."""
    index = sum(work.number for work in exchange.works[:number]) + event.index
    one = completions[index]
    if one.ended is not None:
        return index, ""
    if isinstance(event, Done):
        text = one.done(event)
    else:
        one.fill(event.change)
        text = one.news()
        if one.finished:
            exchange.end(number, event.index)
    if one.finished:
        one.ended = event
    return index, text


def _choice(completion: Completion, index: int, text: str) -> dict[str, Any]:
    """One entry of ``choices``."""
    return {"index": index, "text": text, "logprobs": None, "finish_reason": completion.finish_reason or None}
