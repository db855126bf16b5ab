"""The paper's closed forms in numpy: nothing here needs torch.

truncation   categorical sampling with truncated Gumbels (Prop. 5.2, Table 1)
nfe          expected network calls of ancestral sampling with the cache
parallel     the nats lost by decoding several tokens per call, and the group sizes that lose least
cost         the time of ancestral and first-hitting sampling, with the appendix's two examples
"""

from .cost import DIFFSOUND, PAPER_CASE, PAPER_CASE_2048, CostExample, sampling_time, speedup
from .nfe import expected_nfe
from .parallel import ParallelCost, equal_sizes, optimal_sizes, parallel_costs, parallel_loss, smoothed
from .truncation import (
    effective_temperature,
    largest_below_one,
    maximum_gumbel,
    shifted_probabilities,
    unmasking_probability,
)

__all__ = [
    "DIFFSOUND",
    "PAPER_CASE",
    "PAPER_CASE_2048",
    "CostExample",
    "ParallelCost",
    "effective_temperature",
    "equal_sizes",
    "expected_nfe",
    "largest_below_one",
    "maximum_gumbel",
    "optimal_sizes",
    "parallel_costs",
    "parallel_loss",
    "sampling_time",
    "shifted_probabilities",
    "smoothed",
    "speedup",
    "unmasking_probability",
]
