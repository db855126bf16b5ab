"""Every item runs in a tiny setting, and its numbers agree with what is known."""

import json
import math
from functools import cache

import numpy as np
import pytest
import torch

from unmask import theory
from unmask.reproduce import ITEMS, Settings, cells, files, run
from unmask.reproduce.cells import How
from unmask.reproduce.items import module
from unmask.reproduce.subjects import oracle

TINY = Settings("tiny", workers=2)


@cache
def result(name):
    return run(name, TINY)


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_gives_numbers_and_claims_and_renders(name):
    found = result(name)
    assert found.tables and found.claims
    item = module(name)
    written = files.rendered(name, item.TITLE, item.PAPER, TINY, found, 1.0)
    assert {f"{name}.md", f"{name}.json"} <= set(written)
    assert all(content.startswith(b"\x89PNG") for path, content in written.items() if path.endswith(".png"))
    assert len([path for path in written if path.endswith(".png")]) == len(found.pictures)
    about = json.loads(written[f"{name}.json"])
    assert about["item"] == name and about["settings"]["size"] == "tiny"
    for key, table in (found.tables | found.data).items():
        assert len(about["tables"][key]["rows"]) == len(table.rows)
    text = written[f"{name}.md"].decode()
    assert all(claim.says in text for claim in found.claims)


def test_beta_densities_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    curves = result("beta_densities").data["densities"]
    alpha = np.array(curves.column("alpha"))
    for n in (1, 512, 1024):
        expected = stats.beta.pdf(alpha, 1024 - n + 1, n)
        np.testing.assert_allclose(curves.column(f"n = {n}"), expected, rtol=1e-9, atol=1e-200)
    assert all(claim.holds for claim in result("beta_densities").claims)


def test_cached_calls_follow_the_formula():
    """Five standard errors, 40 batches a cell and 4 cells: a false alarm in about 1e5 seeds, and the seed is fixed."""
    table = result("cached_calls").tables["calls"]
    for B, N, formula, simulated, error, own in table.rows:
        assert formula == pytest.approx(N * (1 - (1 - 1 / N) ** (B * 32)))
        assert abs(simulated - formula) < 5 * error
        assert own <= simulated + 1e-9
    assert all(claim.holds for claim in result("cached_calls").claims)


def test_the_largest_gumbel_is_the_papers():
    rows = {row[0]: row for row in result("largest_gumbel").tables["largest Gumbels"].rows}
    assert rows["float32"][3] == rows["float32"][4] == "16.6355"
    assert rows["float64"][3] == rows["float64"][4] == "36.7368"
    assert all(claim.holds for claim in result("largest_gumbel").claims)


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
    assert [row[0] for row in table.rows if not row[-1]] == []


def test_sampling_time_counts_calls():
    for name, N, calls, seconds, network, elsewhere in result("sampling_time").tables["seconds"].rows:
        assert calls <= (8 if name.startswith("plan") else min(N, 8) + 1)
        assert seconds == pytest.approx(network + elsewhere) and network > 0


@pytest.mark.parametrize(
    "name",
    [
        "published_steps",
        "precisions",
        "after_the_fix",
        "temperature",
        "high_order",
        "first_hitting_precision",
        "generated_text",
    ],
)
def test_cells_are_whole(name):
    table = result(name).tables["cells"]
    assert set(table.column("subject")) == {"oracle"}
    for low, value, high in zip(table.column("from"), table.column("perplexity"), table.column("to"), strict=True):
        assert 1 < low <= value <= high < 3000
    assert max(table.column("entropy")) <= math.log(12) + 1e-9


def test_every_version_is_in_the_table_of_precisions_with_the_papers_numbers():
    rows = {row[1].split(", ")[-1]: row[3:5] for row in result("precisions").tables["versions"].rows[:3]}
    assert rows == {"float32": (31.24, 5.17), "float64": (126.11, 5.66), "float64-truncated": (28.64, 5.12)}


def test_the_fault_shows_at_very_many_steps():
    """At N = 1e8 and V = 300 float32 is as bad as at N = 50,000 and V = 50,257: lower by far more than the errors."""
    falls, below, _, same = result("published_steps").claims
    assert falls.holds and below.holds
    lowers, alike, right = result("precisions").claims
    assert lowers.holds and alike.holds
    assert same.holds is None and right.holds is None  # real draws at N = 32, where there is no fault to see yet


def test_generated_texts_are_those_of_every_sampler():
    headings = list(result("generated_text").texts)
    assert len(headings) == 6
    assert any("float32" in heading for heading in headings) and any("left to right" in heading for heading in headings)


