"""Insertion: masks are inserted and unmasked, so that a text's length is drawn with it (``unmask.insertion``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from unmask import insertion
from unmask.errors import OptionError
from unmask.masking import Masking, Uniforms, all_tokens
from unmask.options import Options
from unmask.processes.process import Process
from unmask.protocol import Denoiser, length_of
from unmask.sampler import Sampler

INSERTION = "insertion"
WHOLE = "an insertion model draws whole texts, and their lengths"


@dataclass(frozen=True)
class Insertion(Process):
    """Each slot of a canvas is decided and then unmasked; the last two ids of the network are EMPTY and OPEN."""

    name = "insertion"
    phrase = "an insertion model"
    chooses = False
    draws_length = True
    orders = "by insertions in a random order"
    extra_ids = 1
    settings: ClassVar[Mapping[str, Any]] = {"insertion": True}
    objectives = (INSERTION,)
    refused: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("plan", "steps", "predict", "predictor", "decoding", "ahead", "guide"),
            "an insertion model inserts masks and unmasks them, one per call: it takes no {it}",
        ),
        **dict.fromkeys(("prompt", "canvas", "max_tokens", "stop", "text"), WHOLE + ": it takes no {it}"),
        **dict.fromkeys(
            ("fill_blanks", "score_continuations", "be_served", "be_measured_by_steps"), WHOLE + ": it cannot {it}"
        ),
        **dict.fromkeys(
            ("by=order", "by=mixture", "by=left-to-right"),
            "an insertion model has no order of positions: its bound takes no {it}",
        ),
        "where": f"{WHOLE}: its bound takes no where",
        "orders": "an insertion model has no order of positions: unmask.nelbo bounds its likelihood",
        "profile": "an insertion model makes one decision per call: it has no profile",
    }

    def check_sampler(self, sampler: Sampler | None) -> None:
        if sampler is not None and getattr(sampler, "process", None) != self.name:
            raise OptionError("sampler", "an insertion model has a sampler of its own: leave sampler out")

    def check(self, model: Denoiser, canvas: Tensor, options: Options) -> None:
        super().check(model, canvas, options)
        most = length_of(model)
        if most is not None and canvas.shape[1] != most:
            raise OptionError("length", f"this model chooses the length, up to {most} tokens: leave length out")

    @property
    def order(self) -> str:
        return INSERTION

    def sampler(self, options: Options) -> Sampler:
        from unmask.samplers.insertion import InsertionSampler

        return options.sampler or InsertionSampler()

    def masking(self, objective: str, u: Uniforms, *, where: Tensor | None = None, **how: Any) -> Masking:
        """A time for each text, and two for each slot."""
        assert u.when is not None
        return replace(all_tokens(u.when), time=u.t, when=torch.stack((u.when, u.keys), 2))

    def terms(self, model: Any, x0: Tensor, masking: Masking, objective: str = INSERTION) -> Tensor:
        assert masking.when is not None
        return insertion.estimate(model, x0, masking.time, masking.when)

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        return None

    def validated(self, objective: str) -> str:
        return INSERTION

    def pass_uniforms(self, t: Tensor, u: Tensor) -> Uniforms:
        return Uniforms(t, u[:, 1], u[:, 1], u[:, 0])

    def along_order(self, model: Any, x0: Tensor, order: Tensor, *, time: Tensor | None = None) -> Tensor:
        raise OptionError("orders", self.refused["orders"])
