"""Fine-tuning (--init): a run whose network, tokenizer and length are those of a checkpoint of any kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from torch import nn

from unmask.checkpoints import contents, formats, write_back
from unmask.checkpoints.contents import Loaded, Scan
from unmask.checkpoints.convert import origin_of
from unmask.checkpoints.folder import is_ours
from unmask.checkpoints.mdlm_ar import Given
from unmask.loading import locate
from unmask.networks.adapters import AdaptedDDiT, train_alone
from unmask.networks.causal import Causal
from unmask.networks.conversion import NEIGHBOURS, Target, converted
from unmask.networks.counted import Counted
from unmask.networks.transformer import Transformer
from unmask.processes import process_of
from unmask.schedule import SCHEDULES
from unmask.tokenizers.chat import template_of
from unmask.training.config import BECOMES, CHECKPOINT, DEFAULT_OBJECTIVE, TrainConfig
from unmask.training.data import Reads
from unmask.training.lora import with_adapters
from unmask.training.network import SHAPE, Network
from unmask.training.settings import Objective

NOT_LEFT_OPEN = ("preset", *SHAPE, "dropout", "tokenizer", "vocab")  # determined by the checkpoint


@dataclass(frozen=True)
class Base:
    """The checkpoint that a run starts from."""

    called: str
    scan: Scan
    loaded: Loaded
    template: str | None  # of chats
    files: Mapping[str, bytes]  # of its tokenizer
    become: Callable[[Any], Any] = lambda network: network  # what a left-to-right network is made into

    @property
    def network(self) -> Any:
        return self.loaded.denoiser

    @property
    def length(self) -> int | None:
        """The maximum number of tokens of a sequence."""
        length: int | None = self.network.length
        return length

    @property
    def kept(self) -> bool:
        """Whether the fine-tuned model is written in the format of the checkpoint, not in this project's."""
        return bool(self.loaded.names)

    def fitted(self, config: TrainConfig) -> TrainConfig:
        """The configuration with the settings that the checkpoint determines."""
        if config.counts and self.kept:
            raise ValueError(f"counts cannot be saved in the format of {self.called}: leave them out")
        network, objective = self.network, config.objective
        process = process_of(network)
        if objective == DEFAULT_OBJECTIVE:
            objective = cast("Objective", process.objectives[0])
        process.check_objective(objective)
        if objective == "score-entropy":
            self._check_scores()
        schedule = next((name for name, known in SCHEDULES.items() if known == self.loaded.schedule), config.schedule)
        return replace(
            config,
            preset=CHECKPOINT,
            objective=objective,
            attention=network.attention if isinstance(network, Transformer) else "bidirectional",
            block=(network.block or None) if isinstance(network, Transformer) else None,
            schedule=schedule if config.schedule == "linear" else config.schedule,  # type: ignore[arg-type]
        )

    def _check_scores(self) -> None:
        """Score entropy needs a network whose outputs are log-scores, which differ from the mean's logits by log D."""
        about = self.loaded.about
        model = self.scan.config.get("model")
        scaled = not isinstance(model, dict) or model.get("scale_by_sigma", True)
        scores = about.get("format") in ("SEDD", "unmask") or about.get("variant") == "SEDD baseline"
        if not (scores and scaled):
            raise ValueError(
                f"objective='score-entropy' is for SEDD with scale_by_sigma, and {self.called} is "
                f"{about.get('variant') or about.get('format')}: its outputs are no such scores"
            )

    def made(self, config: TrainConfig, length: int) -> Network:
        """How its network is made: read from the files, with adapters if there are any."""
        ready = [self.network]

        def build() -> nn.Module:
            # For billions of parameters there is no memory for a spare copy: it is read again.
            module: Any = ready.pop() if ready else self.become(formats.recognise(self.scan).load(self.scan).denoiser)
            if config.lora is None and isinstance(module, AdaptedDDiT):
                return train_alone(module.float())
            if config.lora is None:
                return module.float().requires_grad_(True)  # type: ignore[no-any-return]
            # Parameters that are not trained need no float32 under bf16.
            return with_adapters(module if config.precision == "bf16" else module.float(), config.lora)

        kind = str(self.loaded.about.get("format"))
        return Network(build, length, {"init": kind, "init_sha256": self.scan.sha256, "lora": config.lora})

    def reads(self) -> Reads:
        """The requirements on its data."""
        return Reads(self.called, self.loaded.tokenizer, self.length, self.loaded.layout, self.template)

    def origin(self) -> dict[str, Any]:
        return origin_of(self.scan, self.loaded)


def opened(config: TrainConfig, *, resumed: bool) -> Base | None:
    """The checkpoint of --init, if the run uses its network.

    A setting of the network's shape selects a network of this project, which takes the weights of another of its
    folders: see ``Learner.begin_with``.
    """
    if config.init is None:
        return None
    usual = {field.name: field.default for field in fields(TrainConfig)}
    given = [name for name in NOT_LEFT_OPEN if getattr(config, name) != usual[name]]
    if config.preset == CHECKPOINT:
        given = []
    if given and resumed:
        return None
    path = locate(config.init)
    if config.process in BECOMES:
        return _become(config, path, given)
    shape = [name for name in given if name not in ("tokenizer", "vocab")]
    if shape and is_ours(path) and config.lora is None:
        return None
    if given:
        raise ValueError(
            f"{', '.join(given)}: the network and the tokenizer are those of init={config.init!r}, and cannot be chosen"
        )
    return _read(config.init, path)


def _become(config: TrainConfig, path: Path, given: Sequence[str]) -> Base:
    """A left-to-right model as the start of what ``process`` says."""
    if other := [name for name in given if name not in ("attention", "block", "neighbours")]:
        raise ValueError(f"{', '.join(other)}: the network is init={config.init!r}'s, and cannot be chosen")
    base = _read(str(config.init), path)
    if not isinstance(base.network, Causal):
        raise ValueError(
            f"init={config.init!r} is {base.loaded.about.get('format')}: process={config.process!r} starts from a "
            "left-to-right Llama of transformers or a left-to-right model of this project"
        )
    neighbours = NEIGHBOURS if config.neighbours is None else config.neighbours

    def become(network: Any) -> Any:
        return converted(network, cast("Target", config.process), block=config.block or 1, neighbours=neighbours)

    return replace(base, loaded=replace(base.loaded, denoiser=become(base.network), names={}), become=become)


def _read(called: str, path: Path) -> Base:
    scan = contents.look(path)
    adapter = formats.recognise(scan)
    loaded: Loaded = adapter.load(scan)
    if loaded.tokenizer is None:
        raise ValueError(loaded.about.get("needs") or f"{path} has no tokenizer: its ids have no meaning")
    if isinstance(loaded.denoiser, Counted):  # the counts are those of other data
        loaded = replace(loaded, denoiser=loaded.denoiser.network)
    if isinstance(loaded.denoiser, Given):
        raise ValueError(
            f"init={called!r}: MDLM's left-to-right baseline is not fine-tuned: --objective left-to-right trains one"
        )
    return Base(called, scan, loaded, template_of(scan.folder), write_back.files_beside(scan))
