"""Every item runs in a tiny setting, and its numbers agree with what is known."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from reproduction.cells import How
from reproduction.items import WITH_SUBJECTS, module
from reproduction.subjects import oracle

from reproduction import ITEMS, Settings, cells, files, run, verdict
from unmask import theory

TINY = Settings("tiny", workers=2)


@cache
def result(name):
    return run(name, TINY)


def outcomes(name):
    return [claim.outcome for claim in module(name).claims(result(name).tables)]


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_gives_numbers_and_claims_and_renders(name):
    found = result(name)
    item = module(name)
    claims = item.claims(found.tables | found.data)
    assert found.tables and claims
    written = files.rendered(name, item.TITLE, item.PAPER, TINY, found, 1.0)
    assert {f"{name}.md", f"{name}.json"} <= set(written)
    assert all(content.startswith(b"\x89PNG") for path, content in written.items() if path.endswith(".png"))
    assert len([path for path in written if path.endswith(".png")]) == len(found.pictures)
    about = json.loads(written[f"{name}.json"])
    assert about["item"] == name and about["settings"]["size"] == "tiny"
    for key, table in (found.tables | found.data).items():
        assert len(about["tables"][key]["rows"]) == len(table.rows)
    text = written[f"{name}.md"].decode()
    assert "Claims: " in text and "CLAIMS.md" in text
    assert [one["outcome"] for one in about["claims"]] == [claim.outcome for claim in claims]


def test_beta_densities_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    curves = result("beta_densities").data["densities"]
    alpha = np.array(curves.column("alpha"))
    for n in (1, 512, 1024):
        expected = stats.beta.pdf(alpha, 1024 - n + 1, n)
        np.testing.assert_allclose(curves.column(f"n = {n}"), expected, rtol=1e-9, atol=1e-200)
    assert outcomes("beta_densities") == ["holds"] * 3


def test_cached_calls_follow_the_formula():
    """Five standard errors, 40 batches a cell and 4 cells: a false alarm in about 1e5 seeds, and the seed is fixed."""
    table = result("cached_calls").tables["calls"]
    for B, N, formula, simulated, error, own in table.rows:
        assert formula == pytest.approx(N * (1 - (1 - 1 / N) ** (B * 32)))
        assert abs(simulated - formula) < 5 * error
        assert own <= simulated + 1e-9


def test_the_largest_gumbel_is_the_papers():
    rows = {row[0]: row for row in result("largest_gumbel").tables["largest Gumbels"].rows}
    assert rows["float32"][3] == rows["float32"][4] == "16.6355"
    assert rows["float64"][3] == rows["float64"][4] == "36.7368"
    assert outcomes("largest_gumbel") == ["holds"] * 2


def test_the_worked_cases_of_the_cost_model():
    table = result("efficiency").tables["worked cases"]
    assert table.column("NFE")[0] == pytest.approx(973, abs=0.5)
    assert table.column("NFE")[2] == pytest.approx(93, abs=0.5)
    assert table.column("speed-up") == [pytest.approx(value, abs=0.05) for value in (17.0, 4.95, 1.07)]
    measured = result("efficiency").tables["measured here"]
    for row in measured.rows:
        kind, N, nfe, t1, t2, ratio, gain = row
        assert gain == pytest.approx((nfe * t1 + N * 8 * 64 * t2) / (nfe * t1 + 8 * 64 * t2)), kind
        assert ratio == pytest.approx(t1 / (8 * 64 * t2))


def test_every_proposition_holds():
    """The drawn checks allow a false alarm in a million each, and their seed is fixed."""
    table = result("propositions").tables["checks"]
    assert len(table.rows) > 20
    assert set(outcomes("propositions")) == {"holds"}


def test_sampling_time_counts_calls():
    for _, name, N, calls, draws, seconds, network, elsewhere in result("sampling_time").tables["seconds"].rows:
        assert calls <= (8 if name.startswith("plan") else min(N, 8) + 1)
        assert draws == 8 if name.startswith("plan") else draws % 8 == 0
        assert seconds == pytest.approx(network + elsewhere) and network > 0


@pytest.mark.parametrize("name", WITH_SUBJECTS)
def test_cells_are_whole(name):
    table = result(name).tables["cells"]
    assert set(table.column("subject")) == {"characters" if name == "high_order" else "oracle"}
    for nats, error, perplexity in zip(*map(table.column, ("nats per token", "error", "perplexity")), strict=True):
        assert perplexity == pytest.approx(math.exp(nats)) and 0 < error < nats < 8
    assert max(table.column("entropy")) <= math.log(16) + 1e-9


def test_the_float32_error_shows_at_very_many_steps():
    """At N = 1e8 and V = 300 float32 is as bad as at N = 50,000 and V = 50,257: perplexity falls, not by chance."""
    table = result("published_steps").tables["cells"]
    law = cells.curve(table, "oracle", How("law", "float32"))
    claim = verdict.claim("it falls", "-", "the law", cells.below(law[-1], law[0]).at_least(0.1))
    assert claim.outcome == "holds"


def test_sequences_in_32_and_64_bits_share_their_noise_and_differ_in_few_tokens():
    """Figure 14, Remark 5.1: a float32 draw changes tokens in an N-step coupled run, and hardly any token by token."""
    subject = oracle("tiny", 0)
    both = [
        cells.measure(subject, How("parallel", draw=f"gumbel-{bits}"), 12, 64, 12, TINY, paired=True).tokens
        for bits in ("float32", "float64")
    ]
    assert int((both[0] != both[1]).sum()) <= 2  # of 768, V = 300
    coupled = [
        cells.measure(subject, How("law", bits), 10**8, 64, 12, TINY, paired=True).tokens
        for bits in ("float32", "float64-truncated")
    ]
    exact = cells.measure(subject, How("parallel"), 12, 64, 12, TINY, paired=True).tokens
    assert min(int((tokens != exact).sum()) for tokens in coupled) > 100


def test_high_order_is_paired_and_knows_below_from_above():
    """Figures 5 and 13: pairs of one N share their noise; their differences are those of the cells."""
    found = result("high_order")
    table = found.tables["cells"]
    for row in found.tables["pairs"].records():
        a, b = (
            next(r for r in table.records() if (r["sampler"], r["N"]) == (row[k], row["N"]))
            for k in ("sampler", "against")
        )
        assert row["nats below"] == pytest.approx(b["nats per token"] - a["nats per token"])
        assert row["entropy above"] == pytest.approx(a["entropy"] - b["entropy"])


def test_the_cache_changes_calls_and_no_token():
    """Figures 4 and 9: with and without the cache the published sampler gives the same tokens."""
    row = result("after_the_fix").tables["the cache"].records()[0]
    assert row["tokens that differ"] == 0 and row["NFE without"] == row["N"] > 8 >= row["NFE with the cache"]
    table = result("after_the_fix").tables["cells"]
    assert {r["sampler"] for r in table.records()} >= {
        "published (MDLM), float64",
        "published (MDLM), float64, without the cache",
        "published (SEDD), float64",
        "first-hitting",
        "first-hitting, extrapolate",
        "first-hitting, correct",
    }
    assert cells.curve(table, "oracle", How("parallel"))[-1]["NFE"] == 8  # L


def test_entropies_are_compared_at_the_same_perplexity():
    """Figure 10: the line between two temperatures, and errors along it."""
    from reproduction.items.temperature import at_the_same

    def row(nats, entropy):
        return {"nats per token": nats, "error": 0.03, "entropy": entropy, "its error": 0.01, "sequences": 100}

    curve = [row(4.0, 2.8), row(5.0, 3.0)]
    found = at_the_same(curve, row(4.5, 2.85), "nats per token", "entropy", "it")
    assert found.value == pytest.approx(0.05)
    # The middle of two points of 0.01, one of 0.01, and the slope of 0.2 times the errors of the abscissas.
    assert found.error == pytest.approx(math.sqrt(0.01**2 * 1.5 + (0.2 * 0.03) ** 2 * 1.5))
    assert at_the_same(curve, row(6.0, 2.9), "nats per token", "entropy", "it") is None


def test_a_lower_temperature_trades_entropy_for_perplexity():
    """Figure 10, on 400 pairs of sequences: both differences are more than five errors (5.7e-7) from 0."""
    subject = oracle("tiny", 0)
    cold, warm = (
        cells.measure(subject, How("parallel", predictor="correct", temperature=T), 12, 400, 12, TINY, paired=True)
        for T in (0.5, 1.0)
    )
    *_, below, error, above, its_error = cells.pair(cold, warm)
    assert below > 5 * error and above < -5 * its_error


def test_generated_texts_are_those_of_every_sampler():
    headings = list(result("generated_text").texts)
    assert len(headings) == 5
    assert any("float32" in heading for heading in headings) and any("left to right" in heading for heading in headings)


def test_training_variants_are_all_trained_sampled_and_judged():
    from reproduction.items.training_variants import SAMPLED, VARIANTS

    tables = result("training_variants").tables
    assert list(dict.fromkeys(tables["bounds"].column("variant"))) == list(VARIANTS)
    assert all(0 < nats < 8 for nats in tables["bounds"].column("validation, nats per character"))
    nats = {row["sampler"]: row["nats per character by the twin"] for row in tables["samples"].records()}
    assert set(nats) == set(SAMPLED) and all(0 < value < 8 for value in nats.values())


def test_the_spread_of_a_curve_is_not_spoilt_by_one_jump():
    from reproduction.items.training_variants import spread

    calm = [2.0, 2.1] * 50
    assert spread(calm) == pytest.approx(0.1) == pytest.approx(spread([*calm[:-1], 1e6]))


def test_every_way_of_drawing_counts_estimates_the_same_loss_and_the_weights_are_a_distribution():
    found = result("variance_reduction")
    assert sum(found.data["importance weights"].column("p_n L")) == pytest.approx(8)  # L
    by = {}
    for row in found.tables["variance"].records():
        by.setdefault(row["counts n"], []).append(row["mean loss, nats per token"])
    for losses in by.values():  # five errors of four runs of 20 batches
        gap = np.array(losses) - np.array(by["independent"])
        assert abs(gap.mean()) < 0.15 * np.mean(by["independent"])


class TestPrioritisedUnmasking:
    def test_the_grids_distribution_is_an_enumeration_of_small_grids(self, monkeypatch):
        """c/(e^c - 1) against all pairs of clocks of a grid of 11 bits: one token beside the mask.

        u = 0, which loses every race, is left out: on 24 bits it is as good as never drawn.
        """
        from reproduction.items import prioritised_unmasking as item

        bits, N = 11, 2000
        monkeypatch.setattr(item, "M", -math.log(-math.log(1 - 2.0**-bits)))
        u = torch.arange(1, 2**bits, dtype=torch.float64) / 2**bits
        clocks = -torch.log(u)
        token, mask = (1 / N) / clocks, (1 - 1 / N) / clocks
        leave = float((token.unsqueeze(1) > mask).double().mean())
        predicted = float(item.grid(np.ones((1, 1)), N)[0]) / N
        assert predicted == pytest.approx(leave, rel=0.02)
        exact = float(item.closed(np.ones((1, 1)), N)[0]) / N
        assert abs(predicted - leave) < abs(exact - leave)

    def test_a_flat_position_of_the_papers_vocabulary(self):
        """The numbers of docs/paper_map.md: 0.050 by Prop. 5.2, 0.158 on the grid, at V = 50,257 and N = 1,000."""
        from reproduction.items import prioritised_unmasking as item

        flat = np.full((1, 50_257), 1 / 50_257)
        assert float(item.closed(flat, 1000)[0]) == pytest.approx(0.050, abs=5e-4)
        assert float(item.grid(flat, 1000)[0]) == pytest.approx(0.158, abs=5e-4)

    def test_counts_agree_with_theory(self):
        """Five errors over eighteen counts, fixed seed."""
        for row in result("prioritised_unmasking").tables["one step, counted"].records():
            error = row["part of the exact rate"] / math.sqrt(max(row["unmasked"], 1))
            assert abs(row["part of the exact rate"] - row["by theory"]) < 5 * error


def test_the_float32_race_is_colder_at_the_papers_sizes():
    """What items 4 and 6 measure by sampling, in closed form: at N = 10,000 a Zipf position is cold and late."""
    rank = np.arange(1, 50_258)
    mu = (1 / rank) / (1 / rank).sum()
    law = np.r_[mu / 10_000, 1 - 1 / 10_000]
    shifted = theory.shifted_probabilities(law, theory.maximum_gumbel("float32"))[:-1]
    assert shifted.sum() * 10_000 < 0.8
    assert theory.effective_temperature(mu, shifted / shifted.sum()) < 0.9


@pytest.mark.parametrize("how", [How("coupled", "float32"), How("law", "float32"), How("parallel")])
def test_another_seed_shares_no_sequence(how):
    """Sequence i + 1 of one seed is not sequence i of the next: a figure can be made again independently."""
    subject = oracle("tiny", 0)
    here, there = (cells.measure(subject, how, 8, 6, 8, Settings("tiny", seed=seed)).tokens for seed in (0, 1))
    assert not bool((here.unsqueeze(0) == there.unsqueeze(1)).all(-1).any())


class TestPairs:
    """Runs that share their noise are compared by their differences, and all others are independent."""

    def test_cells_have_separate_seeds_unless_they_are_paired(self):
        subject = oracle("tiny", 0)
        ways = [How("parallel", draw=f"gumbel-{bits}") for bits in ("float32", "float64")]
        apart = [cells.measure(subject, how, 8, 6, 8, TINY).tokens for how in ways]
        paired = [cells.measure(subject, how, 8, 6, 8, TINY, paired=True).tokens for how in ways]
        assert not torch.equal(*apart) and torch.equal(*paired)

    def test_the_error_of_a_pair_is_that_of_its_differences(self):
        subject = oracle("tiny", 0)
        a, b = (cells.measure(subject, How("parallel", temperature=t), 8, 32, 8, TINY, paired=True) for t in (0.5, 1.0))
        gaps = (b.per_token - a.per_token).numpy()
        _, _, _, _, n, gap, error, *_ = cells.pair(a, b)
        assert n == 32 and gap == pytest.approx(gaps.mean())
        assert error == pytest.approx(gaps.std(ddof=1) / math.sqrt(32))

    def test_pairs_that_do_not_differ_have_an_error_all_the_same(self):
        subject = oracle("tiny", 0)
        a = cells.measure(subject, How("parallel"), 8, 32, 8, TINY, paired=True)
        *_, gap, error, _, _ = cells.pair(a, a)
        assert gap == 0 and error == pytest.approx(math.sqrt(2) * float(a.per_token.std()) / 32)


def test_nats_per_token_are_those_of_all_tokens_together():
    """Sequences of 1 and 3 judged tokens: 7 nats of 4 tokens."""
    some = cells.measure(oracle("tiny", 0), How("parallel"), 8, 2, 8, TINY)
    two = replace(some, nats=torch.tensor([1.0, 6.0]), judged=torch.tensor([1, 3]))
    assert float(two.per_token.mean()) == pytest.approx(7 / 4)


def test_a_run_that_was_broken_off_goes_on_where_it_was(tmp_path, monkeypatch):
    subject, kept = oracle("tiny", 0), replace(TINY, cells=str(tmp_path))
    first = cells.measure(subject, How("parallel"), 8, 8, 8, kept)
    assert len(list(tmp_path.iterdir())) == 1
    sampled = []
    real = cells.sampled
    monkeypatch.setattr(cells, "sampled", lambda *given: sampled.append(len(given[3])) or real(*given))
    more = cells.measure(subject, How("parallel"), 8, 16, 8, kept)
    assert sampled == [8] and torch.equal(more.tokens[:8], first.tokens)
