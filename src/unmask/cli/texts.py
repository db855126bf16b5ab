"""Common to ``unmask sample`` and ``unmask infill``: their options, the model, the view, and the output."""

from __future__ import annotations

import itertools
import json
import math
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from unmask import devices
from unmask.cli.grid import conflicts, grid, side_of
from unmask.cli.options import OnMachine, StoredWeights, UserNetwork, check_files, check_number, loaded, use_threads
from unmask.errors import OptionError
from unmask.files import write_whole
from unmask.model import Model
from unmask.names import SamplerOptions
from unmask.sampler import Step
from unmask.text.requests import TextSample
from unmask.tokenizers.missing import NoTokenizer
from unmask.tokenizers.molecules import problem, verdict, verdict_on

if TYPE_CHECKING:
    from unmask.samplers.guided import Population
    from unmask.tokenizers.external import ExternalTokenizer
    from unmask.tokenizers.tokenizer import Tokenizer

Texts = TypeVar("Texts", bound="TextOptions")

NGRAM, ORDER = "ngram:", 5  # of --draft
MOST_SEED = 100_000  # of seeds that are drawn: short enough to be typed


@dataclass(frozen=True, kw_only=True)
class TextOptions(OnMachine, StoredWeights, UserNetwork, SamplerOptions):
    """Options that sample and infill share."""

    number: int = 1
    """The number of sequences."""
    batch: int | None = None
    """The maximum number of sequences per network call. The default is all."""
    seed: int | None = None
    """The seed. Sequence i of a seed is always the same. Default: a new one on a terminal, which is printed, otherwise
    0."""
    stop: bool = False
    """Stop at the end of a text: positions after it cost no network call."""
    contains: tuple[str, ...] = ()
    """Words that must occur in the text. They guide every draw (docs/infilling.md)."""
    pattern: str | None = None
    """A regular expression that the whole text must match. It guides every draw (docs/infilling.md)."""
    draft: str | None = None
    """With --ahead: another model of the same tokens that guesses first, or ngram:DATA, the 5-gram counts of prepared
    data or a corpus. The texts are the same; there are fewer calls where it guesses right."""
    json_schema: str | None = None
    """A file with a JSON Schema that the text must satisfy: of a sample what follows the prompt, of an infill the whole
    text (docs/structured.md)."""
    particles: int | None = None
    """The number of particles for each text. More of them bring a guided sample closer to the exact distribution."""
    compile: bool = False
    """Compile the network with torch.compile. This takes half a minute or more and pays off for many equal calls."""
    cache: Literal["prefix", "dual"] | None = None
    """Fast-dLLM's approximate caches, for LLaDA, Dream and their kin, with --decoding and --block: all but the first
    call of a block compute the block and what follows it (prefix), or the block alone (dual). Draws are biased."""
    ids: bool = False
    """Print token ids instead of texts: all that a checkpoint without a tokenizer has."""
    json: bool = False
    """One JSON line per sequence: text, tokens, seed, index, nfe, ncs, model and the trace of every call."""
    output: str | None = None
    """Write to this file instead of stdout. The file is written atomically."""

    def sampling(self) -> dict[str, Any]:
        """The keyword arguments of ``Model.sample`` and ``Model.infill``."""
        return self.arguments() | self.limits() | {"seed": self.seed or 0, "batch": self.batch}

    def limits(self) -> dict[str, Any]:
        """The constraints on the texts, as given."""
        given = {name: getattr(self, name) for name in ("stop", "contains", "pattern", "particles")}
        given["schema"] = self.schema
        return {
            name: value for name, value in given.items() if value is not None and value is not False and value != ()
        }

    @cached_property
    def schema(self) -> Any:
        """The JSON Schema, from its file."""
        if self.json_schema is None:
            return None
        try:
            return json.loads(Path(self.json_schema).read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise ValueError(f"--json-schema {self.json_schema}: {error}") from error

    def in_all(self, weighed: int | None = None) -> int:
        """The number of sequences with their particles; weighed: how many particles a text has without a guide."""
        if (
            self.particles not in (None, 1)
            and weighed is None
            and not (self.contains or self.pattern or self.json_schema)
        ):
            says = "a guide weighs them, so give --contains, --pattern or --json-schema"
            raise ValueError(f"--particles {self.particles}: {says}")
        return self.number * max(1, weighed or self.particles or 1)


def seeded(chosen: Texts) -> Texts:
    """The options with a seed: what is written to a terminal differs from one run to the next."""
    if chosen.seed is not None:
        return chosen
    fresh = sys.stdout.isatty() and not chosen.json and chosen.output is None
    return replace(chosen, seed=1 + secrets.randbelow(MOST_SEED - 1) if fresh else 0)


def tell_seed(given: TextOptions, chosen: TextOptions) -> None:
    """The seed that was drawn, to repeat what is on the terminal."""
    if given.seed is None and chosen.seed:
        print(f"seed {chosen.seed}: --seed {chosen.seed} draws this again", file=sys.stderr)


def read(arguments: Sequence[str]) -> list[str]:
    """The arguments, with a bare --ahead as --ahead auto."""
    complete: list[str] = []
    for argument, value in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        bare = argument == "--ahead" and value != "auto" and not value.lstrip("+-").isdigit()
        complete += [argument, "auto"] if bare else [argument]
    return complete


def model_for(chosen: TextOptions, name: str, device: str | None = None) -> Model:
    """The model as requested: on its device, or on the named one; compiled or not."""
    check_number(chosen.number)
    check_files(chosen, "output")
    use_threads(chosen.threads)
    model = loaded(name, chosen.network, device or devices.chosen(chosen.device), chosen.weights)
    if isinstance(model.tokenizer, NoTokenizer) and not (chosen.ids or chosen.json):
        raise ValueError(model.tokenizer.why)
    if chosen.cache is not None:
        from unmask.networks.cache.approximate import ApproximateCache

        if chosen.compile or chosen.block is None:
            raise OptionError("cache", f"cache={chosen.cache} needs --decoding with --block, and takes no --compile")
        return replace(model, denoiser=ApproximateCache(model.denoiser, chosen.cache))
    if not chosen.compile:
        return model
    from unmask.networks.compiled import Compiled

    print("compiling the network: the first calls take half a minute or more", file=sys.stderr)
    return replace(model, denoiser=Compiled(model.denoiser))


def draft_for(chosen: TextOptions, model: Model) -> dict[str, Any]:
    """The keyword argument of sampling that --draft asks for."""
    if chosen.draft is None:
        return {}
    if not chosen.draft.startswith(NGRAM):
        return {"draft": loaded(chosen.draft, None, "cpu").denoiser}
    from unmask.evaluate.data import train_and
    from unmask.networks.ngram import NgramDenoiser, kneser_ney

    train, _ = train_and("train", chosen.draft.removeprefix(NGRAM))
    if train.tokenizer.hash != model.tokenizer.hash:
        raise OptionError("draft", f"{chosen.draft}: these data have another tokenizer than {model.name}")
    counts = kneser_ney(train.sequences(range(len(train))).numpy(), ORDER, train.vocab_size)
    return {"draft": NgramDenoiser(counts, model.denoiser.mask_id)}


def shown(model: Model, ids: Sequence[int], number: int) -> AbstractContextManager[Callable[[Step], None] | None]:
    """On a terminal a callback that shows the canvas and the bar; if results go to a pipe, only the bar."""
    if not sys.stderr.isatty() or isinstance(model.tokenizer, NoTokenizer):
        return nullcontext()
    from unmask.cli.view import view

    canvas = torch.tensor(ids, dtype=torch.int64).expand(number, -1)
    return view(
        model.tokenizer,
        canvas,
        model.denoiser.mask_id,
        stream=sys.stderr,
        with_canvas=sys.stdout.isatty(),
        width=model.rows.token_width,
    )


def write(chosen: TextOptions, model: Model, sample: TextSample) -> None:
    """Write texts or JSON lines, to stdout or atomically to a file."""
    put(chosen, model, lines(chosen, model, sample))
    sys.stdout.flush()  # whoever reads may have left, and then nothing more is said
    tell_validity(model, sample.text)
    side = side_of(model)
    if side is not None and chosen.decoding is None and any(conflicts(text, side) for text in sample.text):
        print("--decoding margin fills the surest cell first, and breaks fewer rules", file=sys.stderr)
    if chosen.schema is not None and sample.population is not None:
        print(evidence_of(sample.population), file=sys.stderr)


def lines(chosen: TextOptions, model: Model, sample: TextSample, index: Sequence[int] | None = None) -> list[str]:
    """The output for each sequence; index: the sequences' numbers for the seed."""
    if chosen.json:
        how = chosen.record(model.process) | chosen.limits()
        entries = records(sample, model=model.name, seed=chosen.seed or 0, index=index, **how)
        notes = [verdict(text) if writes_molecules(model) else {} for text in sample.text]
        if chosen.schema is not None and sample.population is not None:
            notes = [note | one for note, one in zip(notes, sample.population.reports(), strict=True)]
        return [json.dumps(record | note) for record, note in zip(entries, notes, strict=True)]
    rows = sample.tokens.tolist()
    if chosen.ids:
        return [" ".join(map(str, row)) for row in rows]
    if chosen.output is not None:
        return sample.text
    texts = [for_terminal(text, row, model.tokenizer) for text, row in zip(sample.text, rows, strict=True)]
    if not sys.stdout.isatty():
        return texts
    if (side := side_of(model)) is not None:
        return [f"{grid(text, side)}\n" if len(text) == side * side else text for text in texts]
    if not writes_molecules(model):
        return texts
    return [f"{text}{f'   (not a molecule: {says})' if (says := problem(text)) else ''}" for text in sample.text]


def evidence_of(population: Population) -> str:
    """How likely the free model would have satisfied a constraint, estimated from all texts."""
    evidence, each = population.evidence(), population.log_weights.shape[1]
    few = f"; of {each} particles at least {population.effective.min():.3g} effective" if each > 1 else ""
    return f"unconstrained, the model would have satisfied it with probability 10^{evidence / math.log(10):.2f}{few}"


def writes_molecules(model: Model) -> bool:
    """Whether the texts of a model are SMILES, each of which may be a molecule or not."""
    return model.tokenizer.kind in ("smiles", "selfies")


def tell_validity(model: Model, smiles: Sequence[str]) -> None:
    """How many of these texts are molecules, on stderr."""
    if writes_molecules(model):
        print(verdict_on(smiles), file=sys.stderr)


def records(
    sample: TextSample, *, model: str, seed: int, index: Sequence[int] | None = None, **how: Any
) -> Iterator[dict[str, Any]]:
    """One object per sequence; its trace has one entry per network call that the sequence took part in.

    how: sampler, steps, draw and so on, which go into every object. index: the sequences' numbers for the seed.

    An entry has the number of the call for this sequence, the filled positions, their tokens, probabilities and hitting
    times (tau). Where Algorithm 4 masked positions again first (hidden) or kept their tokens (not drawn), these are
    listed too, and with --ahead the positions and tokens that are provisional guesses (guessed).
    """
    traces: list[list[dict[str, Any]]] = [[] for _ in sample.text]
    for step in sample.trace:
        for row, sequence in enumerate(step.sequences.tolist()):
            traces[sequence].append({"call": len(traces[sequence]) + 1, **_entry(step, row)})
    tokens, nfe, ncs = sample.tokens.tolist(), sample.nfe.tolist(), sample.ncs.tolist()
    for i, text in enumerate(sample.text):
        yield {
            "text": text,
            "seed": seed,
            "index": i if index is None else index[i],
            "nfe": nfe[i],
            "ncs": ncs[i],
            "model": model,
            **how,
            "tokens": tokens[i],
            "trace": traces[i],
        }


def _entry(step: Step, row: int) -> dict[str, Any]:
    real = step.positions[row] >= 0
    columns = {"positions": step.positions, "tokens": step.tokens, "probabilities": step.probabilities, "tau": step.tau}
    entry = {name: values[row].cpu()[real].tolist() for name, values in columns.items()}
    if step.hidden is not None and bool((step.hidden[row] >= 0).any()):
        entry["hidden"] = step.hidden[row][step.hidden[row] >= 0].tolist()
    if step.guessed is not None and bool((step.guessed[row] >= 0).any()):
        entry["guessed"] = step.guessed[row][step.guessed[row, :, 0] >= 0].tolist()
    drawn = step.drawn[row][real].tolist()
    return entry if all(drawn) else entry | {"drawn": drawn}


def put(chosen: TextOptions, model: Model, lines: Iterable[str]) -> None:
    """Write the lines of all sequences."""
    between = "\n\n" if model.layout == "wrapped" and not chosen.json else "\n"
    content = between.join(lines) + "\n"
    if chosen.output is None:
        sys.stdout.write(content)
    else:
        write_whole(Path(chosen.output), content.encode())


def for_terminal(text: str, ids: Sequence[int], tokenizer: Tokenizer | ExternalTokenizer) -> str:
    """On a terminal, an image as a picture, and text without control characters; elsewhere the text."""
    if not sys.stdout.isatty():
        return text
    from unmask.cli.view import picture, printable

    drawn = picture(ids, tokenizer.vocab_size) if tokenizer.kind == "levels" else None
    return printable(text) if drawn is None else f"{drawn}\n"
