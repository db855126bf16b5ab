"""The attack on perplexity and entropy: windows of the text, none that overlaps another, with likely bigrams."""

import torch
from benchmarks.attack import attack, likeliness

from tests.helpers import generator
from unmask.evaluate.judge.diversity import sequence_entropy


def test_windows_are_of_the_text_apart_and_the_likeliest_of_enough_entropy():
    rows = torch.randint(9, (200, 16), generator=generator(0)) * torch.randint(2, (200, 16), generator=generator(1))
    chosen, text = attack(rows, 8), rows.flatten()
    windows = text.unfold(0, 16, 1)
    at = [(windows == row).all(1).nonzero()[0].item() for row in chosen]
    assert all(abs(a - b) >= 16 for i, a in enumerate(at) for b in at[:i])
    assert float(sequence_entropy(chosen).min()) >= float(sequence_entropy(windows).median())
    assert float(likeliness(text, chosen).min()) > float(likeliness(text, windows).median())
