from dataclasses import fields, replace
from pathlib import Path

import pytest

from unmask.cli.train import parse
from unmask.training.config import TrainConfig, differences, read_toml, to_toml
from unmask.training.defaults import SIZES, explained, resolve


def test_the_papers_recipe_is_the_default_at_the_papers_size() -> None:
    config = resolve(TrainConfig("owt"), tokens=9_000_000_000, length=1024, device="cuda")
    _, network = config.network(50_257, 1024)
    assert (network.layers, network.width, network.heads) == (12, 768, 12)
    assert (network.vocab_size, network.mask_id, network.dropout) == (50_257, 50_257, 0.1)
    assert (config.batch, config.steps, config.learning_rate, config.warmup) == (512, 100_000, 3e-4, 2_500)
    assert (config.clip, config.ema, config.precision, config.optimizer) == (1.0, 0.9999, "bf16", "adamw")
    assert (config.objective, config.times, config.micro_batch) == ("time", "stratified", 32)


def test_a_cpu_gets_a_small_network_in_float32() -> None:
    config = resolve(TrainConfig("text"), tokens=100_000, length=128, device="cpu")
    assert (config.preset, config.precision, config.batch, config.steps) == ("tiny", "float32", 32, 1_000)
    assert (config.ema, config.warmup, config.save_every) == (0.99, 100, 100)
    assert (config.optimizer, config.learning_rate, config.decay, config.convolution) == ("muon", 3e-3, "cosine", 3)
    assert resolve(TrainConfig("text"), tokens=10**9, length=128, device="cpu").preset == "mini"


def test_every_amount_of_data_has_a_size() -> None:
    for sizes in SIZES.values():
        assert [size.tokens for size in sizes] == sorted(size.tokens for size in sizes)
        assert sizes[-1].tokens == float("inf")


def test_what_is_given_is_not_touched_and_what_was_chosen_is_reported() -> None:
    asked = TrainConfig("x", steps=50, batch=4, learning_rate=0.5, width=128, preset="tiny")
    config = resolve(asked, tokens=10, length=8, device="cpu")
    assert all(
        getattr(config, field.name) == getattr(asked, field.name)
        for field in fields(asked)
        if getattr(asked, field.name) is not None
    )
    line = explained(asked, config, 1_500_000)
    assert "1.50 M parameters" in line and "warmup 5" in line and "learning rate" not in line and "\n" not in line
    assert config.network(10, 8)[1].width == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective": "elbo"}, "objective must be one of 'time'"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"learning_rate": 0.0}, "learning_rate must be positive, got 0.0"),
        ({"ema": 1.0}, "ema must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
        ({"times": "adaptive"}, "times='adaptive' draws counts: it needs objective='count', got 'time'"),
        ({"precision": "fp8"}, "precision must be one of None, 'float32', 'bf16', got 'fp8'"),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        TrainConfig("x", **changes)  # type: ignore[arg-type]


def test_a_stored_configuration_is_read_back(tmp_path: Path) -> None:
    config = resolve(TrainConfig('a "quoted" \\ path/é', convolution=3), tokens=10, length=8, device="cpu")
    config = replace(config, eps=1e-12, resume=True, resume_from="step-00000001")
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert TrainConfig(**read_toml(tmp_path / "config.toml")) == replace(config, resume=False, resume_from=None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerning_rate = 1", "no setting 'lerning_rate'; did you mean 'learning_rate'?"),
        ("steps = 1.5", "steps = 1.5 is not of type int"),
        ("steps = true", "steps = True is not of type int"),
        ('batch = "many"', "batch = 'many' is not of type int"),
        ("resume = 1", "resume = 1 is not of type bool"),
        ("steps = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(ValueError) as error:
        read_toml(path)
    assert str(path) in str(error.value) and message in str(error.value)


def test_only_what_changes_the_numbers_counts_as_a_difference() -> None:
    base = TrainConfig("x", steps=10, decay="constant")
    free = replace(base, data="moved", save_every=3, keep=5, micro_batch=1, threads=2, tensorboard=False, steps=20)
    assert differences(base, free) == []
    assert differences(base, replace(base, seed=1, width=32)) == ["seed: 0 -> 1", "width: None -> 32"]
    cosine = replace(base, decay="cosine")
    assert differences(cosine, replace(cosine, steps=20)) == [
        "steps: 10 -> 20 (a cosine is planned for its steps; --init RUN begins a new run with these weights)"
    ]


def test_flags_come_before_the_file_and_the_file_before_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text('learning-rate = 1\nsteps = 7\noptimizer = "muon"\ndata = "from the file"\n')
    config = parse(["--config", str(path), "--steps", "8"])
    assert (config.data, config.learning_rate, config.steps, config.optimizer) == ("from the file", 1.0, 8, "muon")
    assert parse(["named", f"--config={path}"]).data == "named"
    assert parse(["named"]) == TrainConfig("named")


def test_a_resumed_run_has_its_stored_configuration_for_defaults(tmp_path: Path) -> None:
    stored = TrainConfig("letters", out=str(tmp_path), steps=9, seed=4)
    (tmp_path / "config.toml").write_text(to_toml(stored))
    assert parse(["--resume", "--out", str(tmp_path), "--keep", "7"]) == replace(stored, resume=True, keep=7)
    assert parse(["digits", "--out", str(tmp_path)]) == TrainConfig("digits", out=str(tmp_path))
    with pytest.raises(ValueError, match="--config needs a value"):
        parse(["digits", "--config"])


def test_data_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--steps", "5"])
    assert "DATA" in capsys.readouterr().err
