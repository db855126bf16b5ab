"""A network with its tokenizer, so that texts go in and texts come out: what ``unmask.load`` returns."""

from __future__ import annotations

import itertools
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from unmask.checks import ids
from unmask.draw import Pick
from unmask.errors import OptionError
from unmask.guides.automaton import Both
from unmask.network import device_of
from unmask.options import Canvas, takes
from unmask.processes import Process, process_of
from unmask.protocol import check, for_bound, length_of
from unmask.sampling import Request, Sample, Watched, filled
from unmask.schedule import SCHEDULES, Linear, Schedule
from unmask.text.constraints import constraint, described, ended, require_possible
from unmask.tokenizers.missing import NoTokenizer
from unmask.tokenizers.molecules import fragments, to_selfies, to_smiles
from unmask.tokenizers.tokenizer import BPE, EOS, LAYOUTS, Layout, Tokenizer

if TYPE_CHECKING:
    from unmask.bound import Bound
    from unmask.networks.transformer import Transformer
    from unmask.processes.process import By
    from unmask.text.blanks import Blanks
    from unmask.tokenizers.external import ExternalTokenizer

TOKENIZER = "tokenizer.json"
PARTICLES_OF_SCHEMA = 16  # for each text of a network that sees only what comes before, unless a number is given
CHARACTERS_PER_TOKEN = 4.0  # for a BPE tokenizer whose folder does not say


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
    proposal: Model | None = field(default=None, kw_only=True)
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


