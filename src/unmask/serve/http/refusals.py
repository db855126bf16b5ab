"""What a request is refused for: an ApiError with its status, a sentence, and the field it is about."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from unmask.serve.http.schemas import SamplingRequest, error_body

CHARACTERS_PER_TOKEN = 16
"""A text with more characters than so many times the tokens that it may have is refused before it is tokenized."""


class ApiError(Exception):
    """An error response: its status and message."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.body = status, error_body(status, message, param, code)


@contextmanager
def blaming(who: SamplingRequest | str, otherwise: str | None = None) -> Iterator[None]:
    """Turn a user error of the library into an ApiError, with the field of the request that it names."""
    try:
        yield
    except ValueError as error:
        param = who if isinstance(who, str) else named(str(error), who.model_fields_set) or otherwise
        raise ApiError(400, str(error), param=param) from error


def named(message: str, given: Collection[str] = ()) -> str | None:
    """The field that a message is about: the last one it names of those given, or else of all sampling fields."""
    words: list[str] = re.findall(r"\w+", message)
    for names in (given, SamplingRequest.model_fields):
        if found := [word for word in words if word in names]:
            return found[-1]
    return None


def at_most(name: str, value: int | None, limit: int) -> None:
    if value is not None and value > limit:
        raise ApiError(400, f"{name}={value}: this server takes at most {limit}", param=name)


def check_text(name: str, text: str, longest: int) -> None:
    """Refuse a text that is too long for this many tokens before tokenizing it, which would take long."""
    most = CHARACTERS_PER_TOKEN * longest
    if len(text) > most:
        says = f"{name} has {len(text)} characters: this server takes at most {most}, for {longest} tokens"
        raise ApiError(400, says, param=name)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ApiError(400, f"{name} has half of a surrogate pair, which is not a character", param=name) from None
