"""The frontier: points that are what direct computation gives, kept in a file, and the recommendation from them."""

from __future__ import annotations

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluate.files import in_two_processes
from tests.small_models import LENGTH, TEXT, TOKENIZERS, folder, network
from unmask import draw, plan, predict
from unmask.cli import frontier as frontier_command
from unmask.evaluate.frontier.advice import advice, clearly_better, floor_of, recommend, staircase
from unmask.evaluate.frontier.picture import draw as draw_picture
from unmask.evaluate.frontier.points import Kept, Point, append, read
from unmask.evaluate.frontier.sweep import (
    SAMPLERS,
    Conditions,
    SampledModel,
    Setting,
    measure,
    reference,
    settings,
    sweep,
)
from unmask.evaluate.judge.diversity import sequence_entropy
from unmask.evaluate.judge.interval import Interval
from unmask.evaluate.judge.judge import OracleJudge, Samples
from unmask.networks.oracles.enumerated import MarkovOracle
from unmask.samplers import published
from unmask.sampling import sample

CHAIN = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)
ORACLE = MarkovOracle(torch.full((3,), 1 / 3, dtype=torch.float64), CHAIN)
SUBJECT, JUDGE = SampledModel("chain", ORACLE), OracleJudge(ORACLE)
CONDITIONS = Conditions(num=10, length=8, seed=5, batch=4)


def seeds(setting: Setting, model: str) -> list[int]:
    return [setting.seed(5, model, i) for i in range(10)]


def test_points_share_no_noise() -> None:
    """Their intervals are compared as those of independent samples."""
    ways = [Setting("parallel", 2), Setting("parallel", 4), Setting("parallel", 4, 0.9), Setting("ancestral", 4)]
    assert len({seed for model in ("a", "b") for setting in ways for seed in seeds(setting, model)}) == 80


@pytest.mark.parametrize(
    ("setting", "options"),
    [
        (Setting("first-hitting", temperature=0.7), {"temperature": 0.7}),
        (Setting("parallel-extrapolate", 3), {"plan": plan.parallel, "steps": 3, "predict": predict.extrapolate}),
        (Setting("parallel-correct", 4), {"plan": plan.parallel, "steps": 4, "predict": predict.correct}),
        (
            Setting("ancestral", 5, draw="gumbel-float32"),
            {"plan": plan.ancestral, "steps": 5, "draw": draw.gumbel(torch.float32)},
        ),
        (Setting("published-tweedie", 4, draw="published race"), {"steps": 4, "sampler": published.sedd_tweedie()}),
    ],
    ids=lambda value: value.sampler if isinstance(value, Setting) else "",
)
def test_a_point_is_what_direct_computation_gives(setting: Setting, options: dict[str, Any]) -> None:
    """With an oracle as model and judge: both perplexities, entropy and calls; whatever the batch."""
    point = measure(SUBJECT, setting, JUDGE, CONDITIONS)
    made = sample(ORACLE, num=10, length=8, seed=seeds(setting, "chain"), **options)
    nats = -ORACLE.log_likelihood(made.tokens)
    assert point.perplexity.value == pytest.approx(math.exp(float(nats.sum()) / 80))
    assert point.mean_perplexity.value == pytest.approx(float((nats / 8).exp().mean()))
    assert point.entropy.value == pytest.approx(float(sequence_entropy(made.tokens).mean()))
    for interval in (point.perplexity, point.mean_perplexity, point.entropy):
        assert interval.low <= interval.value <= interval.high and interval.low < interval.high
    assert point.calls == pytest.approx(float(made.nfe.double().mean()))
    assert (point.num, point.length, point.level) == (10, 8, 0.95)
    assert point.dtype == ("float32" if "float32" in setting.draw or setting.published else "float64")
    assert point.seconds > 0 and point.cpu_seconds >= 0
    assert measure(SUBJECT, setting, JUDGE, replace(CONDITIONS, batch=10)).perplexity == point.perplexity


def test_looking_ahead_is_exact_and_takes_fewer_calls() -> None:
    setting = Setting("first-hitting-ahead")
    point = measure(SUBJECT, setting, JUDGE, CONDITIONS)
    made = sample(ORACLE, num=10, length=8, seed=seeds(setting, "chain"))
    assert point.perplexity.value == pytest.approx(math.exp(-float(ORACLE.log_likelihood(made.tokens).sum()) / 80))
    assert point.calls < 8 and point.exact


