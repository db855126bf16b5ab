"""Everything that decides a training run, in one frozen dataclass, and as a TOML file."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from unmask.networks.causal import twin
from unmask.networks.config import PRESETS, Attention, DDiTConfig, preset
from unmask.processes import Process, trained

Objective = Literal[
    "time", "count", "mask-predict", "maskgit", "score-entropy", "left-to-right", "two-stream", "insertion"
]
Times = Literal["independent", "vdm", "stratified", "adaptive"]
ScheduleName = Literal["linear", "cosine", "polynomial", "geometric", "log-linear"]

OWN = "own"  # the preset of a user's network
DEFAULT_OBJECTIVE = "time"
CHECKPOINT = "checkpoint"  # and of one that is fine-tuned
AT_LEAST_ONE = (
    *("steps", "layers", "width", "heads", "batch", "micro_batch", "length", "threads", "save_every"),
    *("keep", "validate_every", "validate_sequences", "log_every", "vocab", "block", "lora"),
)


@dataclass(frozen=True)
class TrainConfig:
    """Train a masked model. The defaults follow the paper's recipe; sizes are chosen for the data and the machine."""

    data: str
    """A corpus (kjv, text8, moses, digits, ...), prepared data, or text, which is prepared automatically."""
    out: str = "run"
    """The folder of the run: configuration, checkpoints, metrics and, at the end, the model."""
    valid: str | None = None
    """Held-out data. The default is valid.tokens in the folder of the training data."""
    resume: bool = False
    """Continue from the newest valid checkpoint of the run, if there is one."""
    resume_from: str | None = None
    """Continue from this checkpoint of the run, for example step-00001000."""
    init: str | None = None
    """Fine-tune this model: any checkpoint that unmask.load reads. Its network, tokenizer and length are kept. With a
    setting of the network's shape, such as --attention, the weights of a model of this project go into that network."""
    lora: int | None = None
    """Train adapters of this rank on the attention and MLP projections, and nothing else; for --init."""
    seed: int = 0
    """The seed of batches, masks, times, initial weights and dropout."""

    tokenizer: str | None = None
    """For raw data: bpe (the default, unless a corpus has its own), characters, bytes, gpt2, ..."""
    vocab: int | None = None
    """For raw data: the vocabulary size of a BPE, 4,096 by default, or 1,024 for less than a megabyte of text."""
    length: int | None = None
    """For raw data: tokens per sequence. The default is 128, or that of the corpus."""
    layout: Literal["wrapped", "rows"] | None = None
    """For raw data: wrapped text, or one document per row. The default is rows for FASTA and molecules."""
    column: str | None = None
    """For raw data: the column of a table, or its number if there is no header; or the field of records."""
    long: Literal["drop", "cut"] | None = None
    """For raw data: what to do with rows longer than --length. The default is an error."""
    held_out: Literal["end", "random"] | None = None
    """For raw data: hold out the end, or random documents (the default for FASTA and molecules)."""

    preset: str | None = None
    """The size of the network: tiny, mini, compact, small (the paper's) or medium. The default depends on the data and
    the machine."""
    layers: int | None = None
    """The number of blocks, instead of the preset's."""
    width: int | None = None
    """The width, instead of the preset's."""
    heads: int | None = None
    """The number of attention heads, instead of the preset's."""
    attention: Attention = "bidirectional"
    """What a token attends to: all positions; the visible tokens; the tokens that became visible before it (order); or
    its own block and the blocks before it (docs/anyorder.md)."""
    block: int | None = None
    """The block size, for --attention block."""
    conditioning: Literal["none", "time", "ratio"] = "none"
    """The input of the network besides the tokens: nothing, the time, or the fraction of masked tokens."""
    self_conditioning: bool = False
    """Feed the network its own prediction."""
    convolution: int | None = None
    """Taps of a depthwise convolution in each block; 0 for none. The default is 3 for networks narrower than 512."""
    learned_positions: bool = False
    """Learn a vector for each position: for data in which a position has a meaning of its own, such as puzzles."""
    tie_embeddings: bool = False
    """Share one matrix between the embedding and the head."""
    dropout: float = 0.1

    objective: Objective = "time"
    """Eq. 6, Eq. 7, the weights of Mask-Predict or MaskGIT, SEDD's score entropy, the left-to-right baseline, Eq. 7
    with all terms of one order in a two-stream pass (for --attention order), or insertion: rows of different lengths
    (docs/lengths.md)."""
    times: Times = "stratified"
    """How times or counts are drawn over the global batch; adaptive is importance sampling of counts."""
    schedule: ScheduleName = "linear"

    steps: int | None = None
    """The number of optimiser steps. The default depends on the data and the machine."""
    minutes: float | None = None
    """Finish within this many minutes, with a model. Without --steps, as many steps as fit are planned."""
    patience: int | None = None
    """Stop after this many validations without improvement, and keep the best model; 0 for never. The default is 3 if
    the data would be read more than 5 times, and 0 otherwise."""
    overfit: bool = False
    """Memorise four sequences, and report whether this succeeded: a first check of a new network."""
    batch: int | None = None
    """Sequences per step, over all processes. The default depends on the machine."""
    micro_batch: int | None = None
    """Sequences per process and pass; a step accumulates several passes. The default is 32,768 tokens."""
    optimizer: Literal["adamw", "muon"] | None = None
    """muon: orthogonalized updates for the matrices of the blocks, AdamW for the rest. The default is adamw, and muon
    for networks narrower than 512."""
    learning_rate: float | None = None
    """The peak learning rate. The default is 3e-4; for networks narrower than 512 it is 3e-3 with muon and 1e-3 with
    adamw. With --init, and without --lora, it is a tenth of that."""
    warmup: int | None = None
    """Steps of linear warm-up. The default is 2,500, or a tenth of a shorter run."""
    decay: Literal["constant", "cosine"] | None = None
    """The learning rate after the warm-up: constant, or a cosine decay to 0 at the last step. The default is constant,
    and cosine for networks narrower than 512."""
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0
    """The maximum norm of the gradient."""
    ema: float | None = None
    """The decay of the averaged weights. The default is 0.9999; for a run under 100,000 steps, 1 - 10/steps."""

    device: Literal["auto", "cpu"] = "auto"
    precision: Literal["float32", "bf16"] | None = None
    """The default is bf16 on accelerators and float32 on CPUs."""
    compile: bool = False
    """Compile the blocks with torch.compile."""
    gradient_checkpointing: bool = False
    """Compute each block again in the backward pass instead of keeping its activations: less memory, more time."""
    threads: int | None = None
    """CPU threads of each process."""

    save_every: int | None = None
    """Steps between checkpoints. The default is a tenth of the run, between 100 and 1,000."""
    keep: int = 2
    """The number of checkpoints to keep."""
    validate_every: int | None = None
    """Steps between validations. The default is a tenth of the run, between 100 and 1,000."""
    validate_sequences: int = 256
    """Held-out sequences for each validation; if there are fewer, each is masked several times."""
    log_every: int = 1
    """Steps between lines of metrics.jsonl."""
    preview: bool = True
    """Show one sampled sequence with each validation, and at the end samples and what a trigram model has."""
    tensorboard: bool = True
    wandb: bool = False

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(TrainConfig).items():
            allowed, value = _allowed(hint), getattr(self, name)
            if allowed and value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
        if self.preset not in (None, OWN, CHECKPOINT, *PRESETS):
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        for name in AT_LEAST_ONE:
            _check(name, getattr(self, name), lambda value: value >= 1, "at least 1")
        for name in ("warmup", "seed", "patience"):
            _check(name, getattr(self, name), lambda value: value >= 0, "at least 0")
        for name in ("learning_rate", "clip", "eps", "minutes"):
            _check(name, getattr(self, name), lambda value: value > 0, "positive")
        for name in ("beta1", "beta2", "ema", "dropout"):
            _check(name, getattr(self, name), lambda value: 0 <= value < 1, "at least 0 and below 1")
        _check("weight_decay", self.weight_decay, lambda value: value >= 0, "at least 0")
        if self.lora is not None and self.init is None:
            raise ValueError(f"lora={self.lora}: adapters are trained on a checkpoint; name it with init")
        if self.times == "adaptive" and self.objective != "count":
            raise ValueError(f"times='adaptive' draws counts: it needs objective='count', got {self.objective!r}")
        if (self.attention == "block") != (self.block is not None):
            raise ValueError(
                f"attention='block' and block go together: attention={self.attention!r}, block={self.block}"
            )
        if self.times == "adaptive":
            self.process.require("adaptive")
        if self.process.draws_length and (self.conditioning != "none" or self.self_conditioning):
            raise ValueError(f"objective={self.objective!r} needs conditioning='none' and no self_conditioning")

    @property
    def process(self) -> Process:
        """The process of the network that these settings make."""
        return trained(self.objective, self.attention, self.block)

    def network(self, vocab_size: int, length: int) -> DDiTConfig:
        """The network of a resolved configuration; the mask is one past the data."""
        assert self.preset is not None, "resolve the configuration first"
        if self.preset == CHECKPOINT:
            raise ValueError("the run's network is a checkpoint's: init names it")
        if self.preset == OWN:
            raise ValueError("the run has a custom network: train it in Python with unmask.train(DATA, NETWORK, ...)")
        process = self.process
        size = {name: getattr(self, name) for name in ("layers", "width", "heads") if getattr(self, name) is not None}
        config = preset(
            self.preset,
            vocab_size + process.extra_ids,
            length,
            insertion=process.draws_length,
            attention=self.attention,
            block=self.block or 0,
            conditioning=self.conditioning,
            self_conditioning=self.self_conditioning,
            convolution=self.convolution or 0,
            learned_positions=self.learned_positions,
            tie_embeddings=self.tie_embeddings,
            dropout=self.dropout,
            **size,
        )
        return twin(config) if process.exact else config


