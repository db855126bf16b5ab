"""The window chooses itself by how often guesses are right: nearly the best one for recorded costs, without a clock."""

import random

import numpy as np
import pytest

from unmask.samplers.width import WIDTHS, Width, settled, shared_width


def simulated(width, cost, right, tokens=512, sequences=1, seed=0):
    """The cost of a run of so many tokens for each of several sequences, and the widths of its passes.

    cost(width, guesses) is a pass's, right(pass) the chance of a guess to be right.
    """
    chance, guesses, settles, spent, used = random.Random(seed), [0] * sequences, [0] * sequences, 0.0, []
    while min(settles) < tokens:
        now = min(width.of(sequences), tokens - min(settles))
        all_right = wrong = shown = 0
        for i in range(sequences):
            most = min(now, tokens - settles[i])
            if most == 0:
                continue
            k, run = min(guesses[i], most), 0
            shown += min(k, most - 1)
            while run < k and chance.random() < right(len(used)):
                run += 1
            all_right, wrong = all_right + run, wrong + (run < k)
            settles[i] += min(run + 1, most)
            guesses[i] = max(guesses[i], most) - min(run + 1, most)
        spent += cost(now, shown)
        used.append(now)
        width = width.passed(all_right, wrong)
    return spent, used


def line(widths, costs):
    return lambda w, k: float(np.interp(w, widths, costs))


# Measured ms of a pass by its width or its guesses (docs/results/ahead-seconds.json), for chains or canvases.
RECORDED = {
    "kjv-anyorder": (lambda w, k: 2.3 * (1 if w == 1 else 1.12 + w / 37), True, 1),
    "kjv-anyorder, 16 together": (line((1, 2, 4, 8), (5.0, 7.4, 9.8, 15.3)), True, 16),
    "12 x 768": (line((1, 32, 64), (21.5, 60.5, 100.7)), True, 1),
    "kjv": (lambda w, k: 8.6 + 5.7 * k, False, 1),
    "kjv-ar": (lambda w, k: 2.1 if w == 1 else 2.4 + 0.05 * w, True, 1),
}


@pytest.mark.parametrize("q", [0.0, 0.13, 0.66, 0.9])
@pytest.mark.parametrize("name", RECORDED)
def test_it_is_nearly_the_best_width_for_recorded_costs(name, q):
    cost, chains, sequences = RECORDED[name]
    widths = WIDTHS if sequences == 1 else WIDTHS[:6]
    best = min(simulated(Width(w), cost, lambda _: q, sequences=sequences)[0] for w in widths)
    spent, used = simulated(Width(chains=chains), cost, lambda _: q, sequences=sequences)
    assert spent < 1.25 * best, (spent / best, used[:50])


@pytest.mark.parametrize("q", [0.0, 0.05, 0.13])
@pytest.mark.parametrize("name", RECORDED)
def test_where_guesses_are_wrong_it_costs_a_few_per_cent(name, q):
    cost, chains, sequences = RECORDED[name]
    for tokens in (128, 512):
        spent, used = simulated(Width(chains=chains), cost, lambda _: q, tokens, sequences)
        assert spent < 1.07 * tokens * cost(1, 0), (tokens, spent / tokens / cost(1, 0), used)


def test_it_follows_when_guesses_become_right_or_wrong():
    for early, late, wanted in ((0.05, 0.98, range(16, 65)), (0.98, 0.05, range(1, 3))):

        def right(number, early=early, late=late):
            return early if number < 100 else late

        _, used = simulated(Width(), lambda w, k: 1.0, right, tokens=6000)
        assert sorted(used[-60:])[30] in wanted


def test_the_same_counts_give_the_same_widths():
    runs = [simulated(Width(), lambda w, k, c=c: random.Random(c).random(), lambda _: 0.8)[1] for c in range(3)]
    assert runs[0] == runs[1] == runs[2], "what passes cost does not matter"


@pytest.mark.parametrize("sequences", [1, 4, 16, 64, 200])
def test_sequences_that_share_a_pass_divide_the_widest_window(sequences):
    width = Width(most=shared_width(sequences), right=1e6, wrong=0.0)
    assert width.most == {1: 64, 4: 16, 16: 4, 64: 1, 200: 1}[sequences]
    assert 1 <= width.of(1) <= width.most
    assert Width(7, most=shared_width(sequences)).of(sequences) == 7, "a number is the request's own"


def test_a_canvas_for_each_guess_makes_it_narrower():
    chain, canvases = (Width(chains=chains, right=9.0, wrong=1.0).of(1) for chains in (True, False))
    assert canvases < chain


@pytest.mark.parametrize("q", [0.0, 0.2, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32, 64])
def test_what_a_pass_settles_follows_from_the_part_of_guesses_that_are_right(width, q):
    passes, _ = simulated(Width(width), lambda w, k: 1.0, lambda _: q, tokens=8000)
    assert settled(width, q) == pytest.approx(8000 / passes, rel=0.06)
