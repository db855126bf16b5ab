"""Categorical samplers that people run, as their packages install them: ``unmask audit benchmarks.audits:NAME``.

    pip install diffusers flow_matching xlm-core numpyro mlx mlx-cpu triton ...
    python -m benchmarks.audits [NAME ...]          audits what is installed; adds to docs/results/audits.json

Each function calls the package's own code on logits or probabilities [rows, classes].
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks import audited_servers

RESULT = Path(__file__).parents[1] / "docs/results/audits.json"


def diffusers_discrete_ddim(logits: Tensor, generator: torch.Generator) -> Tensor:
    """diffusers' DiscreteDDIMScheduler (the entropy-bound scheduler has a copy of the function)."""
    from diffusers import DiscreteDDIMScheduler

    return DiscreteDDIMScheduler._sample_from_logits(logits, temperature=1.0, generator=generator)[0]


def diffusers_block_refinement(logits: Tensor, generator: torch.Generator) -> Tensor:
    """diffusers' BlockRefinementScheduler at temperature 1."""
    from diffusers import BlockRefinementScheduler

    options = {"temperature": 1.0, "top_k": None, "top_p": None, "use_multinomial": True}
    return BlockRefinementScheduler._sample_from_logits(logits, generator=generator, **options)[0]


def bionemo_mdlm(p: Tensor, generator: torch.Generator) -> Tensor:
    """bionemo-moco's MDLM._sample_categorical, from which its step draws tokens and the mask together."""
    from bionemo.moco.interpolants import MDLM

    return MDLM._sample_categorical(SimpleNamespace(rng_generator=generator), p)


def diffusers_vq_diffusion(logits: Tensor, generator: torch.Generator) -> Tensor:
    """diffusers' VQDiffusionScheduler: argmax of gumbel_noised."""
    from diffusers.schedulers.scheduling_vq_diffusion import gumbel_noised

    return gumbel_noised(logits, generator).argmax(-1)


def diffusers_amused(logits: Tensor, generator: torch.Generator) -> Tensor:
    """diffusers' AmusedScheduler, its last step: every mask is drawn."""
    from diffusers import AmusedScheduler

    scheduler = AmusedScheduler(mask_token_id=logits.shape[-1])
    scheduler.set_timesteps(1)
    masked = torch.full((1, len(logits)), scheduler.config.mask_token_id)
    return scheduler.step(logits[None], scheduler.timesteps[-1], masked, generator=generator).prev_sample[0]


def flow_matching_categorical(probabilities: Tensor) -> Tensor:
    """flow_matching.utils.categorical."""
    from flow_matching.utils import categorical

    return categorical(probabilities)


def xlm_sample_categorical(probabilities: Tensor) -> Tensor:
    """xlm-core's sample_categorical, which its MDLM predictor calls."""
    from xlm.utils.nn import sample_categorical

    return sample_categorical(probabilities)


def xlm_sample_from_logits(logits: Tensor) -> Tensor:
    """xlm-core's sample_from_logits."""
    from xlm.utils.nn import sample_from_logits

    return sample_from_logits(logits)


def xlm_mdlm_top_k(probabilities: Tensor) -> Tensor:
    """What xlm-models' MDLM predictor does with top_k set, here to every class: sample_from_top_k of probabilities."""
    from xlm.utils.nn import sample_from_top_k

    return sample_from_top_k(probabilities.shape[-1], probabilities)


def transformers_generate(logits: Tensor) -> Tensor:
    """One token of transformers' generate(do_sample=True, top_k=0) from a model that has these logits."""
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class Given(PreTrainedModel, GenerationMixin):
        config_class = PretrainedConfig

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.one = torch.nn.Parameter(torch.zeros(()))

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> CausalLMOutput:
            return CausalLMOutput(logits=logits[:, None])

        def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Any]:
            return {"input_ids": input_ids}

    config = PretrainedConfig(vocab_size=logits.shape[-1], num_hidden_layers=1, pad_token_id=0, eos_token_id=1)
    start = torch.zeros((len(logits), 1), dtype=torch.long)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": 1, "use_cache": False}
    return Given(config).generate(start, attention_mask=torch.ones_like(start), **options)[:, -1]


def transformers_diffusion_gemma(logits: Tensor) -> Tensor:
    """One denoising step of transformers' DiffusionGemma, from a decoder with these logits: its draw of a canvas."""
    from transformers.models.diffusion_gemma import generation_diffusion_gemma as gemma

    drawn: list[Tensor] = []

    def accepted(_: Tensor, canvas: Tensor, *rest: Any) -> Tensor:
        drawn.append(canvas)
        return canvas

    decoder = SimpleNamespace(embed_tokens=SimpleNamespace(weight=logits))
    text = SimpleNamespace(vocab_size=logits.shape[-1])
    given = SimpleNamespace(config=SimpleNamespace(text_config=text), model=SimpleNamespace(decoder=decoder))
    sampler = SimpleNamespace(accept_canvas=accepted, renoise_canvas=lambda canvas, step: canvas)
    canvas, none = torch.zeros(1, len(logits)).long(), torch.zeros(1, dtype=torch.bool)
    state = (canvas, canvas, canvas, None, None, {}, None, none, 0)
    gemma.DiffusionGemmaGenerationMixin._denoising_step(
        *(given, lambda **_: SimpleNamespace(logits=logits[None]), *state),
        *(sampler, lambda ids, scores, cur_step: scores, None),
    )
    return drawn[0][0]