# Settings that may change when a run is resumed: they do not change what is computed. The data are compared by content,
# so they may have moved.
FREE = frozenset(
    (
        *("data", "valid", "out", "resume", "resume_from", "micro_batch", "device", "precision", "compile"),
        "gradient_checkpointing",
        *("threads", "save_every", "keep", "minutes", "patience", "validate_every"),
        *("validate_sequences", "log_every", "preview", "tensorboard", "wandb", "tokenizer", "vocab"),
        *("length", "layout", "column", "long", "held_out"),
    )
)


def differences(stored: TrainConfig, asked: TrainConfig) -> list[str]:
    """The settings that a resumed run may not change but asks for, each as "name: stored -> asked"."""
    fixed = [field.name for field in fields(TrainConfig) if field.name not in FREE]
    if stored.decay == asked.decay == "constant":
        fixed.remove("steps")  # a longer run then begins like the shorter one
    pairs = [(name, getattr(stored, name), getattr(asked, name)) for name in fixed]
    said = {"steps": " (a cosine is planned for its steps; --init RUN begins a new run with these weights)"}
    return [f"{name}: {old!r} -> {new!r}{said.get(name, '')}" for name, old, new in pairs if old != new]


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
    found = tuple(value for part in get_args(hint) if get_origin(part) is Literal for value in get_args(part))
    return (None, *found) if found and type(None) in get_args(hint) else found


def _check(name: str, value: Any, good: Any, allowed: str) -> None:
    if value is not None and not good(value):
        raise ValueError(f"{name} must be {allowed}, got {value}")
