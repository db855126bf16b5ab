"""How far to look ahead: the number of tokens per pass, chosen by the cost of passes and the accuracy of guesses."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FIRST = 4
MEMORY = 0.98  # weight of a guess relative to the next one
SLOWER, FASTER = 0.25, 0.75  # weight of a new pass in the estimated time of its width
TRIES = 0.01  # fraction of the time that may be lost by trying other widths
STALE = 64  # passes after which the cost of an unused width is forgotten
LOSS, PASSES = 0.02, 2.0  # a run's largest loss against one token per pass: a fraction of its time, and passes


@dataclass
class Width:
    """How far to look ahead: a number, or the width that promises the most tokens per second.

    How many tokens a pass settles follows from the fraction q of right guesses. The cost of a pass is measured at the
    widths in use, and assumed to be linear between and beyond them; so most widths are judged without being tried. No
    width is chosen that is more than twice as wide as any before. Now and then a neighbour of the best is tried, so
    that costs are known where they matter. The first pass of a width does not count: its guesses come from the previous
    width.

    The first two passes settle one token each, and the second gives the cost of that. From then on the time won and
    lost against one token per pass is recorded. A width is used only if its expected loss is covered by this account,
    and an overdrawn account means one token per pass: so a run loses at most LOSS of its time, PASSES passes, and what
    the passes of a try take beyond expectation.

    The choice changes the time of a run and never its tokens.
    """

    fixed: int | None = None
    now: int = 1
    right: float = 4.0
    wrong: float = 1.0  # initially q = 4/5
    seconds: dict[int, float] = field(default_factory=dict)  # of a pass, by width
    used: dict[int, int] = field(default_factory=dict)  # the pass in which each of them was last measured
    passes: int = 0
    sequences: int = 0  # per pass
    last: int = 0  # the width of the last pass
    won: float = 0.0  # seconds, against one token per pass
    alone: float = 0.0  # the seconds that one token per pass would have taken
    budget: float = 0.0  # seconds, for trying neighbours
    wider: bool = True  # which neighbour is tried next
    most: int = WIDTHS[-1]  # the largest width allowed

    def __post_init__(self) -> None:
        self.now = self.fixed or self.now

    @property
    def next(self) -> int:
        """How many tokens the next pass computes."""
        return self.fixed or min(self.now, self.most)

    def passed(self, width: int, right: int, wrong: int, seconds: float, *, tokens: int, sequences: int = 1) -> None:
        """Record a pass of this width: its time, and the tokens it settled, over this many sequences.

        right, wrong: the right guesses before the first wrong one of each sequence, and these wrong ones.
        """
        if self.fixed is not None:
            return
        self.passes, seconds = self.passes + 1, max(seconds, 1e-9)  # a coarse clock may give 0
        faded = MEMORY ** (right + wrong)
        self.right, self.wrong = faded * self.right + right, faded * self.wrong + wrong
        again, self.last = width == self.last, width
        if not self.sequences / 2 < sequences < 2 * self.sequences:
            self.seconds, self.sequences = {}, sequences  # a pass of half or twice as many has another cost
        if 1 in self.seconds:
            alone, seconds = self.cost(1) * tokens / sequences, self._believed(width, seconds)
            self.alone, self.won = self.alone + alone, self.won + (alone - seconds if width > 1 else 0.0)
        if again and width == self.next:  # at the end of a sequence the whole width does not fit
            self._learn(width, seconds)
            self.now = self._chosen()
        elif 1 not in self.seconds or self._rest() < 0:
            self.now = 1

    def _learn(self, width: int, seconds: float) -> None:
        expected = self.cost(width) if self.seconds else seconds
        news = 1.0 if width not in self.seconds else FASTER if seconds < expected else SLOWER
        self.seconds[width] = expected + news * (seconds - expected)
        self.budget = min(self.budget + TRIES * seconds, 2 * seconds)
        self.used[width] = self.passes
        fresh = {1, width} | {w for w, at in self.used.items() if self.passes - at < STALE}
        self.seconds = {w: s for w, s in self.seconds.items() if w in fresh}

    def _believed(self, width: int, seconds: float) -> float:
        """At most twice what was expected, and at a new width one pass per row, whatever else the machine did."""
        return min(seconds, 2 * self.cost(width) if width in self.seconds else (width + 1) * self.cost(1))

    def _rest(self) -> float:
        """The seconds that may still be lost."""
        return self.won + LOSS * self.alone + PASSES * self.cost(1)

    def _chosen(self) -> int:
        """The widest width up to the most promising one whose expected loss the account covers."""
        if 1 not in self.seconds:
            return 1
        if len(self.seconds) == 1:  # in the worst case every row costs as much as the first
            return max((w for w in WIDTHS if w <= FIRST and self._loss(w, w) <= self._rest()), default=1)
        wanted = self._promising()
        return max((w for w in WIDTHS if w <= wanted and self._loss(w) <= self._rest()), default=1)

    def _loss(self, width: int, of_one: float | None = None) -> float:
        """The expected loss of a pass; for a wider one than the last, of two passes, the first without guesses.

        of_one: the cost of a pass, if it is unknown, in units of one token's.
        """
        one, gain = self.cost(1), settled(width, self.right / (self.right + self.wrong))
        if of_one is not None:
            return (of_one - gain) * one
        lost = self.cost(width) - gain * one
        return lost + self.cost(width) - one if width > self.last else lost

    def _promising(self) -> int:
        """The width with the most tokens per second, or a neighbour that is worth a try."""
        q = self.right / (self.right + self.wrong)
        known = [w for w in WIDTHS if w <= 2 * max(self.seconds)]
        best = max(known, key=lambda w: settled(w, q) / self.cost(w))
        at = WIDTHS.index(best) + (1 if self.wider else -1)
        if best not in self.seconds:
            return best
        if not 0 <= at < len(known):
            self.wider = not self.wider
            return best
        other = WIDTHS[at]
        loss = 2 * (self.cost(other) - self.cost(best) * settled(other, q) / settled(best, q))
        if loss > self.budget:
            return best
        self.budget, self.wider = self.budget - loss, not self.wider
        return other

    def cost(self, width: int) -> float:
        """Seconds of a pass: linear between the measured widths and beyond them, and non-decreasing."""
        used = sorted(self.seconds)
        # A narrower pass takes at most as long as a wider one did: what made that slow is over.
        seconds = {low: min(self.seconds[high] for high in used[i:]) for i, low in enumerate(used)}
        if len(used) == 1:
            return seconds[used[0]]
        at = min(max(bisect_left(used, width), 1), len(used) - 1)
        low, high = used[at - 1], used[at]
        slope = (seconds[high] - seconds[low]) / (high - low)
        line = seconds[low] + slope * (width - low)
        if width < low:
            return max(line, seconds[low] * width / low)
        return max(line, seconds[high]) if width > high else line


def shared_width(sequences: int) -> int:
    """How many tokens to look ahead for each of several sequences: the widest window, divided among them.

    A pass of one sequence is limited by reading the weights, so rows are cheap. With many sequences, rows cost what
    they compute.
    """
    return max(1, WIDTHS[-1] // max(sequences, 1))


def settled(width: int, q: float) -> float:
    """The mean number of tokens that a pass settles, if each guess is right with probability q.

    With k guesses these are s = 1 + q + .. + q^k, and the other rows are the guesses of the next pass: k = width - s.
    """
    q = min(q, 1 - 1e-9)
    s = min((1 - q**width) / (1 - q), (width + 1) / 2)
    for _ in range(6):  # half a step at a time: as it stands it may swing, as do passes with many guesses and with few
        s = (s + (1 - q ** (width - s + 1)) / (1 - q)) / 2
    return s
