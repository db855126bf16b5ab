"""The audit convicts what is faulty and nothing else. Fixed seeds; false-alarm rates of 1e-6 unless stated.

Samplers of a known law that cost one random number per row stand in where a race would need a billion: all rows of an
audit's call are alike, so their first row says everything.
"""

import json
import math
import textwrap

import numpy as np
import pytest
import torch
from scipy import stats

import unmask
from tests.helpers import FALSE_ALARM
from unmask import audit, draw, theory
from unmask.auditing import probes as audit_probes
from unmask.auditing.law import (
    Count,
    binomial_tails,
    chi_square_tail,
    consequences,
    coupled_step,
    fit,
    leave_grid,
    leave_truncated,
    leave_zero,
    position,
    quantum,
)
from unmask.auditing.normalisation import audit_normalisation
from unmask.auditing.subjects import BUILTIN, builtin, subject
from unmask.cli.audit import main
from unmask.noise import Streams

QUICK = 1e7


def exact(p, rng):
    """Inversion in float64."""
    cumulative = p[0].astype(np.float64).cumsum()
    return np.searchsorted(cumulative, rng.random(len(p)) * cumulative[-1], side="right")


def clocks(bits, law):
    """The race with a sure class and equal others, by the first ring among the others: exact in other cases."""

    def race(p, rng):
        row = p[0].astype(np.float64) / p[0].sum(dtype=np.float64)
        sure, others = int(row.argmax()), np.delete(row, row.argmax())
        if others.min() < others.max() or row[sure] < 0.5:
            return exact(p, rng)
        q, tokens, each = quantum(bits), len(others), others[0]
        first = rng.exponential(1 / tokens, len(p))
        first = {"grid": np.ceil(first / q) * q, "zero": np.floor(first / q) * q, "truncated": first + q}[law]
        own = rng.exponential(1, len(p)) + (q if law == "truncated" else 0)
        other = (sure + 1 + rng.integers(tokens, size=len(p))) % len(row)
        return np.where(first / each < own / row[sure], other, sure)

    return race


def cumulative_float32(p, rng):
    """Inversion by a running sum in float32, term by term: what follows a large class is lost."""
    cumulative = np.cumsum(p[0])
    assert cumulative.dtype == np.float32
    return np.minimum(np.searchsorted(cumulative, rng.random(len(p)) * cumulative[-1], side="right"), p.shape[1] - 1)


def cold(temperature):
    return lambda p, rng: exact(p.astype(np.float64) ** (1 / temperature), rng)


