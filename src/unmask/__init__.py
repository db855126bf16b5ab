"""unmask: train, sample and evaluate masked (diffusion) models of discrete data, exactly and fast."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask import draw as draw
    from unmask import forward as forward
    from unmask import guides as guides
    from unmask import insertion as insertion
    from unmask import masking as masking
    from unmask import objective as objective
    from unmask import plan as plan
    from unmask import predict as predict
    from unmask import samplers as samplers
    from unmask import schedule as schedule
    from unmask import theory as theory
    from unmask import timing as timing
    from unmask.auditing import AuditReport as AuditReport
    from unmask.auditing import audit as audit
    from unmask.bound import Bound as Bound
    from unmask.errors import OptionError as OptionError
    from unmask.likelihood import nelbo as nelbo
    from unmask.loading import load as load
    from unmask.model import Model as Model
    from unmask.networks.oracles.enumerated import EnumeratedOracle as EnumeratedOracle
    from unmask.networks.oracles.enumerated import HiddenMarkovOracle as HiddenMarkovOracle
    from unmask.networks.oracles.enumerated import MarkovOracle as MarkovOracle
    from unmask.plan import Plan as Plan
    from unmask.protocol import Denoiser as Denoiser
    from unmask.sampler import Sampler as Sampler
    from unmask.sampler import Step as Step
    from unmask.sampler import apply as apply
    from unmask.sampling import Sample as Sample
    from unmask.sampling import sample as sample
    from unmask.sampling import stream as stream
    from unmask.schedule import Cosine as Cosine
    from unmask.schedule import Geometric as Geometric
    from unmask.schedule import Linear as Linear
    from unmask.schedule import LogLinear as LogLinear
    from unmask.schedule import Polynomial as Polynomial
    from unmask.training.train import train as train

__version__ = "0.1.0"

# Where each public name is defined; None for a module. Each is imported when it is first used: unmask.theory works
# without torch, and the command line sets what torch reads when it starts.
_HOMES = {
    "AuditReport": "auditing",
    "Bound": "bound",
    "Cosine": "schedule",
    "Denoiser": "protocol",
    "EnumeratedOracle": "networks.oracles.enumerated",
    "Geometric": "schedule",
    "HiddenMarkovOracle": "networks.oracles.enumerated",
    "Linear": "schedule",
    "LogLinear": "schedule",
    "MarkovOracle": "networks.oracles.enumerated",
    "Model": "model",
    "OptionError": "errors",
    "Plan": "plan",
    "Polynomial": "schedule",
    "Sample": "sampling",
    "Sampler": "sampler",
    "Step": "sampler",
    "apply": "sampler",
    "audit": "auditing",
    "draw": None,
    "forward": None,
    "guides": None,
    "insertion": None,
    "load": "loading",
    "masking": None,
    "nelbo": "likelihood",
    "objective": None,
    "plan": None,
    "predict": None,
    "sample": "sampling",
    "samplers": None,
    "schedule": None,
    "stream": "sampling",
    "theory": None,
    "timing": None,
    "train": "training.train",
}

__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'unmask' has no attribute {name!r}")
    home = _HOMES[name]
    module = importlib.import_module(f"unmask.{home or name}")
    value = globals()[name] = module if home is None else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
