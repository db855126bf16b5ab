"""SIGTERM and SIGINT: the first makes the run save and exit, the second exits at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Interrupted(Exception):
    """The run was asked to stop, and stopped after saving; ``exit_code`` is 143 after SIGTERM and 130 after SIGINT."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} after step {step}; --resume continues it")
        self.number, self.step = number, step
        self.exit_code = 128 + number


class Signals:
    """While active, records the first signal: ``received`` is its number, or 0. Only in the main thread."""

    def __init__(self) -> None:
        self.received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            os._exit(128 + number)  # no cleaning up: a checkpoint being written is a hidden partial folder
        self.received = number
