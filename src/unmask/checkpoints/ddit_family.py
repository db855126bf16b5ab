"""Common to MDLM, SEDD and RADD: the DDiT's tensors under their published names, and GPT-2's tokenizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.packages import gpt2_tokenizer
from unmask.checkpoints.settings import refuse_unknown
from unmask.fetch import FetchError
from unmask.networks.config import DDiTConfig, TransformerConfig
from unmask.networks.ddit import DDiT
from unmask.networks.layers import Rotary
from unmask.networks.scores import LogRatios
from unmask.networks.transformer import Transformer
from unmask.networks.uniform import UniformDDiT
from unmask.schedule import Linear, LogLinear, Schedule
from unmask.tokenizers import vocabularies as make
from unmask.tokenizers.tokenizer import EXTERNAL, Tokenizer, kind_of

EMBEDDING, LEVEL, HEAD = "vocab_embed.embedding", "sigma_map.mlp.0.weight", "output_layer.linear.weight"
FREQUENCIES = "rotary_emb.inv_freq"
GPT2 = 50_257  # ids of GPT-2's tokenizer, the last of which is <|endoftext|>; the mask comes after it
LENGTH = 1024  # of every published checkpoint that does not state it
N = TypeVar("N", bound=Transformer)
# What the config of these networks may contain, in addition to the common fields.
KNOWN = frozenset(
    (
        *("vocab_size", "model_length", "hidden_dim", "hidden_size", "cond_dim", "n_blocks", "n_heads", "dropout"),
        *("time_conditioning", "mask_index", "length", "type", "name", "scale_by_sigma", "tie_word_embeddings"),
        *("parameterization", "attn_backend", "adaln", "vocab_lookup"),
        *("cfg", "cfg_num_classes"),  # UDLM's
        # BD3-LM's; the last three are for its training
        *("block_size", "cross_attn", "causal", "var_min", "sampling_eps_min", "sampling_eps_max"),
        # for a run without a section for its model
        *("data", "T", "backbone", "diffusion", "subs_masking", "config", "tokenizer"),
    )
)
GPT2_FILES = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))


@dataclass(frozen=True)
class Fit:
    """How the tensors of a file fit the network that they should make."""

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    wrong: tuple[str, ...]  # in words: the name, its shape and the expected one

    def check(self, scan: Scan, prefix: str) -> None:
        """Refuse tensors that make another network; tensors outside of the prefix belong to the training program."""
        extra = [f"{name} does not belong" for name in self.unexpected if name.startswith(prefix)]
        problems = [*(f"{name} is missing" for name in self.missing), *extra, *self.wrong]
        if problems:
            more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
            raise ValueError(f"{scan.path} does not fit its network: {'; '.join(problems[:5])}{more}")


def settings(scan: Scan) -> dict[str, Any]:
    """The configuration as plain data: at the top level, or where Lightning and the hub's mixin put it.

    The repositories of DUO and BD3-LM keep some of it under ``algo``.
    """
    inner = scan.config.get("config")
    stored = inner if isinstance(inner, dict) else scan.config
    algo = stored.get("algo")
    return (algo | stored) if isinstance(algo, dict) else stored


def maskless(config: TransformerConfig) -> bool:
    """Whether every id is a token: a uniform-state network. The published masked ones have a column for the mask."""
    return config.mask_id == config.vocab_size


def schedule(config: TransformerConfig) -> Schedule:
    """That under which sigma is -log(alpha) for a uniform-state network; it does not matter to the others here."""
    if maskless(config) and isinstance(config, DDiTConfig) and config.time_embedding == "log-linear":
        return LogLinear(math.exp(-config.sigma_max))
    return Linear()


def understood(scan: Scan, stored: Mapping[str, Any]) -> None:
    """Refuse a setting that this project does not know."""
    model = stored.get("model")
    if isinstance(model, dict):
        refuse_unknown(scan.path, model, KNOWN, "model.")
    else:
        refuse_unknown(scan.path, stored, KNOWN)


def noise(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The noise level by which a time is embedded, as config fields; by default the published log-linear noise."""
    given = stored.get("noise")
    given = given if isinstance(given, dict) else {}
    kind = str(given.get("type", "loglinear")).replace("-", "")
    if kind == "loglinear":
        eps = float(given.get("eps", 1e-3))
        return {"time_embedding": "log-linear", "sigma_max": -math.log(eps)}
    if kind == "geometric":  # at equal alpha: the level is -log(alpha) under any noise
        return {"time_embedding": "sigma", "sigma_max": float(given.get("sigma_max", 20))}
    raise ValueError(f"noise.type must be loglinear or geometric, got {given.get('type')!r}")


