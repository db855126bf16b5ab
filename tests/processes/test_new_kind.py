"""A kind of network that nothing else knows, from right to left: one class, and all front ends take it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from torch import Tensor, nn

import unmask
from tests.serve.served import listening
from tests.small_models import TOKENIZERS
from unmask import plan as plans
from unmask.masking import Masking, Uniforms, all_tokens
from unmask.network import logits_where
from unmask.options import Options
from unmask.plan import Planner
from unmask.processes import Process, process_of
from unmask.processes.process import token_nats
from unmask.protocol import Denoiser
from unmask.serve.engine.work import Served

V, L = 3, 4


def right_to_left(canvas: Tensor, **how: Any) -> plans.Plan:
    """From the last position to the first."""
    plan = plans.left_to_right(canvas.flip(1), **how)
    return replace(plan, order=torch.where(plan.order < 0, -1, canvas.shape[1] - 1 - plan.order))


@dataclass(frozen=True)
class RightToLeft(Process):
    name = "right-to-left"
    phrase = "a right-to-left model"
    chooses = False
    exact = True
    objectives = ("time",)

    @property
    def order(self) -> str:
        return self.name

    def plan(self, options: Options) -> Planner:
        return right_to_left

    def masking(self, objective: str, u: Uniforms, *, where: Tensor | None = None, **how: Any) -> Masking:
        return all_tokens(u.keys, where)

    def logits(self, model: Any, x0: Tensor, masking: Masking) -> Tensor:
        return logits_where(model, x0, None, masking.masked)

    def states(self, network: Any, x0: Tensor, masking: Masking, objective: str) -> Tensor | None:
        return None

    def per_position(self, model: Denoiser, x0: Tensor, where: Tensor) -> Tensor:
        nats = torch.zeros(x0.shape, dtype=torch.float64)
        nats[where.cpu()] = token_nats(logits_where(model, x0, None, where), x0[where])
        return nats


class FromTheRight(nn.Module):
    """The logits at a position depend on the token to its right; the last one reads the mask."""

    process = RightToLeft()

    def __init__(self, vocab_size: int, length: int) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.length = vocab_size, vocab_size, length
        self.table = nn.Embedding(vocab_size + 1, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        after = torch.cat((tokens[:, 1:], torch.full_like(tokens[:, :1], self.mask_id)), 1)
        logits: Tensor = self.table(after)
        return logits


@pytest.fixture
def network() -> FromTheRight:
    torch.manual_seed(0)
    return FromTheRight(V, L).eval()


def probabilities(network: FromTheRight) -> Tensor:
    """p(x) of every sequence, by the chain rule from the right."""
    rows = torch.tensor(list(itertools.product(range(V), repeat=L)))
    table = network.table.weight.double().log_softmax(1)
    after = torch.cat((rows[:, 1:], torch.full_like(rows[:, :1], V)), 1)
    return table[after, rows].sum(1).exp().detach()


def test_sampled(network: FromTheRight) -> None:
    """The samples have the distribution of the chain rule: chi-square with 80 degrees of freedom, false alarms 1e-6."""
    number, p = 20_000, probabilities(network)
    tokens = unmask.sample(network, num=number, length=L, seed=1).tokens
    index = (tokens * V ** torch.arange(L - 1, -1, -1)).sum(1)
    counts = torch.bincount(index, minlength=V**L).double()
    assert float(((counts - number * p) ** 2 / (number * p)).sum()) < 157.8


def test_bounded_exactly(network: FromTheRight) -> None:
    rows = torch.tensor(list(itertools.product(range(V), repeat=L)))
    bound = unmask.nelbo(network, rows)
    assert torch.allclose(bound.nats, -probabilities(network).log()) and float(bound.errors.max()) == 0


def test_trained(tmp_path: Path) -> None:
    """In "abcabc..." the token to the right determines each, and the network learns it."""
    (tmp_path / "text.txt").write_text("abc" * 4000)
    how: dict[str, Any] = {"tokenizer": "characters", "length": 12, "batch": 32, "learning_rate": 0.1, "ema": 0.0}
    model = unmask.train(tmp_path / "text.txt", FromTheRight, out=tmp_path / "run", steps=60, **how)
    a, b, c = model.tokenizer.encode("abc")
    probability = model.denoiser.table.weight.softmax(1)
    assert min(probability[b, a], probability[c, b], probability[a, c]) > 0.8


def test_served() -> None:
    torch.manual_seed(0)
    tokenizer = TOKENIZERS["bytes"]
    model = unmask.Model(FromTheRight(tokenizer.vocab_size, 8).eval(), tokenizer, name="right", layout="wrapped")
    served = Served(model)
    with listening({"right": served}) as (address, _):
        about = httpx.get(f"{address}/v1/models").json()["data"][0]["unmask"]
        assert about["kind"] == "right-to-left" and about["samplers"] == []
        answer = httpx.post(f"{address}/v1/unmask", json={"length": 8, "seed": 3}, timeout=60).json()
        assert answer["sampler"] == "right-to-left"
        assert answer["choices"][0]["tokens"] == model.sample(length=8, seed=3).tokens[0].tolist()
    assert process_of(model.denoiser) == RightToLeft()
