"""The settings of a training run, by what they are about. ``TrainConfig`` has all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from unmask.networks.config import Attention

Objective = Literal["time", "count", "mask-predict", "maskgit", "score-entropy", "left-to-right", "order", "insertion"]
ProcessName = Literal["uniform", "masked", "blocks", "any-order"]
Times = Literal["independent", "vdm", "stratified", "adaptive"]
ScheduleName = Literal["linear", "cosine", "polynomial", "geometric", "log-linear"]


@dataclass(frozen=True)
class RunSettings:
    """What is trained on what, and where the run is kept."""

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


@dataclass(frozen=True)
class DataSettings:
    """How raw data are prepared."""

    tokenizer: str | None = None
    """For raw data: bpe (the default, unless a corpus has its own), characters, bytes, gpt2, ..."""
    vocab: int | None = None
    """For raw data: the vocabulary size of a BPE, 4,096 by default, or 1,024 for less than a megabyte of text."""
    length: int | None = None
    """For raw data: tokens per sequence. The default is 128, or that of the corpus."""
    layout: Literal["wrapped", "rows"] | None = None
    """For raw data: wrapped text, or one document per row. The default is rows for FASTA, molecules, short records of a
    table, and the lines of a list of names."""
    column: str | None = None
    """For raw data: the column of a table, or its number if there is no header; or the field of records."""
    long: Literal["drop", "cut"] | None = None
    """For raw data: what to do with rows longer than --length. The default is an error; for FASTA
    and molecules without --length, drop if few are longer than 512, and otherwise cut at 1,024 at most."""
    held_out: Literal["end", "random"] | None = None
    """For raw data: hold out the end, or random documents (the default for FASTA and molecules)."""


@dataclass(frozen=True)
class NetworkSettings:
    """The network."""

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
    its own block and the blocks before it (docs/networks.md)."""
    block: int | None = None
    """The block size, for --attention block."""
    conditioning: Literal["none", "time", "ratio"] = "none"
    """The input of the network besides the tokens: nothing, the time, or the fraction of masked tokens."""
    self_conditioning: bool = False
    """Feed the network its own prediction."""
    neighbours: int | None = None
    """For --attention order: the visible tokens on each side of a position that its prediction also reads. The default
    is 2."""
    convolution: int | None = None
    """Taps of a depthwise convolution in each block; 0 for none. The default is 3 for networks narrower than 512."""
    learned_positions: bool = False
    """Learn a vector for each position: for data in which a position has a meaning of its own, such as puzzles."""
    tie_embeddings: bool = False
    """Share one matrix between the embedding and the head."""
    counts: bool = False
    """At the end, join the network with counts of the training data at its logits, with weights fitted to sequences
    that are not counted: for small data and short runs (docs/training.md)."""
    dropout: float = 0.1


@dataclass(frozen=True)
class ObjectiveSettings:
    """The process that is learned, the loss, and how its times are drawn."""

    process: ProcessName | None = None
    """uniform: tokens are replaced by random ones instead of a mask (docs/uniform.md). With --init LEFT_TO_RIGHT_MODEL:
    masked, blocks (of --block tokens, by adapters) or any-order is what it becomes (docs/finetuning.md). By default a
    masked model, or what --objective and --attention say."""
    anneal: int | None = None
    """For --process masked: the steps over which attention opens from left to right to all positions. The default is a
    quarter of the run."""
    objective: Objective = "time"
    """Eq. 6, Eq. 7, the weights of Mask-Predict or MaskGIT, SEDD's score entropy, the left-to-right baseline, Eq. 7
    with all terms of one order (for --attention order, whose default it is), or insertion: rows of different lengths
    (docs/infilling.md)."""
    times: Times = "stratified"
    """How times or counts are drawn over the global batch; adaptive is importance sampling of counts."""
    schedule: ScheduleName = "linear"


@dataclass(frozen=True)
class LengthSettings:
    """When the run ends."""

    steps: int | None = None
    """The number of optimiser steps. The default depends on the data and the machine."""
    minutes: float | None = None
    """Finish within this many minutes, with a model. Without --steps, as many steps as fit are planned."""
    patience: int | None = None
    """Stop after this many validations without improvement, and keep the best model; 0 for never. The default is 3 if
    the data would be read more than 5 times, and 0 otherwise."""
    overfit: bool = False
    """Memorise four sequences, and report whether this succeeded: a first check of a new network."""


@dataclass(frozen=True)
class OptimizerSettings:
    """The batch and the optimiser."""

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


@dataclass(frozen=True)
class MachineSettings:
    """Where and in which precision it runs."""

    device: str = "auto"
    """cpu, cuda, cuda:1, xpu, mps, ...; auto takes an accelerator that supports float64, if there is one. With several
    processes each takes its own."""
    precision: Literal["float32", "bf16"] | None = None
    """The default is bf16 on accelerators and float32 on CPUs."""
    compile: bool = False
    """Compile the blocks with torch.compile."""
    gradient_checkpointing: bool = False
    """Compute each block again in the backward pass instead of keeping its activations: less memory, more time."""
    threads: int | None = None
    """CPU threads of each process."""


@dataclass(frozen=True)
class OutputSettings:
    """What is saved, validated and shown."""

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
