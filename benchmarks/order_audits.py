"""Decoding orders that people run: ``unmask audit benchmarks.order_audits:NAME --order``.

    pip install diffusers transformers sglang
    python -m benchmarks.order_audits [NAME ...]      audits what is installed; adds to docs/results/audited-orders.json

Each function calls the package's own step on logits [positions, classes] of masked positions, and returns the positions
that it fills, with its tokens where the order depends on them. The orders of Dream, LLaDA and Fast-dLLM are ours, with
the authors' rule for ties.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import torch
from torch import Tensor

from benchmarks.audited_servers import defined
from unmask.auditing.orders import Subject, audit_order
from unmask.cli.audit import finite
from unmask.names import decoding as by_name
from unmask.samplers import decoding

RESULT = Path(__file__).parents[1] / "docs/results/audited-orders.json"


def stable_sort(logits: Tensor, count: int) -> Tensor:
    """The likeliest token's probability and a stable sort, as it is copied from repository to repository."""
    return logits.softmax(-1).amax(-1).argsort(descending=True, stable=True)[:count]


def diffusers_block_refinement(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """BlockRefinementScheduler at temperature 1 with its own threshold: drawn tokens above it, or the best drawn."""
    from diffusers import BlockRefinementScheduler

    scheduler, length = BlockRefinementScheduler(block_length=len(logits)), len(logits)
    scheduler.set_timesteps(max(1, length // count), block_length=length)
    canvas = torch.full((1, length), logits.shape[-1])
    made = scheduler.step(logits[None].float(), 0, canvas, mask_token_id=logits.shape[-1], temperature=1.0)
    return made.transfer_index[0], made.sampled_tokens[0]


def diffusers_entropy_bound(logits: Tensor) -> Tensor:
    """EntropyBoundScheduler in its last step, at its own bound and temperature."""
    from diffusers import EntropyBoundScheduler

    scheduler = EntropyBoundScheduler()
    scheduler.set_timesteps(1)
    accepted: Tensor = scheduler.step(logits[None].float(), 0, torch.zeros(1, len(logits)).long()).accepted_index[0]
    return accepted


def transformers_entropy_bound(logits: Tensor) -> Tensor:
    """DiffusionGemma's EntropyBoundSampler at its default bound of 0.1."""
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as gemma

    config = gemma.EntropyBoundSamplerConfig(entropy_bound=0.1)
    sampler = gemma.EntropyBoundSampler(config, len(logits), logits.shape[-1], 1)
    canvas = torch.zeros(1, len(logits)).long()
    sampler.accept_canvas(canvas, canvas, logits[None].float(), 0)
    accepted: Tensor = sampler.accepted_token_mask[0]
    return accepted


def sglang_low_confidence(logits: Tensor) -> Tensor:
    """SGLang's LowConfidence at its default threshold of 0.95."""
    return _sglang("low_confidence", "LowConfidence", logits)


def sglang_joint_threshold(logits: Tensor) -> Tensor:
    """SGLang's JointThreshold at its default threshold of 0.5."""
    return _sglang("joint_threshold", "JointThreshold", logits)


def _sglang(module: str, name: str, logits: Tensor) -> Tensor:
    length, mask = len(logits), logits.shape[-1]
    config = SimpleNamespace(algorithm_config={})
    algorithm = _sglang_class(module, name)(config)
    algorithm.block_size, algorithm.mask_id, algorithm.fdfo = length, mask, True
    ids, none = torch.full((length,), mask), torch.zeros(1, length, dtype=torch.bool)
    batch = SimpleNamespace(batch_size=1, input_ids=ids, dllm_prompt_mask=none)
    algorithm.step(batch, logits.float(), [{"finished": False, "post_edit_steps": 0, "prompt_mask": none[0]}])
    return ids != mask


@cache
def _sglang_class(module: str, name: str) -> Any:
    base = type("DllmAlgorithm", (), {"__init__": lambda self, config: setattr(self, "fdfo", True)})
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "np": numpy, "_is_npu": False}
    names |= {"DllmAlgorithm": base, "ForwardBatch": Any, "DllmConfig": Any, "Any": Any, "List": list}
    return defined("sglang", f"srt/dllm/algorithm/{module}.py", name, names)


# name: (package whose version counts, what it is, the order)
SUBJECTS: dict[str, tuple[str, str, Subject]] = {
    "stable_sort": ("", "the likeliest token's probability, by a stable sort", stable_sort),
    "dream": ("", "Dream's `entropy`, authors' ties", decoding.leftmost(decoding.dream())),
    "llada": ("", "LLaDA's low-confidence remasking, authors' ties", decoding.leftmost(decoding.llada())),
    "fast_dllm": ("", "Fast-dLLM's threshold, authors' ties", decoding.leftmost(decoding.threshold())),
    "diffusers_block_refinement": ("diffusers", "BlockRefinementScheduler, T = 1", diffusers_block_refinement),
    "diffusers_entropy_bound": ("diffusers", "EntropyBoundScheduler", diffusers_entropy_bound),
    "transformers_entropy_bound": ("transformers", "EntropyBoundSampler (DiffusionGemma)", transformers_entropy_bound),
    "sglang_low_confidence": ("sglang", "LowConfidence", sglang_low_confidence),
    "sglang_joint_threshold": ("sglang", "JointThreshold", sglang_joint_threshold),
}
OURS = ("dream", "margin", "entropy", "confidence", "llada", "llada-random", "threshold", "entropy-bounded")


def run(name: str) -> dict[str, Any]:
    """The audit of one order, as it is stored."""
    if name.removeprefix("ours: ") != name:
        package, what, order = "", f"`--decoding {name[6:]}`", by_name(name[6:])["sampler"]
        command = f"unmask audit {name[6:]} --order"
    else:
        package, what, order = SUBJECTS[name]
        command = f"unmask audit benchmarks.order_audits:{name} --order" if callable(order) else ""
    report = audit_order(order, name=name)
    found = finite(asdict(report) | {"verdict": report.verdict, "exact": report.exact})
    version = importlib.metadata.version(package) if package else None
    return {"what": what, "package": package or None, "version": version, "command": command, **found}


def installed(package: str) -> bool:
    return not package or importlib.util.find_spec(package) is not None


def main(names: list[str]) -> int:
    every = [*(f"ours: {one}" for one in OURS), *SUBJECTS]
    for name in names or [one for one in every if one not in SUBJECTS or installed(SUBJECTS[one][0])]:
        found = run(name)
        stored = (json.loads(RESULT.read_text()) if RESULT.exists() else {}) | {name: found}
        RESULT.write_text(json.dumps({one: stored[one] for one in every if one in stored}, indent=1) + "\n")
        print(f"{name}: {found['verdict']}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
