"""What a request is refused for: an ApiError with its status, a sentence, and the field it is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from unmask.errors import OptionError

CHARACTERS_PER_TOKEN = 16
"""A text with more characters than so many times the tokens that it may have is refused before it is tokenized."""


class ErrorBody(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorAnswer(BaseModel):
    """Every error has OpenAI's format."""

    error: ErrorBody


TYPES = {401: "authentication_error", 404: "not_found_error", 503: "overloaded_error"}


def error_body(status: int, message: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """An error in OpenAI's format."""
    kind = TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": about}
    for status, about in (
        (400, "It cannot be done as asked"),
        (401, "The token is missing or wrong"),
        (404, "There is no such model"),
        (408, "The body did not come in time"),
        (413, "The body is too large"),
        (422, "It is not a request of this kind"),
        (500, "The model failed"),
        (503, "The queue is full, or the server is shutting down: Retry-After says when to come back"),
    )
}


class ApiError(Exception):
    """An error response: its status and message."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.body = status, error_body(status, message, param, code)


# The fields of a request whose names in the library are others.
FIELDS = {"predict": "predictor", "plan": "sampler"}


@contextmanager
def blaming(param: str | None = None, *, canvas: str | None = None) -> Iterator[None]:
    """Turn a user error of the library into an ApiError, with the field of the request that it is about.

    param: that field, where the error does not say it. canvas: the field from which the canvas was made.
    """
    try:
        yield
    except ValueError as error:
        raise ApiError(400, str(error), param=field_of(error, canvas) or param or canvas) from error


def field_of(error: ValueError, canvas: str | None = None) -> str | None:
    """The field of a request that an error of the library is about, if it says so."""
    if not isinstance(error, OptionError):
        return None
    if canvas is not None and error.option in ("canvas", "length"):
        return canvas
    return FIELDS.get(error.option, error.option)


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
