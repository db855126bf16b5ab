"""Schemas of requests, parsed strictly: a number in quotes or a misspelt name is an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, create_model, model_validator

from unmask.errors import OptionError
from unmask.guides.schema import ANY_OBJECT
from unmask.names import SamplerOptions
from unmask.options import help_texts

MOST_SEED = 2**64 - 1
MOST_LOGPROBS = 20
MOST_TOKENS = 1 << 17  # of a list
MOST_MESSAGES = 1000
MOST_FIELDS = 100  # of a body
MOST_ITEMS = 1 << 14  # of a list of texts or of lists; a server's own limit is lower
Character = Annotated[str, StringConstraints(min_length=1, max_length=1)]
Word = Annotated[str, StringConstraints(min_length=1, max_length=40)]
TokenId = Annotated[int, Field(ge=0)]
Penalty = Annotated[float, Field(allow_inf_nan=False, ge=-2, le=2)]


def one_of(says: str, *kinds: Callable[[Any], bool]) -> BeforeValidator:
    """A field of several types: a value of none of them gives one sentence instead of a list of errors."""

    def checked(value: Any) -> Any:
        if isinstance(value, list) and len(value) > MOST_ITEMS and value[0] is not None and not _is_id(value[0]):
            raise ValueError(f"a list of {len(value):,} items is too long")
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
# One wrong item ends the check: an error for each of a hundred thousand would take seconds.
CANVAS = one_of(
    "a canvas is a list of token ids (whole numbers from 0), with null at masked positions",
    _is_nothing,
    lambda value: _are(value, lambda one: one is None or _is_id(one)),
)
TOKENS = one_of("tokens is a list of token ids (whole numbers from 0)", lambda value: _are(value, _is_id))
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

    @model_validator(mode="before")
    @classmethod
    def _few(cls, value: Any) -> Any:
        """A body with thousands of fields is refused before each gets an error of its own."""
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"the body has {len(value):,} fields: there are {len(cls.model_fields)}")
        for name, item in value.items() if isinstance(value, dict) else ():
            most = MOST_ITEMS if isinstance(item, dict) else MOST_TOKENS
            if isinstance(item, list | dict) and len(item) > most:
                raise OptionError(str(name)[:40], f"{len(item):,} items; this server takes at most {most:,}")
        return value


# What differs over HTTP: keys of JSON are strings, and OpenAI's bounds hold.
OVER_HTTP: dict[str, Any] = {
    "ahead": Annotated[Annotated[int, Field(ge=1)] | Literal["auto"] | None, AHEAD],
    "logit_bias": dict[str, Annotated[float, Field(allow_inf_nan=False, ge=-100, le=100)]] | None,
    "presence_penalty": Penalty | None,
    "frequency_penalty": Penalty | None,
}


def _sampling_fields() -> dict[str, Any]:
    """The sampling options with the names, bounds and help texts of ``unmask sample``; null is the default."""
    hints, helps = get_type_hints(SamplerOptions), help_texts(SamplerOptions)
    fields_here: dict[str, Any] = {}
    for one in fields(SamplerOptions):
        bounds: dict[str, Any] = {name: value for name, value in one.metadata.items() if name != "whole"}
        if "whole" in one.metadata and not one.metadata["whole"]:
            bounds["allow_inf_nan"] = False
        bounds = {} if one.name in OVER_HTTP else bounds
        kind = OVER_HTTP.get(one.name, hints[one.name] | None)
        fields_here[one.name] = (kind, Field(one.default, description=helps.get(one.name), **bounds))
    return fields_here


class SamplingRequest(create_model("SamplingFields", __base__=Strict, **_sampling_fields())):  # type: ignore[misc]
    """The sampling options of both endpoints."""

    @property
    def named(self) -> SamplerOptions:
        """The options by name."""
        given = {one.name: getattr(self, one.name) for one in fields(SamplerOptions)}
        if given["logit_bias"] is not None:
            given["logit_bias"] = {_token_id(key): value for key, value in given["logit_bias"].items()}
        return SamplerOptions(**{name: value for name, value in given.items() if value is not None})


def _token_id(key: str) -> int:
    if not key.isdecimal():
        raise OptionError("logit_bias", f"logit_bias has the id {key!r}: its keys must be token ids")
    return int(key)


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
    canvas: Annotated[list[TokenId | None] | None, CANVAS] = Field(
        None, min_length=1, description="Token ids, null at masked positions."
    )
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


class NamedSchema(BaseModel):
    """OpenAI's wrapping of a JSON Schema. It is always enforced, strict or not."""

    model_config = ConfigDict(strict=True)

    name: str = "schema"
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form of an answer: any text, any JSON object, or JSON that satisfies a schema."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _whole(self) -> ResponseFormat:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError("the type json_schema needs the field json_schema, and no other type takes it")
        return self

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """The JSON Schema of the answer, if it has one."""
        if self.json_schema is not None:
            return self.json_schema.schema_
        return dict(ANY_OBJECT) if self.type == "json_object" else None


class OpenAIRequest(SamplingRequest):
    """What OpenAI's completions and chat have in common."""

    model: str
    n: int | None = Field(1, ge=1)
    seed: int | None = Field(None, ge=-(2**63), le=MOST_SEED)
    stop: Stop = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    response_format: ResponseFormat | None = Field(
        None, description="What the answer must be: text, a JSON object, or JSON that satisfies a schema."
    )


class CompletionRequest(OpenAIRequest):
    """OpenAI's request, with the names of ``unmask sample`` in addition (``extra_body`` of the openai package)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "kjv", "prompt": "In the beginning", "max_tokens": 16, "seed": 1},
                {"model": "kjv", "prompt": "In the ", "suffix": " created the heaven", "max_tokens": 4, "n": 2},
            ]
        }
    )

    prompt: Annotated[str | list[str] | list[TokenId] | list[list[TokenId]] | None, PROMPT] = ""
    suffix: str | None = None
    max_tokens: int | None = Field(
        16, ge=0, description="Models of rows write a whole row by default. With echo and logprobs 0 scores the prompt."
    )
    best_of: int | None = None
    echo: bool | None = False
    logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="Return the log-probability of each token and of this many others."
    )


class Message(BaseModel):
    """A chat message. Fields that only OpenAI's models use are ignored."""

    model_config = ConfigDict(strict=True)

    role: str
    content: str


class ChatRequest(OpenAIRequest):
    """OpenAI's chat, for models with a chat template."""

    messages: list[Message] = Field(min_length=1, max_length=MOST_MESSAGES)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)


class TokenizeRequest(Strict):
    """A text to tokenize. No model here has special tokens to add."""

    model: str | None = Field(None, description="By default the first that is served.")
    prompt: str
    add_special_tokens: bool = False


class DetokenizeRequest(Strict):
    model: str | None = Field(None, description="By default the first that is served.")
    tokens: Annotated[list[TokenId], TOKENS]
