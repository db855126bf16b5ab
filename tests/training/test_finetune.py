"""Fine-tuning of every family that loads: it begins as the checkpoint, learns, and is saved so that it loads."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unmask
from tests.small_models import folder
from tests.training.families import FAMILIES, OTHERS, made, texts
from tests.training.runs import metrics, run
from unmask import objective
from unmask.checkpoints import contents, formats
from unmask.checkpoints.contents import Loaded
from unmask.checkpoints.steps import listed
from unmask.cli import main
from unmask.data.batches import global_batch
from unmask.data.tokens import TokenFile
from unmask.network import logits_at
from unmask.processes import process_of
from unmask.schedule import Linear
from unmask.training.checkpoint import read_tensors
from unmask.training.config import TrainConfig
from unmask.training.learner import recompute
from unmask.training.loop import train
from unmask.training.lora import blocks, merged, with_adapters
from unmask.training.masking import Losses, of_step

pytest.importorskip("transformers")
STILL = {"steps": 1, "learning_rate": 1e-30}  # a step that changes nothing


def settings(data: Path, out: Path, init: Path, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "data": str(data),
        "out": str(out),
        "init": str(init),
        "steps": 4,
        "batch": 6,
        "micro_batch": 3,
        "warmup": 0,
        "patience": 0,
        "preview": False,
        "tensorboard": False,
        "device": "cpu",
        "threads": 1,
    }
    return TrainConfig(**(base | changes))


def loaded(path: Path) -> Loaded:
    found = contents.look(path)
    made: Loaded = formats.recognise(found).load(found)
    return made


def answers(network: Any, tokens: Tensor) -> Tensor:
    """log p at every position of half-masked tokens, as sampling asks for it."""
    rows = torch.arange(tokens.shape[1]).expand_as(tokens)
    x = tokens.clone()
    x[:, -4:] = network.mask_id
    with torch.no_grad():
        return logits_at(network, x, torch.full((len(x),), 0.4, dtype=torch.float64), rows).log_softmax(-1)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, made(folder / "base", request.param), texts(folder, request.param)


def test_it_begins_as_the_checkpoint(family: tuple[str, Path, Path], tmp_path: Path) -> None:
    """A step that changes nothing gives the same logits, and its loss is the bound of Eq. 6 on the step's masking by
    ``objective``, whose estimates ``unmask evaluate`` averages."""
    kind, base, data = family
    config = settings(data, tmp_path / "run", base, **STILL)
    folder = train(config)
    before, after = loaded(base), loaded(folder)
    network: Any = before.denoiser
    tokens = TokenFile.open(tmp_path / "run" / "data" / "train.tokens")
    assert after.tokenizer.hash == before.tokenizer.hash == tokens.tokenizer.hash
    assert tokens.length <= network.length == after.denoiser.length  # type: ignore[attr-defined]
    rows = tokens.sequences([0, 1])
    assert torch.equal(answers(after.denoiser, rows), answers(network, rows))
    assert after.about["format"] == ("unmask" if kind not in OTHERS else before.about["format"])

    indices = global_batch(len(tokens), 6, config.seed, 0)
    drawn: dict[str, Any] = {"schedule": Linear(), "seed": config.seed, "step": 0}
    where = tokens.asked(indices)
    assert (where is None) == (kind not in ("bert", "roberta", "esm", "sapiens"))  # its padding is not data
    masking = of_step(process_of(network), "time", "stratified", batch=6, length=tokens.length, where=where, **drawn)
    x0 = tokens.sequences(indices)
    with torch.no_grad():
        nats = masking.weighted(objective.cross_entropy(network, x0, masking).double())
    first = metrics(tmp_path / "run", "train")[0]["loss"]
    assert first == pytest.approx(float(nats.sum()) / x0.numel(), rel=1e-5)


@pytest.mark.parametrize(("kind", "rank"), [("mdlm", None), ("bd3lm", 4), ("llada", None), ("llada", 4), ("bert", 4)])
def test_it_learns(kind: str, rank: int | None, tmp_path: Path) -> None:
    """The held-out bound falls, by the same masks before and after."""
    base, data, out = made(tmp_path / "base", kind), texts(tmp_path, kind), tmp_path / "run"
    folder = train(settings(data, out, base, steps=30, learning_rate=2e-2, lora=rank, objective="count"))
    tokens = TokenFile.open(out / "data" / "valid.tokens")
    every = range(len(tokens))
    how: dict[str, Any] = {"passes": 32, "where": tokens.asked(every)}
    models = [unmask.load(path).denoiser for path in (base, folder)]
    before, after = (float(unmask.nelbo(model, tokens.sequences(every), **how).nats.mean()) for model in models)
    assert after < 0.8 * before, (before, after)
    assert (out / "adapter" / "adapter_model.safetensors").is_file() == (rank is not None)
    assert len(unmask.load(out).sample(1, length=8, seed=0).text) == 1


def test_adapters_begin_as_nothing_alone_learn_and_merge(family: tuple[str, Path, Path]) -> None:
    _, base, _ = family
    plain, network = loaded(base).denoiser, loaded(base).denoiser
    assert isinstance(plain, nn.Module) and isinstance(network, nn.Module)
    with_adapters(network, 3)
    tokens = torch.randint(5, 7, (2, 8), generator=torch.Generator().manual_seed(0))
    assert torch.equal(answers(network, tokens), answers(plain, tokens))
    trained = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert trained and all(".lora_" in name for name in trained)
    inside = [m for block in blocks(plain) for name, m in block.named_modules() if "adaLN" not in name]
    assert len(trained) == 2 * sum(isinstance(module, nn.Linear) for module in inside)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    apart = answers(network, tokens)
    assert not torch.allclose(apart, answers(plain, tokens), atol=1e-2)
    together = merged(network)
    torch.testing.assert_close(answers(together, tokens), apart, atol=2e-5, rtol=1e-5)
    assert together.state_dict().keys() == plain.state_dict().keys()


def test_blocks_that_are_computed_again_have_the_same_gradients(family: tuple[str, Path, Path]) -> None:
    _, base, _ = family
    tokens = torch.randint(5, 7, (4, 8), generator=torch.Generator().manual_seed(0))
    found = []
    for again in (False, True):
        network: Any = loaded(base).denoiser
        network.train().requires_grad_(True)
        calls = []
        inner = blocks(network)[0].forward
        blocks(network)[0].forward = lambda *a, inner=inner, calls=calls, **k: (calls.append(1), inner(*a, **k))[1]
        if again:
            recompute(network)
        drawn: dict[str, Any] = {"schedule": Linear(), "seed": 0, "step": 0}
        masking = of_step(process_of(network), "time", "stratified", batch=4, length=8, **drawn)
        total, _ = Losses(network, "time")(tokens, *masking.tensors())
        total.backward()
        assert len(calls) == (2 if again else 1)
        found.append({name: p.grad for name, p in network.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() and found[0]
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


@pytest.mark.parametrize(("kind", "rank"), [("llada", 2), ("dream", None)])
def test_bf16_with_recomputation_is_near_float32(kind: str, rank: int | None, tmp_path: Path) -> None:
    base, data = made(tmp_path / "base", kind), texts(tmp_path, kind)
    less = {"precision": "bf16", "gradient_checkpointing": True}
    for name, more in (("float32", {}), ("bf16", less)):
        # In a process of its own: accelerate settles the precision once.
        assert run(settings(data, tmp_path / name, base, lora=rank, steps=2, **more)) == [0]
    pairs = zip(metrics(tmp_path / "float32", "train"), metrics(tmp_path / "bf16", "train"), strict=True)
    for one, other in pairs:
        assert one["loss"] != other["loss"] and one["loss"] == pytest.approx(other["loss"], rel=0.02)


def test_a_run_of_adapters_is_resumed_on_the_same_checkpoint_alone(tmp_path: Path) -> None:
    base, data = made(tmp_path / "base", "bert"), texts(tmp_path, "bert")
    often: dict[str, Any] = {"lora": 2, "decay": "constant", "ema": 0.9, "validate_every": 2, "save_every": 2}
    train(settings(data, tmp_path / "whole", base, **often))
    train(settings(data, tmp_path / "run", base, **often | {"steps": 2}))
    group = read_tensors(listed(tmp_path / "run" / "checkpoints")[-1] / "model.safetensors")
    assert not any(name.endswith("base_layer.weight") for name in group)  # what is not trained is not stored again
    train(settings(data, tmp_path / "run", base, **often, resume=True))
    for file in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
        one, other = (read_tensors(tmp_path / run / file) for run in ("whole", "run"))
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    made(tmp_path / "other", "roberta")
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.raises(ValueError, match="init_sha256"):
        train(settings(data, tmp_path / "run", base, **often | {"steps": 6}, resume=True))


def test_peft_and_transformers_read_what_was_made(tmp_path: Path) -> None:
    """The adapters on the base by peft, and the merged folder by transformers, answer alike."""
    import peft
    import transformers

    base, data = made(tmp_path / "base", "bert"), texts(tmp_path, "bert")
    train(settings(data, tmp_path / "run", base, lora=2, learning_rate=1e-1))
    ids = torch.tensor([[2, 5, 6, 4, 8, 3]])
    read = transformers.AutoModelForMaskedLM.from_pretrained
    with torch.no_grad():
        plain = read(base).eval()(ids).logits
        whole = read(tmp_path / "run" / "model").eval()(ids).logits
        apart = peft.PeftModel.from_pretrained(read(base), str(tmp_path / "run" / "adapter")).eval()(ids).logits
    assert not torch.allclose(plain, whole, atol=1e-2)
    torch.testing.assert_close(apart, whole, atol=1e-5, rtol=1e-5)


def test_sedd_learns_by_its_own_loss_and_no_other_family_does(tmp_path: Path) -> None:
    data = texts(tmp_path, "sedd")
    sedd, mdlm = made(tmp_path / "sedd", "sedd"), made(tmp_path / "mdlm", "mdlm")
    folder = train(settings(data, tmp_path / "run", sedd, objective="score-entropy", steps=2))
    assert json.loads((folder / "config.json").read_text())["extra"]["origin"]["format"] == "SEDD"
    with pytest.raises(ValueError, match=r"'score-entropy' is for SEDD with scale_by_sigma, and .* is MDLM"):
        train(settings(data, tmp_path / "no", mdlm, objective="score-entropy"))
    assert not (tmp_path / "no").exists()


def test_what_does_not_go_is_refused_by_a_sentence(tmp_path: Path) -> None:
    base, data = made(tmp_path / "base", "bert"), texts(tmp_path, "bert")
    for changes, says in (
        ({"layers": 3}, "layers: the network and the tokenizer are those of init="),
        ({"tokenizer": "bytes"}, "tokenizer: the network and the tokenizer are those of init="),
        ({"objective": "left-to-right"}, "a masked model is trained with objective"),
        ({"init": str(tmp_path / "nowhere")}, "there is no model"),
        ({"data": str(tmp_path / "long.txt")}, "has sequences of 30 tokens, and init=.* takes 12 at most"),
    ):
        (tmp_path / "long.txt").write_text("abcde" * 6 + "\n" + "abc\n" * 40)
        with pytest.raises(ValueError, match=says):
            train(replace(settings(data, tmp_path / "out", base), **changes))
    with pytest.raises(ValueError, match="adapters are trained on a checkpoint"):
        TrainConfig("kjv", lora=4)
    train(settings(texts(tmp_path, "mdlm"), tmp_path / "mdlm", made(tmp_path / "other", "mdlm"), **STILL))
    with pytest.raises(ValueError, match="was made with another tokenizer than that of init="):
        train(settings(tmp_path / "mdlm" / "data", tmp_path / "out", base))


def test_a_model_of_this_project_is_fine_tuned_as_it_is(tmp_path: Path) -> None:
    """Without a word about its shape, and with a cut of its length."""
    data = tmp_path / "text.txt"
    data.write_text("in the beginning was the word, and the word was with god. " * 60)
    short = {"steps": 2, "batch": 2, "length": 32, "preview": False, "tensorboard": False, "device": "cpu"}
    folder = train(TrainConfig(str(data), str(tmp_path / "run"), init="kjv", lora=2, threads=1, **short))
    before, after = unmask.load("kjv"), unmask.load(folder)
    assert after.tokenizer.hash == before.tokenizer.hash and after.denoiser.config == before.denoiser.config
    tokens = torch.tensor(before.tokenizer.encode("the word was with god")).unsqueeze(0)
    assert not torch.equal(answers(after.denoiser, tokens), answers(before.denoiser, tokens))


def test_a_network_with_adapters_trains_them_alone(tmp_path: Path) -> None:
    """And without any gradient of the rest, what it answers from left to right stays as it was."""
    base = folder(
        tmp_path / "base", "bytes", length=8, adaln=False, attention="block", block=4, adapters=2, start=ord("x"),
        extra={"layout": "rows", "schedule": "linear"},
    )  # fmt: skip
    rows = torch.randint(97, 110, (40, 7), generator=torch.Generator().manual_seed(0))
    rows[:, 0] = ord("x")
    data = tmp_path / "data.txt"
    data.write_text("\n".join("".join(map(chr, row)) for row in rows.tolist()) + "\n")
    out = tmp_path / "run"
    train(settings(data, out, base, layout="rows", learning_rate=1e-2, objective="count"))
    before, after = (unmask.load(path).denoiser.state_dict() for path in (base, out))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if ".adapters." in name or name == "own_token.weight"}
    shutil.rmtree(out / "model")  # as if it had not finished
    with pytest.warns(UserWarning, match="newest checkpoint"):
        on_the_way = unmask.load(out).denoiser.state_dict()
    assert all(torch.equal(on_the_way[name], after[name]) for name in after)


UNFINISHED = [("bd3lm", 4), ("llada", 4), ("llada", None), ("bert", 2), ("sapiens", None)]


@pytest.mark.parametrize(("kind", "rank"), UNFINISHED)
def test_a_checkpoint_on_the_way_is_the_model_that_a_run_ended_there_makes(
    kind: str, rank: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest checkpoint, with the base, is loaded by the run's folder, by every verb, and only with that base."""
    base, data, out = made(tmp_path / "base", kind), texts(tmp_path, kind), tmp_path / "run"
    folder = train(settings(data, out, base, steps=6, learning_rate=5e-2, ema=0.5, lora=rank, save_every=3))
    whole = unmask.load(folder)
    shutil.rmtree(folder)
    with pytest.warns(UserWarning, match="has not finished: its newest checkpoint, of step 6"):
        part = unmask.load(out)
    rows = TokenFile.open(out / "data" / "valid.tokens").sequences([0, 1])
    said = answers(part.denoiser, rows)
    torch.testing.assert_close(said, answers(whole.denoiser, rows), atol=2e-5, rtol=1e-5)
    assert not torch.allclose(said, answers(loaded(base).denoiser, rows), atol=1e-2)
    assert part.tokenizer.hash == whole.tokenizer.hash and part.layout == whole.layout

    for verb, *options in (["sample", "--length", "8"], ["evaluate", "--passes", "2"], ["inspect"]):
        assert main([verb, str(out), *options]) == 0
        assert "its newest checkpoint, of step 6, is used" in (told := capsys.readouterr()).err
    assert "a checkpoint of a fine-tuning run" in told.out and "EMA weights are inside, used" in told.out

    base = base if base.is_dir() else base.parent
    (weights,) = (base / name for name in contents.look(base).weights)
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\0")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="whose weights have changed since"):
        unmask.load(out)
