"""Everything that decides a training run, in one frozen dataclass, and as a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from unmask.networks.config import PRESETS, TransformerConfig
from unmask.networks.kinds import described
from unmask.networks.transformer import Transformer
from unmask.processes import Process, trained
from unmask.training.settings import (
    DataSettings,
    LengthSettings,
    MachineSettings,
    NetworkSettings,
    ObjectiveSettings,
    OptimizerSettings,
    OutputSettings,
    RunSettings,
)

USER_NETWORK = "own"  # the preset of a user's network
DEFAULT_OBJECTIVE = "time"
CHECKPOINT = "checkpoint"  # and of one that is fine-tuned
# What a left-to-right model becomes, by the settings of its network.
BECOMES: dict[str, dict[str, Any]] = {
    "masked": {},
    "blocks": {"attention": "block", "block": 4},
    "any-order": {"attention": "order"},
}
AT_LEAST_ONE = (
    *("steps", "layers", "width", "heads", "batch", "micro_batch", "length", "threads", "save_every"),
    *("keep", "validate_every", "validate_sequences", "log_every", "vocab", "block", "lora"),
)


@dataclass(frozen=True)
class TrainConfig(
    OutputSettings,
    MachineSettings,
    OptimizerSettings,
    LengthSettings,
    ObjectiveSettings,
    NetworkSettings,
    DataSettings,
    RunSettings,
):
    """Train a masked model. The defaults follow the paper's recipe; sizes are chosen for the data and the machine."""

    def __post_init__(self) -> None:
        for name, value in BECOMES.get(self.process or "", {}).items():
            if getattr(self, name) == TrainConfig.__dataclass_fields__[name].default:
                object.__setattr__(self, name, value)
        if self.attention == "order" and self.objective == DEFAULT_OBJECTIVE:
            object.__setattr__(self, "objective", "order")
        for name, hint in get_type_hints(TrainConfig).items():
            allowed, value = _allowed(hint), getattr(self, name)
            if allowed and value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
        if self.preset not in (None, USER_NETWORK, CHECKPOINT, *PRESETS):
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        for name in AT_LEAST_ONE:
            _check(name, getattr(self, name), lambda value: value >= 1, "at least 1")
        for name in ("warmup", "seed", "patience", "anneal"):
            _check(name, getattr(self, name), lambda value: value >= 0, "at least 0")
        for name in ("learning_rate", "clip", "eps", "minutes"):
            _check(name, getattr(self, name), lambda value: value > 0, "positive")
        for name in ("beta1", "beta2", "ema", "dropout"):
            _check(name, getattr(self, name), lambda value: 0 <= value < 1, "at least 0 and below 1")
        _check("weight_decay", self.weight_decay, lambda value: value >= 0, "at least 0")
        if self.process in BECOMES and self.init is None:
            raise ValueError(f"process={self.process!r} starts from a left-to-right model: name it with init")
        if self.anneal is not None and not self.opens:
            raise ValueError(f"anneal={self.anneal} is for process='masked', got process={self.process!r}")
        if self.lora is not None and self.init is None:
            raise ValueError(f"lora={self.lora}: adapters are trained on a checkpoint; name it with init")
        if self.times == "adaptive" and self.objective != "count":
            raise ValueError(f"times='adaptive' draws counts: it needs objective='count', got {self.objective!r}")
        if (self.attention == "block") != (self.block is not None):
            raise ValueError(
                f"attention='block' and block go together: attention={self.attention!r}, block={self.block}"
            )
        if self.times == "adaptive":
            self.kind.require("adaptive")
        if self.counts and (not self.kind.joins_counts or self.lora is not None):
            raise ValueError(f"counts are for masked models that are trained in full, not for {self.kind.phrase}")
        if self.kind.draws_length and (self.conditioning != "none" or self.self_conditioning):
            raise ValueError(f"objective={self.objective!r} needs conditioning='none' and no self_conditioning")

    @property
    def opens(self) -> bool:
        """Whether the attention of a left-to-right network is opened to both sides while it trains."""
        return BECOMES.get(self.process or "") == {}

    @property
    def kind(self) -> Process:
        """The process of the network that these settings make."""
        return trained(self.objective, self.attention, self.block, self.process)

    def network(self, vocab_size: int, length: int) -> tuple[type[Transformer], TransformerConfig]:
        """The class and the config of the network of a resolved configuration; the mask is one past the data."""
        assert self.preset is not None, "resolve the configuration first"
        if self.preset == CHECKPOINT:
            raise ValueError("the run's network is a checkpoint's: init names it")
        if self.preset == USER_NETWORK:
            raise ValueError("the run has a custom network: train it in Python with unmask.train(DATA, NETWORK, ...)")
        process = self.kind
        size = {name: getattr(self, name) for name in ("layers", "width", "heads") if getattr(self, name) is not None}
        ids = vocab_size + process.extra_ids
        return described(
            {
                **PRESETS[self.preset],
                "vocab_size": ids,
                "mask_id": ids,
                "length": length,
                "attention": self.attention,
                "block": self.block or 0,
                "conditioning": self.conditioning,
                "self_conditioning": self.self_conditioning,
                "neighbours": self.neighbours or 0,
                "convolution": self.convolution or 0,
                "learned_positions": self.learned_positions,
                "tie_embeddings": self.tie_embeddings,
                "dropout": self.dropout,
                **process.settings,
                **({"adaln": False} if process.exact or process.reads_order else {}),
                **size,
            },
            "causal" if process.exact else "any-order" if process.reads_order else "ddit",
        )


