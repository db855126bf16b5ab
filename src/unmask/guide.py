"""The interface of guides: ``unmask.guides`` has some, ``unmask.samplers.guided`` draws tokens with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Call:
    """A network call, as a guide sees it."""

    x: Tensor  # int64 [B, L]: the network's input
    rows: Tensor  # int64 [B, R]: the requested positions; padding is -1
    log_mu: Tensor  # float64 [M, V]: the network's output at the rows without padding, row by row
    time: Tensor  # float64 [B]
    given: Tensor  # bool [B, L]: visible from the beginning
    mask_id: int


Weigh = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(i [b], x [b, L], at [b], race [b, V]) -> log g of each token at a position, float64 [b, V].

Sequence i of the call has the canvas x, in which tokens of this call may have been filled. race is None unless the
guide races; then it is log mu minus the log of the position's exponential clocks, and without a guide its largest
entry would be drawn.
"""


class Guide(Protocol):
    """The interface of a guide: it weighs the tokens of guided sampling."""

    @property
    def everywhere(self) -> bool:
        """Whether it needs log mu at every masked position, not only at those that are due."""
        ...

    @property
    def races(self) -> bool:
        """Whether it weighs only tokens that may win the exponential race, and leaves the others out."""
        ...

    @property
    def tilts(self) -> bool:
        """Whether its value for a finished sequence is h(x) of one distribution p h / Z, the target of particles."""
        ...

    def __call__(self, call: Call) -> Weigh:
        """The weights of a network call's tokens; called once per network call."""
        ...
