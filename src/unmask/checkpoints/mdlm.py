"""MDLM's checkpoints: its hub folders, Lightning's .ckpt files with their average, and its SEDD and AR baselines.

The mask's logit is suppressed. A checkpoint without time conditioning is fed sigma = 0; ``time=True`` feeds it sigma =
-log(alpha) anyway, which the paper found to help a little. BD3-LM's checkpoints have the same tensors and block
attention; DUO's and UDLM's too, with uniform state. BD3-LM's were not trained to predict the first token, which is
always <|endoftext|>: begin a text with it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unmask.checkpoints import ddit_family as family
from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.mdlm_ar import Given
from unmask.networks.blocks import BlockDDiT, BlocksConfig
from unmask.networks.causal import twin
from unmask.networks.config import TransformerConfig, blocks_of
from unmask.networks.ddit import DDiT, DDiTConfig
from unmask.networks.uniform import UniformDDiT
from unmask.tokenizers.external import ExternalTokenizer, alphabet
from unmask.tokenizers.external_files import load as external_tokenizer
from unmask.tokenizers.tokenizer import Layout

NAME = "MDLM"
NEEDS = "tensors backbone.vocab_embed.embedding, backbone.blocks.0.attn_qkv.weight, ... (model.safetensors or .ckpt)"
SETTINGS = ("time", "ema", "mask_id", "length", "heads", "first")
VARIANTS = {"subs": "MDLM", "d3pm": "D3PM", "sedd": "SEDD baseline", "ar": "AR baseline"}
# Names in the repository of DUO, by the name of the algorithm.
ALGORITHMS = {"mdlm": "subs", "d3pm": "d3pm", "sedd": "sedd", "ar": "ar"}
# Uniform-state models with MDLM's tensor names: they have no mask, and their last id is a data token.
UNIFORM = {"udlm": "UDLM"} | dict.fromkeys(("duo", "duo_base", "distillation", "ot-finetune"), "DUO")
# Names of algorithms with MDLM's tensor names that are other models.
OTHERS = {
    "esolm": "Eso-LM, whose clean tokens see those before them in a shuffled order",
    "hyperbolic_duo": "Hyperbolic DUO, whose noise depends on distances between tokens",
}

# By the tokenizer's name, or else by the number of ids: the mask, and the first id of every sequence. For other
# tokenizers the mask is the last id, which MDLM adds if there is none.
MASKS = {"bert-base-uncased": 103, 30_522: 103, "text8": 4}
BEGINS = {"gpt2": 50_256, 50_258: 50_256, "bert-base-uncased": 101, 30_522: 101, "text8": 2}
TEXT8 = ("[CLS]", "[SEP]", "[BOS]", "[EOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz ")


def recognises(scan: Scan) -> bool:
    """Tensors under ``backbone.``, or the bare backbone with a config that names its parameterization."""
    prefix = _prefix(scan)
    return prefix + family.EMBEDDING in scan.tensors and (
        bool(prefix) or family.settings(scan).get("parameterization") in VARIANTS
    )


def load(scan: Scan, **override: Any) -> Loaded:
    """The network. override: time (whether to feed it), ema (averaged weights, the default), and missing settings."""
    given = family.checked(override, SETTINGS, NAME)
    config, facts = _config(scan, given), about(scan, **override)
    prefix, ema = _prefix(scan), bool(given.get("ema", True))
    tokenizer, facts["needs"] = _tokenizer(scan, config)
    denoiser: Any = family.network(scan, prefix, _class(scan), config, ema=ema)
    if isinstance(denoiser, Given):
        denoiser.first = facts["first"]
    wrapped = _of(family.settings(scan), "data", "wrap")
    layout: Layout = "wrapped" if wrapped in (None, True) else "rows"
    return Loaded(denoiser, tokenizer, family.schedule(config), layout, facts)


def about(scan: Scan, **override: Any) -> dict[str, Any]:
    """What the files say, without reading the weights."""
    given = family.checked(override, SETTINGS, NAME)
    config, ema = _config(scan, given), bool(given.get("ema", True))
    variant = UNIFORM[_kind(scan)] if family.maskless(config) else VARIANTS[_parameterization(scan)]
    facts: dict[str, Any] = {"format": NAME, "variant": variant}
    if isinstance(config, BlocksConfig):
        facts["variant"] = f"BD3-LM, blocks of {config.block}"
    facts["time"] = _time_in_words(scan, config)
    if _class(scan) is Given:
        facts["first"] = given.get("first", _known(BEGINS, scan))
        if facts["first"] is None:
            raise ValueError(f"{scan.path}: the id that every sequence begins with is not known: give first")
    described = family.facts(scan, _prefix(scan), _class(scan), config, ema=ema)
    if described["needs"] is not None and _is_text8(scan, config):
        described |= {"tokenizer": "text8's 27 characters", "needs": None}
    return facts | described


def _tokenizer(scan: Scan, config: TransformerConfig) -> tuple[Any, str | None]:
    """The tokenizer with the tokens around a text, which these networks treat as data and part of the canvas."""
    tokenizer, needs = family.tokenizer(scan, config.vocab_size - (not family.maskless(config)))
    if tokenizer is None and _is_text8(scan, config):
        return replace(alphabet(TEXT8), frame=((2,), (3,)), around=((), ())), None
    if isinstance(tokenizer, ExternalTokenizer):
        tokenizer = replace(tokenizer, frame=tokenizer.around, around=((), ()))
        if family.maskless(config):  # its mask, if it has one, is a token like any other
            tokenizer = replace(tokenizer, mask_id=None)
    return tokenizer, needs


def _is_text8(scan: Scan, config: TransformerConfig) -> bool:
    named = _of(family.settings(scan), "data", "tokenizer_name_or_path")
    return named == "text8" and config.vocab_size == len(TEXT8)


def _config(scan: Scan, given: dict[str, Any]) -> TransformerConfig:
    settings, prefix = family.settings(scan), _prefix(scan)
    _refuse_others(scan, settings)
    columns = scan.tensors[prefix + family.EMBEDDING].shape[0]
    mask_id = given.get("mask_id", settings.get("mask_index", _known(MASKS, scan)))
    if mask_id is None and family.is_foreign(scan):
        theirs = external_tokenizer(scan.folder)
        mask_id = None if theirs is None else theirs.mask_id
    config = family.config_of(
        scan,
        prefix,
        mask_id=None if _kind(scan) in UNIFORM else columns - 1 if mask_id is None else int(mask_id),
        heads=given.get("heads", settings.get("n_heads", family.of_model(settings, "n_heads"))),
        length=given.get("length", settings.get("model_length", family.of_model(settings, "length"))),
        dropout=settings.get("dropout", family.of_model(settings, "dropout")),
        conditioning="none",
    )
    if _class(scan) is Given:
        if given.get("time"):
            raise ValueError("time=True: MDLM's left-to-right baseline has no time")
        return twin(config)
    time = given.get("time", settings.get("time_conditioning"))
    if _kind(scan) == "bd3lm":
        return _with_blocks(scan, config, bool(time))
    if time is None:
        raise ValueError(f"{scan.path}: whether it was trained with the time is not in its files: give time")
    return replace(config, conditioning="time" if time else "none")


def _with_blocks(scan: Scan, config: DDiTConfig, time: bool) -> BlocksConfig:
    """BD3-LM: the noised block and the clean blocks before it, which are read at sigma = 0."""
    settings = family.settings(scan)
    wanted = {"cross_attn": (True, None), "causal": (False, None), "causal_attention": (False, None)}
    for name, allowed in wanted.items():
        if settings.get(name) not in allowed:
            raise ValueError(
                f"{scan.path}: its config says {name}={settings[name]!r}, and BD3-LM is read with {allowed[0]}"
            )
    if time:
        raise ValueError(f"{scan.path}: BD3-LM with time conditioning is not supported: its cache would not be exact")
    block = settings.get("block_size")
    if not isinstance(block, int) or isinstance(block, bool) or block < 1:
        raise ValueError(f"{scan.path}: block_size must be a whole number of at least 1, got {block!r}")
    return blocks_of(config, BlocksConfig, block=block)


def _kind(scan: Scan) -> str:
    """The name of the algorithm."""
    settings = family.settings(scan)
    kind = str(settings.get("name") or settings.get("model_type")).lower()
    if settings.get("cross_attn"):
        return "bd3lm"
    if settings.get("diffusion") == "uniform":
        return "udlm"
    return "duo" if settings.get("parameterization") == "mean" and kind not in (*ALGORITHMS, *OTHERS) else kind


def _refuse_others(scan: Scan, settings: dict[str, Any]) -> None:
    """Refuse by name the models that have MDLM's tensors but are different."""
    if settings.get("cfg"):
        raise ValueError(f"{scan.path}: its config says cfg=True, a network that takes labels; it is not supported")
    if (kind := _kind(scan)) in OTHERS:
        raise ValueError(f"{scan.path} is {OTHERS[kind]}: it is not supported")
    fixed = {"causal_attention": _class(scan) not in (Given, BlockDDiT), "ignore_bos": kind in UNIFORM}
    if wrong := [name for name, one in fixed.items() if one and settings.get(name)]:
        raise ValueError(f"{scan.path}: its config says {wrong[0]}={settings[wrong[0]]!r}, which is not supported here")
    kinds, diffusions = ("mdlm", "bd3lm", *UNIFORM), ("absorbing_state", "uniform")
    wanted = {"model_type": kinds, "diffusion": diffusions, "backbone": ("dit", "hf_dit", "ar")}
    for name, known in wanted.items():
        if settings.get(name) not in (None, *known):
            raise ValueError(
                f"{scan.path}: its config says {name}={settings[name]!r}; only {', '.join(known)} is known"
            )