# Settings that may change when a run is resumed: they do not change what is computed. The data are compared by content,
# so they may have moved.
FREE = frozenset(
    (
        *("data", "valid", "out", "resume", "resume_from", "micro_batch", "device", "precision", "compile"),
        "gradient_checkpointing",
        *("threads", "save_every", "keep", "minutes", "patience", "validate_every"),
        *("validate_sequences", "log_every", "preview", "counts", "tensorboard", "wandb", "tokenizer", "vocab"),
        *("length", "layout", "column", "long", "held_out"),
    )
)


def differences(stored: TrainConfig, asked: TrainConfig) -> list[str]:
    """The settings that a resumed run may not change but asks for, each as "name: stored -> asked"."""
    fixed = [field.name for field in fields(TrainConfig) if field.name not in FREE]
    if stored.decay == asked.decay == "constant":
        fixed.remove("steps")  # a longer run then begins like the shorter one
    pairs = [(name, getattr(stored, name), getattr(asked, name)) for name in fixed]
    notes = {"steps": " (a cosine is planned for its steps; --init RUN begins a new run with these weights)"}
    return [f"{name}: {old!r} -> {new!r}{notes.get(name, '')}" for name, old, new in pairs if old != new]


def from_mapping(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check names and types of settings that come from a file."""
    known = {field.name: field for field in fields(TrainConfig)}
    checked = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise ValueError(f"{where}: no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        kind = str(known[key].type)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "bool": isinstance(value, bool),
            "int": number and isinstance(value, int),
            "float": number,
            "str": isinstance(value, str),
        }.get(kind.removesuffix(" | None"), isinstance(value, str))
        if not fits:
            raise ValueError(f"{where}: {name} = {value!r} is not of type {kind.removesuffix(' | None')}")
        checked[key] = float(value) if kind.startswith("float") else value
    return checked


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings of a TOML file, by name."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: the configuration cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    return from_mapping(values, str(path))


def to_toml(config: TrainConfig) -> str:
    """The configuration as a file for --config; open settings and --resume are left out."""
    # JSON's strings, numbers and booleans are TOML's.
    values = dataclasses.asdict(replace(config, resume=False, resume_from=None))
    del values["resume"]
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value is not None)


def _allowed(hint: Any) -> tuple[Any, ...]:
    """The values of a Literal, preceded by None if it is optional; () for every other type."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    choices = tuple(value for part in get_args(hint) if get_origin(part) is Literal for value in get_args(part))
    return (None, *choices) if choices and type(None) in get_args(hint) else choices


def _check(name: str, value: Any, good: Any, allowed: str) -> None:
    if value is not None and not good(value):
        raise ValueError(f"{name} must be {allowed}, got {value}")
