"""The process of a command: what a library leaves to whoever owns the process."""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # of malloc.h


def ready() -> None:
    """What every command does before torch is imported."""
    # Threads that spin while they wait collapse beside another process (docs/speed.md). torch reads it when it starts.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Let glibc keep what is freed for the next call of the network; True if it will.

    By default it returns large blocks to the system at once. Each step of a network asks for the same ones again, and
    the system clears every page anew: about a seventh of the time of a training step. Left alone where the user has set
    MALLOC_ variables, or where there is another allocator.
    """
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    wanted = ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20))
    return all(mallopt(option, value) for option, value in wanted)
