"""A request with every name resolved: a canvas, a sampler, and how its tokens are drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from unmask import plan as plans
from unmask.checks import check_canvas
from unmask.draw import Pick
from unmask.loading import Known, describe, load, locate
from unmask.model import Model
from unmask.noise import Streams
from unmask.protocol import Allowed, Caches, LooksAhead, for_sampling, takes_lengths
from unmask.sampler import Sampler, Task
from unmask.samplers.guided import Guided
from unmask.samplers.planned import Planned
from unmask.text.blanks import Blanks


@dataclass(frozen=True, eq=False)
class Served:
    """A model that is being served."""

    model: Model
    card: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None  # Jinja, as in checkpoints of the Hugging Face hub

    def __post_init__(self) -> None:
        self.model.process.require("be_served")

    @classmethod
    def of(cls, name: str, device: str = "cpu") -> Served:
        """A model by name, with its card."""
        about = describe(Known(name, "cache", locate(name)))
        return cls(load(name, device=device), about.get("card") or {})

    @cached_property
    def network(self) -> Any:
        """The network to call; each batch makes its own from this, with an empty cache."""
        return for_sampling(self.model.denoiser)

    def class_of(self, length: int) -> int:
        """Sequences whose lengths have the same class may share calls."""
        if not takes_lengths(self.network):
            return length
        # A cache does not need equal lengths; a network that sees the whole canvas is padded to less than twice the
        # length.
        return 0 if isinstance(self.network, Caches) else 1 << (max(length, 1) - 1).bit_length()

    @property
    def kind(self) -> str:
        """What the network is, in a word."""
        return self.model.process.name

    @property
    def display(self) -> str:
        """How its sequences are shown, one of DISPLAYS: from its card, or else from its tokens."""
        side, kind = math.isqrt(self.model.length or 0), self.model.tokenizer.kind
        if shown := self.card.get("display"):
            return str(shown)
        if kind in ("smiles", "selfies"):
            return "molecule"
        return "image" if kind == "levels" and side > 1 and side**2 == self.model.length else "text"

    @property
    def symbols(self) -> list[str] | None:
        """The symbol of each id in the cells of a grid that users fill in."""
        tokenizer = self.model.tokenizer
        if self.display != "grid":
            return None
        return [piece.decode(errors="replace") for piece in tokenizer.pieces(range(tokenizer.vocab_size))]


@dataclass(frozen=True)
class Work:
    """``number`` sequences of one canvas."""

    served: Served
    number: int
    seed: int
    canvas: tuple[int, ...]  # with mask_id at masked positions
    blanks: Blanks | None
    sampler: Sampler
    pick: Pick
    steps: int | None
    cut: int | None = None  # the text is cut at its first end from this position on
    weighed: bool = False  # whether the text itself weighs particles: its canvas is masked from the first blank on

    @cached_property
    def shown(self) -> tuple[int, ...]:
        """The canvas as it was given, with mask_id at the positions that are reported."""
        return self.blanks.ids[: len(self.canvas)] if self.weighed and self.blanks is not None else self.canvas

    @property
    def particles(self) -> int:
        """How many particles a sequence is drawn from."""
        return self.sampler.particles if isinstance(self.sampler, Guided) else 1

    @property
    def weighs(self) -> bool:
        """Whether the weights of its sequences are those of p h / Z."""
        if not isinstance(self.sampler, Guided):
            return False
        return self.sampler.guide.tilts and not self.sampler.guide.races and self.pick == Pick(self.pick.draw)

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def holes(self) -> int:
        return self.canvas.count(self.model.denoiser.mask_id)

    @property
    def settles(self) -> bool:
        """Whether an unmasked token stays: Algorithm 4 and remasking may change it."""
        if isinstance(self.sampler, Planned):
            return not self.sampler.predict.corrects
        return bool(getattr(self.sampler, "settles", True))

    @cached_property
    def allowed(self) -> Allowed | None:
        """The ids that may fill its masked positions, where restricted; a guide with particles sees to them itself."""
        return None if self.weighed else self.model.rows.allowed(self.canvas, self.blanks) or None

    def begin(self) -> Any:
        """The initial state of its sequences, which needs only the network from here on."""
        network = self.model.denoiser
        canvas = check_canvas(network, torch.tensor([self.canvas] * self.number, dtype=torch.int64), None, None)
        streams = Streams.of(self.seed, self.number)
        chains = isinstance(self.served.network, LooksAhead)
        task = Task(network.mask_id, streams, self.pick, self.model.schedule, self.steps, chains=chains)
        return self.sampler.begin(canvas, task)


def trial(served: Served) -> Work:
    """One network call to measure its cost: of a whole canvas, or of one token for a network with a cache."""
    mask_id = served.model.denoiser.mask_id
    length = 1 if isinstance(served.network, Caches) else (served.model.length or 1)
    canvas = (*[0 if mask_id else 1] * (length - 1), mask_id)
    return Work(served, 1, 0, canvas, None, Planned(plans.left_to_right), Pick(), None)
