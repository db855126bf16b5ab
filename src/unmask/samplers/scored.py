"""The probability of each token of a given text, from left to right.

The chain rule log p(x) = sum_l log p(x_l | x_<l) with the interface of a sampler, whose draws are the tokens of the
text. A row is computed with the tokens before it visible and the rest masked, so the sum is the exact log-likelihood of
the text in that order; for a left-to-right model it is the only order. Networks that look ahead compute many tokens in
one pass: the text is a window whose guesses are all right.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from unmask.devices import upload
from unmask.hitting import start_time
from unmask.protocol import Denoiser, LooksAhead
from unmask.sampler import Ask, State, Step, Task

WINDOW = 64  # tokens per pass, for a network that looks ahead


@dataclass
class ScoredState(State):
    """The state of texts being scored: x has the tokens scored so far."""

    text: Tensor  # int64 [B, L], on the CPU
    at: Tensor  # int64 [B]: the next position
    times: Tensor  # float64 [B, L]: the time at which each position is computed


@dataclass(frozen=True)
class Scored:
    """Score these tokens, several per call."""

    tokens: tuple[int, ...]
    window: int = 1

    @classmethod
    def of(cls, network: Denoiser, tokens: tuple[int, ...]) -> Scored:
        """In as few calls as the network of ``for_sampling`` allows."""
        return cls(tokens, WINDOW if isinstance(network, LooksAhead) else 1)

    def begin(self, canvas: Tensor, task: Task) -> ScoredState:
        """The canvas is fully masked and as long as the text."""
        length = len(self.tokens)
        if tuple(canvas.shape[1:]) != (length,) or bool((canvas != task.mask_id).any()):
            raise ValueError(f"a text of {length} tokens is scored on an empty canvas of {length} positions")
        text = torch.tensor(self.tokens).expand(len(canvas), -1)
        calls = torch.full((len(canvas),), -(-length // self.window))
        # alpha^-1(1 - n/L) with n tokens left, as in plan.left_to_right.
        times = start_time(length - torch.arange(length), length, task.schedule).expand(len(canvas), -1)
        return ScoredState(task, canvas.clone(), calls, text, torch.zeros(len(canvas), dtype=torch.int64), times)

    def ask(self, state: ScoredState) -> Ask:
        """The next positions, on a canvas that shows the text up to the last of them."""
        length = state.x.shape[1]
        width = min(self.window, length - int(state.at.min())) if len(state.at) else 0
        rows = state.at.unsqueeze(1) + torch.arange(width)
        real = rows < length
        time = torch.where(real, state.times.gather(1, rows.clamp(max=length - 1)), 0.0) if width else rows.double()
        rows = torch.where(real, rows, -1)
        if width == 1:
            return Ask(rows, time.squeeze(1))
        known = (real.sum(1) - 1).clamp(min=0)
        shown = torch.arange(length) < (state.at + known).unsqueeze(1)
        return Ask(
            rows, time, torch.where(upload(shown, state.x.device), upload(state.text, state.x.device), state.x), known
        )

    def fill(self, state: ScoredState, ask: Ask, log_mu: Tensor) -> Step:
        """The tokens of the text, with their probabilities."""
        real = ask.rows >= 0
        row, column = real.nonzero(as_tuple=True)
        tokens = torch.full_like(ask.rows, -1)
        tokens[row, column] = state.text[row, ask.rows[row, column]]
        probabilities = torch.zeros(ask.rows.shape, dtype=torch.float64)
        index = upload(tokens[row, column], log_mu.device).unsqueeze(1)
        probabilities[row, column] = log_mu.gather(1, index).squeeze(1).exp().cpu()
        time = ask.time if ask.time.ndim > 1 else ask.time.unsqueeze(1)
        state.at = state.at + real.sum(1)
        return Step(torch.arange(len(tokens)), ask.rows, tokens, probabilities, time, real, real.sum(1))
