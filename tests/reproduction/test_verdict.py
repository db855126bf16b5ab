"""One rule for all verdicts, and no claim for which it cannot say no."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from reproduction.cells import part
from reproduction.items import module
from reproduction.verdict import LEVEL, Number, claim, half_width, mean, quantile, ratio

from reproduction import ITEMS, files
from tests.reproduction import invented

STORED = Path(__file__).parents[2] / "docs" / "results"


def outcome(*numbers):
    return claim("it is so", "-", "numbers", *numbers).outcome


class TestRule:
    def test_the_interval_lies_in_the_range_outside_it_or_across_its_end(self):
        for value, expected in ((1.0, "holds"), (0.2, "not decided"), (-0.2, "not decided"), (-1.0, "fails")):
            assert outcome(Number("x", value, 0.1, 10_000).at_least(0)) == expected

    def test_noise_is_not_agreement(self):
        """+0.350 +- 0.130 once passed for "hardly touched"."""
        assert outcome(Number("x", 0.35, 0.13, 32).within(-0.05, 0.05)) == "not decided"
        assert outcome(Number("x", 0.0, 0.13, 32).within(-0.05, 0.05)) == "no verdict"  # it would take n = 2,000
        assert outcome(Number("x", 0.0, 0.03, 32).within(-0.05, 0.05)) == "not decided"
        assert outcome(Number("x", 0.0, 0.01, 32).within(-0.05, 0.05)) == "holds"
        assert outcome(Number("x", 0.35, 0.05, 32).within(-0.05, 0.05)) == "fails"

    def test_one_number_of_several_is_enough_to_fail_and_all_are_needed_to_hold(self):
        good, bad, open_ = (Number("x", value, 0.1, 10_000).at_least(0) for value in (1.0, -1.0, 0.2))
        assert outcome(good, good) == "holds"
        assert outcome(good, open_) == "not decided"
        assert outcome(good, open_, bad) == "fails"

    def test_what_is_not_known_decides_nothing(self):
        assert outcome(Number("x", None).at_least(0)) == "not decided"
        assert outcome(Number("x", 1.0, math.nan, 9).at_least(0)) == "not decided"
        assert outcome(Number("x", 1.0, 0.0, 9).at_least(0)) == "not decided"  # sampled, and without a spread
        assert outcome(Number("x", 1.0, 0.1, 3).at_least(0)) == "not decided"  # three samples are none
        assert outcome(Number("x", 1.0, 0.1, 90)) == outcome() == "no verdict"

    def test_the_n_that_is_said_to_decide_does(self):
        for value, low, high in ((0.02, -0.05, 0.05), (0.3, 0.1, math.inf), (-0.1, 0.0, math.inf)):
            numbers = [Number("x", value, 0.1, 40), Number("y", value, 0.08, 40)]
            n = claim("", "", "", *(one.within(low, high) for one in numbers)).needed
            assert n and n > 40
            for many, decided in ((n, True), (int(0.98 * n) - 1, False)):
                more = [replace(one, error=(one.error or 0) * (40 / many) ** 0.5, n=many) for one in numbers]
                found = outcome(*(one.within(low, high) for one in more))
                assert (found in ("holds", "fails")) == decided

    def test_what_is_out_of_reach_has_no_verdict_and_what_is_within_it_is_open(self):
        near, far = (Number("x", value, 0.1, 100).at_least(0) for value in (0.2, 0.05))
        assert outcome(near) == "not decided" and outcome(far) == "no verdict"
        assert claim("", "", "", far).needed > 10 * 100 > claim("", "", "", near).needed
        bad = Number("x", -1.0, 0.1, 100).at_least(0)
        assert outcome(far, bad) == "fails" and claim("", "", "", far, bad).needed is None
        assert claim("", "", "", Number("x", 1.0, 0.1, 100).at_least(0)).needed is None

    def test_an_open_claim_shows_every_value_against_the_paper(self):
        """Eight numbers, of which two lie outside, one of them far: neither a count nor a rule may leave it out."""
        inside = [Number(f"in {i}", 0.5 + i / 10, 0.4, 100).at_least(0) for i in range(6)]
        against = [Number("slightly against", -0.01, 0.4, 100), Number("far against", -0.3, 0.9, 100)]
        one = claim("it is so", "-", "numbers", *inside, *(number.at_least(0) for number in against))
        assert one.outcome in ("not decided", "no verdict") and one.outside == [n.at_least(0) for n in against]
        shown = files.claims_table([one])
        assert "slightly against: -0.01" in shown and "far against: -0.3" in shown
        assert "2 of 8 values against the paper" in shown and "and 3 more" in shown
        fails = claim("it is so", "-", "numbers", *inside, Number("the one", -9.0, 0.1, 100).at_least(0))
        assert fails.outcome == "fails" and "the one: -9" in files.claims_table([fails])

    def test_computed_numbers_have_no_error(self):
        assert outcome(Number("x", 1e-13).at_most(1e-12)) == "holds"
        assert outcome(Number("x", 1e-11).at_most(1e-12)) == "fails"

    def test_the_quantile_is_students(self):
        stats = pytest.importorskip("scipy.stats")
        for n in (5, 6, 8, 16, 64, 1000):
            for k in (1, 10):
                assert quantile(n, LEVEL / k) == pytest.approx(
                    stats.t.isf(LEVEL / k, n - 1), rel=0.05 if n > 5 else 0.15
                )

    @pytest.mark.parametrize("n", [8, 64])
    def test_a_verdict_is_wrong_as_rarely_as_it_says_and_seen_as_often(self, n):
        """20,000 samples of n at the end of the range (27 +- 5 wrong ones of each kind: 60 once in 1e8)."""
        random, runs = np.random.default_rng(0), 20_000
        values = random.normal(size=(runs, n))
        found = [mean("x", row).at_least(0) for row in values[:, :].tolist()]
        for wrong in ("holds", "fails"):
            assert sum(outcome(one) == wrong for one in found) < 60
        # The power is that of a known error; with an estimated one nine tenths are seen, within a few percent.
        told = claim("", "", "", Number("x", 0.0, n**-0.5, n)).power
        moved = [mean("x", row).at_least(0) for row in (values[:4000] + told).tolist()]
        assert 0.82 < sum(outcome(one) == "holds" for one in moved) / len(moved) < 0.97

    def test_a_quotient_has_the_spread_of_quotients(self):
        random = np.random.default_rng(1)
        tops, bottoms = random.normal(1.0, 0.05, 100_000), random.normal(2.0, 0.1, 100_000)
        found = ratio("x", Number("a", 1.0, 0.05, 50), Number("b", 2.0, 0.1, 90))
        assert found.error == pytest.approx((tops / bottoms).std(), rel=0.03) and found.n == 50
        assert ratio("x", Number("a", 1.0, 0.1, 9), Number("b", 0.0, 0.1, 9)).value is None

    def test_a_part_of_a_fall_has_its_own_spread_though_the_base_is_in_both(self):
        """r = (base - a) / (base - b), 200,000 times: an error of the base moves both falls."""
        random, n = np.random.default_rng(2), 200_000
        base, a, b = (random.normal(mean, error, n) for mean, error in ((5.0, 0.06), (4.1, 0.02), (4.0, 0.03)))
        rows = (
            {"nats per token": v, "error": e, "sequences": k}
            for v, e, k in ((4.1, 0.02, 40), (4.0, 0.03, 50), (5.0, 0.06, 90))
        )
        found = part(*rows, "part")
        assert found.value == pytest.approx(0.9) and found.n == 40
        assert found.error == pytest.approx(((base - a) / (base - b)).std(), rel=0.03)

    def test_more_numbers_at_once_have_wider_intervals(self):
        one = Number("x", 0.0, 1.0, 100_000)
        assert half_width(one) == pytest.approx(3.0, abs=1e-3) and half_width(one, 10) > 3.6


def judged(name, good):
    """Every claim of an item under invented numbers: what it says, and all its outcomes."""
    found = {}
    for tables in getattr(invented, name)(good):
        for one in module(name).claims(tables):
            found.setdefault(one.says, set()).add(one.outcome)
    return found


@pytest.mark.parametrize("name", ITEMS)
def test_every_verdict_can_say_no_and_can_say_yes(name):
    bad, good = judged(name, False), judged(name, True)
    assert set(bad) == set(good)
    verdicts = {says: outcomes for says, outcomes in bad.items() if outcomes != {"no verdict"}}
    assert verdicts
    assert [says for says, outcomes in verdicts.items() if "fails" not in outcomes] == []
    assert [says for says in verdicts if "holds" not in good[says]] == []


@pytest.mark.parametrize(
    ("numbers", "steps", "expected"), [(10**7, 2.0, "not decided"), (10**9, 2.0, "fails"), (10**7, 0.5, "fails")]
)
def test_too_few_uniforms_do_not_show_that_the_largest_is_out_of_reach(numbers, steps, expected):
    (tables,) = invented.largest_gumbel(True)
    drawn = tables["largest drawn"]
    found = module("largest_gumbel").claims({**tables, "largest drawn": replace(drawn, rows=((numbers, 1.0, steps),))})
    assert found[1].outcome == expected


@pytest.mark.parametrize("about", files.stored(STORED), ids=lambda about: about["item"])
def test_stored_verdicts_follow_from_stored_numbers(about):
    for path, content in files.judged(about).items():
        assert (STORED / path).read_bytes() == content, (
            f"python -m reproduction --verdicts --out docs/results writes {path}"
        )
    known = set(judged(about["item"], True))
    assert {one.says for one in files.claims_of(about)} <= known, "a claim without invented numbers"


def test_the_summary_is_that_of_the_stored_numbers():
    assert (STORED / "CLAIMS.md").read_text(encoding="utf-8") == files.summary(STORED)


def test_a_verdict_set_by_hand_does_not_survive(tmp_path):
    about = next(one for one in files.stored(STORED) if one["item"] == "efficiency")
    for one in about["claims"]:
        one["outcome"] = "holds"
    (tmp_path / "efficiency.json").write_text(json.dumps(about), encoding="utf-8")
    files.judge_again(tmp_path)
    again = json.loads((tmp_path / "efficiency.json").read_text(encoding="utf-8"))
    assert "fails" in {one["outcome"] for one in again["claims"]}
    assert "| fails |" in (tmp_path / "CLAIMS.md").read_text(encoding="utf-8")


def claims_about(name):
    return {(one.says, one.on.split(":")[0]): one for about in files.stored(STORED) if about["item"] == name
            for one in files.claims_of(about)}  # fmt: skip


def test_figure_7_is_compared_with_what_the_paper_compares_with():
    crossing = claims_about("published_steps")["and passes below left to right, by 0.1 nats or more", "kjv"]
    (number,) = crossing.numbers
    assert number.what == "nats below left to right" and number.value < 0 and "not seen" in crossing.note
    assert crossing.outcome != "holds"


def test_what_cannot_fail_is_said_to_hold_by_construction_and_what_is_not_comparable_has_no_verdict():
    built = [one for (says, _), one in claims_about("known_truth").items() if "left to right" in says]
    assert sum("by construction" in one.note for one in built) == 2
    (conditioned,) = (one for (says, _), one in claims_about("training_variants").items() if "self-cond" in says)
    assert conditioned.outcome == "no verdict" and "not comparable" in conditioned.note


def test_entropies_count_where_the_perplexity_is_lower_and_steps_reach_l():
    from reproduction.item import Settings
    from reproduction.items.high_order import steps

    for size in ("full", "fast", "tiny"):
        assert steps(128, Settings(size))[-1] == 128
    counted = claims_about("high_order")["where the perplexity is lower, so is the entropy", "characters"]
    table = files.found(STORED, "high_order")["tables"]["pairs"]
    pairs = [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]
    kinds = {
        (row["N"], row["sampler"].split(", ")[-1]): row["nats below"]
        for row in pairs
        if row["subject"] == "characters" and row["against"] == "first-hitting"
    }
    lower = {f"N = {N}, {kind}" for (N, kind), nats in kinds.items() if nats > 0}
    assert {one.what for one in counted.numbers} == lower and len(lower) < len(kinds)
