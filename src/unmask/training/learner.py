"""The state of training: the network's weights, their average, the optimiser, the step."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpointed

from unmask.checkpoints.folder import load_network as load
from unmask.checkpoints.steps import CheckpointError
from unmask.data.batches import generator, global_batch, share
from unmask.data.tokens import TokenFile
from unmask.devices import download, upload
from unmask.files import write_whole
from unmask.loading import locate
from unmask.masking import Masking
from unmask.processes import process_of
from unmask.schedule import SCHEDULES
from unmask.timing import AdaptiveCount
from unmask.training import optimizer
from unmask.training.checkpoint import Checkpoint, Tensors, copy_into, whole
from unmask.training.config import TrainConfig
from unmask.training.ema import EMA
from unmask.training.lora import blocks
from unmask.training.masking import Losses, of_step
from unmask.training.network import SHAPE, Network
from unmask.training.pace import StepPlan


class NotFinite(ArithmeticError):
    """A loss or a gradient was NaN or infinite; the weights are those before the step."""


@dataclass(frozen=True)
class Update:
    """The result of one step."""

    loss: float  # nats per token
    gradient_norm: float
    learning_rate: float


class Learner:
    """The state of one training run; ``update`` is a step. Every process has one, and they agree."""

    def __init__(self, config: TrainConfig, network: Network, accelerator: Any) -> None:
        self.config, self.accelerator, self.build = config, accelerator, network.build
        self.schedule = SCHEDULES[config.schedule]
        torch.manual_seed(generator(config.seed, 0, "weights").initial_seed())
        bare = network.build()
        if config.gradient_checkpointing:
            recompute(bare)
        if config.compile:
            _compile(bare)
        made = optimizer.make(
            bare,
            muon=config.optimizer == "muon",
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            dtype=torch.bfloat16 if config.precision == "bf16" else torch.float32,
            device=accelerator.device,
        )
        losses = Losses(bare, config.objective, network.loss)
        self.losses, *self.optimizers = accelerator.prepare(losses, *made)
        self.network: Any = accelerator.unwrap_model(self.losses).network
        self.sharded = any(hasattr(parameter, "full_tensor") for parameter in self.network.parameters())
        if self.sharded:
            _prepare_shards(self.network, config)
        for one in self.optimizers:
            optimizer.start(getattr(one, "optimizer", one))
        assert config.ema is not None
        every: Tensors = dict(self.network.named_parameters())
        self.parameters = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
        self.frozen = every.keys() - self.parameters.keys()
        self.ema = EMA(self.parameters, config.ema)
        self.adaptive = AdaptiveCount(network.length) if config.times == "adaptive" else None
        self.step = 0
        assert config.steps is not None
        self.plan = StepPlan(config.steps)
        # A plan of few steps, by which a run is timed, has as many open ones as the run.
        self.anneal = 0
        if config.opens:
            self.anneal = config.steps // 4 if config.anneal is None else config.anneal
        self.saved = self.validated = -1  # the last step that was saved, and validated
        self.bound: dict[str, Any] | None = None  # the record of the last validation
        self.best: dict[str, Any] | None = None  # that of the best, with its step
        self.worse = 0  # validations since then

    def update(self, tokens: TokenFile, trouble: Path) -> Update:
        """One step: the gradient over the global batch, clipped, and the update, unless something is not finite."""
        config = self.config
        assert config.batch and config.learning_rate and config.decay
        indices = global_batch(len(tokens), config.batch, config.seed, self.step)
        masking = of_step(
            process_of(self.network),
            config.objective,
            config.times,
            batch=config.batch,
            length=tokens.length,
            schedule=self.schedule,
            seed=config.seed,
            step=self.step,
            adaptive=self.adaptive,
            where=tokens.asked(indices),
        )
        if self.anneal:
            self.network.opens = min(1.0, self.step / self.anneal)
        losses = self._accumulate(tokens, indices, masking)
        length = whole(self.accelerator.clip_grad_norm_(self.losses.parameters(), config.clip))
        losses, length = download(losses, length)  # the one time in a step that the host waits for the device
        norm = float(length)
        loss = float(losses.sum() / (config.batch * tokens.length))
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._refuse(trouble, loss, norm, indices, losses)
        rate = optimizer.learning_rate(
            self.step + 1, peak=config.learning_rate, warmup=config.warmup or 0, plan=self.plan, decay=config.decay
        )
        for one in self.optimizers:
            for group in one.param_groups:
                group["lr"] = rate
            one.step()
            one.zero_grad()
        self.step += 1
        self.ema.update(self.step)
        if self.adaptive is not None:
            self.adaptive.update(masking.n, losses / masking.weight * tokens.length / masking.n)
        return Update(loss, norm, rate)

    def _accumulate(self, tokens: TokenFile, indices: Tensor, masking: Masking) -> Tensor:
        """Leave the gradient of the mean loss per token; return each sequence's loss, over all processes."""
        config, accelerator = self.config, self.accelerator
        assert config.batch and config.micro_batch
        rank, world = accelerator.process_index, accelerator.num_processes
        masking = masking.map(lambda part: share(part, rank, world))
        x0 = tokens.sequences(share(indices, rank, world))
        # The mean over the global batch and its tokens, as a sum; DDP and FSDP average the processes' gradients.
        scale = world / (config.batch * tokens.length)
        torch.manual_seed(generator(config.seed, self.step, f"dropout {rank}").initial_seed())
        self.losses.train()
        done = []
        for start in range(0, len(x0), config.micro_batch):
            part = slice(start, start + config.micro_batch)
            last = start + config.micro_batch >= len(x0)
            with nullcontext() if last else accelerator.no_sync(self.losses):
                inputs, there = upload(x0[part], accelerator.device), masking.rows(part).to(accelerator.device)
                total, losses = self.losses(inputs, *there.tensors(), scale=scale, index=there.index)
                accelerator.backward(total)
            done.append(losses)
        gathered: Tensor = accelerator.gather(torch.cat(done))
        return gathered

    def _refuse(self, trouble: Path, loss: float, norm: float, indices: Tensor, losses: Tensor) -> None:
        """Record the batch and stop, before anything is updated."""
        path = trouble / f"not-finite-step-{self.step:08d}.json"
        bad = ~losses.isfinite()
        record = {
            "step": self.step,
            "loss": repr(loss),
            "gradient_norm": repr(norm),
            "seed": self.config.seed,
            "sequences": indices.tolist(),
            "sequences_not_finite": indices[bad].tolist(),
        }
        if self.accelerator.is_main_process:
            write_whole(path, (json.dumps(record, indent=1) + "\n").encode())
        raise NotFinite(
            f"step {self.step} has the loss {loss} and the gradient norm {norm}: stopped before the update; "
            f"the batch's sequences are in {path}"
        )

    @contextmanager
    def with_average(self) -> Iterator[None]:
        """The network has the averaged weights inside."""
        with self.ema.applied():
            try:
                yield
            finally:
                # FSDP keeps the gathered weights of a forward pass without a backward one: a step would go on using
                # them.
                for module in self.losses.modules() if self.sharded else ():
                    if hasattr(module, "reshard"):
                        module.reshard()

    def tensors(self) -> dict[str, Tensors]:
        """The tensors of a checkpoint; every process must call it, because FSDP's shards are gathered."""
        groups = self._groups()
        return {group: {name: whole(tensor) for name, tensor in groups[group].items()} for group in groups}

    def state(self) -> dict[str, Any]:
        """The state of a checkpoint besides tensors."""
        return {
            "step": self.step,
            "validated": self.validated,
            "bound": self.bound,
            "best": self.best,
            "worse": self.worse,
            "plan": {"first": self.config.steps, **asdict(self.plan)},
        }

    def judge(self, record: dict[str, Any]) -> None:
        """Record a validation of this step, and whether it is the best so far."""
        self.validated, self.bound = self.step, record
        if self.best is None or record["nats_per_token"] < self.best["nats_per_token"]:
            self.best, self.worse = record | {"step": self.step}, 0
        else:
            self.worse += 1

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint of this configuration."""
        groups = self._groups()
        if set(groups) != set(checkpoint.tensors):
            raise CheckpointError(f"{checkpoint.path} holds {sorted(checkpoint.tensors)} and not {sorted(groups)}")
        for group, target in groups.items():
            copy_into(target, checkpoint.tensors[group], f"{checkpoint.path / group}.safetensors")
        try:
            self.step = self.saved = checkpoint.step
            self.validated = int(checkpoint.state["validated"])
            self.bound = checkpoint.state["bound"] and dict(checkpoint.state["bound"])
            self.best = checkpoint.state.get("best") and dict(checkpoint.state["best"])  # older runs have none
            self.worse = int(checkpoint.state.get("worse", 0))
            plan = dict(checkpoint.state.get("plan") or {})
            if plan.pop("first", None) == self.config.steps:  # a run with a constant rate may be given other steps
                self.plan = StepPlan(**plan)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{checkpoint.path / 'state.json'} is not this program's: {error!r}") from error

    def begin_with(self, folder: str) -> None:
        """Take the weights of a saved model, which may have been trained with another attention."""
        saved = load(locate(folder))
        if saved.mask_id != self.network.mask_id:
            raise ValueError(f"init={folder!r}: its mask is {saved.mask_id} and the data's {self.network.mask_id}")
        added = {name: t for name, t in self.network.state_dict().items() if name in getattr(self.network, "added", ())}
        state = added | {name: tensor.to(self.accelerator.device) for name, tensor in saved.state_dict().items()}
        try:
            copy_into(dict(self.network.state_dict()), state, f"init={folder!r}")
        except CheckpointError as error:
            its, here = vars(saved.config), vars(self.network.config)
            other = [f"{name}={value}" for name, value in its.items() if name in SHAPE and value != here[name]]
            if not other:
                raise
            raise ValueError(
                f"init={folder!r} does not fit this run: its network has {', '.join(other)}. A setting of the "
                "network's shape makes a new network, so give these too"
            ) from error
        copy_into(self.ema.shadow, {name: state[name] for name in self.ema.shadow}, f"init={folder!r}")

    def averaged(self) -> nn.Module:
        """A separate network with the averaged weights, gathered; every process must call it."""
        network = self.build().to(self.accelerator.device)
        network.load_state_dict({name: whole(tensor) for name, tensor in self.network.state_dict().items()})
        trained = {name: tensor for name, tensor in network.named_parameters() if name not in self.frozen}
        copy_into(trained, {n: whole(t) for n, t in self.ema.shadow.items()}, "the average")
        return network.eval()

    def _groups(self) -> dict[str, Tensors]:
        """The tensors by file and name; those that are not trained are in the fine-tuned checkpoint."""
        names = {parameter: name for name, parameter in self.parameters.items()}
        groups = {
            "model": {n: tensor for n, tensor in self.network.state_dict().items() if n not in self.frozen},
            "ema": self.ema.shadow,
            "optimizer": optimizer.state_tensors(self.optimizers, names),
        }
        if self.adaptive is not None:
            groups["adaptive"] = {"history": self.adaptive.history, "seen": self.adaptive.seen}
        return groups


def _prepare_shards(network: torch.nn.Module, config: TrainConfig) -> None:
    """Refuse what does not work on shards (FSDP2), and let a block be called in halves, like the last one."""
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    if config.optimizer == "muon":
        raise ValueError("optimizer='muon' needs whole matrices: use DDP, or adamw with FSDP")
    if config.self_conditioning:
        raise ValueError("self_conditioning makes passes that differ between processes: use DDP")
    for block in network.modules():
        if hasattr(block, "attend") and isinstance(block, FSDPModule):
            for method in ("attend", "feed_forward", "vectors"):
                register_fsdp_forward_method(block, method)


def recompute(network: nn.Module) -> None:
    """Let each block store only its input, and recompute the rest for its gradient."""
    for block in blocks(network):
        block.forward = partial(checkpointed, block.forward, use_reentrant=False)


def _compile(network: nn.Module) -> None:
    """torch.compile the blocks, which are alike and so compiled once; the rest changes shape between steps."""
    for block in blocks(network):
        block.compile()
