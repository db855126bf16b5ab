"""``unmask.train``: networks and losses of the user's own, in the command's own loop."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

import unmask
from tests.training.runs import LENGTH, LETTERS, metrics, write_tokens
from unmask.data.tokens import TokenFile
from unmask.masking import Masking
from unmask.objective import cross_entropy
from unmask.training.checkpoint import listed, read, read_tensors
from unmask.training.events import Event, Finished, Stepped
from unmask.training.loop import train as command
from unmask.training.masking import Losses
from unmask.training.validate import validate

SHORT: dict[str, Any] = {
    "steps": 6,
    "batch": 6,
    "micro_batch": 2,
    "save_every": 2,
    "validate_every": 3,
    "validate_sequences": 8,
    "learning_rate": 1e-2,
    "warmup": 2,
    "tensorboard": False,
    "device": "cpu",
    "keep": 100,
}


class Net(nn.Module):
    """The least that a network has to be: no time, no rows, tied weights, dropout, an integer buffer."""

    def __init__(self, vocab_size: int, length: int, width: int = 16) -> None:
        super().__init__()
        self.vocab_size, self.mask_id = vocab_size, vocab_size
        self.embed = nn.Embedding(vocab_size + 1, width)
        self.register_buffer("positions", torch.arange(length))
        self.place = nn.Parameter(0.1 * torch.randn(length, width))
        self.mix = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.down, self.drop = nn.Linear(2 * width, width), nn.Dropout(0.1)
        self.head = nn.Linear(width, vocab_size + 1, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.place[self.positions[: tokens.shape[1]]]
        return self.head(self.drop(self.down(self.mix(x)[0])))[..., : self.vocab_size]


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokens(tmp_path_factory.mktemp("letters"))


def silent(event: Event) -> None:
    pass


def test_it_is_public_and_its_help_says_the_shapes() -> None:
    assert "train" in dir(unmask) and "[N, L]" in (inspect.getdoc(unmask.train) or "")


def test_a_user_network_is_resumed_bit_for_bit_and_loaded_again(letters: Path, tmp_path: Path) -> None:
    whole = unmask.train(letters, Net, out=tmp_path / "whole", report=silent, **SHORT)

    def stop(event: Event) -> None:
        if isinstance(event, Stepped) and event.step == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unmask.train(letters, Net, out=tmp_path / "halves", report=stop, **SHORT)
    unfinished = pytest.warns(UserWarning, match="newest checkpoint, of step 4")
    with unfinished:
        assert unmask.load(tmp_path / "halves", network=Net).denoiser.vocab_size == len(LETTERS)
    unmask.train(letters, Net, out=tmp_path / "halves", resume=True, report=silent, **SHORT)
    one, other = (read(tmp_path / name / "checkpoints" / "step-00000006") for name in ("whole", "halves"))
    for group, tensors in one.tensors.items():
        assert all(torch.equal(tensor, other.tensors[group][key]) for key, tensor in tensors.items()), group
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "halves")
    average = dict(whole.denoiser.named_parameters())
    assert all(torch.equal(average[name], tensor) for name, tensor in one.tensors["ema"].items())
    assert torch.equal(whole.denoiser.head.weight, whole.denoiser.embed.weight)  # also of tied weights the average
    loaded = unmask.load(tmp_path / "whole", network=Net)
    assert loaded.length == LENGTH
    assert torch.equal(whole.sample(2, seed=3).tokens, loaded.sample(2, seed=3).tokens)
    with pytest.raises(ValueError, match=r"network=Net"):
        unmask.load(tmp_path / "whole")
    with pytest.raises(ValueError, match="does not fit this Net"):
        unmask.load(tmp_path / "whole", network=lambda size, length: Net(size, length, 8))


def test_the_validation_is_the_public_bound_of_the_averaged_network(letters: Path, tmp_path: Path) -> None:
    """Within 5 of the two estimates' errors, false alarm rate 6e-7; and by the same masks, to rounding.

    What is exported is the average too, and the weights themselves are other ones.
    """
    heard: list[Event] = []
    settings = SHORT | {"validate_sequences": 512, "ema": 0.9}
    model = unmask.train(letters, Net, out=tmp_path / "run", report=heard.append, **settings)
    ended = heard[-1]
    assert isinstance(ended, Finished) and ended.bound is not None and ended.own == "Net"
    valid = TokenFile.open(letters / "valid.tokens")
    bound = unmask.nelbo(model.denoiser, valid.sequences(range(len(valid))), passes=64, seed=1)
    value = bound.nats.mean() / LENGTH
    error = math.hypot(float(bound.errors.mean()), float(bound.errors.mean())) / LENGTH
    assert abs(float(value) - ended.bound["nats_per_token"]) < 5 * error

    stored = read(listed(tmp_path / "run" / "checkpoints")[-1]).tensors
    exported = read_tensors(tmp_path / "run" / "model" / "model.safetensors")
    how: dict[str, Any] = {"objective": "time", "sequences": 512, "micro_batch": 2, "schedule": unmask.Linear()}
    for weights, averaged in ((stored["ema"], True), (stored["model"], False)):
        assert all(torch.equal(exported[name], weights[name]) for name in stored["ema"]) == averaged
        network = Net(valid.vocab_size, LENGTH)
        network.load_state_dict(stored["model"])
        network.load_state_dict({name: weights[name] for name, _ in network.named_parameters()}, strict=False)
        again = validate(Losses(network, "time"), valid, Accelerator(cpu=True), stop=lambda: 0, **how)
        assert again is not None
        assert (ended.bound["nats_per_token"] == pytest.approx(again.nats_per_token, rel=1e-6)) == averaged


def test_the_projects_network_by_either_way_is_one_run(letters: Path, tmp_path: Path) -> None:
    """Given as a module, by its preset in Python, and by the command: the same losses, bit for bit."""
    from tests.training.runs import settings
    from unmask.training.network import of_config

    config = settings(letters, tmp_path / "command")
    command(config)
    shape = {name: getattr(config, name) for name in SHORT if name in ("steps",)} | {
        name: getattr(config, name)
        for name in ("preset", "layers", "width", "heads", "optimizer", "decay", "convolution", "ema", "threads")
    }
    unmask.train(letters, out=tmp_path / "python", report=silent, **(SHORT | shape), preview=False)

    def make(vocab_size: int, length: int) -> nn.Module:
        return of_config(config, vocab_size, length).build()

    alike = SHORT | {"decay": "constant", "ema": 0.9, "preview": False, "threads": 1}
    unmask.train(letters, make, out=tmp_path / "own", report=silent, **alike)
    lines = [metrics(tmp_path / name) for name in ("command", "python", "own")]
    assert lines[0] == lines[1] == lines[2]


def test_a_user_loss(letters: Path, tmp_path: Path) -> None:
    """The default's formula gives the default's run; twice that, twice its first loss."""

    def same(network: Any, x0: Tensor, masking: Masking) -> Tensor:
        assert x0.shape == masking.masked.shape and masking.weight.shape == (len(x0),) == masking.time.shape
        return masking.weight * cross_entropy(network, x0, masking)

    def twice(network: Any, x0: Tensor, masking: Masking) -> Tensor:
        return 2 * same(network, x0, masking)

    found = []
    for name, loss in (("default", None), ("same", same), ("twice", twice)):
        unmask.train(letters, Net, out=tmp_path / name, loss=loss, report=silent, **SHORT)
        found.append([line["loss"] for line in metrics(tmp_path / name, "train")])
    assert found[0] == found[1] and found[2][0] == 2 * found[0][0]
    with pytest.raises(ValueError, match="loss: "):
        unmask.train(letters, Net, out=tmp_path / "same", loss=twice, resume=True, report=silent, **SHORT)


def test_ids_are_data(tmp_path: Path) -> None:
    """A network learns the one rule of its data, and the module that was given stays as it was."""
    ids = (torch.arange(8).repeat(200, 1) + torch.arange(200).unsqueeze(1)) % 5
    torch.manual_seed(0)
    module = Net(5, 8)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    settings = SHORT | {"steps": 150, "batch": 32, "micro_batch": 32, "save_every": 150, "validate_every": 150}
    model = unmask.train(ids, module, out=tmp_path / "run", report=silent, **settings)
    made = model.sample(40, seed=1).tokens
    assert float(((made[:, 1:] - made[:, :-1]) % 5 == 1).double().mean()) > 0.9
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert model.bound(["0 1 2 3 4 0 1 2"]).nats_per_token < math.log(5)
    unmask.train(ids, module, out=tmp_path / "run", resume=True, report=silent, **settings)
    with pytest.raises(ValueError, match="holds other ids"):
        unmask.train(ids.roll(1, 1), module, out=tmp_path / "run", resume=True, report=silent, **settings)


class Masked(Net):
    """Its mask is inside the data's ids."""

    def __init__(self, vocab_size: int, length: int) -> None:
        super().__init__(vocab_size, length)
        self.mask_id = 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "tiny"}, "network must be callable"),
        ({"network": lambda vocab_size, length: 3}, "must be a torch module"),
        ({"network": lambda vocab_size, length: nn.Linear(2, 2)}, "must have an integer attribute 'vocab_size'"),
        ({"network": Masked}, "needs mask_id=7"),
        ({"network": lambda vocab_size, length: Net(9, length)}, "needs mask_id=7"),
        ({"preset": "tiny"}, "preset: only for the networks of this project"),
        ({"width": 3, "dropout": 0.5}, "width, dropout: only for the networks"),
        ({"stpes": 3}, "did you mean 'steps'"),
        ({"steps": "3"}, "is not of type int"),
        ({"objective": "left-to-right"}, "a masked model is trained with objective"),
        ({"objective": "order", "attention": "order"}, "attention: only for the networks of this project"),
        ({"optimizer": "muon"}, "muon"),
        ({"loss": lambda network, x0, masking: x0}, "each sequence's loss, a float tensor"),
        ({"loss": lambda network, x0, masking: masking.weight}, "do not depend on the network"),
        ({"loss": 3}, "loss must be callable"),
        ({"data": torch.zeros(3, 4)}, r"integers \[sequences, length\]"),
        ({"data": torch.zeros(1, 4, dtype=torch.long)}, "give valid"),
        ({"data": torch.zeros(3, 4, dtype=torch.long) - 1}, "the id -1"),
        ({"data": "nowhere.txt"}, "nowhere.txt"),
    ],
)
def test_what_can_be_got_wrong_is_a_sentence(
    changes: dict[str, Any], message: str, letters: Path, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"data": letters, "network": Net, "out": tmp_path / "run", "report": silent} | SHORT
    with pytest.raises(ValueError, match=message):
        unmask.train(**(arguments | changes))


def test_the_command_says_where_such_a_run_goes_on(letters: Path, tmp_path: Path) -> None:
    unmask.train(letters, Net, out=tmp_path / "run", report=silent, **SHORT)
    from unmask.training.run import stored_config

    stored = stored_config(tmp_path / "run")
    assert stored is not None
    with pytest.raises(ValueError, match="a custom network"):
        command(replace(stored, resume=True))
