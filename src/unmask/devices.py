"""Copies between the host and an accelerator, and what an accelerator lacks.

An accelerator works through a queue. A copy to it can join the queue, so that the host goes on at once. A copy from it,
an index that lies on the CPU, and a shape that depends on data make the host wait until the queue is empty. So the
loops copy to a device by ``upload``, compute their indices on the CPU, and read as rarely as they can.
"""

from __future__ import annotations

import os
from functools import cache

import torch
from torch import Tensor

CPU = torch.device("cpu")


def chosen(name: str = "auto") -> str:
    """The device of this name. auto is the accelerator of this machine, if it has one with float64, or else the CPU.

    The rule of ``unmask.load`` and of every command. A device without float64 (Apple's "mps") is used if it is named.
    Where ACCELERATE_USE_CPU is set, auto is the CPU.
    """
    if name != "auto":
        return name
    cpu_only = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    if cpu_only or not torch.accelerator.is_available():
        return "cpu"
    device = torch.accelerator.current_accelerator()
    return device.type if device is not None and has_float64(device) else "cpu"


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device, without waiting for the copy; float64 becomes float32 on a device that has none."""
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    if tensor.dtype == torch.float64:
        tensor = tensor.to(widest(device))
    if device.type == "mps":
        return tensor.to(device)  # a queued copy may read memory that has been freed (pytorch issue 189690)
    if device.type == "cuda":
        tensor = tensor.pin_memory()  # from other memory the copy is not quite asynchronous
    return tensor.to(device, non_blocking=True)


def indices(device: torch.device, *parts: Tensor) -> tuple[Tensor, ...]:
    """Index tensors of one length, int64 [M] on the CPU, on a device: one copy for all."""
    return parts if device.type == "cpu" else upload(torch.stack(parts), device).unbind()


def download(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Copies on the CPU, for which the host waits once. Whole numbers must be below 2^53."""
    if all(tensor.device.type == "cpu" for tensor in tensors):
        return tensors
    together = torch.cat([tensor.flatten().to(widest(tensor.device)) for tensor in tensors]).cpu()
    parts = torch.split(together, [tensor.numel() for tensor in tensors])
    return tuple(part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True))


def home(device: torch.device) -> torch.device:
    """Where the canvases of a network on this device are kept and drawn: there, or on the CPU if it has no float64."""
    return device if has_float64(device) else CPU


def widest(device: torch.device) -> torch.dtype:
    """float64, or float32 on a device without it."""
    return torch.float64 if has_float64(device) else torch.float32


def has_float64(device: torch.device) -> bool:
    """Whether the device computes in float64. Apple's GPUs and some of Intel's do not."""
    return device.type in ("cpu", "cuda", "meta") or _computes_float64(device)


@cache
def _computes_float64(device: torch.device) -> bool:
    try:
        torch.ones(1, dtype=torch.float64, device=device).add_(1)
    except (TypeError, RuntimeError):
        return False
    return True
