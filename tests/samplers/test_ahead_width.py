"""The window chooses itself: from invented costs and guesses that are right so often, without a clock."""

import random

import pytest

from unmask.samplers.width import FIRST, LOSS, PASSES, WIDTHS, Width, settled, shared_width


def simulated(width, cost, right, passes=400, sequences=1, seed=0, tokens=None):
    """Tokens a second and widths of passes, or of a run of a number of tokens, with invented costs: no clock.

    cost(width, guesses) is a pass's, right(pass) the chance of a guess to be right.
    """
    chance, guesses, made, seconds = random.Random(seed), [0] * sequences, 0, 0.0
    used = []
    for number in range(passes if tokens is None else tokens):
        now, all_right, wrong, before = width.next, 0, 0, made
        shown = sum(min(k, now - 1) for k in guesses)
        for i in range(sequences):
            k, run = min(guesses[i], now), 0
            while run < k and chance.random() < right(number):
                run += 1
            all_right, wrong = all_right + run, wrong + (run < k)
            settles = min(run + 1, now)
            made += settles
            guesses[i] = max(guesses[i], now) - settles
        spent = cost(now, shown)
        seconds += spent
        used.append(now)
        width.passed(now, all_right, wrong, spent, tokens=made - before, sequences=sequences)
        if tokens is not None and made >= tokens:
            break
    return made / seconds, used


def best(cost, right, **options):
    return max((simulated(Width(w), cost, right, **options)[0], w) for w in WIDTHS)


COSTS = {
    "flat": lambda w, k: 1.0,
    "weights are read once": lambda w, k: 1 + w / 12,
    "every row costs": lambda w, k: float(w),
    "nearly every row": lambda w, k: 0.3 + w,
    "a canvas for each guess": lambda w, k: 1.0 + k,
    "two rows for each guess": lambda w, k: 0.5 + w + k,
    "steps": lambda w, k: 1.0 + (w > 8) + (w > 24),
}


RECORDED = {  # lines through measured ms of a pass, by width and guesses shown; a part of right guesses near theirs
    "kjv, a canvas for each guess": (lambda w, k: 12.3 + 8.2 * k, 0.66),
    "kjv-ar, left to right": (lambda w, k: 4.6 if w == 1 else 5.35 + 0.1 * k, 0.13),
}


class TestWidth:
    @pytest.mark.parametrize("q", [0.0, 0.3, 0.7, 0.9, 0.99])
    @pytest.mark.parametrize("name", COSTS)
    def test_it_finds_a_width_that_is_nearly_the_best(self, name, q):
        rate, used = simulated(Width(), COSTS[name], lambda _: q, passes=600)
        most, width = best(COSTS[name], lambda _: q, passes=600)
        assert rate > 0.88 * most, (rate, most, width, used[-50:])

    @pytest.mark.parametrize("name", COSTS)
    def test_it_loses_at_most_a_few_per_cent_against_one_token_per_pass(self, name):
        """LOSS of the time and PASSES passes, and beyond them the passes of a try that overdraws the account."""
        cost = COSTS[name]
        one, q_and_tokens = cost(1, 0), [(q, n) for q in (0, 0.05, 0.13, 0.3, 0.5, 0.7, 0.9) for n in (32, 128, 1024)]
        for q, tokens in q_and_tokens:
            for seed in range(3):
                rate, used = simulated(Width(), cost, lambda _, q=q: q, tokens=tokens, seed=seed)
                lost = tokens / rate - tokens * one
                allowed = (LOSS * tokens + PASSES) * one + 2 * cost(FIRST, FIRST - 1)
                assert lost <= allowed, (q, tokens, lost / one, used)

    @pytest.mark.parametrize("name", RECORDED)
    def test_recorded_costs_of_models_that_gain_nothing_are_borne(self, name):
        """What passes of box models took, by width, and how often guesses were right: a run loses at most 4%."""
        cost, q = RECORDED[name]
        for tokens, seed in ((n, seed) for n in (128, 512) for seed in range(5)):
            rate, used = simulated(Width(), cost, lambda _: q, tokens=tokens, seed=seed)
            assert rate > 0.96 / cost(1, 0), (tokens, rate * cost(1, 0), used)

    def test_it_is_wide_within_a_few_passes_where_that_pays(self):
        _, used = simulated(Width(), COSTS["weights are read once"], lambda _: 0.95, passes=9)
        assert used[:2] == [1, 1] and max(used) >= 16

    def test_it_follows_when_guesses_become_right_or_wrong(self):
        cost = COSTS["weights are read once"]
        for early, late in ((0.1, 0.98), (0.98, 0.1)):
            _, used = simulated(Width(), cost, lambda n, e=early, late=late: e if n < 300 else late, passes=600)
            _, wanted = best(cost, lambda _, late=late: late, passes=600)
            last = sorted(used[-100:])[50]
            assert wanted / 2 <= last <= 2 * wanted, (last, wanted)

    def test_it_follows_when_rows_become_dear(self):
        calls = []

        def cost(w, k):
            calls.append(w)
            return 1 + w / 30 if len(calls) < 300 else float(w)

        _, used = simulated(Width(), cost, lambda _: 0.9, passes=700)
        assert sorted(used[200:300])[50] >= 16 and sorted(used[-100:])[50] <= 3

    @pytest.mark.parametrize("at", [1, 2, 3, 40])
    def test_one_slow_pass_does_not_decide(self, at):
        slow = iter([1.0] * at + [40.0] + [1.0] * 1000)
        _, used = simulated(Width(), lambda w, k: (1 + w / 30) * next(slow), lambda _: 0.95, passes=400)
        assert sorted(used[-100:])[50] >= 24

    @pytest.mark.parametrize("sequences", [1, 4, 16, 64, 200])
    def test_sequences_that_share_a_pass_divide_the_widest_window(self, sequences):
        width = Width(now=64)
        width.most = shared_width(sequences)
        assert width.next == {1: 64, 4: 16, 16: 4, 64: 1, 200: 1}[sequences]
        fixed = Width(7)
        fixed.most = shared_width(sequences)
        assert fixed.next == 7, "a number is the request's own"

    def test_the_first_pass_of_a_width_does_not_count(self):
        """With a canvas for each guess it is cheap, for it has the guesses of a narrower one."""
        width = Width()
        for number in range(200):
            now = width.next
            first = now != width.last
            width.passed(now, now // 2, 0, 1.0 if first and number else float(now), tokens=now // 2 + 1)
        assert width.seconds[1] == pytest.approx(1.0) and width.seconds[4] == pytest.approx(4.0)

    def test_a_number_fixes_it(self):
        assert set(simulated(Width(7), COSTS["flat"], lambda _: 0.5)[1]) == {7}

    @pytest.mark.parametrize("q", [0.0, 0.2, 0.5, 0.9, 0.97, 1.0])
    @pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 64])
    def test_what_a_pass_settles_follows_from_the_part_of_guesses_that_are_right(self, width, q):
        rate, _ = simulated(Width(width), lambda w, k: 1.0, lambda _: q, passes=4000)
        assert settled(width, q) == pytest.approx(rate, rel=0.06)
