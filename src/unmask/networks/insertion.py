"""The network of the insertion process: the paper's, with two more logits, EMPTY and OPEN (``unmask.insertion``)."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.networks.config import TransformerConfig
from unmask.networks.masked import MaskedNetwork
from unmask.processes import Insertion


@dataclass(frozen=True)
class InsertionConfig(TransformerConfig):
    """The last two ids are EMPTY and OPEN, and the mask is behind them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.mask_id == self.vocab_size > 1:
            raise ValueError(
                "an insertion network has the mask behind EMPTY and OPEN, its last two ids: "
                f"mask_id={self.mask_id} must be vocab_size={self.vocab_size}, and above 1"
            )


class InsertionDDiT(MaskedNetwork):
    """logits = model(tokens, time, rows); the time is not read."""

    architecture = "insertion"
    config_class = InsertionConfig

    @property
    def process(self) -> Insertion:
        return Insertion()
