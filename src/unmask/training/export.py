"""The finished model: a folder with the averaged weights, config, card and tokenizer."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from torch import nn

from unmask.models import own, pretrained
from unmask.models.files import new_folder
from unmask.models.pretrained import Card
from unmask.text.folder import TOKENIZER
from unmask.training.config import OWN, TrainConfig
from unmask.training.data import Data
from unmask.training.learner import Learner


def export(folder: Path, network: nn.Module, config: TrainConfig, data: Data, learner: Learner) -> None:
    """Write the model's folder, whole or not at all; an older export of the same run is replaced."""
    texts = beside(network, config, data, learner)
    shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as partial:
        pretrained.write(partial, network, texts)


def beside(network: Any, config: TrainConfig, data: Data, learner: Learner) -> dict[str, str]:
    """The files that make a checkpoint a model: its config, card and tokenizer."""
    card, extra = about(config, data, learner)
    described = own.described if config.preset == OWN else pretrained.described
    return described(network, card, extra) | {TOKENIZER: data.train.tokenizer.to_json()}


def about(config: TrainConfig, data: Data, learner: Learner) -> tuple[Card, dict[str, Any]]:
    """The card, and what loading needs to know besides the network."""
    assert config.batch is not None
    bound = learner.bound
    card = Card(
        data=data.train.header.source or config.data,
        tokens_seen=learner.step * config.batch * data.train.length,
        bound=None if bound is None else bound["nats_per_token"] / math.log(2),
        bound_error=None if bound is None else bound["error"] / math.log(2),
        held_out=None if bound is None else f"{bound['sequences']} held-out sequences",
        notes=f"{learner.step} steps of {config.batch} sequences, {config.optimizer}, objective {config.objective}",
    )
    return card, {
        "schedule": config.schedule,
        "objective": config.objective,
        "layout": data.train.header.layout,
        "characters_per_token": None if data.train.tokenizer.kind == "levels" else data.train.characters_per_token,
        "tokenizer_sha256": data.train.tokenizer.hash,
        "length": data.train.length,
    }