def test_training_variants_all_trained_and_judged():
    from unmask.reproduce.items.training_variants import VARIANTS

    table = result("training_variants").tables["variants"]
    assert table.column("variant") == list(VARIANTS)
    for nats, perplexity in zip(
        table.column("validation, nats per character"), table.column("perplexity"), strict=True
    ):
        assert perplexity == pytest.approx(math.exp(nats)) and nats < 8


def test_variance_is_relative_and_the_weights_are_a_distribution():
    found = result("variance_reduction")
    table = found.tables["variance"]
    assert table.column("relative to independent")[0] == 1
    assert sum(found.data["importance weights"].column("p_n L")) == pytest.approx(8)  # L
    # Every way of drawing n estimates the same loss: five errors, five means.
    means, errors = table.column("mean loss, nats per token"), table.column("its error")
    for mean, error in zip(means[1:], errors[1:], strict=True):
        assert abs(mean - means[0]) < 5 * math.hypot(error, errors[0])


class TestPrioritisedUnmasking:
    def test_the_grids_law_is_an_enumeration_of_small_grids(self, monkeypatch):
        """c/(e^c - 1) against all pairs of clocks of a grid of 11 bits: one token beside the mask.

        u = 0, which loses every race, is left out: on 24 bits it is as good as never drawn.
        """
        from unmask.reproduce.items import prioritised_unmasking as item

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
        from unmask.reproduce.items import prioritised_unmasking as item

        flat = np.full((1, 50_257), 1 / 50_257)
        assert float(item.closed(flat, 1000)[0]) == pytest.approx(0.050, abs=5e-4)
        assert float(item.grid(flat, 1000)[0]) == pytest.approx(0.158, abs=5e-4)

    def test_counts_agree_with_theory(self):
        """4.5 errors over six counts, fixed seed."""
        for row in result("prioritised_unmasking").tables["one step, counted"].rows:
            assert abs(row[4] - row[5]) < 4.5 * row[6]


def test_the_float32_race_is_colder_at_the_papers_sizes():
    """What items 4 and 6 measure by sampling, in closed form: at N = 10,000 a Zipf position is cold and late."""
    rank = np.arange(1, 50_258)
    mu = (1 / rank) / (1 / rank).sum()
    law = np.r_[mu / 10_000, 1 - 1 / 10_000]
    shifted = theory.shifted_probabilities(law, theory.maximum_gumbel("float32"))[:-1]
    assert shifted.sum() * 10_000 < 0.8
    assert theory.effective_temperature(mu, shifted / shifted.sum()) < 0.9


def test_agreement_is_claimed_only_where_a_fault_would_have_been_seen() -> None:
    assert cells.agree(0.1, 0.1, fault=0.5) is True
    assert cells.agree(0.1, 0.2, fault=0.5) is None  # three errors are more than the fault
    assert cells.agree(-0.4, 0.1, fault=0.5) is False


@pytest.mark.parametrize("how", [How("coupled", "float32"), How("law", "float32"), How("parallel")])
def test_another_seed_shares_no_sequence(how):
    """Sequence i + 1 of one seed is not sequence i of the next: a figure can be made again independently."""
    subject = oracle("tiny", 0)
    here, there = (cells.measure(subject, how, 8, 6, 8, Settings("tiny", seed=seed)).tokens for seed in (0, 1))
    assert not bool((here.unsqueeze(0) == there.unsqueeze(1)).all(-1).any())


class TestPairs:
    """Runs that share their noise are compared by their differences, and all others are independent."""

    def test_cells_have_seeds_of_their_own_unless_they_are_paired(self):
        subject = oracle("tiny", 0)
        ways = [How("parallel", draw=f"gumbel-{bits}") for bits in ("float32", "float64")]
        apart = [cells.measure(subject, how, 8, 6, 8, TINY).tokens for how in ways]
        paired = [cells.measure(subject, how, 8, 6, 8, TINY, paired=True).tokens for how in ways]
        assert not torch.equal(*apart) and torch.equal(*paired)

    def test_the_error_of_a_pair_is_that_of_its_differences(self):
        subject = oracle("tiny", 0)
        a, b = (cells.measure(subject, How("parallel", temperature=t), 8, 6, 8, TINY, paired=True) for t in (0.5, 1.0))
        gaps = (b.per_token - a.per_token).numpy()
        gap, error = cells.lower_in_pairs(a, b)
        assert gap == pytest.approx(gaps.mean()) and error == pytest.approx(gaps.std(ddof=1) / math.sqrt(6))
