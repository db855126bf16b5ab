"""How far to look ahead: the number of tokens per pass, by how many guesses were right. There is no clock in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
MEMORY = 0.98  # weight of a guess relative to the next one
RIGHT, WRONG = 1.0, 0.05  # before the first guess, of which one that is wrong makes it narrow
WIDENS = 8  # the width is at most so many times the right guesses that are remembered
RETRY = 0.005  # of these counts, added by a pass without guesses, so that guessing is tried again
# The cost of a pass beside that of reading the weights, which is 1 (docs/results/ahead-seconds.json, one CPU thread).
SEQUENCE = 1 / 25  # of a sequence (kjv-anyorder, 16 together)
ROW = 1 / 25  # of a row; between 1/37 (kjv-anyorder) and 1/17 (12 x 768, V = 50,257)
ENTRY = 1 / 60  # of an entry without logits (kjv in blocks of 16)
SEVERAL = 0.1  # of a pass with more than one row per sequence
CANVAS = 2 / 3  # of a guess where each is a canvas of its own, beside that of one canvas (kjv)


@dataclass(frozen=True)
class Width:
    """The width of the next pass: a number, or the one with the most tokens per cost.

    How many tokens a pass settles follows from the fraction q of right guesses, which is counted. What a pass costs is
    not measured but assumed, so the number of passes of a run follows from its seed. The choice changes the time of a
    run and never its tokens.

    chains: one call computes a chain of guesses (``protocol.LooksAhead``); otherwise each guess is a canvas.
    drafts: every row but the last has a guess, because a draft makes those that are missing. block: in a block model
    each guess is a canvas of so many rows.
    """

    fixed: int | None = None
    chains: bool = True
    most: int = WIDTHS[-1]  # the largest width allowed
    right: float = RIGHT
    wrong: float = WRONG
    drafts: bool = False
    block: int | None = None

    def of(self, sequences: int) -> int:
        """How many tokens the next pass computes for each of so many sequences."""
        if self.fixed is not None:
            return self.fixed
        q = self.right / (self.right + self.wrong)
        allowed = [width for width in WIDTHS if width <= min(self.most, WIDENS * self.right)] or [1]
        tokens = drafted if self.drafts else settled

        def rate(width: int) -> float:
            gain = tokens(width, q)
            return gain / cost(width, gain, sequences, self.chains, self.block)

        return max(allowed, key=rate)

    def passed(self, right: int, wrong: int) -> Width:
        """With the guesses of one more pass: the right ones before the first wrong one of each sequence, and these."""
        retry, faded = RETRY if right + wrong == 0 else 0.0, MEMORY ** max(right + wrong, 1)
        return replace(
            self, right=faded * self.right + right + retry * RIGHT, wrong=faded * self.wrong + wrong + retry * WRONG
        )


def cost(width: int, tokens: float, sequences: int, chains: bool, block: int | None = None) -> float:
    """What a pass costs that settles so many tokens on average."""
    guesses = width - tokens  # of the next pass: its other rows
    if not chains:
        return 1 + CANVAS * guesses
    entries = 0.0 if block is None else block * (1 + guesses)
    return 1 + sequences * (SEQUENCE + ROW * width + ENTRY * entries) + SEVERAL * (width > 1)


def shared_width(sequences: int) -> int:
    """How many tokens to look ahead for each of several sequences: the widest window, divided among them.

    A pass of one sequence is limited by reading the weights, so rows are cheap. With many sequences, rows cost what
    they compute.
    """
    return max(1, WIDTHS[-1] // max(sequences, 1))


def drafted(width: int, q: float) -> float:
    """The mean number of tokens that a pass settles if each row has a guess, right with probability q."""
    return sum(q**k for k in range(width))


def settled(width: int, q: float) -> float:
    """The mean number of tokens that a pass settles, if each guess is right with probability q.

    With k guesses these are s = 1 + q + .. + q^k, and the other rows are the guesses of the next pass: k = width - s.
    """
    q = min(q, 1 - 1e-9)
    s = min((1 - q**width) / (1 - q), (width + 1) / 2)
    for _ in range(6):  # half a step at a time: as it stands it may swing, as do passes with many guesses and with few
        s = (s + (1 - q ** (width - s + 1)) / (1 - q)) / 2
    return s
