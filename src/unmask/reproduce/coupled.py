"""Cells of the published samplers, every number drawn or by their law: how many steps and sequences can be afforded."""

from __future__ import annotations

from unmask.reproduce import cells
from unmask.reproduce.cells import Cell, How
from unmask.reproduce.item import Settings, Subject

MDLM, MDLM_LAW = How("coupled", "float32"), How("law", "float32")
SEDD, SEDD_LAW = How("sedd", "float32"), How("sedd law", "float32")


def steps(settings: Settings) -> tuple[int, ...]:
    """N of the runs that draw every number: they cost N L V of them."""
    return settings.pick(full=(100, 1000, 2048), fast=(100, 512), tiny=(4, 32))


def many_steps(settings: Settings) -> tuple[int, ...]:
    """N of the runs by their law, which cost the same at any N."""
    return settings.pick(
        full=(100, 500, 1000, 2048, 5000, 10_000, 50_000), fast=(100, 512, 10_000, 50_000), tiny=(32, 100_000_000)
    )


def number(subject: Subject, how: How, N: int, settings: Settings) -> int:
    """Sequences of a cell of N coupled steps: as many as can be afforded, and where the fault is told, as it takes."""
    few, some, many = settings.pick(full=(4, 12, 32), fast=(4, 4, 12), tiny=(4, 4, 4))
    if settings.size == "full" and subject.exact is not None and how.precision != "float64-truncated":
        few, some = 16, 24  # which show a fault of 0.5 nats per token by 3 standard errors
    return few if N > 1000 else some if N > 100 else many


def drawn(subject: Subject, how: How, N: int, settings: Settings) -> Cell:
    """A cell for which every number is drawn."""
    return cells.measure(subject, how, N, number(subject, how, N, settings), subject.length, settings)


def by_law(subject: Subject, N: int, settings: Settings, how: How = MDLM_LAW) -> Cell:
    """A cell for which steps in which nothing happens are not made."""
    num = settings.pick(full=128, fast=64, tiny=32)
    return cells.measure(subject, how, N, num, subject.length, settings)


def reference(subject: Subject, settings: Settings) -> Cell:
    return cells.reference(subject, settings.pick(full=2000, fast=1000, tiny=200), subject.length, settings)
