"""The counts beside a trained network (``unmask.networks.counted``): their tables, and the weights of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unmask.bound import Bound
from unmask.data.batches import generator
from unmask.data.tokens import TokenFile
from unmask.network import inference, logits_at
from unmask.networks.counted import FEATURES, SHOWN, Counted, tables
from unmask.training.config import TrainConfig
from unmask.training.data import Data
from unmask.training.masking import Losses
from unmask.training.validate import validate

LARGEST = 20_000_000  # training tokens that are counted: about a minute
LEFT_OUT = 20  # one sequence in this many is for the weights, and not counted until they are fitted
EACH, MOST, VALUES = 4, 2048, 12_000_000  # positions per sequence; sequences; numbers of a term
CLOSE = 1e-3  # how strongly the weights are held to their start
START = 0.5


@dataclass(frozen=True)
class Alone:
    """What ``validate`` asks of accelerate, where one process works alone."""

    device: torch.device
    num_processes: int = 1
    process_index: int = 0

    def unwrap_model(self, model: Any) -> Any:
        return model

    def reduce(self, values: Tensor, how: str) -> Tensor:
        return values


def joined(network: Any, data: Data, config: TrainConfig, learner: Any) -> tuple[Counted, Bound]:
    """The network with counts of the training data, and its bound on what validations use. In one process."""
    assert config.micro_batch is not None
    model = counted(network, data.train, config.seed)
    how: dict[str, Any] = {"objective": config.objective, "sequences": config.validate_sequences}
    losses, alone = Losses(model, config.objective), Alone(learner.accelerator.device)
    how |= {"schedule": learner.schedule, "micro_batch": config.micro_batch}
    bound = validate(losses, data.valid, alone, **how)
    assert bound is not None
    return model, bound


def counted(network: Any, tokens: TokenFile, seed: int) -> Counted:
    """The network with counts of its training data."""
    rows = tokens.sequences(np.arange(min(len(tokens), max(2, LARGEST // tokens.length)))).numpy()
    if len(rows) < 2:
        raise ValueError("counts need two sequences or more: one to count, and one to fit the weights to")
    last = max(1, len(rows) // LEFT_OUT)
    weights = torch.full((SHOWN**2, FEATURES), START)
    part = Counted(network, tables(rows[:-last], network.vocab_size), weights)
    fitted = fit(part, torch.from_numpy(rows[-last:]).long(), seed)
    return Counted(network, tables(rows, network.vocab_size), fitted)


def fit(model: Counted, rows: Tensor, seed: int) -> Tensor:
    """The weights that minimise the bound of Eq. 7 on these sequences, which is convex in them.

    The bound per token is the mean cross-entropy at a random masked position, of n masked ones with n uniform on 1..L.
    """
    terms, shown, targets = masked_terms(model, rows, seed)
    weights = model.weights.clone().requires_grad_()  # type: ignore[operator]
    start = weights.detach().clone()
    optimizer = torch.optim.LBFGS([weights], max_iter=30, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        chosen = weights[shown]
        logits = sum(chosen[:, k : k + 1] * term for k, term in enumerate(terms))
        assert isinstance(logits, Tensor)
        total = functional.cross_entropy(logits, targets) + CLOSE * (weights - start).square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()

    with torch.enable_grad():
        optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weights.detach()


@torch.no_grad()
def masked_terms(model: Counted, rows: Tensor, seed: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """The terms [M, V] at random masked positions, which weights each takes [M], and the tokens there [M]."""
    drawn, length = generator(seed, 0, "counts"), rows.shape[1]
    number = max(1, min(MOST, VALUES // (EACH * model.vocab_size)))
    chosen = torch.randint(len(rows), (number,), generator=drawn)
    n = 1 + (length * (torch.arange(number) + torch.rand(number, generator=drawn)) / number).long().clamp(
        max=length - 1
    )
    x0 = rows[chosen]
    rank = torch.rand(x0.shape, generator=drawn).argsort(1).argsort(1)
    tokens = torch.where(rank < n.unsqueeze(1), model.mask_id, x0)
    # A random masked position: the one of a random rank below n.
    wanted = (torch.rand(number, EACH, generator=drawn) * n.unsqueeze(1)).long()
    position = rank.argsort(1).gather(1, wanted)
    batch = torch.arange(number).unsqueeze(1).expand_as(position)
    logits = []
    with inference(model.network):
        for part in torch.arange(number).split(64):  # type: ignore[no-untyped-call]
            logits.append(logits_at(model.network, tokens[part], None, position[part]).flatten(0, 1))
        terms, shown = model.features(torch.cat(logits), tokens, batch.flatten(), position.flatten())
    return [one.clone() for one in terms], shown.clone(), x0.gather(1, position).flatten()
