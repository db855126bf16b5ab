"""The window chooses itself: from invented costs and guesses that are right so often, without a clock."""

import random

import pytest

from unmask.samplers import ahead
from unmask.samplers.ahead import Width, settled, shared_width


def simulated(width, cost, right, passes=400, sequences=1, seed=0):
    """Tokens and seconds of passes with invented costs; right(pass) is the chance of a guess to be right."""
    chance, guesses, tokens, seconds = random.Random(seed), [0] * sequences, 0, 0.0
    used = []
    for number in range(passes):
        now, all_right, wrong = width.now, 0, 0
        for i in range(sequences):
            k, run = min(guesses[i], now), 0
            while run < k and chance.random() < right(number):
                run += 1
            all_right, wrong = all_right + run, wrong + (run < k)
            settles = min(run + 1, now)
            tokens += settles
            guesses[i] = max(guesses[i], now) - settles
        spent = cost(now)
        seconds += spent
        used.append(now)
        width.passed(now, all_right, wrong, spent)
    return tokens / seconds, used


def best(cost, right, **options):
    return max((simulated(Width(w), cost, right, **options)[0], w) for w in ahead.WIDTHS)


COSTS = {
    "flat": lambda w: 1.0,
    "weights are read once": lambda w: 1 + w / 12,
    "every row costs": lambda w: float(w),
    "nearly every row": lambda w: 0.3 + w,
    "steps": lambda w: 1.0 + (w > 8) + (w > 24),
}


class TestWidth:
    @pytest.mark.parametrize("q", [0.0, 0.3, 0.7, 0.9, 0.99])
    @pytest.mark.parametrize("name", COSTS)
    def test_it_finds_a_width_that_is_nearly_the_best(self, name, q):
        rate, used = simulated(Width(), COSTS[name], lambda _: q, passes=600)
        most, width = best(COSTS[name], lambda _: q, passes=600)
        assert rate > 0.88 * most, (rate, most, width, used[-50:])

    @pytest.mark.parametrize("name", COSTS)
    def test_it_is_never_far_below_one_token_per_pass(self, name):
        for q in (0.0, 0.05, 0.2):
            for passes in (128, 1024):
                rate, used = simulated(Width(), COSTS[name], lambda _, q=q: q, passes=passes)
                alone, _ = simulated(Width(1), COSTS[name], lambda _, q=q: q, passes=passes)
                assert rate > (0.88 if passes == 128 else 0.95) * alone, (q, passes, rate, alone, used)

    def test_it_is_wide_within_a_few_passes_where_that_pays(self):
        _, used = simulated(Width(), COSTS["weights are read once"], lambda _: 0.95, passes=8)
        assert used[0] == 2 and max(used) >= 16

    def test_it_follows_when_guesses_become_right_or_wrong(self):
        cost = COSTS["weights are read once"]
        for early, late in ((0.1, 0.98), (0.98, 0.1)):
            _, used = simulated(Width(), cost, lambda n, e=early, late=late: e if n < 300 else late, passes=600)
            _, wanted = best(cost, lambda _, late=late: late, passes=600)
            last = sorted(used[-100:])[50]
            assert wanted / 2 <= last <= 2 * wanted, (last, wanted)

    def test_it_follows_when_rows_become_dear(self):
        calls = []

        def cost(w):
            calls.append(w)
            return 1 + w / 30 if len(calls) < 300 else float(w)

        _, used = simulated(Width(), cost, lambda _: 0.9, passes=700)
        assert sorted(used[200:300])[50] >= 16 and sorted(used[-100:])[50] <= 3

    @pytest.mark.parametrize("at", [1, 2, 3, 40])
    def test_one_slow_pass_does_not_decide(self, at):
        slow = iter([1.0] * at + [40.0] + [1.0] * 1000)
        _, used = simulated(Width(), lambda w: (1 + w / 30) * next(slow), lambda _: 0.95, passes=400)
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
            width.passed(now, now // 2, 0, 1.0 if first and number else float(now))
        assert width.seconds[1] == pytest.approx(1.0) and width.seconds[4] == pytest.approx(4.0)

    def test_a_number_fixes_it(self):
        assert set(simulated(Width(7), COSTS["flat"], lambda _: 0.5)[1]) == {7}

    @pytest.mark.parametrize("q", [0.0, 0.2, 0.5, 0.9, 0.97, 1.0])
    @pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 64])
    def test_what_a_pass_settles_follows_from_the_part_of_guesses_that_are_right(self, width, q):
        rate, _ = simulated(Width(width), lambda _: 1.0, lambda _: q, passes=4000)
        assert settled(width, q) == pytest.approx(rate, rel=0.06)
