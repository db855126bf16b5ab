"""The finished model: a folder with the averaged weights, config, card and tokenizer."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.checkpoints import tuned, user_network, write_back
from unmask.checkpoints.folder import TOKENIZER
from unmask.files import new_folder
from unmask.networks import counted, pretrained
from unmask.networks.counted import Counted
from unmask.networks.pretrained import Card
from unmask.tokenizers.chat import CHAT
from unmask.training.config import USER_NETWORK, TrainConfig
from unmask.training.data import Data
from unmask.training.finetune import Base
from unmask.training.learner import Learner
from unmask.training.lora import SCALE


def export(
    folder: Path, network: Any, config: TrainConfig, data: Data, learner: Learner, base: Base | None = None
) -> None:
    """Write the model's folder atomically; an older export of the same run is replaced.

    A fine-tuned network of this project's class (MDLM, SEDD, RADD, BD3-LM) is written in this project's format, and
    every other one in the format of its checkpoint.
    """
    if base is not None and base.kept:
        files = dict(base.files) | {pretrained.README: tuned_card(base, about(config, data, learner)[0]).encode()}
        shutil.rmtree(folder, ignore_errors=True)
        with new_folder(folder) as partial:
            write_back.write(partial, base.scan, base.loaded.names, network.state_dict(), files)
        return
    counts = network if isinstance(network, Counted) else None
    network = network if counts is None else counts.network
    texts = beside(network, replace(config, lora=None), data, learner, base, whole=True, counts=counts is not None)
    shutil.rmtree(folder, ignore_errors=True)
    with new_folder(folder) as partial:
        pretrained.write(partial, network, texts)
        if counts is not None:
            counted.save(partial, counts)


def beside(
    network: Any,
    config: TrainConfig,
    data: Data,
    learner: Learner,
    base: Base | None = None,
    *,
    whole: bool = False,
    counts: bool = False,
) -> dict[str, str]:
    """The files that make a checkpoint a model: its config, card and tokenizer.

    If only a part of the network was trained, and for one in another format, config.json names the base, and the
    tokenizer is the base's. whole: all weights will be beside them; counts: counts, too.
    """
    card, extra = about(config, data, learner)
    extra |= {"counts": True} if counts else {}
    in_part = bool(learner.frozen) and not whole
    if base is not None and (base.kept or in_part):
        scale = None if config.lora is None else float(SCALE)
        files = tuned.described(base.scan, scale, card) | {pretrained.README: tuned_card(base, card)}
    else:
        if base is not None:
            extra |= {"origin": base.origin()}
        described = user_network.described if config.preset == USER_NETWORK else pretrained.described
        files = described(network, card, extra) | {TOKENIZER: data.train.tokenizer.to_json()}
    return files if base is None or base.template is None else files | {CHAT: base.template}


def tuned_card(base: Base, card: Card) -> str:
    """README.md of a fine-tuned checkpoint in its original format."""
    bound = "not measured" if card.bound is None else f"{card.bound:.4g} ± {card.bound_error:.2g} {card.bound_unit}"
    return (
        f"# {Path(base.called).name}, fine-tuned\n\n"
        f"{base.loaded.about.get('format')}, fine-tuned by `unmask train` on {card.data}: {card.notes}.\n\n"
        f"Likelihood bound on {card.held_out or 'held-out data'}: {bound}.\n"
    )


def about(config: TrainConfig, data: Data, learner: Learner) -> tuple[Card, dict[str, Any]]:
    """The card, and what loading needs beside the network."""
    assert config.batch is not None
    bound = learner.bound
    adapters = "" if config.lora is None else f"adapters of rank {config.lora}, "
    done = config.objective + (f", {adapters}from {Path(config.init).name}" if config.init is not None else "")
    card = Card(
        data=data.train.header.source or config.data,
        tokens_seen=learner.step * config.batch * data.train.length,
        bound=None if bound is None else bound["nats_per_token"] / math.log(2),
        bound_error=None if bound is None else bound["error"] / math.log(2),
        held_out=None if bound is None else f"{bound['sequences']} held-out sequences",
        notes=f"{learner.step} steps of {config.batch} sequences, {config.optimizer}, objective {done}",
    )
    return card, {
        "schedule": config.schedule,
        "objective": config.objective,
        "layout": data.train.header.layout,
        "characters_per_token": None if data.train.tokenizer.kind == "levels" else data.train.characters_per_text_token,
        "tokenizer_sha256": data.train.tokenizer.hash,
        "length": data.train.length,
    }
