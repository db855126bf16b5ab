"""The appendix's cost model: NFE t1 + NCS t2, and the speedup of first-hitting over N-step ancestral sampling.

t1 is the time of one network call; t2 that of categorical sampling per position and class. NCS counts positions times
classes: N L |V| for N-step ancestral sampling, which draws everywhere at every step, and L |V| for first-hitting
sampling, which draws each position once.
"""

from __future__ import annotations

from dataclasses import dataclass

from .nfe import expected_nfe


def sampling_time(nfe: float, ncs: float, t1: float, t2: float) -> float:
    """NFE t1 + NCS t2: the time of sampling one sequence."""
    return nfe * t1 + ncs * t2


def speedup(steps: int, length: int, vocabulary: int, *, t1: float, t2: float, nfe: float | None = None) -> float:
    """(NFE t1 + N L |V| t2) : (NFE t1 + L |V| t2): ancestral over first-hitting sampling, at the same NFE.

    For one sequence at a time. By default NFE is the expected number of calls of `steps` ancestral steps with the
    cache. Only the ratio of t1 to t2 matters.
    """
    for name, count in (("length", length), ("vocabulary", vocabulary)):
        if count < 1:
            raise ValueError(f"{name}={count}: at least 1 is needed")
    if not (t1 >= 0 and t2 >= 0 and t1 + t2 > 0):
        raise ValueError(f"t1={t1}, t2={t2}: times must not be negative, nor both zero")
    if nfe is not None and not nfe > 0:
        raise ValueError(f"nfe={nfe}: a positive number is needed")
    calls = expected_nfe(steps, length) if nfe is None else nfe
    once = length * vocabulary
    return sampling_time(calls, steps * once, t1, t2) / sampling_time(calls, once, t1, t2)


@dataclass(frozen=True)
class CostExample:
    """A worked example of the appendix; `ratio` is its t1 : L |V| t2."""

    steps: int
    length: int
    vocabulary: int
    ratio: float

    @property
    def nfe(self) -> float:
        return expected_nfe(self.steps, self.length)

    @property
    def speedup(self) -> float:
        t2 = 1 / (self.length * self.vocabulary)
        return speedup(self.steps, self.length, self.vocabulary, t1=self.ratio, t2=t2)


# |V| as the appendix prints it; with the ratio given, the speedup does not depend on it.
PAPER_CASE = CostExample(steps=10_000, length=1024, vocabulary=50_526, ratio=1 / 1.56)
PAPER_CASE_2048 = CostExample(steps=2048, length=1024, vocabulary=50_526, ratio=1 / 1.56)
DIFFSOUND = CostExample(steps=100, length=265, vocabulary=256, ratio=14.6)