def test_a_left_to_right_network_is_sampled_as_one() -> None:
    model = network(TOKENIZERS["levels"], length=6, causal=True)
    subject, truth = SampledModel("twin", model, "left-to-right"), OracleJudge(uniform(17))
    (setting,) = settings(subject, list(SAMPLERS), [2, 4], [0.9])
    point = measure(subject, setting, truth, replace(CONDITIONS, length=None))
    made = sample(model, num=10, length=6, seed=seeds(setting, "twin"), temperature=0.9)
    assert point.calls == 6 and point.length == 6 and not point.exact
    assert point.entropy.value == pytest.approx(float(sequence_entropy(made.tokens).mean()))
    assert point.perplexity.value == pytest.approx(17.0)


def uniform(vocab: int) -> MarkovOracle:
    even = torch.full((vocab,), 1 / vocab, dtype=torch.float64)
    return MarkovOracle(even, even.expand(vocab, vocab))


def test_settings_of_a_sweep() -> None:
    found = settings(SUBJECT, ["first-hitting", "parallel", "published-euler"], [4, 8, 16], [0.8, 1.0], length=8)
    assert found == [
        Setting("first-hitting", None, 0.8),
        Setting("first-hitting", None, 1.0),
        Setting("parallel", 4, 0.8),
        Setting("parallel", 8, 0.8),
        Setting("parallel", 4, 1.0),
        Setting("parallel", 8, 1.0),
        *(Setting("published-euler", n, 1.0, "published race") for n in (4, 8, 16)),
    ]
    for wrong, message in (
        (("euler", 3), "sampler must be one of"),
        (("parallel",), "needs steps"),
        (("first-hitting", 3), "no steps"),
        (("published-euler", 3), "draw of published-euler"),
        (("ancestral", 3, 1.0, "dice"), "draw of ancestral"),
        (("published-euler", 3, 0.9, "published race"), "at temperature 1"),
    ):
        with pytest.raises(ValueError, match=message):
            Setting(*wrong)  # type: ignore[arg-type]


def test_a_sweep_is_continued(tmp_path: Path) -> None:
    """What is in the file is not measured again; a half-written line is; another seed or model is another point."""
    path = tmp_path / "points.jsonl"
    plan_ = [(SUBJECT, Setting("parallel", n)) for n in (1, 2, 4)]
    news: list[bool] = []

    def run(number: int, subject: SampledModel = SUBJECT, **changes: Any) -> list[Point]:
        news.clear()
        own = [(subject, setting) for _, setting in plan_[:number]]
        conditions = replace(CONDITIONS, **changes)
        return sweep(own, JUDGE, conditions, kept=Kept(path), progress=lambda _, new: news.append(new))

    first = run(2)
    assert news == [True, True] and read(path) == first
    with path.open("ab") as file:
        file.write(json.dumps(first[0].to_dict()).encode()[:100])  # killed while writing
    whole = run(3)
    assert news == [False, False, True] and whole[:2] == first and read(path) == whole
    assert run(3) == whole and news == [False] * 3
    run(1, seed=6)
    assert news == [True]
    run(1, SampledModel("chain", MarkovOracle(ORACLE.initial, CHAIN.flip(0))))
    assert news == [True], "a model of the same name with other weights"
    path.write_text("[]\n")
    with pytest.raises(ValueError, match="line 1"):
        Kept(path)


def test_real_data_are_a_point_of_reference(tmp_path: Path) -> None:
    tokens = ORACLE.sample(40, 8, torch.Generator().manual_seed(0))
    kept = Kept(tmp_path / "points.jsonl")
    point = reference("truth", "abc", tokens, [], JUDGE, CONDITIONS, kept)
    assert point.perplexity.value == pytest.approx(math.exp(-float(ORACLE.log_likelihood(tokens).mean()) / 8))
    assert (point.sampler, point.num, point.calls) == ("data", 40, 0.0)
    asleep = Asleep(ORACLE)
    assert reference("truth", "abc", tokens, [], asleep, CONDITIONS, Kept(tmp_path / "points.jsonl")) == point
    with pytest.raises(AssertionError, match="asked again"):
        reference("truth", "other data", tokens, [], asleep, CONDITIONS, kept)


class Asleep(OracleJudge):
    def nats(self, samples: Samples) -> list[torch.Tensor]:
        raise AssertionError("the judge was asked again")


def made_up(
    sampler: str,
    perplexity: float,
    entropy: float,
    calls: float,
    *,
    width: float = 1.0,
    seconds: float | None = None,
    model: str = "m",
    temperature: float = 1.0,
    steps: int | None = None,
) -> Point:
    def interval(value: float, half: float) -> Interval:
        return Interval(value, value - half, value + half, 0.95)

    return Point(
        model,
        "masked",
        "",
        sampler,
        steps,
        temperature,
        "inverse-cdf",
        "float64",
        64,
        128,
        0,
        16,
        "judge",
        "all",
        True,
        0.95,
        interval(perplexity, width),
        interval(perplexity + 1, width),
        interval(entropy, 0.02),
        calls,
        calls / 100 if seconds is None else seconds,
        1.0,
    )