def _prefix(scan: Scan) -> str:
    return "backbone." if f"backbone.{family.EMBEDDING}" in scan.tensors else ""


def _class(scan: Scan) -> type[DDiT] | type[BlockDDiT] | type[Given]:
    if _kind(scan) == "bd3lm":
        return BlockDDiT
    if _kind(scan) in UNIFORM:
        return UniformDDiT
    return DDiT if _prefix(scan) + family.LEVEL in scan.tensors else Given


def _parameterization(scan: Scan) -> str:
    if _class(scan) is Given:
        return "ar"
    settings = family.settings(scan)
    name = ALGORITHMS.get(str(settings.get("name")), settings.get("parameterization", "subs"))
    if name not in VARIANTS or name == "ar":
        raise ValueError(f"{scan.path}: parameterization must be one of {', '.join(VARIANTS)}, got {name!r}")
    return str(name)


def _time_in_words(scan: Scan, config: TransformerConfig) -> str:
    trained = getattr(config, "conditioning", "none") != "time" or family.settings(scan).get("time_conditioning")
    return family.time_in_words(config) + ("" if trained else ", though it was trained without")


def _known(table: dict[Any, int], scan: Scan) -> int | None:
    tokenizer = _of(family.settings(scan), "data", "tokenizer_name_or_path")
    ids = scan.tensors[_prefix(scan) + family.EMBEDDING].shape[0]
    return table.get(tokenizer, table.get(ids) if tokenizer is None else None)


def _of(config: dict[str, Any], section: str, name: str) -> Any:
    inside = config.get(section)
    return inside.get(name) if isinstance(inside, dict) else None
