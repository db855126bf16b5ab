"""unmask: train, sample and evaluate masked (diffusion) models of discrete data, exactly and fast."""

import importlib.util
import os

__version__ = "0.1.0"

# Two OpenMP threads that spin while another process has the core are ten times slower than one: wait without spinning.
# This must be set before torch starts its threads.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from unmask import theory

if importlib.util.find_spec("torch") is not None:  # unmask.theory alone works without it
    from unmask import draw, forward, objective, order, plan, predict, schedule, timing
    from unmask.audit import AuditReport, audit
    from unmask.evaluate.likelihood import Bound, nelbo
    from unmask.models.oracle import EnumeratedOracle, HiddenMarkovOracle, MarkovOracle
    from unmask.models.protocol import Denoiser
    from unmask.plan import Plan
    from unmask.sample import Sample, Step, apply, sample, stream
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