EXACT = made_up("first-hitting", 40, 5.0, 128)
CHEAP = made_up("parallel", 80, 5.05, 8, steps=8)
BETTER = made_up("parallel-extrapolate", 60, 5.0, 8.2, steps=8)  # within 5% of the calls
SAME = made_up("parallel-extrapolate", 59, 5.0, 32, steps=32)  # not clearly better
GOOD = made_up("parallel-correct", 45, 4.95, 64, steps=64)
POOR = made_up("parallel", 20, 4.0, 64, steps=64, temperature=0.7)  # too little entropy
FAULTY = made_up("published-ancestral", 15, 5.0, 16, steps=16)


def test_recommendations() -> None:
    points = [POOR, FAULTY, GOOD, SAME, BETTER, CHEAP, EXACT]
    floor = floor_of(points, 0.1)
    assert floor is not None and floor.reference is EXACT and floor.entropy == pytest.approx(4.9)
    assert staircase(points, floor, "calls") == [BETTER, GOOD, EXACT]
    assert recommend(points, floor, "calls", 8.0) is CHEAP
    assert [recommend(points, floor, "calls", budget) for budget in (7, 8.5, 63, 64, 1000)] == [
        None,
        BETTER,
        BETTER,
        GOOD,
        EXACT,
    ]
    assert recommend(points, floor, "seconds", 0.5) is BETTER
    lower = floor_of(points, tolerance=1.5)
    assert lower is not None and staircase(points, lower, "calls")[-1] is POOR
    data = replace(EXACT, sampler="data", kind="data", entropy=Interval(5.11, 5.1, 5.12, 0.95))
    higher = floor_of([data, *points], 0.1)
    assert higher is not None and staircase([data, *points], higher, "calls") == [CHEAP]
    assert floor_of([POOR, FAULTY, CHEAP]) is None
    with pytest.raises(ValueError, match="tolerance"):
        floor_of(points, -1.0)


def test_chance_is_no_reason_to_pay_more() -> None:
    floor = floor_of([EXACT])
    assert floor is not None
    assert clearly_better(made_up("parallel", 40, 5, 2), made_up("parallel", 42, 5, 1), floor)
    assert not clearly_better(made_up("parallel", 41, 5, 2), made_up("parallel", 42, 5, 1), floor)
    unknown = replace(GOOD, perplexity=Interval(1.0, math.nan, math.nan, 0.95))
    assert not clearly_better(unknown, CHEAP, floor)


def with_entropy(value: float, half: float, **changes: Any) -> Point:
    return replace(CHEAP, entropy=Interval(value, value - half, value + half, 0.95), **changes)


def test_an_entropy_is_weighed_with_its_error() -> None:
    """The floor is 4.9 ± 0.02: half-widths of 0.02 and 0.0225 make 0.0301."""
    floor = floor_of([EXACT], 0.1)
    assert floor is not None and floor.holds(EXACT) is True, "its own entropy is no other's"
    assert [floor.holds(with_entropy(e, 0.0225)) for e in (4.935, 4.925, 4.875, 4.865)] == [True, None, None, False]
    assert floor.holds(with_entropy(6.0, math.nan)) is None, "one sequence cannot tell"
    unsure = with_entropy(5.0, 0.2, steps=4, calls=4)
    assert staircase([EXACT, unsure, BETTER], floor, "calls") == [BETTER, EXACT]
    text = advice([EXACT, unsure, BETTER], tolerance=0.1)
    assert "left open, more samples would tell whether their entropy is enough: parallel, 4 steps" in text


def test_few_samples_are_no_recommendation() -> None:
    few = [replace(point, num=12) for point in (EXACT, BETTER)]
    floor = floor_of(few)
    assert floor is not None and not staircase(few, floor, "calls") and recommend(few, floor, "calls", 500) is None
    assert "m: no recommendation: 12 samples of a point are too few to tell entropies, take 32" in advice(few)


def test_likelier_than_data_is_no_merit() -> None:
    """With data at 60, BETTER is there: 45 is as far off as 80, and 20 as 180. Of equal ones more entropy is taken."""
    data = replace(EXACT, sampler="data", kind="data", perplexity=Interval(60.0, 59.0, 61.0, 0.95))
    floor = floor_of([data], tolerance=2.0)
    assert floor is not None
    assert [floor.perplexity(point) for point in (CHEAP, BETTER, GOOD, POOR)] == [80, 60, 80, 180]
    assert staircase([CHEAP, BETTER, SAME, GOOD, POOR, EXACT], floor, "calls") == [BETTER]
    assert staircase([POOR, GOOD], floor, "calls") == [GOOD]
    assert staircase([replace(GOOD, calls=8), CHEAP], floor, "calls") == [CHEAP]