@dataclass(frozen=True)
class Model:
    """A network, its tokenizer and its schedule. ``unmask.load`` returns one; any denoiser will do.

    Attributes:
        denoiser: The network.
        tokenizer: From text to ids and back.
        schedule: alpha(t), for networks that read the time.
        name: What the model is called in records and messages.
        layout: How the training sequences were laid out: "wrapped" (eos, text, eos) or "rows" (a document, eos,
            padding).
        characters_per_token: An average over the training text, without eos and padding, used to size blanks.
        extra: Other fields of the model's config, kept for ``save_pretrained``.
    """

    denoiser: Any = field(repr=False)
    tokenizer: Tokenizer | ExternalTokenizer = field(repr=False)
    schedule: Schedule = field(default_factory=Linear)
    name: str = "model"
    layout: Layout = "wrapped"
    characters_per_token: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        check(self.denoiser)
        ids, mask_id = self.denoiser.vocab_size, self.denoiser.mask_id
        if self.tokenizer.frame is not None:  # the mask is one of the tokenizer's ids, and the network may have more
            known = self.tokenizer.vocab_size
            fits = known <= ids + (mask_id == ids) and self.tokenizer.mask_id in (None, mask_id)
        else:
            ids -= (mask_id < ids) + self.process.extra_ids
            fits = ids == self.tokenizer.vocab_size <= mask_id
        if not fits:
            raise ValueError(
                f"{self.name}: the network knows {ids} ids and the mask {mask_id}, and the tokenizer "
                f"{self.tokenizer.vocab_size} ids: they do not belong together"
            )
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {self.layout!r}")

    @property
    def length(self) -> int | None:
        """The number of tokens of a training sequence, if the network or its folder says."""
        length = length_of(self.denoiser)
        return self.extra.get("length") if length is None else length

    @property
    def token_width(self) -> float:
        """The number of characters that one token of a blank stands for: 1, except for a BPE."""
        if self.tokenizer.kind not in BPE:
            return 1.0
        return self.characters_per_token or CHARACTERS_PER_TOKEN

    @property
    def process(self) -> Process:
        """What the network is."""
        return process_of(self.denoiser)

    @takes(SampleRequest)
    def sample(self, options: SampleRequest) -> TextSample:
        """Draw texts that begin with the prompt, if there is one.

        A left-to-right model continues the prompt, one token per call, and takes no plan, steps, predict or sampler.

        Args:
            **options: The fields of ``SampleRequest``, each with its help text.
        """
        prompt, length, room, canvas = options.prompt, options.length, options.max_tokens, options.canvas
        given = {"prompt": prompt, "max_tokens": room is not None, "canvas": canvas is not None}
        self.process.require(*(name for name, value in given.items() if value))
        if options.schema is not None and canvas is not None:
            raise OptionError("canvas", "a schema describes a text: give a prompt, or a text with blanks to infill")
        begun = self.begins(prompt, options.stop or options.schema) and (prompt or canvas is None)
        if room is not None:
            if length is not None or canvas is not None or room < 1:
                says = f"max_tokens={room} must be at least 1, and cannot be combined with length or canvas"
                raise OptionError("max_tokens", says)
            length = room if not begun else len(self.prompted(prompt, room=room).ids)
        if not begun:
            return self._sampled(None, options, num=options.num, length=length, canvas=canvas)
        if canvas is not None:
            raise OptionError("canvas", "give a prompt or a canvas, not both")
        return self._filled(self.prompted(prompt, length), options.num, options)

    @takes(InfillRequest)
    def infill(self, options: InfillRequest) -> TextSample:
        """Fill the blanks of a text, ``num`` times; visible text stays as it is. Options as in ``sample``.

        A network that sees only what comes before fills blanks by particles (``unmask.text.particles``), by default 32
        for each text, and so does one whose default order is left to right, such as molecules (128; ``particles=1``
        fills its blanks with both sides in view). A SMILES that is no molecule then has almost no weight. All others
        see the text on both sides. With a ``proposal``, a masked model with the same tokenizer, that model draws the
        particles, 16 by default, and this one weighs them.

        A run of underscores is a blank. For a BPE, k underscores are k / characters_per_token tokens, rounded and at
        least one, and one or two of them inside or beside a word are text, as in ``__init__``; for every other
        tokenizer k underscores are k tokens. With ``mask_character`` each such character is one
        token, and underscores are ordinary text. If the tokenizer has a mask token of its own, such as ``[MASK]`` or
        ``<mask>``, and the text contains it, each occurrence is one token. A blank before visible text cannot end the
        text.

        Where the tokens are SELFIES, the text may be SMILES or SELFIES, and the result has the same notation. Each
        underscore is one SELFIES token. In a SMILES a blank may stand wherever an atom may: ``c1ccccc1____``,
        ``c1ccc(____)cc1``. The visible tokens are kept, but a branch or ring drawn in a blank may include them.

        Args:
            **options: The fields of ``InfillRequest``, each with its help text.
        """
        self.process.require("fill_blanks")
        from unmask.text import particles as weighed

        num = 1 if options.num is None else options.num
        if options.proposal is not None:
            each = weighed.check_proposal(self, options)
            some = replace(options, proposal=None, particles=None, num=num * each)
            drawn = options.proposal.infill(**{one.name: getattr(some, one.name) for one in fields(some)})
            assert isinstance(options.seed, int)
            return weighed.among(self, drawn, each, options.seed)
        blanks, particles = self.blanks(options.text, options.mask_character), weighed.particles(self, options)
        if particles is None:
            return self._filled(blanks, num, options)
        canvas, allowed = weighed.canvas(self, blanks)
        rows = torch.tensor(canvas).expand(num, -1).clone()
        guide = weighed.guide(self, canvas, allowed)
        if options.schema is not None:
            schema = described(self, options.schema, self._text_begins(), allowed=allowed)
            require_possible(schema, rows[0], self.denoiser.mask_id)
            guide = Both(guide, schema)
        return self._sampled(blanks, options, canvas=rows, particles=particles, guide=guide, allowed=None)

    def bound(
        self,
        texts: Sequence[str],
        *,
        by: By | None = None,
        passes: int = 16,
        generator: torch.Generator | None = None,
        seed: int = 0,
        batch: int | None = None,
    ) -> Bound:
        """The likelihood bound of each text, laid out like the training data; arguments as in ``unmask.nelbo``.

        A text longer than a training sequence is split, and the bounds of its parts are added.
        """
        from unmask.bound import per_text
        from unmask.likelihood import drawn_seed, nelbo

        if not texts or isinstance(texts, str):
            raise ValueError(f"texts must be a list of at least one text, got {texts!r}")
        rows = [(i, torch.tensor(row)) for i, text in enumerate(texts) for row in self._rows(text)]
        by_length = defaultdict(list)
        for r, (_, row) in enumerate(rows):
            by_length[len(row)].append(r)
        seed = seed if generator is None else drawn_seed(generator)
        parts = []
        for same in by_length.values():
            part = nelbo(
                for_bound(self.denoiser),
                torch.stack([rows[r][1] for r in same]),
                by=by,
                passes=passes,
                seed=seed,
                index=torch.tensor(same),
                schedule=self.schedule,
                batch=batch,
            )
            parts.append((torch.tensor([rows[r][0] for r in same]), part))
        return per_text(parts, torch.tensor([len(text) for text in texts]))

    def save_pretrained(self, folder: str | os.PathLike[str], *, half: bool = False) -> None:
        """Write weights, config, card and tokenizer to a folder that ``unmask.load`` reads. half: in float16.

        Only for networks of this project; ``unmask convert`` turns other checkpoints into such folders.
        """
        from unmask.networks import counted, pretrained

        counts = self.denoiser if isinstance(self.denoiser, counted.Counted) else None
        network = self.denoiser if counts is None else counts.network
        if not isinstance(network, pretrained.Pretrained) or not isinstance(self.tokenizer, Tokenizer):
            raise ValueError(f"{self.name} is not of this project's own format: unmask convert makes a folder of it")
        names = [name for name, schedule in SCHEDULES.items() if schedule == self.schedule]
        if not names:
            raise ValueError(f"a schedule that can be saved is one of {', '.join(SCHEDULES)}, not {self.schedule!r}")
        extra = dict(self.extra) | {"schedule": names[0], "layout": self.layout}
        extra |= {"characters_per_token": self.characters_per_token, "tokenizer_sha256": self.tokenizer.hash}
        pretrained.save(Path(folder), cast("Transformer", network), half=half, extra=extra)
        if counts is not None:
            counted.save(Path(folder), counts)
        self.tokenizer.save(Path(folder) / TOKENIZER)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload the folder of ``save_pretrained`` to the Hugging Face hub, and return its address.

        The repository is created if it does not exist. token: by default that of ``hf auth login``.
        """
        from huggingface_hub import HfApi

        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            api = HfApi(token=token)
            repository = api.create_repo(repo_id, private=private, exist_ok=True)
            message = f"Upload {self.name}, saved by unmask"
            return str(api.upload_folder(repo_id=repository.repo_id, folder_path=folder, commit_message=message))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids. A row ends at its first eos.

        In wrapped text an eos is a newline between documents, or ``<eos>`` where the alphabet has no newline. Molecules
        are written as SMILES, also where the tokens are SELFIES.
        """
        text = self.written(ids)
        return to_smiles(text) if self.tokenizer.kind == "selfies" else text

    def written(self, ids: Sequence[int]) -> str:
        """The text of token ids in the tokenizer's notation: SELFIES stay SELFIES."""
        ids, ends = list(ids), self.ends
        if not ends:
            return self.tokenizer.decode(ids)
        documents = [list(group) for is_end, group in itertools.groupby(ids, lambda i: i in ends) if not is_end]
        if self.layout == "rows":
            documents = documents[:1] if ids and ids[0] not in ends else []
        texts = [self.tokenizer.decode(document) for document in documents]
        if self.tokenizer.kind == "metaspace":  # at the start of a text, the first word comes with a space
            texts[1:] = [text.removeprefix(" ") for text in texts[1:]]
        return (f" {EOS} " if self.tokenizer.kind == "characters" and "\n" not in self.tokenizer.vocab else "\n").join(
            texts
        )

    def blanks(self, text: str, mask_character: str | None = None) -> Blanks:
        """The canvas of an infill: the text with its blanks masked, framed like the training data."""
        from unmask.text.blanks import join, split, with_mask_token

        if mask_character is None:
            text, mask_character = with_mask_token(text, self.tokenizer.mask_token)
        if not isinstance(text, str):
            raise OptionError("text", f"text must be one text with blanks, got {type(text).__name__}")
        words = self.tokenizer.kind in BPE
        pieces = split(text, characters_per_token=self.token_width, mask_character=mask_character, words=words)
        pieces, smiles = self._notated(pieces)
        bare = join(pieces, self.tokenizer, self.denoiser.mask_id)
        before, after = self._frame(len(bare.ids))
        return replace(join(pieces, self.tokenizer, self.denoiser.mask_id, before=before, after=after), smiles=smiles)

    def begins(self, prompt: str, stop: object) -> bool:
        """Whether a canvas begins with given tokens: a prompt, or the eos at the start of every wrapped sequence.

        That eos does not end a text, so sampling with ``stop`` must not draw it.
        """
        return bool(prompt) or (stop not in (None, False) and self.layout == "wrapped")

    def prompted(self, prompt: str, length: int | None = None, *, room: int | None = None) -> Blanks:
        """The canvas of a prompted text: masked from the prompt to the end, or for ``room`` tokens."""
        from unmask.text.blanks import join

        length = self.length if length is None else length
        if length is None and room is None:
            raise ValueError("give length, the number of tokens")
        before, after = self._frame(0)
        if self.tokenizer.frame is None:
            after = [] if self.process.continues else before
        (begins, *_), smiles = self._notated([prompt, 1, ""])
        begun = join([begins, 1, ""], self.tokenizer, self.denoiser.mask_id, before=before, after=after)
        room = room or (length or 0) - (len(begun.ids) - 1)
        if room < 1:
            raise ValueError(f"the prompt has {len(begun.ids) - 1} tokens with its eos: length={length} has no room")
        blanks = join([begins, room, ""], self.tokenizer, self.denoiser.mask_id, before=before, after=after)
        return replace(blanks, smiles=smiles)

    def _notated(self, pieces: list[str | int]) -> tuple[list[str | int], bool]:
        """Pieces of text in the tokenizer's notation: SMILES become SELFIES if those are the tokens."""
        return fragments(pieces) if self.tokenizer.kind == "selfies" else (pieces, False)

    def allowed(self, ids: Sequence[int], blanks: Blanks | None = None, *, stops: bool = False) -> dict[int, Tensor]:
        """The ids that may fill each masked position, {position: bool [V]}, where that is not every id.

        A row has one end: before a visible token, no eos or padding may be drawn; after the end, nothing else may,
        unless sampling ``stops`` at a drawn end. A blank whose surroundings leave out a space must begin with one.
        """
        from unmask.text.blanks import spaces

        masks: dict[int, Tensor] = {}
        ends = {*self.ends, self.tokenizer.pad_id} - {None}
        if self.layout == "rows" and ends and self.tokenizer.frame is None and not stops:
            mask_id = self.denoiser.mask_id
            text = max((at for at, token in enumerate(ids) if token != mask_id and token not in ends), default=-1)
            end = next(
                (at for at, token in enumerate(ids) if token in self.ends and at > text), None
            )  # where the row ends
            is_end = torch.zeros(self.denoiser.vocab_size, dtype=torch.bool, device=device_of(self.denoiser))
            is_end[[one for one in ends if one is not None]] = True
            masks = {at: ~is_end for at in range(text if end is None else end) if ids[at] == mask_id}
            masks |= {at: is_end for at in range(len(ids) if end is None else end, len(ids)) if ids[at] == mask_id}
        if blanks is not None and blanks.spaced:
            masks |= dict.fromkeys(blanks.spaced, spaces(self.tokenizer, self.denoiser.vocab_size))
        return masks

    def _frame(self, tokens: int) -> tuple[list[int], list[int]]:
        """The tokens before and after a text of this many tokens in the training data."""
        if self.tokenizer.frame is not None:
            return list(self.tokenizer.frame[0]), list(self.tokenizer.frame[1])
        eos = [] if self.tokenizer.eos_id is None else [self.tokenizer.eos_id]
        if self.layout == "wrapped":
            return eos, eos
        padding = max((self.length or 0) - tokens - len(eos), 0) if self.tokenizer.pad_id is not None else 0
        return [], eos + [self.tokenizer.pad_id or 0] * padding

    def _rows(self, text: str) -> list[list[int]]:
        """A text as sequences of at most the training length."""
        ids = self.tokenizer.encode(to_selfies(text) if self.tokenizer.kind == "selfies" else text)
        before, after = self._frame(len(ids))
        frame = len(before) + len(after)
        length = self.length or len(ids) + frame
        if self.layout == "rows":
            if len(ids) + frame > length:
                raise ValueError(f"a text of {len(ids)} tokens does not fit into a row of {length}: {text[:40]!r}")
            return [[*before, *ids, *after]]
        body = length - frame
        return [[*before, *ids[i : i + body], *after] for i in range(0, max(len(ids), 1), body)]

    def _filled(self, blanks: Blanks, num: int | None, options: TextRequest) -> TextSample:
        rows = torch.tensor(blanks.ids).expand(1 if num is None else num, -1)
        return self._sampled(blanks, options, canvas=rows.clone())

    def _sampled(self, blanks: Blanks | None, options: TextRequest, **changes: Any) -> TextSample:
        """Sample with these options and changes. A guide among the changes says which ids may fill a position."""
        given = {one.name: getattr(options, one.name) for one in fields(Watched)} | changes
        canvas = None if given.get("canvas") is None else ids(given["canvas"], "canvas")
        if canvas is None and given["length"] is None:
            given["length"] = self.length
        given["canvas"] = canvas
        asked = given["length"] if canvas is None else canvas.shape[1]
        if self.length is not None and isinstance(asked, int) and asked > self.length:
            message = f"{asked} tokens: {self.name} was trained on {self.length} at a time, and may do badly beyond"
            warnings.warn(message, stacklevel=5)
        if canvas is not None and "guide" not in changes and given["allowed"] is None:
            stops = bool(given["stop"])
            given["allowed"] = [self.allowed(row, blanks, stops=stops) for row in canvas.tolist()]
        if given["stop"] is False:
            given["stop"] = None
        if given["stop"] is True:
            if not self.ends:
                raise OptionError("stop", f"the texts of {self.name} have no end: give stop as token ids")
            given["stop"] = self.ends
        begin = self._text_begins() if isinstance(options, InfillRequest) else self._first_masked(canvas)
        if options.limited and "guide" not in changes:
            given |= self._limits(options, begin, canvas, given.get("length"))
        done = filled(self.denoiser, Request(**given | {"schedule": given["schedule"] or self.schedule}))
        if options.schema is not None:
            done = replace(done, tokens=ended(done.tokens, begin, self.tokenizer.eos_id))
        text = self.texts(done.tokens.tolist(), blanks)
        return TextSample(**{one.name: getattr(done, one.name) for one in fields(done)}, text=text)

    def _limits(self, options: TextRequest, begin: int, canvas: Tensor | None, length: Any) -> dict[str, Any]:
        """The guide that a pattern, words or a schema make, and the particles that correct it."""
        if options.schema is None:
            return {"guide": constraint(self, options.pattern, options.contains)}
        few = PARTICLES_OF_SCHEMA if self.process.continues and options.pick == Pick(options.draw) else 1
        particles = few if options.particles is None else options.particles
        guide, mask_id = described(self, options.schema, begin), self.denoiser.mask_id
        if canvas is not None or isinstance(length, int):
            require_possible(guide, torch.full((length,), mask_id) if canvas is None else canvas[0], mask_id)
        return {"guide": guide, "particles": particles}

    def _text_begins(self) -> int:
        """The position of a text's first token, after what frames it."""
        return len(self._frame(0)[0])

    def _first_masked(self, canvas: Tensor | None) -> int:
        masked = torch.zeros(1, 1) if canvas is None else (canvas[0] == self.denoiser.mask_id).long()
        return int(masked.argmax())

    @property
    def ends(self) -> tuple[int, ...]:
        """The ids that end a text, first the one that is written."""
        eos = self.tokenizer.eos_id
        return () if eos is None else (eos, *self.tokenizer.other_ends)

    def ended(self, ids: Sequence[int]) -> bool:
        """Whether these tokens end a row; wrapped text goes on."""
        return self.layout == "rows" and not set(self.ends).isdisjoint(ids)

    def texts(self, rows: Sequence[Sequence[int]], blanks: Blanks | None = None) -> list[str]:
        """The text of each finished sequence, with the visible parts of a canvas kept as they were given."""
        if isinstance(self.tokenizer, NoTokenizer):
            return [""] * len(rows)
        apart = self.tokenizer.kind == "levels"
        whole = blanks is None or blanks.smiles
        text = [self.decode(row) if whole else blanks.filled(row, self.written, apart=apart) for row in rows]  # type: ignore[union-attr]
        if self.tokenizer.kind in ("wordpiece", "metaspace") and (blanks is None or blanks.begins):
            text = [one.removeprefix(" ") for one in text]  # the space that came with the first word
        return text
