"""Expected number of network calls of N-step ancestral sampling with the cache (Sec. 4.1 and its appendix)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def expected_nfe(
    steps: int, length: int, batch: int = 1, *, alpha: Callable[[Any], Any] | None = None, grid: ArrayLike | None = None
) -> float:
    """E-NFE = sum_i (1 - (1 - (alpha_{t_{i-1}} - alpha_{t_i}))^{BL}); for the linear schedule N (1 - (1 - 1/N)^{BL}).

    A step calls the network if any of the batch's B L positions changes. `alpha` is the schedule's alpha(t), any
    callable of an array of times, such as a Schedule's `alpha` method; by default the linear 1 - t. `grid` holds the
    steps + 1 times in increasing order; by default k / steps. All positions are masked at the grid's last time, so a
    schedule that ends above 0 is divided by 1 - alpha(t_N), as in the appendix.
    """
    for name, value in (("steps", steps), ("length", length), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name}={value}: at least 1 is needed")
    if alpha is None and grid is None:
        with np.errstate(divide="ignore"):  # one step: log 0
            return float(-steps * np.expm1(batch * length * np.log1p(-1 / steps)))

    times = np.arange(steps + 1) / steps if grid is None else np.asarray(grid, dtype=np.float64)
    if times.shape != (steps + 1,):
        raise ValueError(f"grid of shape {times.shape}: steps + 1 = {steps + 1} times are needed")
    if not (np.all(np.diff(times) > 0) and times[0] >= 0 and times[-1] <= 1):
        raise ValueError(f"grid={times}: times must increase and lie in [0, 1]")
    # For 1 - t the differences are taken of t, which keeps digits of a fine grid that 1 - t loses.
    visible = -times if alpha is None else np.asarray(alpha(times), dtype=np.float64)
    if visible.shape != times.shape or not np.all(visible[:-1] >= visible[1:]):
        raise ValueError(f"alpha={alpha}: one value per time is needed, and none above the one before it")
    masked = times[-1] if alpha is None else 1 - visible[-1]
    if not masked > 0:
        raise ValueError(f"alpha={alpha}: a value below 1 is needed at the last time, got {visible[-1]}")
    change = np.minimum((visible[:-1] - visible[1:]) / masked, 1.0)
    with np.errstate(divide="ignore"):
        return float(-np.expm1(batch * length * np.log1p(-change)).sum())
