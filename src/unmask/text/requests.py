"""What may be asked of a model's texts, and what comes back: the options of ``Model.sample`` and ``Model.infill``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from unmask.errors import OptionError
from unmask.options import Canvas
from unmask.processes import Process
from unmask.sampling import Sample, Watched
from unmask.text.rows import TextRows


@dataclass(frozen=True, kw_only=True)
class TextRequest(Watched):
    """The options that ``Model.sample`` and ``Model.infill`` share: those of ``unmask.sample``, and of texts.

    ``stop=True`` stops at the tokenizer's end-of-text token. The schedule is the model's.
    """

    pattern: str | None = None
    """A regular expression that the whole text must match: a guide, approximate for a network and corrected by
    particles."""
    contains: Sequence[str] = ()
    """Words that must occur in the text: a guide as well."""
    schema: Mapping[str, Any] | None = None
    """A JSON Schema that the text must satisfy: of a sample what follows the prompt, of an infill the whole text."""

    def _check_together(self) -> None:
        super()._check_together()
        if self.guide is not None and self.limited:
            raise OptionError("guide", "give either guide, or pattern and contains")
        if self.schema is not None and (self.pattern is not None or self.contains):
            raise OptionError("schema", "schema cannot be combined with pattern and contains")
        if self.schema is not None and self.stop not in (None, False):
            raise OptionError("stop", "a text with a schema is cut at its end: leave out stop")

    @property
    def limited(self) -> bool:
        """Whether a pattern or words limit the text."""
        return self.pattern is not None or bool(self.contains) or self.schema is not None

    @property
    def guided(self) -> bool:
        return self.guide is not None or self.limited


@dataclass(frozen=True)
class SampleRequest(TextRequest):
    """The arguments of ``Model.sample``."""

    num: int | None = None
    """The number of texts, by default one."""
    length: int | None = field(default=None, kw_only=True)
    """The number of tokens, by default the training length."""
    canvas: Canvas | None = field(default=None, kw_only=True)
    """Token ids with mask_id at masked positions, instead of a prompt."""
    prompt: str = field(default="", kw_only=True)
    """The beginning of each text."""
    max_tokens: int | None = field(default=None, kw_only=True)
    """The maximum number of tokens after the prompt, instead of length."""


@dataclass(frozen=True)
class InfillRequest(TextRequest):
    """The arguments of ``Model.infill``."""

    text: str
    """The text, with blanks."""
    num: int | None = None
    """How often it is filled, by default once."""
    mask_character: str | None = field(default=None, kw_only=True)
    """A character that stands for one token; underscores are then ordinary text."""
    proposal: TextModel | None = field(default=None, kw_only=True)
    """A masked model with the same tokenizer, which draws the particles; this one weighs them."""

    @property
    def guided(self) -> bool:
        return True  # the text itself can weigh particles


@dataclass(frozen=True, repr=False)
class TextSample(Sample):
    """Finished sequences, their cost, and their texts."""

    text: list[str] = field(default_factory=list)

    def _beginning(self) -> str:
        first = self.text[0] if self.text else ""
        return f"text: {first[:80]!r}{' ...' if len(first) > 80 else ''}"


class TextModel(Protocol):
    """A network with the texts that it writes: ``unmask.Model``."""

    @property
    def name(self) -> str: ...

    @property
    def denoiser(self) -> Any: ...

    @property
    def process(self) -> Process: ...

    @property
    def rows(self) -> TextRows: ...

    def infill(self, *args: Any, **options: Any) -> TextSample: ...
