"""How a run ends, and what it shows before: minutes, the first validation, patience, overfitting, the report."""

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unmask
from tests.training.runs import metrics, settings, write_tokens
from unmask.bound import Bound
from unmask.checkpoints.folder import load_network
from unmask.data.tokens import TokenFile
from unmask.networks.counted import Counted
from unmask.networks.ngram import kneser_ney
from unmask.training import loop, pace, start
from unmask.training.checkpoint import listed, read
from unmask.training.config import TrainConfig
from unmask.training.data import Data, few
from unmask.training.defaults import SIZES, Size
from unmask.training.events import Event, Finished, Previewed, Saved, Started, Validated
from unmask.training.finetune import Base
from unmask.training.lines import told
from unmask.training.loop import train
from unmask.training.report import by_heart
from unmask.training.run import stored_config


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


def clock(monkeypatch: pytest.MonkeyPatch, module: Any, seconds: float) -> None:
    """Every reading of the clock is this many seconds later."""
    now = iter(range(10**6))
    look = lambda: next(now) * seconds  # noqa: E731
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=look, perf_counter=look))


def heard(config: Any) -> list[Event]:
    events: list[Event] = []
    train(config, report=events.append)
    return events


def test_a_run_ends_with_its_minutes_and_leaves_a_model(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(letters, tmp_path / "run", steps=100, minutes=2.0, validate_every=90, save_every=90)
    with monkeypatch.context() as patch:
        clock(patch, loop, 5.0)
        events = heard(config)
    ended = events[-1]
    assert isinstance(ended, Finished) and 0 < ended.step < 30 and ended.why == "the 2 minutes are over"
    assert load_network(ended.model) and [path.name for path in listed(tmp_path / "run" / "checkpoints")]
    stored = stored_config(tmp_path / "run")
    assert stored is not None and stored.steps == 100, "a resumed run goes on to its last step"
    train(replace(config, resume=True, minutes=None))
    assert metrics(tmp_path / "run", "train")[-1]["step"] == 100


def test_as_many_steps_are_planned_as_fit(letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, start, 1.0)  # of each step

    class Stop(Exception):
        pass

    def stop(event: Event) -> None:
        assert isinstance(event, Started) and event.config.steps == int(0.9 * (120 - 4))
        assert event.config.warmup == 2 and event.step == 0
        raise Stop

    with pytest.raises(Stop):
        train(settings(letters, tmp_path / "run", steps=None, minutes=2.0), report=stop)


@pytest.mark.parametrize(
    ("preset", "seconds", "timed", "chosen"),
    [(None, 1.0, 8, "tiny"), (None, 0.1, 4, "mini"), ("mini", 1.0, 4, "mini"), (None, 20.0, 2, "tiny")],
)
def test_where_few_steps_fit_a_smaller_network_is_chosen(
    preset: str | None,
    seconds: float,
    timed: int,
    chosen: str,
    letters: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the time that is left after timing, of which a network that is far too slow gets one step."""
    clock(monkeypatch, start, seconds)  # of each step
    monkeypatch.setitem(SIZES, "cpu", (Size(math.inf, "mini", 8, 3_000),))
    stages: list[tuple[str, int, int | None]] = []

    class Stop(Exception):
        pass

    def stop(event: Event) -> None:
        assert isinstance(event, Started) and event.config.preset == chosen
        assert event.config.steps == pytest.approx(0.9 * (120 / seconds - timed), abs=1)
        raise Stop

    config = TrainConfig(str(letters), out=str(tmp_path / "run"), minutes=2.0, preset=preset, tensorboard=False)
    with pytest.raises(Stop):
        train(config, report=stop, progress=lambda *told: stages.append(told))
    each = timed // 2 if chosen == "tiny" else timed
    assert [told for told in stages if told[0] == "timing"] == [("timing", done % each, 4) for done in range(timed)]


def test_timing_steps_changes_nothing(letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, start, 7.5)  # of each step: one is timed, and six fit into nine tenths of what is left
    clock(monkeypatch, loop, 0.0)  # and the run itself takes no time, so it is not planned again
    train(settings(letters, tmp_path / "planned", steps=None, minutes=1.0))
    train(settings(letters, tmp_path / "given", steps=6))
    assert metrics(tmp_path / "planned") == metrics(tmp_path / "given")


def test_something_is_seen_within_minutes(letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, loop, 15.0)
    monkeypatch.setattr(pace, "FIRST_VALIDATION", 60.0)
    events = heard(settings(letters, tmp_path / "run", steps=40, validate_every=30, save_every=30, preview=True))
    for kind in (Validated, Previewed, Saved):
        steps = [event.step for event in events if isinstance(event, kind)]
        assert 0 < steps[0] < 10 and steps[1:] == [30, 40], (kind, steps)


def scripted(monkeypatch: pytest.MonkeyPatch, *nats: float) -> None:
    values = iter(nats)

    def validate(*arguments: Any, **options: Any) -> Bound:
        one = torch.tensor([next(values)] * 2).double()
        return Bound(one, torch.zeros(2).double(), torch.ones(2, dtype=torch.int64))

    monkeypatch.setattr(loop, "validate", validate)


def test_validations_that_get_worse_end_the_run_and_the_best_is_published(
    letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, 3.0, 2.0, 2.5, 2.6)
    config = settings(letters, tmp_path / "run", steps=50, validate_every=2, save_every=50, patience=2, keep=1)
    ended = heard(config)[-1]
    assert isinstance(ended, Finished) and ended.step == 4 and ended.why.startswith("2 validations in a row")
    assert ended.bound is not None and ended.bound["nats_per_token"] == 2.0
    best = read(tmp_path / "run" / "checkpoints" / "step-00000004")
    network = load_network(ended.model)
    assert all(torch.equal(value, best.tensors["ema"][name]) for name, value in network.named_parameters())
    assert network.card is not None and network.card.bound == pytest.approx(2.0 / math.log(2))
    assert metrics(tmp_path / "run", "train")[-1]["step"] == 8
    again = heard(replace(config, resume=True))
    assert [type(event) for event in again] == [Started, Finished], "it stays ended"
    scripted(monkeypatch, 1.0)
    longer = heard(replace(config, resume=True, patience=0, steps=10, validate_every=10))[-1]
    assert isinstance(longer, Finished) and longer.step == 10


def test_without_patience_a_run_goes_to_its_end(letters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, 1.0, 2.0, 3.0, 4.0)
    ended = heard(settings(letters, tmp_path / "run", steps=8, validate_every=2, patience=0))[-1]
    assert isinstance(ended, Finished) and ended.step == 8 and not ended.why


def test_a_few_sequences_are_learned_and_the_verdict_is_said(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", overfit=True, steps=8, validate_every=8, objective="count")
    events = heard(config)
    started, ended = events[0], events[-1]
    assert isinstance(ended, Finished) and ended.bound is not None
    assert ended.overfit.startswith("not yet learned by heart, but still falling")
    assert isinstance(started, Started) and started.config.dropout == 0 and started.config.patience == 0
    some = TokenFile.open(tmp_path / "run" / "overfit.tokens")
    assert torch.equal(some.sequences(range(4)), TokenFile.open(letters / "train.tokens").sequences(range(4)))
    train(replace(config, resume=True))


def test_the_verdict_on_learning_by_heart_is_on_the_datas_own_scale(letters: Path, tmp_path: Path) -> None:
    """Four sequences of 12 letters: the least is log(4)/12, and the letters' entropy is what counting gives."""
    tokens = TokenFile.open(letters / "train.tokens")
    some = few(Data(tokens, tokens), tmp_path).train
    counts = torch.bincount(some.sequences(range(4)).flatten()).double() / 48
    entropy = float(-(counts * counts.clamp(min=1e-30).log()).sum())
    least = math.log(4) / 12
    part = entropy - least
    assert by_heart(some, [entropy, least]).startswith(f"learned by heart: {least:.3f} nats per token")
    assert by_heart(some, [entropy, least + 0.09 * part]).startswith("learned by heart")
    assert by_heart(some, [entropy, least + 0.11 * part]).startswith("not yet learned by heart, but still falling")
    assert by_heart(some, [least + 0.115 * part, least + 0.11 * part]).startswith("not learned by heart")
    assert by_heart(some, [entropy, entropy]).startswith("not learned by heart")


def test_a_network_that_is_still_improving_is_not_called_unable_to_learn(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", overfit=True, steps=300, batch=32, validate_every=100, width=32)
    ended = heard(replace(config, optimizer="muon", learning_rate=3e-3, micro_batch=32, save_every=300))[-1]
    assert isinstance(ended, Finished) and not ended.overfit.startswith("not learned"), ended.overfit


def test_a_run_ends_with_a_trigram_for_comparison_samples_and_a_picture(letters: Path, tmp_path: Path) -> None:
    ended = heard(settings(letters, tmp_path / "run", preview=True, validate_sequences=16))[-1]
    assert isinstance(ended, Finished) and ended.bound is not None
    train_part, valid = (TokenFile.open(letters / f"{name}.tokens") for name in ("train", "valid"))
    fitted = kneser_ney(train_part.sequences(range(20)).numpy(), 3, 7)
    assert ended.trigram == pytest.approx(-fitted.log_prob(valid.sequences(range(16)).numpy()).mean())
    assert len(ended.samples) == 3 and all(len(text) == 12 for text in ended.samples)
    assert ended.picture is not None and ended.picture.read_bytes().startswith(b"\x89PNG")


def test_counts_are_joined_with_the_network_saved_and_loaded(letters: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    events = heard(settings(letters, run, steps=2, preview=True))
    alone = events[-1]
    assert isinstance(alone, Finished) and alone.countable and alone.alone is None
    assert "--resume --counts" in str(told(alone))
    events = heard(settings(letters, run, steps=2, preview=True, resume=True, counts=True))
    ended = events[-1]
    assert isinstance(ended, Finished) and ended.alone is not None and ended.bound is not None
    assert ended.bound["nats_per_token"] < ended.alone["nats_per_token"]
    assert "the network alone has" in str(told(ended))
    model = unmask.load(run)
    assert isinstance(model.denoiser, Counted) and model.sample(seed=1).text
    model.save_pretrained(tmp_path / "copy")
    canvas = torch.full((1, model.length or 0), model.denoiser.mask_id)
    assert torch.equal(unmask.load(tmp_path / "copy").denoiser(canvas), model.denoiser(canvas))
    tuned = heard(settings(letters, tmp_path / "tuned", steps=1, init=str(run)))[-1]
    assert isinstance(tuned, Finished) and not isinstance(unmask.load(tmp_path / "tuned").denoiser, Counted)
    with pytest.raises(ValueError, match="counts are for masked models"):
        settings(letters, run, counts=True, objective="left-to-right")
    kept: Any = SimpleNamespace(kept=True, called="a Llama")
    with pytest.raises(ValueError, match="cannot be saved in the format of a Llama"):
        Base.fitted(kept, settings(letters, run, counts=True))
