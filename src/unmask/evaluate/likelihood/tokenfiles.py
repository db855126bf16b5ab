"""The likelihood of whole token files: in batches, on any number of processes, resumable."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unmask.data.tokens import TokenFile
from unmask.evaluate import processes
from unmask.evaluate.likelihood import partial as partials
from unmask.evaluate.likelihood.evaluation import BINS, Evaluation, Profile, by_position, in_parts, means
from unmask.evaluate.likelihood.partial import Done, Partial, Result, fingerprint
from unmask.likelihood import Passes, default_batch, per_position
from unmask.model import Model
from unmask.network import inference
from unmask.networks.ngram import kneser_ney
from unmask.processes import process_of
from unmask.processes.process import ALONG_ORDERS, By
from unmask.protocol import for_bound
from unmask.schedule import Schedule

ROWS_OF_A_BIN = 32  # at least

# Called as progress(done, total, nats per token so far): done and total are rows, that is, sequences times passes.
Progress = Callable[[int, int, float], object]


def evaluate(
    model: Model,
    tokens: TokenFile,
    *,
    by: By | None = None,
    passes: int = 16,
    until: float | None = None,
    sequences: int | None = None,
    batch: int | None = None,
    seed: int = 0,
    partial: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """The bound of a masked model, or the exact likelihood of a left-to-right one, on the sequences of a token file.

    by, passes: as in ``unmask.nelbo``; a model that is sampled from left to right needs none.
    until: continue, ``passes`` more at a time, until the error of the estimate is below this value (nats per token).
    sequences: how many, evenly spaced over the file; all by default. batch: rows per network call.
    partial: a file that stores every finished batch, from which the same call resumes.
    """
    by = process_of(model.denoiser).default_by if by is None else by
    work = _Work(model, tokens, Passes(by, passes, seed), sequences, batch)
    if until is not None and not (until > 0 and passes >= work.how.fewest):
        raise ValueError(
            f"until must be above 0, with at least {work.how.fewest} passes for by={by!r}, got until={until} and "
            f"passes={passes}"
        )
    identity = work.identity()
    path = Path(partial) if partial is not None and processes.main() else None
    with _agreed(path, identity) as store:
        done, rounds = 0, 1
        while True:
            work.round(done, store, progress, rounds)
            done += 1
            evaluation = work.evaluation(store.done, done)
            # All processes have the same numbers, so they stop together. An infinite bound has error nan.
            if until is None or work.exact or not evaluation.bound.error_of_estimate >= until:
                return evaluation
            rounds = max(done + 1, math.ceil(done * (evaluation.bound.error_of_estimate / until) ** 2))


def evaluate_ngram(order: int, train: TokenFile, tokens: TokenFile, *, sequences: int | None = None) -> Evaluation:
    """The exact likelihood of a Kneser-Ney n-gram model fitted to a whole token file."""
    if tokens.tokenizer.hash != train.tokenizer.hash:
        raise ValueError(f"{tokens.path} was made with another tokenizer than {train.path}: prepare them together")
    indices = _evenly_spaced(tokens, sequences)
    model = kneser_ney(train.sequences(range(len(train))).numpy(), order, train.vocab_size)
    nats = -torch.from_numpy(model.log_prob(tokens.sequences(indices).numpy()))
    how = f"exact, modified Kneser-Ney {order}-gram fitted on {model.tokens:,} tokens"
    profile = by_position(in_parts(nats), tokens.length)
    about, truth = _about(f"ngram:{order}", tokens), tokens.truth(indices)
    return Evaluation(tokens.bound(nats.sum(1)), how, 1, indices, profile, about, truth)


def evaluate_truth(tokens: TokenFile, *, sequences: int | None = None) -> Evaluation:
    """The likelihood of data under the distribution they were drawn from: their entropy."""
    indices = _evenly_spaced(tokens, sequences)
    truth = tokens.truth(indices)
    if truth is None:
        raise ValueError(f"{tokens.path} has no true likelihood: only synthetic corpora such as stories have one")
    how = "exact, the distribution of the data"
    return Evaluation(tokens.bound(truth), how, 1, indices, None, _about("truth", tokens), truth)


# A batch: x0 [b, L], the sequences' indices [b], their passes [b], and the positions to score, if not all.
_Piece = tuple[Tensor, Tensor, Tensor, Tensor | None]


@dataclass(frozen=True)
class _Pieces(Sequence[_Piece]):
    """The remaining batches of a round, each read when needed."""

    work: _Work
    number: int
    missing: list[int]

    def __len__(self) -> int:
        return len(self.missing)

    def __getitem__(self, i: Any) -> Any:
        return self.work.piece(self.number, self.missing[i])


@dataclass(frozen=True)
class _Estimate:
    """What is computed for a batch, without the file, so that it can run where the file is not."""

    network: Any
    how: Passes
    schedule: Schedule
    exact: bool

    def __call__(self, piece: _Piece) -> Result:
        """The nats of its rows, and their places in 0..1; or the nats in each part of 0..1."""
        x0, index, k, where = piece
        with inference(self.network):
            if self.exact:
                nats = per_position(self.network, x0, index, where)
                return {"nats": nats.sum(1).tolist(), "parts": in_parts(nats).flatten().tolist()}
            nats, at = self.how.estimates(self.network, x0, index, k, schedule=self.schedule, where=where)
            return {"nats": nats.tolist(), "at": at.tolist()}


class _Work:
    """Rows (sequence, pass) in batches that are the same for any number of processes."""

    def __init__(self, model: Model, tokens: TokenFile, how: Passes, sequences: int | None, batch: int | None) -> None:
        if batch is not None and batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        if tokens.tokenizer.hash != model.tokenizer.hash:
            raise ValueError(f"{tokens.path} was made with another tokenizer than {model.name}'s: prepare it again")
        self.model, self.tokens, self.how = model, tokens, how
        self.network = for_bound(model.denoiser)
        process = process_of(model.denoiser)
        self.exact = process.exact or how.by == "left-to-right"
        self.passes = 1 if self.exact else how.num
        self.batch = batch or default_batch(self.network, tokens.length)
        self.indices = _evenly_spaced(tokens, sequences)
        self.asked = tokens.asked(self.indices)  # prompts, and padding that is not data, are given
        self.counts = torch.full((len(self.indices),), tokens.length) if self.asked is None else self.asked.sum(1)
        process.check_bound(how.by, self.asked)
        if self.asked is not None:
            self._check_asked()
        self.bins = min(tokens.length, BINS)

    def _check_asked(self) -> None:
        """Refuse sequences whose given tokens leave nothing to predict, or too different numbers."""
        assert self.asked is not None
        if int(self.counts.min()) == 0:
            at = int(self.indices[self.counts.argmin()])
            raise ValueError(f"{self.tokens.path}: sequence {at} has no token that the model predicts")
        if self.how.by in ALONG_ORDERS and len(set(self.counts.tolist())) > 1:
            raise ValueError(
                f"by={self.how.by!r} needs sequences with as many predicted tokens each: take count or time"
            )

    @property
    def rows(self) -> int:
        return len(self.indices) * self.passes

    def identity(self) -> dict[str, Any]:
        """What must agree for an evaluation to be resumed."""
        from unmask import __version__

        return {
            "unmask": __version__,
            "model": fingerprint(self.model.denoiser),
            "data": self.tokens.header.sha256,
            "sequences": len(self.indices),
            "by": "exact" if self.exact else self.how.by,
            "passes": self.passes,
            "seed": self.how.seed,
            "schedule": repr(self.model.schedule),
            "batch": self.batch,
        }

    def round(self, number: int, store: Partial, progress: Progress | None, rounds: int) -> None:
        """Compute what is missing of one round of passes; each process takes a batch at a time."""
        missing = [b for b in range(-(-self.rows // self.batch)) if (number, b) not in store.done]
        estimate = _Estimate(self.network, self.how, self.model.schedule, self.exact)
        results = processes.results(_Pieces(self, number, missing), estimate)
        for b, result in zip(missing, results, strict=True):
            store.add((number, b), result)
            if progress is not None and processes.main():
                progress(store.rows, rounds * self.rows, store.nats / store.rows / float(self.counts.double().mean()))

    def piece(self, number: int, b: int) -> _Piece:
        rows = torch.arange(b * self.batch, min((b + 1) * self.batch, self.rows))
        index = self.indices[rows // self.passes]
        where = None if self.asked is None else self.asked[rows // self.passes]
        return self.tokens.sequences(index), index, rows % self.passes + number * self.passes, where

    def evaluation(self, done: Done, rounds: int) -> Evaluation:
        nats, process = self._together(done, rounds, "nats"), process_of(self.model.denoiser)
        if self.exact:
            bound, how = self.tokens.bound(nats[:, 0], None, self.asked), "exact, left to right"
        else:
            bound = self.tokens.bound(*self.how.combined(nats), self.asked)
            how = f"bound by {process.bounds[self.how.by]}"
        law = process.law(self.how.by)
        about = _about(self.model.name, self.tokens) | {"seed": self.how.seed, "law": law}
        profile, truth = self._profile(done, rounds, nats), self.tokens.truth(self.indices)
        return Evaluation(bound, how, nats.shape[1], self.indices, profile, about, truth)

    def _profile(self, done: Done, rounds: int, nats: Tensor) -> Profile | None:
        if self.exact:
            flat = [value for b in range(len(done)) for value in done[0, b]["parts"]]
            return by_position(torch.tensor(flat, dtype=torch.float64).view(len(nats), -1), self.tokens.length)
        if self.how.by in ALONG_ORDERS:
            return None
        at, values = self._together(done, rounds, "at").flatten(), (nats / self.counts.unsqueeze(1)).flatten()
        bins = max(1, min(self.bins, len(values) // ROWS_OF_A_BIN))
        part = (at * bins).long().clamp(max=bins - 1)
        over = "part of the tokens that is masked" if self.how.by == "count" else "time"
        return Profile(over, *means([values[part == i] for i in range(bins)]))

    def _together(self, done: Done, rounds: int, name: str) -> Tensor:
        """[sequences, passes] from the batches of all rounds."""
        batches = range(-(-self.rows // self.batch))
        rows = [[value for b in batches for value in done[number, b][name]] for number in range(rounds)]
        values = torch.tensor(rows, dtype=torch.float64).view(rounds, len(self.indices), self.passes)
        return values.transpose(0, 1).flatten(1)


@contextmanager
def _agreed(path: Path | None, identity: dict[str, Any]) -> Iterator[Partial]:
    """The main process's file: all others start with its contents, or fail as it fails."""
    with ExitStack() as stack:
        failure: ValueError | OSError | None = None
        store = Partial(None, {})
        try:
            store = stack.enter_context(partials.opened(path, identity))
        except (ValueError, OSError) as error:
            failure = error
        failure, done = processes.broadcast((failure, store.done))
        if failure is not None:
            raise failure
        yield store if processes.main() else Partial(None, done)


def _evenly_spaced(tokens: TokenFile, sequences: int | None) -> Tensor:
    if sequences is not None and sequences < 1:
        raise ValueError(f"sequences must be at least 1, got {sequences}")
    num = min(sequences or len(tokens), len(tokens))
    return torch.arange(num) * len(tokens) // num


def _about(model: str, tokens: TokenFile) -> dict[str, Any]:
    return {
        "model": model,
        "data": str(tokens.path),
        "source": tokens.header.source,
        "length": tokens.length,
        "of_sequences": len(tokens),
    }
