"""Low-rank adapters by peft on the attention and MLP projections of any network, and weights that are merged again.

A projection W becomes W + (alpha / r) B A with A random and B = 0: at first the network is the loaded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from unmask.extras import needed

SCALE = 2  # alpha / r
CONDITIONING = "adaLN_modulation"  # a linear map in our blocks that is neither attention nor MLP


def blocks(network: nn.Module) -> list[nn.Module]:
    """The blocks of any transformer: the children of its largest list of modules."""
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList) and len(module)]
    if not lists:
        raise ValueError(f"{type(network).__name__} has no list of blocks")
    return list(max(lists, key=lambda some: sum(parameter.numel() for parameter in some.parameters())).children())


def projections(network: nn.Module) -> list[str]:
    """The names of the linear maps inside the blocks."""
    names = {module: name for name, module in network.named_modules()}
    inside = [module for block in blocks(network) for module in block.modules()]
    chosen = [names[module] for module in inside if isinstance(module, nn.Linear)]
    return [name for name in chosen if not name.endswith(CONDITIONING)]


def with_adapters(network: nn.Module, rank: int) -> nn.Module:
    """The network with an adapter on each projection; only these are trained. It is changed in place."""
    inject = _peft().inject_adapter_in_model
    dtype = next(network.parameters()).dtype
    network.requires_grad_(False)
    inject(_config(rank, projections(network)), network)
    if not dtype.is_floating_point or dtype.itemsize < 4:  # adapters learn in float32, whatever they adapt
        for parameter in network.parameters():
            parameter.data = parameter.data.float() if parameter.requires_grad else parameter.data
    return network


def merged(network: nn.Module) -> nn.Module:
    """The network without adapters, their products added to the projections; it is changed in place."""
    layer: Any = _peft().tuners.tuners_utils.BaseTunerLayer
    for name, module in list(network.named_modules()):
        if isinstance(module, layer):
            module.merge(safe_merge=True)
            owner, _, own = name.rpartition(".")
            holder = network.get_submodule(owner)
            if isinstance(holder, nn.ModuleDict | nn.Sequential | nn.ModuleList):
                holder._modules[own] = module.get_base_layer()
            else:
                setattr(holder, own, module.get_base_layer())
    return network


def save_adapters(folder: Path, network: nn.Module, rank: int, names: Mapping[str, str]) -> None:
    """Write only the adapters, as peft does: ``PeftModel.from_pretrained(base, folder)`` puts them on the base.

    names: the checkpoint's tensor names -> ours, where they differ.
    """
    from safetensors.torch import save_file

    theirs = {ours.removesuffix(".weight"): name.removesuffix(".weight") for name, ours in names.items()}
    layer: Any = _peft().tuners.lora.LoraLayer
    adapters = {name: module for name, module in network.named_modules() if isinstance(module, layer)}
    state = {
        f"base_model.model.{theirs.get(name, name)}.{part}.weight": getattr(module, part)["default"]
        .weight.detach()
        .cpu()
        for name, module in adapters.items()
        for part in ("lora_A", "lora_B")
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "adapter_model.safetensors")
    _config(rank, [theirs.get(name, name) for name in adapters]).save_pretrained(str(folder))


def _config(rank: int, targets: list[str]) -> Any:
    return _peft().LoraConfig(r=rank, lora_alpha=SCALE * rank, target_modules=targets)


def _peft() -> Any:
    return needed("peft", "--lora needs peft", "lora")
