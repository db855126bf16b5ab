"""unmask: train, sample and evaluate masked (diffusion) models of discrete data, exactly and fast."""

import importlib.util

__version__ = "0.1.0"

from unmask import theory

if importlib.util.find_spec("torch") is not None:  # unmask.theory alone works without it
    from unmask import draw, forward, objective, plan, predict, samplers, schedule, timing
    from unmask.audit import AuditReport, audit
    from unmask.bound import Bound
    from unmask.likelihood import nelbo
    from unmask.models.oracles.enumerated import EnumeratedOracle, HiddenMarkovOracle, MarkovOracle
    from unmask.plan import Plan
    from unmask.protocol import Denoiser
    from unmask.sampler import Sampler, Step, apply
    from unmask.sampling import Sample, sample, stream
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
        "Sampler",
        "Step",
        "apply",
        "audit",
        "draw",
        "forward",
        "load",
        "nelbo",
        "objective",
        "plan",
        "predict",
        "sample",
        "samplers",
        "schedule",
        "stream",
        "theory",
        "timing",
    ]
