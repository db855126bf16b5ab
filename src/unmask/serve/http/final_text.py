"""The final text of a sequence while positions are filled in any order, and the stop sequences in it."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.serve.engine.change import Change
from unmask.serve.engine.work import Work

WHOLE = ("selfies", "levels")  # molecules are translated, and images laid out, only when complete


def stops_of(given: str | Sequence[str] | None) -> list[str]:
    """The stop sequences of a request."""
    return [stop for stop in ([given] if isinstance(given, str) else given or ()) if stop]


def first_stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the stop sequence that is complete first begins."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return min(ends)[1] if ends else None


def held_back(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end may be the beginning of a stop sequence."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest


class FinalText:
    """A sequence as it is filled. Its text up to the first masked position can no longer change.

    The generated part is the text from the first masked position to the last. begin: the first id whose text is
    reported, if there are no blanks.
    """

    def __init__(self, work: Work, stops: Sequence[str] = (), begin: int | None = None) -> None:
        self.model, self.blanks, self._settles = work.model, work.blanks, work.settles
        self.stops, self.cut = stops, work.cut
        mask_id = work.model.denoiser.mask_id
        self.ids: list[int | None] = [None if i == mask_id else i for i in work.shown]
        holes = [i for i, token in enumerate(self.ids) if token is None]
        self.first, self.end = (holes[0], holes[-1] + 1) if holes else (len(self.ids), len(self.ids))
        self.settled = self.first
        self._begin = self.first if begin is None else begin
        if self.blanks is None:
            # A character may begin before the first masked position.
            self.given = len(self.text_to(self.first).rstrip("\ufffd"))
        else:
            self.given = len(self.blanks.visible[0]) + (self.first in self.blanks.spaced)

    def fill(self, change: Change) -> None:
        for position in change.hidden or ():
            self.ids[position] = None
        for position, token in zip(change.positions, change.tokens, strict=True):
            self.ids[position] = token

    def grown(self) -> bool:
        """Whether more text is final than before; never with a sampler that changes tokens again."""
        before = self.settled
        while self._settles and self.settled < self.end and self.ids[self.settled] is not None:
            self.settled += 1
        return self.settled > before

    def text_to(self, end: int) -> str:
        """The text of the ids up to one: a prefix of the whole, except for its last character."""
        if self.model.tokenizer.kind in WHOLE:
            return ""
        begin = 0 if self.blanks is not None else self._begin
        ids = [token for token in self.ids[begin:end] if token is not None]
        if begin:
            return self.model.rows.written(ids)
        return self.model.rows.texts([ids], None if self.blanks is None else self.blanks.up_to(end))[0]

    def stop(self, end: int) -> int | None:
        """Where in the text up to an id the first generated stop sequence begins."""
        place = first_stop(self.text_to(end)[self.given :], self.stops)
        return None if place is None else self.given + place

    def stop_of(self, whole: str) -> int | None:
        """The same in the text of all its ids."""
        after = 0 if self.blanks is None else len(self.blanks.visible[-1])
        place = first_stop(whole[self.given : len(whole) - after], self.stops)
        return None if place is None else self.given + place

    def tokens_to_stop(self, end: int) -> int:
        """The smallest number of ids whose text contains the stop sequence."""
        low, high = self.first, end
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self.stop(middle) is None else (low, middle)
        return low