def numpyro_categorical(p: Any, key: Any) -> Any:
    """numpyro.distributions.Categorical(probs)."""
    import numpyro.distributions as dist

    return dist.Categorical(probs=p).sample(key)


def numpyro_categorical_logits(logits: Any, key: Any) -> Any:
    """numpyro.distributions.Categorical(logits=...)."""
    import numpyro.distributions as dist

    return dist.Categorical(logits=logits).sample(key)


def mlx_categorical(logits: Any) -> Any:
    """mlx.core.random.categorical on the CPU."""
    import mlx.core as mx
    import numpy as np

    return np.asarray(mx.random.categorical(mx.array(logits)))


def tensorflow_categorical(logits: Any) -> Any:
    """tf.random.categorical on the CPU."""
    import tensorflow as tf

    return tf.random.categorical(logits, 1).numpy()


def tensorflow_stateless_categorical(logits: Any, rng: Any) -> Any:
    """tf.random.stateless_categorical on the CPU."""
    import tensorflow as tf

    return tf.random.stateless_categorical(logits, 1, rng.integers(2**31, size=2)).numpy()


vllm_cpu, vllm_triton = audited_servers.vllm_cpu, audited_servers.vllm_triton
vllm_triton_fp64 = audited_servers.vllm_triton_fp64
vllm_diffusion_gemma = audited_servers.vllm_diffusion_gemma
vllm_diffusion_gemma_torch = audited_servers.vllm_diffusion_gemma_torch
sglang_seeded, sglang_gumbel = audited_servers.sglang_seeded, audited_servers.sglang_gumbel

# name: (package whose version counts, takes, library)
SUBJECTS: dict[str, tuple[str, str, str]] = {
    "diffusers_discrete_ddim": ("diffusers", "logits", "torch"),
    "diffusers_block_refinement": ("diffusers", "logits", "torch"),
    "diffusers_amused": ("diffusers", "logits", "torch"),
    "diffusers_vq_diffusion": ("diffusers", "logits", "torch"),
    "bionemo_mdlm": ("bionemo-moco", "probabilities", "torch"),
    "flow_matching_categorical": ("flow_matching", "probabilities", "torch"),
    "transformers_generate": ("transformers", "logits", "torch"),
    "transformers_diffusion_gemma": ("transformers", "logits", "torch"),
    "xlm_sample_categorical": ("xlm-core", "probabilities", "torch"),
    "xlm_sample_from_logits": ("xlm-core", "logits", "torch"),
    "xlm_mdlm_top_k": ("xlm-core", "probabilities", "torch"),
    "numpyro_categorical": ("numpyro", "probabilities", "jax"),
    "numpyro_categorical_logits": ("numpyro", "logits", "jax"),
    "mlx_categorical": ("mlx", "logits", "numpy"),
    "tensorflow_categorical": ("tensorflow", "logits", "numpy"),
    "tensorflow_stateless_categorical": ("tensorflow", "logits", "numpy"),
    "vllm_cpu": ("vllm-cpu", "logits", "torch"),
    "vllm_triton": ("vllm", "logits", "torch"),
    "vllm_triton_fp64": ("vllm", "logits", "torch"),
    "vllm_diffusion_gemma": ("vllm", "logits", "torch"),
    "vllm_diffusion_gemma_torch": ("vllm", "logits", "torch"),
    "sglang_seeded": ("sglang", "logits", "torch"),
    "sglang_gumbel": ("sglang", "probabilities", "torch"),
}


# Half a million numbers a second: up to 11 bits or so.
INTERPRETED = ("vllm_triton", "vllm_triton_fp64", "vllm_diffusion_gemma", "sglang_seeded")


def version(package: str) -> str | None:
    for name in (package, f"{package}-cpu"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def run(name: str) -> dict[str, Any]:
    from dataclasses import asdict

    from unmask.auditing import audit
    from unmask.cli.audit import finite

    package, takes, library = SUBJECTS[name]
    draw = globals()[name]
    budget = 1e7 if name in INTERPRETED else 3e9
    report = audit(draw, takes=takes, library=library, name=name, budget=budget)
    what = " ".join((draw.__doc__ or "").split()).rstrip(".")
    worst = report.decisive.count
    losses = None if worst is None else {"losses": worst.left, "expected": round(worst.rows * worst.r, 1)}
    kept = (
        "exact",
        "verdict",
        "maximum",
        "interval",
        "precision",
        "law",
        "p_value",
        "temperature",
        "numbers",
        "seconds",
    )
    found = {key: value for key, value in asdict(report).items() if key in kept}
    command = f"unmask audit benchmarks.audits:{name} --takes {takes} --library {library} --budget {budget:.0e}"
    versions = {"package": package, "version": version(package), "torch": torch.__version__}
    return finite({"what": what, **versions, "command": command, **found, "decisive": losses})  # type: ignore[no-any-return]


def main(names: list[str]) -> int:
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    for name in names or [name for name, (package, *_) in SUBJECTS.items() if version(package)]:
        found = run(name)
        stored = json.loads(RESULT.read_text()) if RESULT.exists() else {}
        stored[name] = found
        ordered = {key: stored[key] for key in SUBJECTS if key in stored}
        RESULT.write_text(json.dumps(ordered, indent=1) + "\n")
        print(f"{name}: {found['verdict']} ({found['seconds']:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
