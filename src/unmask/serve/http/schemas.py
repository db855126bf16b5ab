"""Schemas of requests, parsed strictly: a number in quotes or a misspelt name is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from unmask.samplers.names import DecodingName, DrawName, PredictorName, SamplerName

MOST_SEED = 2**64 - 1
MOST_LOGPROBS = 20
Character = Annotated[str, StringConstraints(min_length=1, max_length=1)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=40)]
TokenId = Annotated[int, Field(ge=0)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[float, Field(allow_inf_nan=False, ge=-2, le=2)]


def one_of(says: str, *kinds: Callable[[Any], bool]) -> BeforeValidator:
    """A field of several types: a value of none of them gives one sentence instead of a list of errors."""

    def checked(value: Any) -> Any:
        if not any(kind(value) for kind in kinds):
            raise ValueError(says)
        return value

    return BeforeValidator(checked)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_id(value: Any) -> bool:
    return type(value) is int and value >= 0


def _are(value: Any, kind: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(kind, value))


def _is_nothing(value: Any) -> bool:
    return value is None


PROMPT = one_of(
    "a prompt is a text, a list of texts, a list of token ids (whole numbers from 0), or a list of such lists",
    _is_nothing,
    _is_text,
    lambda value: _are(value, _is_text),
    lambda value: _are(value, _is_id),
    lambda value: _are(value, lambda ids: _are(ids, _is_id)),
)
STOP = one_of(
    "stop is a text, or a list of at most 4 texts",
    _is_nothing,
    _is_text,
    lambda value: _are(value, _is_text) and len(value) <= 4,
)
AHEAD = one_of(
    "ahead is a whole number of at least 1, or 'auto'",
    _is_nothing,
    lambda value: value == "auto" or (_is_id(value) and value > 0),
)
Stop = Annotated[str | Annotated[list[str], Field(max_length=4)] | None, STOP]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SamplingRequest(Strict):
    """The sampling options of both endpoints, with the names of ``unmask sample``."""

    sampler: SamplerName | None = Field(
        None, description="Which positions are unmasked when: by default parallel with steps, first-hitting without."
    )
    steps: int | None = Field(None, ge=1, description="Steps of parallel and ancestral sampling.")
    predictor: PredictorName = Field("first-order", description="Or a second-order predictor of the paper.")
    decoding: DecodingName | None = Field(None, description="Instead of sampler: a decoding order, or remasking.")
    block: int | None = Field(None, ge=1)
    noise: Finite | None = Field(None, ge=0)
    gamma: Finite | None = Field(None, ge=0)
    threshold: Finite | None = Field(None, ge=0, le=1)
    eta: Finite | None = Field(None, ge=0, le=1)
    ahead: Annotated[Annotated[int, Field(ge=1)] | Literal["auto"] | None, AHEAD] = Field(
        None, description="The look-ahead window: the same tokens in fewer calls."
    )
    draw: DrawName = Field("exponential-race", description="How tokens are drawn; the last two are biased.")
    temperature: Finite | None = Field(None, ge=0, description="By default 1; 0 takes the most likely token.")
    top_k: int | None = Field(None, ge=1)
    top_p: Finite | None = Field(None, gt=0, le=1)
    min_p: Finite | None = Field(None, ge=0, le=1, description="Drop ids less than this times as likely as the best.")
    logit_bias: dict[str, Annotated[float, Field(allow_inf_nan=False, ge=-100, le=100)]] | None = Field(
        None, description="A map from token ids to values added to their logits."
    )
    presence_penalty: Penalty | None = Field(
        None, description="A penalty on ids drawn before; needs one token per call."
    )
    frequency_penalty: Penalty | None = Field(None, description="The same, for each time that an id was drawn.")


class UnmaskRequest(SamplingRequest):
    """A text with blanks, a prompt, any partly masked canvas, or nothing: masked positions are filled."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "In the ____ God created the ____.", "seed": 1},
                {"prompt": "And the ", "length": 32, "number": 2, "steps": 8, "seed": 1},
                {"canvas": [None, None, None, None], "seed": 1, "trace": True},
                {"length": 16, "decoding": "margin", "steps": 8, "stream": True},
                {"prompt": "And ", "max_tokens": 24, "contains": ["water"], "seed": 1},
            ]
        }
    )

    model: str | None = Field(None, description="By default the first that is served.")
    text: str | None = Field(None, description="A text with blanks: underscores, as in unmask infill.")
    mask_character: Character | None = Field(None, description="Each such character of text is a blank of one token.")
    prompt: str | None = Field(None, description="The beginning of the text; length is its total length.")
    length: int | None = Field(None, ge=1, description="Tokens of a sequence; by default those of the training data.")
    canvas: list[TokenId | None] | None = Field(None, min_length=1, description="Token ids, null at masked positions.")
    number: int = Field(1, ge=1, description="The number of sequences.")
    seed: int | None = Field(None, ge=0, le=MOST_SEED, description="Sequence i of a seed is always the same.")
    max_tokens: int | None = Field(None, ge=1, description="Tokens behind the prompt, in place of length.")
    stop: Stop = Field(None, description="The text ends before the first of these strings.")
    contains: list[Word] | None = Field(None, min_length=1, max_length=3, description="Words that must occur in it.")
    pattern: str | None = Field(None, min_length=1, max_length=200, description="A regular expression of the text.")
    stream: bool = Field(False, description="Server-sent events: plan, step, done, error, end.")
    trace: bool = Field(False, description="Without a stream: include every network call of each sequence.")


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class CompletionRequest(SamplingRequest):
    """OpenAI's request, with the names of ``unmask sample`` in addition (``extra_body`` of the openai package)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "kjv", "prompt": "In the beginning", "max_tokens": 16, "seed": 1},
                {"model": "kjv", "prompt": "In the ", "suffix": " created the heaven", "max_tokens": 4, "n": 2},
            ]
        }
    )

    model: str
    prompt: Annotated[str | list[str] | list[TokenId] | list[list[TokenId]] | None, PROMPT] = ""
    suffix: str | None = None
    max_tokens: int | None = Field(16, ge=0, description="With echo and logprobs 0 scores the prompt.")
    n: int | None = Field(1, ge=1)
    best_of: int | None = None
    echo: bool | None = False
    seed: int | None = Field(None, ge=-(2**63), le=MOST_SEED)
    stop: Stop = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="Return the log-probability of each token and of this many others."
    )


class Message(BaseModel):
    """A chat message. Fields that only OpenAI's models use are ignored."""

    model_config = ConfigDict(strict=True)

    role: str
    content: str


class ChatRequest(SamplingRequest):
    """OpenAI's chat, for models with a chat template."""

    model: str
    messages: list[Message] = Field(min_length=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(1, ge=1)
    seed: int | None = Field(None, ge=-(2**63), le=MOST_SEED)
    stop: Stop = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None


class TokenizeRequest(Strict):
    """A text to tokenize. No model here has special tokens to add."""

    model: str | None = Field(None, description="By default the first that is served.")
    prompt: str
    add_special_tokens: bool = False


class DetokenizeRequest(Strict):
    model: str | None = Field(None, description="By default the first that is served.")
    tokens: list[TokenId]


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