def of_model(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A setting of the ``model`` section."""
    model = config.get("model")
    return model.get(name, default) if isinstance(model, dict) else default


def config_of(
    scan: Scan, prefix: str, *, mask_id: int | None, heads: Any, length: Any, dropout: Any, conditioning: Any
) -> DDiTConfig:
    """The network's config: sizes from the tensors' shapes, and the rest from the arguments.

    Without a mask_id it is a uniform-state network: every id is a token, and the canvas's mask comes after them.
    """
    tensors, values = scan.tensors, settings(scan)
    understood(scan, values)

    def shape(name: str, dimensions: int) -> tuple[int, ...]:
        tensor = tensors.get(prefix + name)
        if tensor is None or len(tensor.shape) != dimensions:
            raise ValueError(f"{scan.path}: {prefix}{name} is {'missing' if tensor is None else list(tensor.shape)}")
        return tensor.shape

    width = shape(EMBEDDING, 2)[1]
    vocab_size = shape(HEAD, 2)[0]
    blocks = {name.split(".")[1] for name in (n.removeprefix(prefix) for n in tensors) if name.startswith("blocks.")}
    if not blocks:
        raise ValueError(f"{scan.path} has no {prefix}blocks")
    if f"{prefix}{FREQUENCIES}" in tensors:
        stored = width // (2 * shape(FREQUENCIES, 1)[0])
        if heads is not None and heads != stored:
            raise ValueError(f"{scan.path}: heads={heads!r}, and its rotary frequencies are those of {stored} heads")
        heads = stored
    if heads is None:
        raise ValueError(f"{scan.path}: the number of heads is neither in its config nor in its tensors: give heads")
    adaln = prefix + LEVEL in tensors
    return DDiTConfig(
        vocab_size,
        vocab_size if mask_id is None else mask_id,
        LENGTH if length is None else int(length),
        width,
        len(blocks),
        int(heads),
        cond_dim=shape("sigma_map.mlp.2.weight", 2)[0] if adaln else 128,
        mlp_ratio=shape("blocks.0.mlp.0.weight", 2)[0] // width,
        dropout=0.0 if dropout is None else float(dropout),
        conditioning=conditioning,
        adaln=adaln,
        norm_bias=f"{prefix}blocks.0.norm1.bias" in tensors,
        **noise(values),
    )


def fit(scan: Scan, prefix: str, cls: type[Transformer], config: TransformerConfig, *, ours: bool = False) -> Fit:
    """The tensors of a file compared with the network's; the rotary frequencies may be missing.

    ours: this project wrote the file, in which every id of the canvas has a vector.
    """
    with torch.device("meta"):
        expected = {prefix + name: tuple(tensor.shape) for name, tensor in cls(config).state_dict().items()}
    if maskless(config) and not ours:
        expected[prefix + EMBEDDING] = (config.vocab_size, config.width)
    found_names = scan.tensors.keys()
    missing = [name for name in expected if name not in found_names and name != prefix + FREQUENCIES]
    unexpected = [name for name in found_names if name not in expected]
    wrong = [
        f"{name} is {list(scan.tensors[name].shape)} and not {list(shape)}"
        for name, shape in expected.items()
        if name in found_names and scan.tensors[name].shape != shape
    ]
    return Fit(tuple(missing), tuple(unexpected), tuple(wrong))


def network(scan: Scan, prefix: str, cls: type[N], config: TransformerConfig, *, ema: bool) -> N:
    """The network with the found weights, in float32 and ready to sample."""
    fit(scan, prefix, cls, config).check(scan, prefix)
    state = {FREQUENCIES: Rotary(config.width // config.heads).inv_freq}
    for name, tensor in scan.read(ema=ema).items():
        if name.startswith(prefix):
            # A copy, because safetensors maps the file, and a model must outlive it.
            state[name.removeprefix(prefix)] = tensor.to(torch.float32, copy=True)
    if maskless(config):  # of the mask, which marks positions without a token, and which no call contains
        state[EMBEDDING] = torch.nn.functional.pad(state[EMBEDDING], (0, 0, 0, 1))
    return cls.built(config, state).eval()


def facts(
    scan: Scan, prefix: str, cls: type[Transformer], config: TransformerConfig, *, ema: bool, ours: bool = False
) -> dict[str, Any]:
    """The part of ``about`` that all networks of this family share; ours: as in ``fit``."""
    fits = fit(scan, prefix, cls, config, ours=ours)
    data = config.vocab_size - (config.mask_id < config.vocab_size)
    where, missing = tokenizer_of(scan, data)
    own = [tensor for name, tensor in scan.tensors.items() if name.startswith(prefix) and FREQUENCIES not in name]
    return {
        "parameters": sum(tensor.count for tensor in own),
        "vocab_size": config.vocab_size,
        "mask_id": config.mask_id,
        "special_ids": [] if maskless(config) and not ours else [config.mask_id],
        "length": config.length,
        "width": config.width,
        "layers": config.layers,
        "heads": config.heads,
        "ema": scan.ema and ema,
        "tokenizer": where,
        "missing": list(fits.missing),
        "unexpected": list(fits.unexpected),
        "wrong": list(fits.wrong),
        "needs": missing,
    }


@dataclass(frozen=True)
class WithoutPrefix:
    """A format whose tensors have no prefix: SEDD's and RADD's."""

    name: str
    settings: tuple[str, ...]  # allowed settings
    config: Callable[[Scan, dict[str, Any]], DDiTConfig]

    def load(self, scan: Scan, **override: Any) -> Loaded:
        """The network. override: ``settings``; ema (averaged weights) is the default, time=False feeds 0."""
        config, ema = self._chosen(scan, override)
        about = self.about(scan, **override)
        denoiser: Any = network(scan, "", _class(config), config, ema=ema)
        found_tokenizer, about["needs"] = tokenizer(scan, config.vocab_size - (not maskless(config)))
        denoiser = LogRatios(denoiser) if maskless(config) else denoiser
        return Loaded(denoiser, found_tokenizer, schedule(config), about=about)

    def about(self, scan: Scan, **override: Any) -> dict[str, Any]:
        """What the files say, without reading the weights."""
        config, ema = self._chosen(scan, override)
        return {"format": self.name, "time": time_in_words(config)} | facts(scan, "", _class(config), config, ema=ema)

    def _chosen(self, scan: Scan, override: dict[str, Any]) -> tuple[DDiTConfig, bool]:
        given = checked(override, self.settings, self.name)
        return self.config(scan, given), bool(given.get("ema", True))


def _class(config: DDiTConfig) -> type[DDiT]:
    return UniformDDiT if maskless(config) else DDiT


def time_in_words(config: TransformerConfig) -> str:
    """Which noise level the network is fed."""
    if not isinstance(config, DDiTConfig) or config.conditioning != "time":
        return "none: sigma is fed as 0" if config.adaln else "none"
    if config.time_embedding == "log-linear":
        return f"sigma = -log(1 - (1 - {math.exp(-config.sigma_max):.3g}) t)"
    return f"sigma = -log(alpha), {config.sigma_max:.4g} at most"


def tokenizer_of(scan: Scan, data_ids: int) -> tuple[str | None, str | None]:
    """Where the tokenizer is, in words, or else what is needed; nothing is fetched."""
    folder = scan.folder
    if kind_of(folder / "tokenizer.json"):
        return "tokenizer.json, of this project", None
    if any((folder / a).is_file() and (folder / b).is_file() for a, b in GPT2_FILES):
        return "a byte-level BPE in the folder", None
    if is_foreign(scan):
        return "in the folder", None
    if data_ids == GPT2:
        return "GPT-2's, which is fetched when it is needed: the folder has none", None
    if scan.tokenizer is not None:
        return "in the checkpoint", None
    return None, f"{folder} has no tokenizer of {data_ids} ids: put tokenizer.json, or vocab.json and merges.txt, there"


def tokenizer(scan: Scan, data_ids: int) -> tuple[Any, str | None]:
    """The folder's tokenizer, or GPT-2's if the number of ids matches; or None and what is needed."""
    from unmask.tokenizers import external, external_files

    folder, (_, needed) = scan.folder, tokenizer_of(scan, data_ids)
    if needed is not None:
        return None, needed
    if kind := kind_of(folder / "tokenizer.json"):
        read = external.restored if kind == EXTERNAL else Tokenizer.load
        return read(folder / "tokenizer.json"), None
    for encoder, merges in GPT2_FILES:
        if (folder / encoder).is_file() and (folder / merges).is_file():
            return _byte_level(folder / encoder, folder / merges), None
    theirs = external_files.load(folder)
    if theirs is None and scan.tokenizer is not None:
        theirs = external.parsed(*scan.tokenizer)
    if theirs is not None and not (theirs.kind == "bpe" and data_ids == GPT2):
        return theirs, None
    try:
        return gpt2_tokenizer(), None  # the ids of any tokenizer.json of GPT-2, with its <|endoftext|>
    except FetchError as error:
        return None, f"GPT-2's tokenizer is needed ({error}), or put its vocab.json and merges.txt into {folder}"


def _byte_level(encoder: Path, merges: Path) -> Tokenizer:
    try:
        return make.gpt2(encoder, merges)
    except (ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{encoder} and {merges.name} are not a GPT-2 tokenizer: {error!r}") from None


def is_foreign(scan: Scan) -> bool:
    """Whether the folder has a tokenizer that is neither of this project nor in GPT-2's files."""
    there = [name for name in ("tokenizer.json", "vocab.txt") if (scan.folder / name).is_file()]
    return bool(there) and kind_of(scan.folder / "tokenizer.json") is None


def checked(override: dict[str, Any], allowed: tuple[str, ...], name: str) -> dict[str, Any]:
    """The settings that a user gave; None counts as not given."""
    unknown = sorted(override.keys() - set(allowed))
    if unknown:
        raise ValueError(f"{name}: there is no setting {unknown[0]!r}; there are {', '.join(allowed)}")
    return {key: value for key, value in override.items() if value is not None}
