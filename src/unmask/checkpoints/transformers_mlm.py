"""Any masked language model of transformers: BERT, RoBERTa, DistilBERT, ModernBERT, ESM and their kin.

The network is a class of transformers, built from the config and filled with the checkpoint's weights; no code that
comes with a checkpoint is run. The head is computed only for the requested rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.framed import Framed
from unmask.checkpoints.settings import EVERYBODYS
from unmask.extras import needed
from unmask.network import inference
from unmask.tokenizers import external_files
from unmask.tokenizers.external import ExternalTokenizer

NAME = "masked LM of transformers"
NEEDS = "a config.json with the model_type of a masked LM of transformers (bert, roberta, esm, ...), and its head"

# The last bias or matrix of each family's head, which a checkpoint for another task does not have.
HEADS = {
    "bert": ("cls.predictions.bias", "cls.predictions.decoder.bias"),
    "distilbert": ("vocab_projector.bias",),
    "modernbert": ("decoder.bias", "decoder.weight"),
    "esm": ("lm_head.bias",),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ("lm_head.bias", "lm_head.decoder.bias")),
}
# Weights of other tasks' heads, and a buffer that older versions saved.
OTHER = ("cls.seq_relationship", "cls.species", "cls.chain", "cls.graft", "pooler.", "position_ids", "contact_head")
# Families that count their positions from pad_token_id + 1, as RoBERTa does.
PADDED_POSITIONS = (
    *("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod", "camembert", "data2vec-text"),
    *("esm", "ibert", "longformer", "luke", "mpnet"),
)
# Settings that older versions of transformers wrote, with the only values that the installed classes compute, or None
# for those that change nothing in inference.
OLD: dict[str, tuple[Any, ...] | None] = {
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
    "embedding_size": None,  # checked with the tensors
    **dict.fromkeys(("gradient_checkpointing", "output_past", "torchscript", "use_cache", "finetuning_task")),
    **dict.fromkeys(("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers")),
    **dict.fromkeys(("pooler_size_per_head", "pooler_type", "tie_weights_", "adapters", "_num_labels")),
    **dict.fromkeys(("classifier_dropout", "reference_compile", "repad_logits_with_grad", "layer_norm_eps")),
    "dplm_type": ("dplm",),  # DPLM's first models have ESM's network, and its second ones another
}
ROTARY = ("rope_theta", "rope_scaling", "local_rope_theta", "global_rope_theta")  # which every class now reads as one
PROBE = 6  # tokens on which the row-wise head is compared with the full model


def recognises(scan: Scan) -> bool:
    """A known model_type, or an architecture that is named as a masked LM of transformers."""
    if "auto_map" in scan.config:  # such a class is the checkpoint's own code
        return False
    architectures = [str(name) for name in scan.config.get("architectures") or ()]
    if scan.config.get("model_type") in HEADS:
        return True
    return "model_type" in scan.config and any(name.endswith("ForMaskedLM") for name in architectures)


def load(scan: Scan, **override: Any) -> Loaded:
    """The network with its tokenizer. override: ``mask_id``, which a folder without a tokenizer needs."""
    facts = about(scan, **override)
    tokenizer, network = external_files.load(scan.folder), _network(scan)
    names = {name: _renamed(name) for name in scan.tensors}
    missing, unexpected = _fill(network, {names[name]: tensor for name, tensor in scan.read().items()}, scan)
    if missing:
        raise ValueError(f"{scan.path} lacks {len(missing)} of the network's tensors, the first is {missing[0]}")
    made = denoiser(network, tokenizer, mask_id=facts["mask_id"])
    about_it = facts | {"unexpected": unexpected}
    return Loaded(made, tokenizer, layout="rows", names=_stored(network, names), about=about_it)


def about(scan: Scan, **override: Any) -> dict[str, Any]:
    """What the files say, without reading the weights."""
    kind = str(scan.config["model_type"])
    if str(scan.config.get("dplm_type", "")).startswith("dplm2"):
        raise ValueError(
            f"{scan.path} is DPLM-2, whose rotary positions pair residues with structure tokens: it is not supported"
        )
    with suppress(ImportError):  # loading says what is missing
        _refuse_unknown(scan, kind)
    head = HEADS.get(kind, ())
    # ModernBERT's last matrix is tied, so a head without its bias leaves no trace in the file.
    tells = scan.config.get("decoder_bias", True)
    if head and tells and not any(name in scan.tensors for name in head):
        raise ValueError(
            f"{scan.path} is a {kind} without the head that predicts tokens ({' or '.join(head)} is needed): "
            "it was trained for another task and cannot be sampled"
        )
    tokenizer = external_files.load(scan.folder)
    mask_id = _mask_id(scan, tokenizer, override)
    around = tokenizer.around if tokenizer else ((), ())
    limit = _limit(scan.config)
    return {
        "format": f"{NAME}, {kind}",
        "parameters": sum(tensor.count for tensor in scan.tensors.values()),
        "mask_id": mask_id,
        "special_ids": sorted(tokenizer.special_ids) if tokenizer else [mask_id],
        "length": None if limit is None else limit - len(around[0]) - len(around[1]),
        "time": "none",
        "ema": scan.ema,
        "missing": [],
        "unexpected": sorted(name for name in scan.tensors if any(part in name for part in OTHER)),
    }


def denoiser(
    model: Any, tokenizer: ExternalTokenizer | None = None, *, mask_id: int | None = None, framed: bool = True
) -> Framed:
    """Any ``AutoModelForMaskedLM`` as a Denoiser. With ``framed`` the canvas holds no [CLS] and no [SEP]."""
    mask_id = mask_id if mask_id is not None else tokenizer.mask_id if tokenizer else None
    if mask_id is None:
        raise ValueError(f"{type(model).__name__}: its mask is not known: give mask_id")
    vocab_size = int(model.config.vocab_size)
    never: set[int] = set()
    if tokenizer is not None:
        # The output matrix is often wider than the vocabulary: the ids beyond it have no text.
        never = {i for i in tokenizer.special_ids if i < vocab_size} | {*range(tokenizer.vocab_size, vocab_size)}
    pad_id = tokenizer.pad_id if tokenizer is not None else model.config.pad_token_id
    around = tokenizer.around if framed and tokenizer is not None else ((), ())
    limit, by_rows = _limit(model.config.to_dict()), ByRows(model, pad_id)
    return Framed(
        by_rows,
        vocab_size=vocab_size,
        mask_id=mask_id,
        special_ids=never,
        around=around,
        limit=limit,
        pad_id=pad_id if by_rows.ignores_pads else None,
    ).train(model.training)


class ByRows(nn.Module):
    """A masked LM of transformers, its head computed only at rows: (ids [B, T], rows [B, R]) -> [B, R, V]."""

    def __init__(self, model: Any, pad_id: int | None) -> None:
        super().__init__()
        self.model, self.pad_id = model, pad_id
        self.has_head = self._agrees()
        self.ignores_pads = pad_id is not None and self._ignores_pads(pad_id)

    def forward(self, ids: Tensor, rows: Tensor) -> Tensor:
        seen = torch.ones_like(ids) if self.pad_id is None else (ids != self.pad_id).long()
        arguments = {"input_ids": ids, "attention_mask": seen}
        if not self.has_head:
            logits: Tensor = self.model(**arguments).logits
            return logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
        hidden = self.model.base_model(**arguments)[0]
        head = _head(self.model)
        assert head is not None
        logits = head(hidden.gather(1, rows.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])))
        return logits

    def _ignores_pads(self, pad_id: int) -> bool:
        """Whether padding after a text leaves its output unchanged; otherwise only equal lengths share a call."""
        device = next(self.model.parameters()).device
        ids = torch.tensor([[i for i in range(self.model.config.vocab_size) if i != pad_id][:PROBE]], device=device)
        rows = torch.arange(ids.shape[1], device=device).unsqueeze(0)
        with inference(self.model):
            alone, padded = self(ids, rows), self(torch.nn.functional.pad(ids, (0, PROBE), value=pad_id), rows)
        return bool(torch.allclose(alone, padded, rtol=1e-4, atol=1e-4))

    def _agrees(self) -> bool:
        """Whether the separate head gives what the whole model gives; otherwise the whole model is used."""
        head = _head(self.model)
        if head is None:
            return False
        device = next(self.model.parameters()).device
        other = [i for i in range(self.model.config.vocab_size) if i != self.pad_id][:PROBE]
        ids = torch.tensor([other], device=device)
        with inference(self.model):
            mask = torch.ones_like(ids)
            whole = self.model(input_ids=ids, attention_mask=mask).logits
            rows = head(self.model.base_model(input_ids=ids, attention_mask=mask)[0])
        return whole.shape == rows.shape and bool(torch.allclose(whole, rows, rtol=1e-4, atol=1e-4))


def _head(model: Any) -> Callable[[Tensor], Tensor] | None:
    """The map from hidden states to logits, by the attribute names of transformers' classes."""
    for name in ("cls", "lm_head"):
        if isinstance(getattr(model, name, None), nn.Module):
            scan: Callable[[Tensor], Tensor] = getattr(model, name)
            return scan
    if hasattr(model, "vocab_projector"):
        return lambda h: model.vocab_projector(model.vocab_layer_norm(model.activation(model.vocab_transform(h))))
    if hasattr(model, "head") and hasattr(model, "decoder"):
        return lambda h: model.decoder(model.head(h))
    return None


