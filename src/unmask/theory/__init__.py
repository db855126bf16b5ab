"""The paper's closed forms in numpy: nothing here needs torch.

truncation   categorical sampling with truncated Gumbels (Prop. 5.2, Table 1)
nfe          expected network calls of ancestral sampling with the cache
parallel     the nats lost by decoding several tokens per call, and the group sizes that lose least
cost         the time of ancestral and first-hitting sampling, with the appendix's two examples
mixture      the Beta mixture over times (Eq. 8)
ctmc         rate matrices, scores, and the equivalence of SEDD Absorb and masked diffusion
"""

from .cost import DIFFSOUND, PAPER_CASE, PAPER_CASE_2048, CostExample, sampling_time, speedup
from .ctmc import (
    absorbing_exponential,
    absorbing_rate,
    alpha_from_noise,
    ancestral,
    concrete_score,
    denoising_score_entropy,
    euler,
    euler_absorbing,
    mean_from_score,
    noise_from_alpha,
    noise_rate,
    reverse_rate,
    score_elsewhere,
    score_entropy,
    score_from_mean,
    tweedie,
    tweedie_absorbing,
    uniform_exponential,
    uniform_rate,
)
from .mixture import BetaMixture
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
    "BetaMixture",
    "CostExample",
    "ParallelCost",
    "absorbing_exponential",
    "absorbing_rate",
    "alpha_from_noise",
    "ancestral",
    "concrete_score",
    "denoising_score_entropy",
    "effective_temperature",
    "equal_sizes",
    "euler",
    "euler_absorbing",
    "expected_nfe",
    "largest_below_one",
    "maximum_gumbel",
    "mean_from_score",
    "noise_from_alpha",
    "noise_rate",
    "optimal_sizes",
    "parallel_costs",
    "parallel_loss",
    "reverse_rate",
    "sampling_time",
    "score_elsewhere",
    "score_entropy",
    "score_from_mean",
    "shifted_probabilities",
    "smoothed",
    "speedup",
    "tweedie",
    "tweedie_absorbing",
    "uniform_exponential",
    "uniform_rate",
    "unmasking_probability",
]