class TestLaws:
    @pytest.mark.parametrize(("tokens", "r"), [(50, 0.4), (700, 0.05), (20_000, 1e-3)])
    def test_the_truncated_distribution_is_proposition_5_2(self, tokens, r):
        for maximum in (3.0, 9.0, 16.6):
            p = np.r_[np.full(tokens, r / tokens), 1 - r]
            expected = theory.shifted_probabilities(p, maximum)[:-1].sum()
            assert float(leave_truncated(r, r / tokens, math.exp(-maximum))) == pytest.approx(expected, rel=1e-9)

    @pytest.mark.parametrize("c", [0.1, 1.0, 3.5])
    @pytest.mark.parametrize("r", [1e-3, 0.1])
    def test_the_grids_distributions_are_sums_over_its_levels(self, r, c):
        """P(the first of K rings at k q) P(the sure one's clock is later), level by level."""
        p = 1e-6
        q, tokens = c * p, r / p
        k = np.arange(0, 60_000)
        survival = np.exp(-tokens * q * k)
        ring = survival - np.exp(-tokens * q * (k + 1))
        up, down = ((ring * np.exp(-(1 - r) * c * (k + shift))).sum() for shift in (1, 0))
        assert float(leave_grid(r, p, q)) == pytest.approx(up, rel=1e-9)
        assert float(leave_zero(r, p, q)) == pytest.approx(down, rel=1e-9)
        assert up < r < down

    def test_low_precision_gumbels_follow_the_grid(self):
        """float16 uniforms, 11 bits: a two-sided binomial test, which Prop. 5.2 and the truth fail."""
        tokens, r, rows = 400, 0.1, 40_000
        logits = torch.tensor([r / tokens] * tokens + [1 - r], dtype=torch.float64).log()
        how, noise = draw.gumbel(torch.float16), Streams.of(1, rows // 500).at("token", 500)
        left = sum(int((how(logits.expand(500, -1), noise[i]) != tokens).sum()) for i in range(rows // 500))
        p, q = r / tokens, quantum(11)
        assert 2 * min(binomial_tails(left, rows, float(leave_grid(r, p, q)))) > FALSE_ALARM
        for wrong in (float(leave_truncated(r, p, q)), r):
            assert 2 * min(binomial_tails(left, rows, wrong)) < FALSE_ALARM

    @pytest.mark.parametrize(("left", "rows", "p"), [(3, 100, 0.05), (0, 10**6, 3e-5), (80, 1000, 0.05), (9, 9, 0.5)])
    def test_tails(self, left, rows, p):
        low, high = binomial_tails(left, rows, p)
        assert low == pytest.approx(stats.binom.cdf(left, rows, p), rel=1e-6)
        assert high == pytest.approx(stats.binom.sf(left - 1, rows, p), rel=1e-6)
        assert chi_square_tail(40.0, 15) == pytest.approx(stats.chi2.sf(40, 15), rel=1e-9)

    def test_the_best_design_is_the_one_that_the_rungs_use(self):
        """Nats per random number, in units of q: (1 - f + f log f) / c is largest at c = 3.5, where it is 0.186."""
        c = np.linspace(0.5, 8, 400)
        f = c / np.expm1(c)
        information = (1 - f + f * np.log(f)) / c
        assert c[information.argmax()] == pytest.approx(audit_probes.BEST_C, abs=0.1)
        assert information.max() == pytest.approx(0.186, abs=1e-3)

    @pytest.mark.parametrize("law", ["grid", "truncated"])
    def test_the_fit_covers_the_truth(self, law):
        """95 % intervals from expected counts hold M; and from 300 random counts at least 90 % of the time."""
        leave = {"grid": leave_grid, "truncated": leave_truncated}[law]
        maximum, rng = 9.0, np.random.default_rng(0)
        covered = 0
        for _ in range(300):
            counts = []
            for c in (0.5, 1.5, 3.5):
                p = math.exp(-maximum) / c
                tokens = int(0.1 / p)
                left = rng.binomial(2000, float(leave(tokens * p, p, math.exp(-maximum))))
                counts.append(Count(tokens, p, 2000, int(left)))
            found = fit(counts)
            covered += found.interval[0] <= maximum <= found.interval[1]
        assert covered >= 270


class TestSequentialTest:
    """Many small audits of one rung, at a false-alarm rate that can be counted."""

    def runs(self, monkeypatch, law, level, number):
        monkeypatch.setattr(audit_probes, "FALSE_ALARM", level)
        who = subject(law, takes="probabilities", library="numpy", seed=3)
        return [audit_probes.rung(who, 8, 256, share=1.0) for _ in range(number)]

    def test_the_level_is_kept(self, monkeypatch):
        """Of 1,500 exact samplers at most 2 % are convicted at a level of 2 %."""
        convicted = sum(probe.fault for probe in self.runs(monkeypatch, exact, 0.02, 1500))
        assert stats.binom.sf(convicted - 1, 1500, 0.02) > FALSE_ALARM

    @pytest.mark.parametrize("law", ["grid", "truncated"])
    def test_the_power_is_what_it_says(self, monkeypatch, law):
        """Of 400 grids at 1e-6, one in a thousand is passed, and a few are given up undecided."""
        probes = self.runs(monkeypatch, clocks(8, law), 1e-6, 400)
        passed = sum(not probe.fault for probe in probes)
        assert stats.binom.sf(passed - 1, 400, 2 * audit_probes.MISSED) > FALSE_ALARM

    def test_a_float32_conviction_costs_about_what_the_docstring_says(self):
        """1.4e9 random numbers on average, 3e8 for an acquittal: means of 6 runs, each within half of that."""
        costs = {}
        for name, law in (("grid", clocks(24, "grid")), ("exact", exact)):
            who = subject(law, takes="probabilities", library="numpy", seed=5)
            probes = [audit_probes.rung(who, 24, 50_257, share=0.4) for _ in range(6)]
            assert sum(probe.fault for probe in probes) == (6 if name == "grid" else 0)
            costs[name] = np.mean([probe.numbers for probe in probes])
        assert 0.7e9 < costs["grid"] < 2.1e9
        assert 1.5e8 < costs["exact"] < 6e8


class TestVerdict:
    @pytest.mark.parametrize("seed", range(4))
    def test_an_exact_sampler_is_acquitted_at_the_full_budget(self, seed):
        report = audit(exact, seed=seed)
        assert report.exact and report.law == "exact"
        assert report.maximum == report.interval[1] == math.inf
        assert report.interval[0] > theory.maximum_gumbel("float32")
        assert report.precision == "finer than float32"
        assert f"no truncation below M = {report.interval[0]:.1f} could be seen" in report.verdict
        assert report.temperature == pytest.approx(1, abs=6 * report.temperature_error)

    @pytest.mark.parametrize(
        "name",
        ["inverse_cdf", "exponential_race", "gumbel_float64", "published_float64", "numpy_choice", "torch_multinomial"],
    )
    def test_the_exact_built_in_subjects_are_acquitted(self, name):
        report = audit(name, budget=QUICK)
        assert report.exact, report
        assert report.numbers < 2 * QUICK

    @pytest.mark.parametrize("name", ["float16", "bfloat16"])
    def test_low_precisions_are_convicted_and_named(self, name):
        report = audit(f"gumbel_{name}", budget=QUICK)
        assert not report.exact and report.law == "grid"
        assert report.precision == name
        assert report.maximum == pytest.approx(theory.maximum_gumbel(name), abs=0.3)
        assert report.p_value <= FALSE_ALARM
        assert report.temperature < 1 - 6 * report.temperature_error
        assert str(report).startswith(f"gumbel_{name}: FAULT: no Gumbel exceeds M = ")

    @pytest.mark.parametrize(("bits", "precision"), [(24, "float32"), (23, "float32 (23 bits)")])
    def test_the_grid_of_float32_is_convicted_and_named(self, bits, precision):
        report = audit(clocks(bits, "grid"), seed=0)
        assert not report.exact and report.law == "grid"
        assert precision in report.precision.split(" or ")
        assert report.interval[0] < -math.log(quantum(bits)) < report.interval[1]
        assert report.decisive.name == "24 bits"
        assert report.decisive.closed_form_p_value > 1e-3

    @pytest.mark.parametrize("maximum", [5.0, 7.0, 9.0])
    def test_truncated_draws_are_convicted_with_their_maximum_in_the_interval(self, maximum):
        report = audit(draw.truncated(maximum), budget=3e7, takes="logits", library="torch")
        assert not report.exact and report.law in ("grid", "truncated")
        assert report.interval[0] <= maximum <= report.interval[1]
        assert report.interval[1] - report.interval[0] < 1
        probe = report.probes[-1]
        assert probe.closed_form_p_value > 1e-3 > probe.p_value
        assert probe.closed_form_distance < probe.distance

    def test_clocks_that_can_be_zero(self):
        report = audit(clocks(24, "zero"), seed=2)
        assert not report.exact and report.law == "zero"
        assert report.maximum == math.inf
        assert "rare classes win too often" in report.verdict

    def test_a_cumulative_sum_in_float32(self):
        report = audit(cumulative_float32, seed=2)
        assert not report.exact and report.law == "order"
        assert "behind a large one" in report.verdict

    @pytest.mark.parametrize("temperature", [0.9, 1.1])
    def test_a_wrong_temperature_is_not_called_truncation(self, temperature):
        report = audit(cold(temperature), takes="probabilities", budget=1e8)
        assert not report.exact and report.law == "other"
        assert report.temperature == pytest.approx(temperature, abs=6 * report.temperature_error)
        assert f"T = {report.temperature:.3f}" in report.verdict
        assert not report.consequences

    def test_a_distribution_that_comes_out_flat_has_no_temperature_in_its_verdict(self):
        report = audit(lambda p, rng: rng.integers(p.shape[1], size=len(p)), takes="probabilities", budget=1e8)
        assert not report.exact and report.law == "other"
        assert "flat" in report.verdict and "T =" not in report.verdict

    def test_scores_that_tie(self):
        """A race whose scores are rounded to halves: the first among equals wins."""

        def coarse(logits, generator):
            u = torch.rand(logits.shape, dtype=torch.float64, generator=generator)
            return (2 * (logits.double() - (-u.log()).log())).round().argmax(-1)

        report = audit(coarse, budget=3e7)
        assert not report.exact
        assert next(probe for probe in report.probes if probe.name == "ties").fault

    def test_a_sampler_that_always_says_the_same(self):
        report = audit(lambda p: np.zeros(len(p), dtype=np.int64), library="numpy", takes="probabilities", budget=QUICK)
        assert not report.exact

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["gumbel_float32", "numpy_gumbel", "published_float32"])
    def test_float32_gumbels_are_convicted(self, name):
        """The real thing, a billion random numbers each."""
        report = audit(name)
        assert not report.exact
        assert "float32" in report.precision
        assert report.interval[0] < theory.maximum_gumbel("float32") < report.interval[1]


class TestConsequences:
    def test_unsure_positions_suffer_most(self):
        rows = consequences(theory.maximum_gumbel("float32"), "grid", vocab=50_257, length=1024, steps=1000)
        assert [row.entropy for row in rows] == sorted(row.entropy for row in rows)
        ratios = [row.unmasking for row in rows]
        assert ratios == sorted(ratios, reverse=True)
        assert ratios[0] > 0.99
        assert ratios[-1] == pytest.approx(0.158, abs=2e-3)  # the paper map's number
        assert all(row.at_half <= 512 for row in rows)
        assert all(row.temperature < 1 for row in rows[:-1])

    def test_without_truncation_nothing_happens(self):
        for law in ("grid", "truncated"):
            for row in consequences(36.0, law, vocab=1000, length=100, steps=50):
                assert row.unmasking == pytest.approx(1, abs=2e-2 if law == "grid" else 1e-9)
                assert row.temperature == pytest.approx(1, abs=2e-2)
                assert row.at_half == pytest.approx(50, abs=1)

    @pytest.mark.parametrize("entropy", [2.0, 5.0])
    def test_the_truncated_distribution_is_the_theory_s(self, entropy):
        p, many = position(1000, entropy)
        assert float(-(many * p * np.log(p)).sum()) == pytest.approx(entropy, abs=1e-6)
        ours = coupled_step(p, many, 100, 8.0, "truncated").sum()
        assert ours == pytest.approx(float(theory.unmasking_probability(np.repeat(p, many), 0.01, 0.0, 8.0)), rel=1e-9)

    def test_the_grid_s_distribution_is_that_of_the_flat_design(self):
        p, many = position(1000, math.log(1000))
        r, q = 1 / 100, quantum(14)
        ours = coupled_step(p, many, 100, -math.log(q), "grid").sum()
        assert ours == pytest.approx(float(leave_grid(r, r / 1000, q)), rel=1e-2)


class TestSubjects:
    """Whatever people have: arrays of three libraries, probabilities or logits, any generator or none."""

    @pytest.mark.parametrize(
        ("function", "library", "takes"),
        [
            (lambda p: torch.multinomial(p, 1), "torch", "probabilities"),
            (lambda x: torch.distributions.Categorical(logits=x).sample(), "torch", "logits"),
            (draw.inverse_cdf, "torch", "logits"),
            (lambda p, generator: torch.multinomial(p, 1, generator=generator), "torch", "probabilities"),
            (lambda p, rng: (p / -np.log(rng.random(p.shape))).argmax(1), "numpy", "probabilities"),
            (
                lambda x: [int(np.argmax(row + np.random.gumbel(size=row.shape))) for row in np.asarray(x)],  # noqa: NPY002
                "torch",
                "logits",
            ),
        ],
        ids=["multinomial", "Categorical", "Draw", "generator", "rng", "list"],
    )
    def test_how_to_call_it_is_found_out(self, function, library, takes):
        who = subject(function, seed=1)
        assert who.takes == takes
        assert library in (who.library, "numpy")

    def test_jax(self):
        jax = pytest.importorskip("jax")
        assert subject(jax.random.categorical).takes == "logits"
        report = audit(jax.random.categorical, budget=1e6)
        assert report.exact and report.name == "categorical"

    @pytest.mark.parametrize("name", [name for name, known in BUILTIN.items() if known.available])
    def test_the_built_in_ones_take_what_they_say(self, name):
        known = BUILTIN[name]
        assert subject(known.function, library=known.library).takes == known.takes
        assert builtin(name).takes == known.takes

    @pytest.mark.parametrize(
        ("function", "message"),
        [
            (lambda p: p.sum(), "one id per row"),
            (lambda p: p[:, 0], "one id per row"),
            (lambda p: torch.full((len(p),), 99), "ids must be in 0..3"),
            (lambda p: 1 / 0, "ZeroDivisionError"),
            ("no_such_subject", "inverse_cdf"),
            (3, "draw must be a function"),
        ],
    )
    def test_what_cannot_be_audited_says_why(self, function, message):
        with pytest.raises(ValueError, match=message):
            audit(function, budget=QUICK)

    @pytest.mark.parametrize(
        "options", [{"budget": 10}, {"vocab": 5}, {"steps": 1}, {"takes": "ids"}, {"library": "mxnet"}]
    )
    def test_bad_options_are_named(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            audit(exact, **options)

    def test_global_generators_are_seeded_and_put_back(self):
        def legacy(p):
            return (p / -torch.log(torch.rand(p.shape, dtype=torch.float64))).argmax(-1)

        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        first, second = (audit(legacy, budget=QUICK, seed=7) for _ in range(2))
        assert torch.equal(torch.rand(3), expected)
        assert first.probes == second.probes

    def test_a_function_that_works_in_place_does_no_harm(self):
        def in_place(p):
            u = torch.rand(p.shape, dtype=torch.float64)
            return p.div_(-u.log()).argmax(-1)

        assert audit(in_place, takes="probabilities", budget=QUICK).exact

    def test_the_package_s_name_is_the_function(self):
        assert unmask.audit is audit
        assert isinstance(audit(exact, budget=QUICK), unmask.AuditReport)


class TestNormalisation:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("how", [torch.softmax, torch.log_softmax])
    def test_good_precisions_are_acquitted(self, dtype, how):
        report = audit_normalisation(lambda logits: how(logits.to(dtype), -1), vocab=5000)
        assert report.exact and report.worst < 1e-5
        assert report.dtype == str(dtype).removeprefix("torch.")

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("how", [torch.softmax, torch.log_softmax])
    def test_low_precisions_are_convicted_even_when_cast_back(self, dtype, how):
        report = audit_normalisation(lambda logits: how(logits.to(dtype), -1).float(), vocab=5000)
        assert not report.exact and report.worst > 1e-4
        assert "normalised in a low precision" in report.verdict

    def test_probability_that_underflows_is_counted(self):
        report = audit_normalisation(lambda logits: torch.softmax(logits.double(), -1).half(), vocab=50_257)
        assert report.lost > 1e-5

    def test_a_model_that_says_log_probabilities(self):
        class Model:
            vocab_size, mask_id, length = 4000, 4000, 4

            def __init__(self, dtype):
                self.dtype = dtype

            def __call__(self, tokens, time=None, rows=None):
                logits = torch.randn(*tokens.shape, 4000, generator=torch.Generator().manual_seed(0))
                return torch.log_softmax(logits.to(self.dtype), -1) if self.dtype else logits

        assert audit_normalisation(Model(torch.float32)).exact
        assert not audit_normalisation(Model(torch.bfloat16)).exact
        raw = audit_normalisation(Model(None))
        assert raw.exact and "raw logits" in raw.verdict

    def test_an_output_at_hand_and_nonsense(self):
        assert audit_normalisation(torch.tensor([[0.5, 0.5], [0.9, 0.1]])).exact
        assert not audit_normalisation(torch.tensor([[0.5, 0.49]])).exact
        assert not audit_normalisation(lambda logits: logits.exp()).exact
        for bad in (3, torch.tensor([[1, 0]]), lambda logits: logits[:, :3]):
            with pytest.raises(ValueError, match=r"subject|probabilities"):
                audit_normalisation(bad)


class TestCommand:
    def test_exit_codes_and_the_one_line_verdict(self, capsys):
        assert main(["inverse_cdf", "--budget", "1e7"]) == 0
        assert capsys.readouterr().out.splitlines()[0].startswith("inverse_cdf: exact: no truncation below M = ")
        assert main(["gumbel_bfloat16", "--budget", "1e7", "--steps", "200"]) == 1
        out = capsys.readouterr().out
        assert out.splitlines()[0].startswith("gumbel_bfloat16: FAULT: no Gumbel exceeds M = ")
        assert "200 coupled steps" in out and "at half-time" in out

    @pytest.mark.parametrize("target", ["nonsense", "math:nothing", "math:pi", "no_such_module_at_all:f"])
    def test_what_cannot_be_audited_is_2(self, target, capsys):
        assert main([target, "--budget", "1e7"]) == 2
        assert capsys.readouterr().err.startswith("unmask audit: ")

    def test_a_user_function(self, tmp_path, monkeypatch, capsys):
        (tmp_path / "my_sampler_under_audit.py").write_text(
            textwrap.dedent("""
            import torch

            class Sampler:
                @staticmethod
                def half(p):
                    u = torch.rand(p.shape, dtype=torch.float16)
                    return (p / -u.float().log()).argmax(-1)

            def low(logits):
                return torch.softmax(logits.bfloat16(), -1)
            """)
        )
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.path", list(__import__("sys").path))
        assert main(["my_sampler_under_audit:Sampler.half", "--budget", "1e7", "--json"]) == 1
        report = json.loads(capsys.readouterr().out)
        assert report["precision"] == "float16" and report["exact"] is False
        assert main(["my_sampler_under_audit:low", "--normalisation"]) == 1
        assert "low precision" in capsys.readouterr().out

    def test_the_list_has_every_built_in_subject(self, capsys):
        assert main(["list"]) == 0
        out = capsys.readouterr().out
        assert all(name in out for name in BUILTIN)