def _limit(config: dict[str, Any]) -> int | None:
    """The number of positions of the network."""
    limit = config.get("max_position_embeddings")
    if limit is None:
        return None
    kind, rotary = config.get("model_type"), config.get("position_embedding_type") == "rotary"
    pad = config.get("pad_token_id")
    counted = kind in PADDED_POSITIONS and not rotary
    return int(limit) - (int(1 if pad is None else pad) + 1 if counted else 0)


def _mask_id(scan: Scan, tokenizer: ExternalTokenizer | None, override: dict[str, Any]) -> int:
    if unknown := sorted(override.keys() - {"mask_id"}):
        raise ValueError(f"{NAME}: there is no setting {unknown[0]!r}; there is mask_id")
    named = scan.config.get("mask_token_id")
    for value in (override.get("mask_id"), tokenizer.mask_id if tokenizer else None, named):
        if value is not None:
            return int(value)
    raise ValueError(
        f"{scan.path}: its mask is not known. Found: {', '.join(scan.files)}. Needed: a tokenizer (tokenizer.json, "
        "vocab.txt, or vocab.json with merges.txt), or mask_id"
    )


def _refuse_unknown(scan: Scan, kind: str) -> None:
    """Refuse a setting that the installed class does not know: transformers itself would ignore it."""
    transformers = needed("transformers", "a masked LM of transformers needs transformers", "hf")
    if kind not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{scan.path}: this version of transformers does not know model_type {kind!r}")
    known = transformers.CONFIG_MAPPING[kind]
    usual, source = known(), inspect.getsource(known)  # which names what it reads under an older name
    for name, value in sorted(scan.config.items()):
        if hasattr(usual, name) or f'"{name}"' in source or name in (*EVERYBODYS, *ROTARY):
            continue
        if name not in OLD or ((allowed := OLD[name]) is not None and value not in allowed):
            raise ValueError(
                f"{scan.path}: its config says {name}={value!r}, which transformers' {known.__name__} does not know: "
                "it could change the network"
            )


