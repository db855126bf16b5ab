"""Whole token files: all numbers, stopping and continuing."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from tests.evaluate.files import LENGTH, TOKENIZER, chain, entropy, oracle_model, write
from tests.small_models import TOKENIZERS, network
from tests.training.runs import PROCESSES, settings
from unmask.data.tokens import TokenFile
from unmask.evaluate.likelihood.evaluation import Evaluation
from unmask.evaluate.likelihood.tokenfiles import evaluate
from unmask.model import Model
from unmask.training.loop import train


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> TokenFile:
    return write(tmp_path_factory.mktemp("letters") / "valid.tokens")


def masked(seed: int = 0) -> Model:
    return Model(network(TOKENIZER, length=LENGTH, seed=seed), TOKENIZER, layout="rows")


def causal() -> Model:
    return Model(network(TOKENIZER, length=LENGTH, causal=True), TOKENIZER, layout="rows")


def same(a: Evaluation, b: Evaluation) -> bool:
    return json.dumps(a.to_dict()) == json.dumps(b.to_dict())


@pytest.mark.parametrize("by", ["count", "time", "order", "mixture"])
def test_a_file_has_the_bound_of_its_sequences(by: Any, tokens: TokenFile) -> None:
    model = oracle_model()
    made = evaluate(model, tokens, by=by, passes=6, seed=3)
    alone = unmask.nelbo(model.denoiser, tokens.sequences(range(9)), by=by, passes=6, seed=3)
    torch.testing.assert_close(made.bound.nats, alone.nats)
    torch.testing.assert_close(made.bound.errors, alone.errors)
    assert made.bound.bits_per_character == pytest.approx(made.bound.bits_per_token)
    assert made.passes == 6 and made.bound.sequences == 9 and made.about["of_sequences"] == 9


def test_sequences_are_evenly_spaced_and_have_the_masks_they_always_have(tokens: TokenFile) -> None:
    every, some = (evaluate(masked(), tokens, passes=4, sequences=n) for n in (None, 3))
    assert some.indices.tolist() == [0, 3, 6]
    torch.testing.assert_close(some.bound.nats, every.bound.nats[some.indices])


def test_the_profile_has_the_result_as_its_mean(tokens: TokenFile) -> None:
    """By count with as many passes as there are parts in it, and exactly from left to right."""
    made = evaluate(causal(), tokens, batch=4)
    assert made.profile is not None and made.how == "exact, left to right" and made.bound.exact
    assert sum(made.profile.nats) / len(made.profile.nats) == pytest.approx(made.bound.nats_per_token)
    made = evaluate(oracle_model(), tokens, passes=64)
    assert made.profile is not None and len(made.profile.nats) == 10
    mean = sum(made.profile.nats) / 10
    assert abs(mean - made.bound.nats_per_token) < 5 * made.bound.error_of_estimate


def test_a_left_to_right_model_is_exact(tokens: TokenFile) -> None:
    model = causal()
    made, alone = evaluate(model, tokens, batch=4), unmask.nelbo(model.denoiser, tokens.sequences(range(9)))
    torch.testing.assert_close(made.bound.nats, alone.nats)
    assert made.passes == 1 and same(made, evaluate(model, tokens, batch=4, until=1e-9))


def test_until_needs_passes_that_have_an_error(tokens: TokenFile) -> None:
    for by, passes in (("mixture", 2), ("count", 1)):
        with pytest.raises(ValueError, match=f"with at least {passes + 1} passes"):
            evaluate(masked(), tokens, by=by, passes=passes, until=0.1)


def test_until_the_error_is_small_enough(tokens: TokenFile) -> None:
    model = oracle_model()
    first = evaluate(model, tokens, passes=4)
    until = first.bound.error_of_estimate / 3
    made = evaluate(model, tokens, passes=4, until=until)
    assert made.bound.error_of_estimate < until and made.passes % 4 == 0
    before = evaluate(model, tokens, passes=4, until=until * 1.5)
    assert 4 < before.passes < made.passes
    assert same(first, evaluate(model, tokens, passes=4, until=10.0))


class Killed(Exception):
    pass


def killed_after(calls: int) -> Any:
    """A progress callback that stops the evaluation after this many batches."""
    heard = []

    def progress(done: int, total: int, nats: float) -> None:
        heard.append(done)
        if len(heard) == calls:
            raise Killed

    return progress


@pytest.mark.parametrize("kind", ["masked", "until", "causal"])
def test_a_killed_evaluation_is_continued_to_the_same_bits(kind: str, tokens: TokenFile, tmp_path: Path) -> None:
    model = causal() if kind == "causal" else oracle_model()
    options: dict[str, Any] = {"passes": 4, "batch": 2 if kind == "causal" else 5}
    if kind == "until":
        options["until"] = evaluate(model, tokens, passes=4).bound.error_of_estimate / 1.8
    whole = evaluate(model, tokens, **options)
    path = tmp_path / "result.partial"
    for calls in (1, 3):
        with pytest.raises(Killed):
            evaluate(model, tokens, partial=path, progress=killed_after(calls), **options)
    assert len(path.read_bytes().splitlines()) == 1 + 4
    with path.open("ab") as file:  # a line that was being written
        file.write(b'{"round": 0, "batch": 4, "nats": [1.0, 2')
    heard: list[int] = []
    made = evaluate(model, tokens, partial=path, progress=lambda done, total, nats: heard.append(done), **options)
    assert same(made, whole)
    rows = made.bound.sequences * made.passes
    assert heard[0] == min(5 * options["batch"], rows) and heard[-1] == rows, "nothing that was done is done again"
    assert same(evaluate(model, tokens, partial=path, **options), whole)


def evaluate_until_killed(data: Path, partial: Path) -> None:
    """As evaluate, until the process is killed after its third batch."""
    heard = []

    def progress(done: int, total: int, nats: float) -> None:
        heard.append(done)
        if len(heard) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    evaluate(oracle_model(), TokenFile.open(data), passes=4, batch=5, partial=partial, progress=progress)


def test_kill_9_loses_nothing_that_was_done(tokens: TokenFile, tmp_path: Path) -> None:
    path = tmp_path / "result.partial"
    process = PROCESSES.Process(target=evaluate_until_killed, args=(tokens.path, path))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and len(path.read_bytes().splitlines()) == 1 + 3
    heard: list[int] = []
    options: dict[str, Any] = {"passes": 4, "batch": 5}
    made = evaluate(
        oracle_model(), tokens, partial=path, progress=lambda done, total, nats: heard.append(done), **options
    )
    assert heard == [20, 25, 30, 35, 36] and same(made, evaluate(oracle_model(), tokens, **options))


def test_what_belongs_to_another_evaluation_is_not_continued(tokens: TokenFile, tmp_path: Path) -> None:
    path = tmp_path / "result.partial"
    evaluate(masked(), tokens, passes=2, partial=path)
    before = path.read_bytes()
    other = write(tmp_path / "other.tokens", seed=1)
    for changed, message in (
        (lambda: evaluate(masked(1), tokens, passes=2, partial=path), "model: "),
        (lambda: evaluate(masked(), other, passes=2, partial=path), "data: "),
        (lambda: evaluate(masked(), tokens, passes=4, partial=path), "passes: 2 -> 4"),
        (lambda: evaluate(masked(), tokens, passes=2, by="time", partial=path), "by: 'count' -> 'time'"),
        (lambda: evaluate(masked(), tokens, passes=2, seed=1, partial=path), "seed: 0 -> 1"),
        (lambda: evaluate(masked(), tokens, passes=2, sequences=3, partial=path), "sequences: 9 -> 3"),
        (lambda: evaluate(masked(), tokens, passes=2, batch=3, partial=path), "batch: 64 -> 3"),
    ):
        with pytest.raises(ValueError, match=f"not continued.*{message}"):
            changed()
    assert path.read_bytes() == before
    path.write_text("a letter to a friend\n")
    with pytest.raises(ValueError, match="is not an evaluation in progress"):
        evaluate(masked(), tokens, passes=2, partial=path)
    assert path.read_text() == "a letter to a friend\n"


@pytest.mark.parametrize("options", [{"until": 0.0}, {"until": 0.1, "passes": 1}, {"sequences": 0}, {"batch": 0}])
def test_bad_options_are_named(options: dict[str, Any], tokens: TokenFile) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        evaluate(oracle_model(), tokens, **options)


def test_the_tokens_of_another_tokenizer_are_refused(tokens: TokenFile) -> None:
    with pytest.raises(ValueError, match="another tokenizer"):
        evaluate(Model(network(TOKENIZERS["bytes"]), TOKENIZERS["bytes"]), tokens)


def test_what_is_infinite_is_null_in_json(tokens: TokenFile) -> None:
    made = evaluate(masked(), tokens, passes=1, sequences=1)
    text = json.dumps(made.to_dict(), allow_nan=False)
    assert json.loads(text)["nats_per_token"]["error_of_estimate"] is None


def test_a_token_of_probability_zero_has_an_infinite_bound_and_an_end(tokens: TokenFile) -> None:
    class Never:
        vocab_size, mask_id = 4, 4

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tensor([-math.inf, 0.0, 0.0, 0.0]).expand(*x.shape, 4)

    made = evaluate(Model(Never(), TOKENIZER, layout="rows"), tokens, passes=4, until=0.1)
    assert made.bound.nats_per_token == math.inf and made.passes == 4
    assert json.loads(json.dumps(made.to_dict(), allow_nan=False))["nats_per_token"]["value"] is None


def test_the_bound_of_a_trained_model_is_at_least_the_entropy_of_the_datas_source(tmp_path: Path) -> None:
    """An oracle made the data, and no model can do better on new data of its than the oracle does.

    The bound by count minus -log p of the oracle, sequence by sequence, is positive by more than 5 standard errors (the
    model is not perfect), and both bounds are near: within 0.35 nats of an entropy of 0.84, where ignorance has 1.39.
    """
    for name, num, seed in (("train", 400, 1), ("valid", 60, 2)):
        write(tmp_path / f"{name}.tokens", num, seed=seed)
    config = settings(
        tmp_path,
        tmp_path / "run",
        objective="count",
        steps=100,
        batch=32,
        micro_batch=32,
        learning_rate=2e-2,
        optimizer="muon",
        layers=1,
        width=32,
        convolution=3,
        warmup=10,
        dropout=0.0,
        validate_every=1000,
        save_every=1000,
    )
    model = unmask.load(train(config))
    held_out = TokenFile.open(tmp_path / "valid.tokens")
    for by in ("count", "time"):
        bound = evaluate(model, held_out, by=by, passes=16).bound
        truth = -chain().log_likelihood(held_out.sequences(range(60)))
        excess = bound.nats - truth
        error = math.sqrt(float(excess.var()) / 60)
        assert float(excess.mean()) > 5 * error if by == "count" else float(excess.mean()) > 2 * error
        assert bound.nats_per_token + 5 * bound.error > entropy(chain(), LENGTH) / LENGTH
        assert bound.nats_per_token < entropy(chain(), LENGTH) / LENGTH + 0.35
