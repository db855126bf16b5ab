"""A network with its tokenizer, so that texts go in and texts come out: what ``unmask.load`` returns."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from unmask.checks import ids
from unmask.draw import Pick
from unmask.errors import OptionError
from unmask.guides.automaton import Both
from unmask.networks.oracles.hidden_markov import HiddenMarkovOracle
from unmask.options import takes
from unmask.processes import Process, process_of
from unmask.protocol import check, for_bound, length_of
from unmask.sampling import Request, Watched, filled
from unmask.schedule import SCHEDULES, Linear, Schedule
from unmask.text.constraints import constraint, described, ended, require_possible
from unmask.text.requests import InfillRequest, SampleRequest, TextRequest, TextSample
from unmask.text.rows import TextRows
from unmask.tokenizers.tokenizer import LAYOUTS, Layout, Tokenizer

if TYPE_CHECKING:
    from unmask.bound import Bound
    from unmask.networks.transformer import Transformer
    from unmask.processes.process import By
    from unmask.text.blanks import Blanks
    from unmask.tokenizers.external import ExternalTokenizer

TOKENIZER = "tokenizer.json"
TEXTS = 8  # from which token frequencies are estimated
PARTICLES_OF_SCHEMA = 16  # for each text of a network that sees only what comes before, unless a number is given


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
    def process(self) -> Process:
        """What the network is."""
        return process_of(self.denoiser)

    @property
    def rows(self) -> TextRows:
        """How texts are written as rows of its token ids."""
        ids, mask_id, continues = self.denoiser.vocab_size, self.denoiser.mask_id, self.process.continues
        return TextRows(self.tokenizer, self.layout, mask_id, ids, self.length, self.characters_per_token, continues)

    @cached_property
    def look_ahead(self) -> HiddenMarkovOracle | None:
        """What guides look ahead with where the network computes the next positions alone.

        Independent tokens, as often as in a few texts of the model, each id counted once more.
        """
        if not self.process.continues:
            return None
        size = self.denoiser.vocab_size
        counts = torch.bincount(self.sample(TEXTS).tokens.flatten(), minlength=size)[:size].double() + 1
        one = torch.ones(1, 1, dtype=torch.float64)
        return HiddenMarkovOracle(one[0], one, (counts / counts.sum()).unsqueeze(0))

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
        begun = self.rows.begins(prompt, options.stop or options.schema) and (prompt or canvas is None)
        if room is not None:
            if length is not None or canvas is not None or room < 1:
                says = f"max_tokens={room} must be at least 1, and cannot be combined with length or canvas"
                raise OptionError("max_tokens", says)
            length = room if not begun else len(self.rows.prompted(prompt, room=room).ids)
        if not begun:
            return self._sampled(None, options, num=options.num, length=length, canvas=canvas)
        if canvas is not None:
            raise OptionError("canvas", "give a prompt or a canvas, not both")
        return self._filled(self.rows.prompted(prompt, length), options.num, options)

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
        blanks, particles = self.rows.blanks(options.text, options.mask_character), weighed.particles(self, options)
        if particles is None:
            return self._filled(blanks, num, options)
        canvas, allowed = weighed.canvas(self.rows, blanks)
        rows = torch.tensor(canvas).expand(num, -1).clone()
        guide = weighed.guide(self.rows, canvas, allowed)
        if options.schema is not None:
            schema = described(self.rows, options.schema, self.rows.begin, allowed=allowed, chain=self.look_ahead)
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
        rows = [(i, torch.tensor(row)) for i, text in enumerate(texts) for row in self.rows.split(text)]
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
        return self.rows.decode(ids)

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
            given["allowed"] = [self.rows.allowed(row, blanks, stops=stops) for row in canvas.tolist()]
        if given["stop"] is False:
            given["stop"] = None
        if given["stop"] is True:
            if not self.rows.ends:
                raise OptionError("stop", f"the texts of {self.name} have no end: give stop as token ids")
            given["stop"] = self.rows.ends
        begin = self.rows.begin if isinstance(options, InfillRequest) else self._first_masked(canvas)
        if options.limited and "guide" not in changes:
            given |= self._limits(options, begin, canvas, given.get("length"))
        done = filled(self.denoiser, Request(**given | {"schedule": given["schedule"] or self.schedule}))
        if options.schema is not None:
            done = replace(done, tokens=ended(done.tokens, begin, self.tokenizer.eos_id))
        text = self.rows.texts(done.tokens.tolist(), blanks)
        return TextSample(**{one.name: getattr(done, one.name) for one in fields(done)}, text=text)

    def _limits(self, options: TextRequest, begin: int, canvas: Tensor | None, length: Any) -> dict[str, Any]:
        """The guide that a pattern, words or a schema make, and the particles that correct it."""
        if options.schema is None:
            return {"guide": constraint(self.rows, options.pattern, options.contains, chain=self.look_ahead)}
        few = PARTICLES_OF_SCHEMA if self.process.continues and options.pick == Pick(options.draw) else 1
        particles = few if options.particles is None else options.particles
        guide, mask_id = described(self.rows, options.schema, begin, chain=self.look_ahead), self.denoiser.mask_id
        if canvas is not None or isinstance(length, int):
            require_possible(guide, torch.full((length,), mask_id) if canvas is None else canvas[0], mask_id)
        return {"guide": guide, "particles": particles}

    def _first_masked(self, canvas: Tensor | None) -> int:
        masked = torch.zeros(1, 1) if canvas is None else (canvas[0] == self.denoiser.mask_id).long()
        return int(masked.argmax())
