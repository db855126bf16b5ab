import io
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.runs import metrics, write_tokens
from unmask.bound import Bound
from unmask.cli.train import main
from unmask.cli.train_display import Live, display
from unmask.training.checkpoint import listed
from unmask.training.config import TrainConfig
from unmask.training.events import Finished, Previewed, Saved, Started, Stepped, Validated
from unmask.training.lines import Lines, bound_text

# 2 nats per token, give or take 0.01: two sequences, of 50 tokens and 200 characters each, that differ by 1 nat.
NATS, ERRORS, TOKENS = torch.tensor([99.5, 100.5]).double(), torch.full((2,), torch.inf), torch.tensor([50, 50])
BOUND = Bound(NATS, ERRORS, TOKENS, torch.tensor([200.0, 200.0]).double())
STORY = [
    Started(TrainConfig("x", steps=40), 20, 1000, "0.10 M parameters"),
    Stepped(21, 2.5, 0.3, 1e-3, 0.5),
    Validated(21, BOUND),
    Previewed(21, "[bold]abc\nabd[/bold]"),
    Saved(21, Path("run/checkpoints/step-00000021")),
    Stepped(40, 1.5, 0.3, 1e-3, 0.5),
    Finished(40, Path("run/model"), "the time is over", BOUND.record(), 2.1, ("abc\nabd",), Path("run/curve.png")),
]


def test_a_run_without_a_terminal_is_reported_in_plain_lines() -> None:
    stream = io.StringIO()
    with display(stream) as (report, progress):
        assert isinstance(report, Lines)
        progress("count", 10, None)
        for event in STORY:
            report(event)
    lines = stream.getvalue().splitlines()
    assert lines == [
        "reading the text",
        "resumed after step 20; 0.10 M parameters",
        "step 21/40  loss 2.500  2.0k tokens/s  0m09s left",
        f"step 21  held-out bound {bound_text(BOUND)}",
        "step 21  sample: [bold]abc abd[/bold]",
        "step 21  saved run/checkpoints/step-00000021",
        "step 40/40  loss 2.000  2.0k tokens/s  0m00s left",
        "ended early, because the time is over; the model of step 40 is in run/model",
        "2.000 ± 0.010 nats per token held out; a Kneser-Ney trigram of the same data has 2.100: "
        "the network has learned more than counting gives",
        "the curve of the run: run/curve.png",
        "sample 1: abc abd",
        "next:  unmask sample run",
        "       unmask evaluate run",
        "       unmask serve run",
    ]


def test_a_terminal_gets_a_progress_bar() -> None:
    pytest.importorskip("rich")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with display(stream) as (report, progress):
        assert isinstance(report, Live)
        progress("count", 10, None)
        progress("timing", 1, 4)
        for event in STORY:
            report(event)
        (task,) = report.bar.tasks
        assert (task.completed, task.total) == (40, 40) and task.fields["shown"].endswith("tokens/s  bound 2.000")
    text = stream.getvalue()
    for part in (
        "reading the text",
        "timing a few steps",
        "resumed after step 20",
        "step 40/40",
        "tokens/s",
        "[bold]abc abd[/bold]",
        "run/model",
    ):
        assert part in text


def test_a_bound_is_reported_in_all_its_units() -> None:
    text = bound_text(BOUND)
    assert text == ("2.0000 ± 0.0100 nats per token, perplexity 7.389 ± 0.074, 0.7213 ± 0.0036 bits per character")
    assert "character" not in bound_text(Bound(NATS, ERRORS, TOKENS))


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    data = write_tokens(tmp_path / "data")
    return [
        str(data),
        "--out",
        str(tmp_path / "run"),
        "--preset",
        "tiny",
        "--width",
        "16",
        "--batch",
        "4",
        "--no-tensorboard",
        "--decay",
        "constant",
        "--threads",
        "1",
    ]


def test_the_command_trains_resumes_and_reports(arguments: list[str], tmp_path: Path, capfd: Any) -> None:
    assert main([*arguments, "--steps", "3"]) == 0
    shown = capfd.readouterr()
    assert shown.out == "" and "chosen for this data and machine" in shown.err and "sample: " in shown.err
    assert main([*arguments, "--steps", "3"]) == 2
    assert "holds a run already" in capfd.readouterr().err
    assert main(["--resume", "--out", str(tmp_path / "run"), "--steps", "5"]) == 0
    assert "resumed after step 3" in capfd.readouterr().err
    assert [line["step"] for line in metrics(tmp_path / "run", "train")] == [1, 2, 3, 4, 5]
    damaged = listed(tmp_path / "run" / "checkpoints")[-1]
    (damaged / "state.json").unlink()
    assert main(["--resume", "--out", str(tmp_path / "run")]) == 0
    assert f"warning: skipping a damaged checkpoint: {damaged}" in capfd.readouterr().err
    assert main(["--resume", "--out", str(tmp_path / "run"), "--seed", "9"]) == 2
    assert "seed: 0 -> 9" in capfd.readouterr().err


def test_what_is_wrong_is_one_line(arguments: list[str], capfd: Any) -> None:
    for wrong in (["--config", "nowhere.toml"], ["--heads", "3"], ["--valid", "nowhere"]):
        assert main([*arguments, *wrong]) == 2
        assert capfd.readouterr().err.count("\n") == 1, wrong
    with pytest.raises(SystemExit):  # before anything is prepared
        main([*arguments, "--preset", "huge"])
    assert capfd.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "flags", [["--optimizer", "muon", "--convolution", "3", "--decay", "cosine"], ["--objective", "left-to-right"]]
)
def test_options_reach_the_run(flags: list[str], arguments: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "--steps", "2", *flags]) == 0
    text = (tmp_path / "run" / "config.toml").read_text()
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        quoted = value if value.isdigit() else f'"{value}"'
        assert f"{flag.removeprefix('--')} = {quoted}" in text
