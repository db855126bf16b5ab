"""unmask: train, sample and evaluate masked (diffusion) models of discrete data, exactly and fast."""

import importlib.util
import os

__version__ = "0.1.0"

# Two OpenMP threads that spin while another process has the core are ten times slower than one: wait without spinning.
# This must be set before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from unmask import theory

if importlib.util.find_spec("torch") is not None:  # unmask.theory alone works without it
    from unmask import draw, forward, objective, plan, predict, schedule, timing
    from unmask import samplers as order
    from unmask.audit import AuditReport, audit
    from unmask.likelihood import Bound, nelbo
    from unmask.models.oracles.enumerated import EnumeratedOracle, HiddenMarkovOracle, MarkovOracle
    from unmask.plan import Plan
    from unmask.protocol import Denoiser
    from unmask.sampling import Sample, Step, apply, sample, stream
    from unmask.schedule import Cosine, Geometric, Linear, LogLinear, Polynomial
    from unmask.text.find import load
    from unmask.text.model import Model

    __all__ = [
        "AuditReport",
        "Bound",
        "Cosine",
        "Denoiser",
        "EnumeratedOracle",
        "Geometric",
        "HiddenMarkovOracle",
        "Linear",
        "LogLinear",
        "MarkovOracle",
        "Model",
        "Plan",
        "Polynomial",
        "Sample",
        "Step",
        "apply",
        "audit",
        "draw",
        "forward",
        "load",
        "nelbo",
        "objective",
        "order",
        "plan",
        "predict",
        "sample",
        "schedule",
        "stream",
        "theory",
        "timing",
    ]
