"""Samplers that have a loop of their own, run one network call at a time.

The published samplers and the orders that look at the network choose their positions as they go, so the engine cannot
plan them, and networks with a memory cannot be shared. Each such request runs ``Model.sample`` itself, in a thread that
waits for its turn before every network call: its answer is the library's, and nobody waits for more than one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from unmask.protocol import for_sampling, logits_at
from unmask.sampling import Step
from unmask.serve.engine.work import Work
from unmask.text.model import TextSample


class Gone(BaseException):
    """Raised in a sampler whose client has gone; no sampler catches it."""


class Turns(nn.Module):
    """A denoiser that waits for its turn before every call."""

    def __init__(self, network: Any, wait: Callable[[], None]) -> None:
        super().__init__()
        self.network, self.wait = network, wait
        self.vocab_size, self.mask_id = network.vocab_size, network.mask_id
        self.length = getattr(network, "length", None)
        self.eval()

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        if rows is None:
            rows = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        self.wait()
        return logits_at(self.network, tokens, time, rows)

    def for_sampling(self) -> Turns:
        return Turns(for_sampling(self.network), self.wait)


class Aside:
    """One request's own run, which goes on when it is told to."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.made: TextSample | None = None
        self.error: Exception | None = None
        self.finished = False
        self.calls = 0
        self._steps: list[Step] = []
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._gone = False
        self._thread = threading.Thread(target=self._run, name="unmask-aside", daemon=True)
        self._thread.start()

    def turn(self) -> list[Step]:
        """Let it make one network call and go on to the next; the Steps that came of it."""
        self._go.release()
        self._back.acquire()
        if self.finished:
            self._thread.join()
        steps, self._steps = self._steps, []
        return steps

    def stop(self) -> None:
        """End it where it waits."""
        self._gone = True
        while not self.finished:
            self.turn()

    def _run(self) -> None:
        self._go.acquire()
        try:
            if not self._gone:
                model = self.work.model
                self.made = self.work.alone(replace(model, denoiser=Turns(model.denoiser, self._wait)), self._told)
        except Gone:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.finished = True
            self._back.release()

    def _told(self, step: Step) -> None:
        self._steps.append(step)

    def _wait(self) -> None:
        self._back.release()
        self._go.acquire()
        if self._gone:
            raise Gone
        self.calls += 1
