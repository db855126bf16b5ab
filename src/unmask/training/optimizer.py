"""AdamW, and Muon for the matrices of small networks; the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unmask.training.pace import StepPlan

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that Muon iterates


def learning_rate(
    step: int, *, peak: float, warmup: int, plan: StepPlan, decay: Literal["constant", "cosine"] = "constant"
) -> float:
    """The rate of update number ``step`` = 1, 2, ...: a linear warm-up, then constant or half a cosine to 0."""
    if step < warmup:
        return peak * step / warmup
    if decay == "constant":
        return peak
    return peak * (1 + math.cos(math.pi * plan.part(step, warmup))) / 2


def orthogonalized(matrices: Tensor, iterations: int = 5) -> Tensor:
    """About U V^T of each singular value decomposition U S V^T, by Newton-Schulz iteration: [n, rows, columns].

    Singular values end between about 0.7 and 1.2, which is close enough to 1 for an update.
    """
    a, b, c = COEFFICIENTS
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
    for _ in range(iterations):  # x <- a x + b (x x^T) x + c (x x^T)^2 x
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalized updates, for weight matrices only.

    Updates are scaled to the size of AdamW's (root mean square 0.2), so one learning rate serves both. ``parts``
    matrices stacked in one parameter are treated separately. dtype: of the iteration, which needs little precision.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float = 3e-4,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.dtype = dtype
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "parts": 1})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "a closure is not supported"
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient, average = parameter.grad, self.state[parameter]["momentum"]
                average.lerp_(gradient, 1 - group["momentum"])
                ahead = gradient.lerp(average, group["momentum"])  # Nesterov's
                stacked = ahead.to(self.dtype).unflatten(0, (group["parts"], -1))
                update = orthogonalized(stacked).flatten(0, 1).to(parameter.dtype)
                scale = 0.2 * math.sqrt(max(stacked.shape[1:]))
                parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-group["lr"] * scale)


def make(
    network: nn.Module,
    *,
    muon: bool,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
) -> list[torch.optim.Optimizer]:
    """AdamW for everything; or Muon, iterated in ``dtype``, for the matrices of the blocks, and AdamW for the rest.

    device: where the parameters will be during training.
    """
    made: list[torch.optim.Optimizer] = []
    rest = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    if muon:
        stacked = {name: rest.pop(name) for name in list(rest) if _is_matrix(name, network) and ".attn_qkv." in name}
        single = {name: rest.pop(name) for name in list(rest) if _is_matrix(name, network)}
        groups = [{"params": list(stacked.values()), "parts": 3}, {"params": list(single.values()), "parts": 1}]
        made.append(Muon(groups, weight_decay=weight_decay, dtype=dtype))
    fused = device.type in ("cpu", "cuda", "xpu", "mps")
    return [*made, torch.optim.AdamW(rest.values(), betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)]


def start(optimizer: torch.optim.Optimizer) -> None:
    """Create the state of step 0, which torch would create at step 1: a checkpoint then always has the same names.

    Called once the parameters are in their final place, on their device and sharded or not.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if isinstance(optimizer, Muon):
                optimizer.state[parameter] = {"momentum": torch.zeros_like(parameter)}
                continue
            optimizer.state[parameter] = {
                "step": torch.zeros((), device=parameter.device if group["fused"] else "cpu"),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }


def state_tensors(optimizers: Iterable[torch.optim.Optimizer], names: dict[Tensor, str]) -> dict[str, Tensor]:
    """Every tensor of the optimisers' state, as "exp_avg/name of the parameter"."""
    return {
        f"{key}/{names[parameter]}": value
        for optimizer in optimizers
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def _is_matrix(name: str, network: nn.Module) -> bool:
    """Whether a parameter is the weight of a linear layer inside a block, except for the conditioning."""
    owner, _, kind = name.rpartition(".")
    inside = owner.startswith("blocks.") and not owner.endswith("adaLN_modulation")
    return inside and kind == "weight" and isinstance(network.get_submodule(owner), nn.Linear)
