"""Blanks of a text filled by particles: for networks that see only what comes before.

Where the text has a blank, each particle draws tokens. Where it is given, every particle takes the given token, and its
weight is multiplied by the probability of that token after what the particle wrote. The weights decide which particles
go on. As their number grows, the distribution tends to the network's own, given the whole text: p(blanks | text).

A second model may draw the blanks instead, with both sides in view: the proposal. Along the order that it happened to
take, a filling has the probability q, and the weight is p(text) / q. Its mean is the probability of the given text, so
these particles tend to p(blanks | text) as well. The better the proposal, the fewer of them are needed.

p is the chain rule along an order. Particles without a proposal share the order that sampling takes; a proposal's are
weighed from left to right. For a model that is sampled from left to right these are one distribution. A block model
takes random orders within its blocks, so the two limits differ as far as its conditionals belong to no one joint.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.errors import OptionError
from unmask.guide import Call, Guide, Weigh
from unmask.guides.classifiers import only
from unmask.likelihood import nelbo
from unmask.noise import Streams
from unmask.protocol import for_bound
from unmask.sampling import chosen_particles
from unmask.tokenizers.molecules import problem

if TYPE_CHECKING:
    from unmask.text.blanks import Blanks
    from unmask.text.requests import InfillRequest, TextModel, TextRequest, TextSample
    from unmask.text.rows import TextRows

PARTICLES = 32  # for each text, unless a number is given
MOLECULES = 128  # for SMILES: of short ones few are molecules
PROPOSED = 16  # by a second model
NO_MOLECULE = -100.0  # added to the log-weight of a text that is no molecule
FOR_PROPOSALS = ("text", "num", "mask_character", "proposal", "seed", "batch", "particles", "callback")  # options


def particles(model: TextModel, options: TextRequest) -> int | None:
    """How many particles fill the blanks of each text, or None if they are filled without.

    A network that sees only what comes before has no other way. One that takes any order, and left to right by default,
    fills blanks so unless there is a guide, one particle, or an option that particles do not take.
    """
    number = options.particles
    guides = [name for name in ("guide", "pattern", "contains") if getattr(options, name)]
    if model.process.continues:
        for name in guides:
            says = f"{model.name} fills blanks by particles, which the text itself weighs: leave out {name}"
            raise OptionError(name, says)
        return PARTICLES if number is None else number
    if guides or options.schema is not None or not model.process.from_left or number == 1:
        return None
    plain = set(options.given) <= set(FOR_PROPOSALS)
    usual = MOLECULES if model.rows.tokenizer.kind == "smiles" else PARTICLES
    return usual if number is None and plain else number


def opened(ids: Sequence[int], mask_id: int, vocab_size: int) -> tuple[list[int], dict[int, Tensor]]:
    """The ids, masked from the first masked position on, and the only id at each position that was hidden by this."""
    first = next((at for at, token in enumerate(ids) if token == mask_id), len(ids))
    given = {at: torch.arange(vocab_size) == ids[at] for at in range(first, len(ids)) if ids[at] != mask_id}
    return [*ids[:first], *[mask_id] * (len(ids) - first)], given


def canvas(rows: TextRows, blanks: Blanks) -> tuple[list[int], dict[int, Tensor]]:
    """The canvas, masked from the first blank on, and the ids that may fill each position: given ones and ``allowed``.

    Behind the end of a row there is only padding, which is left out.
    """
    ids, tokenizer = list(blanks.ids), rows.tokenizer
    while len(ids) > 1 and ids[-1] == tokenizer.pad_id and ids[-2] in (tokenizer.pad_id, tokenizer.eos_id):
        ids.pop()
    masked, given = opened(ids, rows.mask_id, rows.vocab_size)
    return masked, rows.allowed(blanks.ids, blanks) | given


@dataclass(frozen=True)
class OnlyMolecules:
    """A guide to SMILES that are molecules: any other text loses almost all of its weight, as soon as it is known.

    That is where its last blank is filled: what follows is given. Not all of the weight, so that a canvas on which no
    particle is a molecule still has a result.
    """

    given: Guide  # the ids that may fill each position
    last: int  # the last position that is drawn
    log_h: Callable[[tuple[int, ...]], float]  # of a row, from its ids up to ``last``
    everywhere: bool = False
    races: bool = False
    tilts: bool = True

    def __call__(self, call: Call) -> Weigh:
        inner = self.given(call)

        def weigh(i: Tensor, x: Tensor, at: Tensor, race: Tensor | None) -> Tensor:
            weights = inner(i, x, at, race)
            for row in (at >= self.last).nonzero().squeeze(1).tolist():
                *before, own = x[row, : self.last + 1].tolist()
                if int(at[row]) > self.last:
                    weights[row] += self.log_h((*before, own))
                    continue
                for token in weights[row].isfinite().nonzero().squeeze(1).tolist():
                    weights[row, token] += self.log_h((*before, token))
            return weights

        return weigh


def guide(rows: TextRows, ids: Sequence[int], allowed: Mapping[int, Tensor]) -> Guide:
    """What particles must agree with: the given tokens, and, for SMILES, that the row is a molecule."""
    given, end = only(allowed), len(ids) - 1
    if rows.tokenizer.kind != "smiles" or rows.layout != "rows" or end < 1 or end not in allowed:
        return given
    last = max(at for at in range(end) if at not in allowed or int(allowed[at].sum()) > 1)
    rest = [int(allowed[at].nonzero()) for at in range(last + 1, end)]

    @functools.cache
    def log_h(row: tuple[int, ...]) -> float:
        return NO_MOLECULE if problem(rows.decode([*row, *rest])) else 0.0

    return OnlyMolecules(given, last, log_h)


def check_proposal(model: TextModel, options: InfillRequest) -> int:
    """How many particles of each text the proposal draws. What cannot be combined with it is refused."""
    proposal = options.proposal
    if not (hasattr(proposal, "rows") and hasattr(proposal, "denoiser")):
        raise OptionError("proposal", f"proposal must be a model, such as unmask.load(NAME), got {proposal!r}")
    assert proposal is not None
    if not (model.process.continues or model.process.from_left):
        says = f"{model.name} has no likelihood from left to right, by which a proposal's texts are weighed"
        raise OptionError("proposal", says)
    if proposal.process.continues:
        says = f"the proposal must see both sides of a blank, and {proposal.name} sees what comes before"
        raise OptionError("proposal", says)
    if proposal.rows.tokenizer.hash != model.rows.tokenizer.hash:
        says = f"the proposal must have the tokenizer of {model.name}, and {proposal.name} has another"
        raise OptionError("proposal", says)
    for name in options.given:
        if name not in FOR_PROPOSALS:
            raise OptionError(name, f"with a proposal the model itself is sampled: leave out {name}")
    if not isinstance(options.seed, int):
        raise OptionError("seed", f"with a proposal the seed is one whole number, got {options.seed!r}")
    return PROPOSED if options.particles is None else options.particles


def among(model: TextModel, drawn: TextSample, particles: int, seed: int) -> TextSample:
    """One of each ``particles`` texts that a proposal has drawn, by the weights p / q."""
    from unmask.samplers.guided import effective, weighted

    log_q, first = torch.zeros(len(drawn.tokens), dtype=torch.float64), drawn.tokens.shape[1]
    for step in drawn.trace:
        filled = step.positions >= 0
        log_q[step.sequences] += step.probabilities.cpu().where(filled, 1.0).log().sum(1)
        first = min(first, int(step.positions[filled].min()))
    different, which = torch.unique(drawn.tokens, dim=0, return_inverse=True)
    after = (torch.arange(different.shape[1]) >= first).expand_as(different)  # the text before is common to all
    log_p = -nelbo(for_bound(model.denoiser), different, by="left-to-right", where=after).nats[which.cpu()]
    log_weights = (log_p - log_q).view(-1, particles)
    streams = Streams.of(seed, len(log_weights))
    population = weighted(drawn.tokens, log_weights, effective(log_weights), streams)
    rows = torch.arange(len(log_weights)) * particles + population.chosen
    return chosen_particles(replace(drawn, text=[drawn.text[row] for row in rows.tolist()]), population)
