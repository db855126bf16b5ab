"""The draws of vLLM and SGLang, out of files whose modules would ask for a GPU. ``benchmarks.audits`` audits them.

Triton kernels run in Triton's interpreter (TRITON_INTERPRET=1), with the classes in one block: the numbers are those of
the kernel, only slower.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def vllm_cpu(logits: Tensor) -> Tensor:
    """vLLM's CPU sampler: the compiled fused_gumbel_argmax."""
    _vllm_cpu_kernels()
    return torch.ops._C.fused_gumbel_argmax(logits, torch.randint(0, 2**31, (len(logits),)))


@cache
def _vllm_cpu_kernels() -> None:
    folder = Path(str(importlib.util.find_spec("vllm").submodule_search_locations[0]))  # type: ignore[union-attr,index]
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    torch.ops.load_library(folder / f"_C{'' if wide else '_AVX2'}.abi3.so")


@cache
def _vllm_module(path: str) -> ModuleType:
    """A file of vLLM's with Triton itself, which vLLM hides where there is no GPU."""
    triton = importlib.import_module("triton")
    shown = ModuleType("vllm.triton_utils")
    vars(shown).update(triton=triton, tl=importlib.import_module("triton.language"))
    sys.modules["vllm.triton_utils"] = shown
    [folder] = importlib.util.find_spec("vllm").submodule_search_locations  # type: ignore[union-attr,misc]
    spec = importlib.util.spec_from_file_location(f"vllm_{Path(path).stem}", Path(folder) / path)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _vllm_triton(use_fp64: bool, logits: Tensor) -> Tensor:
    gumbel = _vllm_module("v1/worker/gpu/sample/gumbel.py")
    rows, classes = logits.shape
    winner, value = torch.empty((rows, 1), dtype=torch.int64), torch.empty((rows, 1), dtype=torch.float64)
    if not use_fp64:
        value = value.float()
    request, position = torch.zeros(rows, dtype=torch.int32), torch.arange(rows)
    cached = (None, 0, 0, None, None, 0)
    gumbel._gumbel_sample_kernel[(rows, 1)](
        *(winner, 1, value, 1, *cached, logits, logits.stride(0), request),
        *(torch.randint(0, 2**62, (1,)), position, torch.ones(1), classes),
        BLOCK_SIZE=1 << (classes - 1).bit_length(),
        IS_DRAFTING=False,
        APPLY_TEMPERATURE=False,
        USE_FP64=use_fp64,
        PER_TOKEN_COL=False,
    )
    return winner[:, 0]


def vllm_triton(logits: Tensor) -> Tensor:
    """vLLM's Triton kernel for GPUs, float32, which is the default; interpreted."""
    return _vllm_triton(False, logits)


def vllm_triton_fp64(logits: Tensor) -> Tensor:
    """The same kernel with use_fp64; interpreted."""
    return _vllm_triton(True, logits)


def vllm_diffusion_gemma(logits: Tensor) -> Tensor:
    """vLLM's Triton kernel for DiffusionGemma's canvas; interpreted."""
    module = _vllm_module("model_executor/models/diffusion_gemma_sampler.py")
    drawn: Tensor = module.sample_row_stats(logits, torch.ones(1), len(logits), int(torch.randint(2**31, ())), None)[1]
    return drawn


def vllm_diffusion_gemma_torch(logits: Tensor) -> Tensor:
    """The form of that kernel in PyTorch, which vLLM runs without CUDA."""
    module = _vllm_module("model_executor/models/diffusion_gemma_sampler.py")
    drawn: Tensor = module.sample_row_stats_reference(logits, torch.ones(1), len(logits), None)[1]
    return drawn


def defined(package: str, file: str, name: str, names: dict[str, Any]) -> Any:
    """One function or class of a package's file, which itself imports all that a GPU server needs."""
    [folder] = importlib.util.find_spec(package).submodule_search_locations  # type: ignore[union-attr,misc]
    tree = ast.parse((Path(folder) / file).read_text())
    [node] = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == name]
    node.decorator_list = []  # torch.compile
    exec(compile(ast.Module([node], []), name, "exec"), names)
    return names[name]


@cache
def _sglang_function(name: str) -> Callable[..., Any]:
    gumbel = SimpleNamespace(SGLANG_OPT_USE_GUMBEL_SAMPLE=SimpleNamespace(get=lambda: True))
    names = {"torch": torch, "Optional": {Tensor: None}, "envs": gumbel, "murmur_hash32": _sglang_hash}
    function: Callable[..., Any] = defined("sglang", "srt/layers/sampler.py", name, names)
    return function


def _sglang_hash(seed: Tensor, positions: Tensor, columns: Tensor) -> Tensor:
    module = importlib.import_module("sglang.kernels.ops.sampling.murmur_hash")
    out = torch.empty((len(seed), len(columns)), dtype=torch.uint32)
    block = 1 << (len(columns) - 1).bit_length()
    module.murmur_hash32_kernel[(len(seed), 1)](seed, positions, columns, out, *out.shape, BLOCK_SIZE=block)
    return out


def sglang_seeded(logprobs: Tensor) -> Tensor:
    """SGLang's multinomial_with_seed, its hash by the interpreted kernel."""
    seed = torch.randint(0, 2**62, (1,)).expand(len(logprobs))
    return _sglang_function("multinomial_with_seed")(logprobs, seed, torch.arange(len(logprobs)))


def sglang_gumbel(probabilities: Tensor) -> Tensor:
    """SGLang's sampling_from_probs_torch with SGLANG_OPT_USE_GUMBEL_SAMPLE."""
    return _sglang_function("sampling_from_probs_torch")(probabilities)
