"""Training on an accelerator: the CPU's losses, one wait per step, and where a run goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch

import unmask
from tests import fake_device
from tests.training.runs import LENGTH, settings, write_tokens
from unmask.devices import chosen
from unmask.networks.ddit import DDiT, DDiTConfig
from unmask.training import optimizer
from unmask.training.config import TrainConfig
from unmask.training.learner import Learner
from unmask.training.loop import train
from unmask.training.report import Plain
from unmask.training.start import make_accelerator

pytestmark = pytest.mark.skipif(not fake_device.available(), reason="this torch cannot make a device of Python")


class There(accelerate.Accelerator):
    """accelerate knows the devices that it knows: this one says that it has chosen the fake one."""

    device = torch.device(fake_device.NAME, 0)


def losses(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line.get("loss", line.get("nats_per_token")) for line in lines]


@pytest.mark.parametrize(
    ("float64", "choice"),
    [
        (True, {"objective": "count"}),
        (False, {"objective": "time"}),
        (True, {"attention": "order"}),
        (True, {"process": "uniform"}),
    ],
)
def test_a_step_waits_once_and_has_the_cpus_loss(
    float64: bool, choice: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, waits, fused = write_tokens(tmp_path / "data"), [], []
    short: dict[str, Any] = {"steps": 2, "validate_every": 2, "layers": 1, "micro_batch": 3} | choice
    train(settings(data, tmp_path / "cpu", **short))
    update = Learner.update
    with fake_device.present(float64=float64) as counted:

        def watched(self: Learner, *arguments: Any) -> Any:
            fused.extend(group["fused"] for one in self.optimizers for group in one.param_groups)
            before = counted.total()
            result = update(self, *arguments)
            waits.append(counted.total() - before)
            return result

        monkeypatch.setattr(Learner, "update", watched)
        train(settings(data, tmp_path / "there", **short), accelerator=There(cpu=True))
    assert waits == [1, 1]
    assert set(fused) == {False}, "it is fused where the parameters will be, and not where they were made"
    assert losses(tmp_path / "there") == pytest.approx(losses(tmp_path / "cpu"), rel=1e-5)


def test_the_preview_of_a_network_with_adapters_runs_where_the_network_is() -> None:
    """``Plain`` is no module: it used to be taken for one on the CPU."""
    network = DDiT(DDiTConfig(5, 5, LENGTH, 8, 1, 2)).eval()
    with fake_device.present():
        tokens = unmask.sample(Plain(network.to(fake_device.NAME)), num=1, length=LENGTH).tokens
        assert tokens.device.type == fake_device.NAME


def test_an_optimizer_is_fused_where_its_parameters_will_be() -> None:
    model, known = DDiT(DDiTConfig(5, 5, LENGTH, 8, 1, 2)), {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
    for name, fused in (("cpu", True), ("cuda", True), (fake_device.NAME, False)):
        (made,) = optimizer.make(model, muon=False, device=torch.device(name), **known)
        assert made.param_groups[0]["fused"] is fused


def test_auto_takes_an_accelerator_with_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen() == "cpu" and chosen("cuda:1") == "cuda:1"
    with fake_device.present(float64=False):
        assert chosen() == "cpu" and chosen(fake_device.NAME) == fake_device.NAME
    with fake_device.present():
        assert chosen() == fake_device.NAME
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
        assert chosen() == "cpu"


def test_a_device_that_is_not_there_is_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="device='cuda': this machine has no accelerator"):
        make_accelerator(TrainConfig("data", "out", device="cuda"))
    with pytest.raises(ValueError, match="device='gpu'"):
        make_accelerator(TrainConfig("data", "out", device="gpu"))