def test_the_recommendation_says_what_it_takes_to_read_it() -> None:
    other = made_up("left-to-right", 30, 5.0, 128, model="twin", seconds=0.01)
    text = advice([EXACT, CHEAP, other], calls=20)
    assert "m: entropy at least 4.950 nats: that of the exact sampler" in text
    assert "20 calls per sequence: parallel, 8 steps, temperature 1 (perplexity 80.0 [79.0, 81.0], entropy" in text
    assert "64 samples, inverse-cdf in float64" in text
    assert "twin: entropy" in text and "no point is shown to have enough entropy for so little" in text
    assert "all models: entropy" in text and "from 0.01 seconds per sequence: twin, left-to-right" in text
    assert "How this was decided" in text
    assert "no recommendation" in advice([CHEAP])


def test_the_picture(tmp_path: Path) -> None:
    data = replace(EXACT, sampler="data", kind="data", model="kjv")
    draw_picture([data, EXACT, CHEAP, BETTER, SAME, GOOD, POOR, FAULTY], tmp_path / "frontier.png")
    draw_picture([], tmp_path / "empty.png")
    for name in ("frontier.png", "empty.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def run_command(arguments: list[str]) -> None:
    """The command in a process of its own."""
    os._exit(frontier_command.main(arguments))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A masked, a score and a left-to-right model with a left-to-right judge and real data; then on two processes."""
    masked, score = folder(tmp_path / "masked"), folder(tmp_path / "sedd", seed=1, extra={"objective": "score-entropy"})
    causal, judge = folder(tmp_path / "causal", causal=True), folder(tmp_path / "judge", causal=True, seed=2)
    (tmp_path / "real.txt").write_text(TEXT)
    arguments = [
        str(masked),
        str(score),
        str(causal),
        "--judge",
        str(judge),
        "--number",
        "6",
        "--batch",
        "4",
        "--steps",
        "2,6",
        "--samplers",
        "first-hitting,parallel-extrapolate,published-ancestral",
        "--temperatures",
        "1.0",
        "--data",
        str(tmp_path / "real.txt"),
        "--tolerance",
        "10",
    ]
    assert frontier_command.main([*arguments, "--out", str(tmp_path / "one")]) == 0
    shown = capsys.readouterr()
    for part in (
        "score",
        "left-to-right",
        "exponential-race, float64",
        "published race, float32",
        f"6 x {LENGTH}",
        "95%",
        "first-hitting",
        "real.txt",
        "How this was decided",
        "all models",
    ):
        assert part in shown.out
    assert (tmp_path / "one" / "frontier.txt").read_text() == shown.out
    assert (tmp_path / "one" / "frontier.png").read_bytes().startswith(b"\x89PNG")
    points = read(tmp_path / "one" / "points.jsonl")
    assert len(points) == 12 and [point.kind for point in points].count("score") == 5
    assert frontier_command.main([*arguments, "--out", str(tmp_path / "one"), "--json"]) == 0
    again = capsys.readouterr()
    assert again.err.count("(was there)") == 11
    assert [Point.from_dict(json.loads(line)) for line in again.out.splitlines()] == points

    assert in_two_processes(run_command, [*arguments, "--out", str(tmp_path / "two")]) == [0, 0]
    for one, other in zip(points, read(tmp_path / "two" / "points.jsonl"), strict=True):
        assert replace(other, seconds=one.seconds, cpu_seconds=one.cpu_seconds) == one


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--steps", "4,x"], "--steps must be whole numbers"),
        (["--samplers", "euler"], "'euler' is not one of first-hitting"),
        (["--number", "1"], "--number must be at least 2"),
        (["--temperatures", ""], "--temperatures must be numbers"),
    ],
)
def test_a_wrong_command(wrong: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert frontier_command.main([str(tmp_path), "--out", str(tmp_path / "out"), *wrong]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_model_is_a_wrong_command_line(tmp_path: Path) -> None:
    assert frontier_command.main(["--out", str(tmp_path / "out")]) == 2


def test_points_survive_their_file(tmp_path: Path) -> None:
    for point in (EXACT, CHEAP):
        append(tmp_path / "points.jsonl", point)
    assert read(tmp_path / "points.jsonl") == [EXACT, CHEAP]
    assert len({point.key for point in (EXACT, CHEAP, BETTER, replace(CHEAP, level=0.9))}) == 4
    assert replace(CHEAP, seconds=3.0, perplexity=EXACT.perplexity).key == CHEAP.key
