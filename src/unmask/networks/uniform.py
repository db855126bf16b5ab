"""The network of the uniform-state process, which replaces tokens by random ones (``unmask.uniform``): no mask."""

from __future__ import annotations

from unmask.networks.config import DDiTConfig
from unmask.networks.ddit import DDiT
from unmask.processes import Uniform


class UniformDDiT(DDiT):
    """The paper's network; its mask id is V, which no canvas holds."""

    architecture = "uniform"

    def __init__(self, config: DDiTConfig) -> None:
        super().__init__(config)
        if config.conditioning == "ratio" or config.mask_id != config.vocab_size:
            raise ValueError(
                f"a uniform-state network has no mask: it needs mask_id = vocab_size, got {config.mask_id}, and "
                f"conditioning 'none' or 'time', got {config.conditioning!r}"
            )

    @property
    def process(self) -> Uniform:
        return Uniform(reads_time=self.conditioned)