def _network(scan: Scan) -> Any:
    """transformers' class for this config, with random weights."""
    transformers = needed("transformers", "a masked LM of transformers needs transformers", "hf")
    kind = str(scan.config["model_type"])
    # The original location of the files is not needed.
    settings = {k: v for k, v in scan.config.items() if k not in ("auto_map", "_name_or_path", "dtype", "torch_dtype")}
    try:
        config = transformers.CONFIG_MAPPING[kind].from_dict(settings)
        return transformers.AutoModelForMaskedLM.from_config(config, trust_remote_code=False).float().eval()
    except (ValueError, TypeError, KeyError, AttributeError, ImportError) as error:
        raise ValueError(f"{scan.path}: transformers cannot make a {kind} of its config: {error}") from error


def _renamed(name: str) -> str:
    """Names in the first releases of BERT."""
    for old, new in (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")):
        name = name.replace(old, new)
    return name


def _stored(network: Any, names: Mapping[str, str]) -> dict[str, str]:
    """The file's tensor names and those of the denoiser: as found, and as transformers renamed them."""
    own = network.state_dict()
    kept = {theirs: ours for theirs, ours in names.items() if ours in own}
    there = {own[ours].data_ptr() for ours in kept.values()}  # a tied tensor is stored once
    kept |= {name: name for name, tensor in own.items() if name not in names and tensor.data_ptr() not in there}
    return {theirs: f"network.model.{ours}" for theirs, ours in kept.items()}


def _fill(network: Any, state: dict[str, Tensor], scan: Scan) -> tuple[list[str], list[str]]:
    """Load the weights; returns missing and unexpected names. A tied tensor is present if its twin is."""
    state = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    try:
        result = network.load_state_dict(state, strict=False)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines() if "size mismatch" in line]
        raise ValueError(f"{scan.path}: its tensors do not fit its config: {lines[0] if lines else error}") from None
    own = network.state_dict()
    filled = {tensor.data_ptr() for name, tensor in own.items() if name in state}
    missing = [name for name in result.missing_keys if own[name].data_ptr() not in filled]
    for name, tensor in own.items():
        if name in state and not torch.equal(tensor, state[name]):
            raise ValueError(f"{scan.path}: {name} is tied to another tensor in its config, and differs from it here")
    return sorted(missing), sorted(result.unexpected_keys)
