"""What a network is, said once: ``process_of`` asks it, and one file for each kind says what follows."""

from __future__ import annotations

from unmask.errors import OptionError
from unmask.processes.any_order import AnyOrder
from unmask.processes.blocks import BlockByBlock
from unmask.processes.insertion import Insertion
from unmask.processes.left_to_right import LeftToRight
from unmask.processes.masked import Masked
from unmask.processes.process import Process
from unmask.processes.uniform import Uniform

__all__ = [
    "AnyOrder",
    "BlockByBlock",
    "Insertion",
    "LeftToRight",
    "Masked",
    "Process",
    "Uniform",
    "process_of",
    "trained",
]


def trained(objective: str, attention: str, block: int | None, named: str | None = None) -> Process:
    """The process of a new network of this project, by the settings of its training; ``named`` if one names it."""
    if named == Uniform.name:
        Uniform().check_objective(objective)
        if attention != "bidirectional":
            raise OptionError("attention", f"process={named!r} needs attention='bidirectional', got {attention!r}")
        return Uniform()
    whole: tuple[Process, ...] = (LeftToRight(), Insertion())
    by_attention: dict[str, Process] = {"order": AnyOrder(), "block": BlockByBlock(size=block or 1)}
    process = next((one for one in whole if objective in one.objectives), by_attention.get(attention, Masked()))
    needed = "order" if objective in AnyOrder.objectives else "bidirectional" if process in whole else attention
    if attention == "order":
        AnyOrder().check_objective(objective)
    if attention != needed:
        raise OptionError("attention", f"objective={objective!r} needs attention={needed!r}, got {attention!r}")
    return process


def process_of(model: object) -> Process:
    """The process that a network states, Masked() by default."""
    stated = getattr(model, "process", None)
    return stated if isinstance(stated, Process) else Masked()
