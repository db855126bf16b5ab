"""Containers: Lightning's and torch's files, shards, and whatever is damaged, wrong or hostile."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import sys
import types
import zipfile

import pytest
import torch
from safetensors.torch import save_file

import unmask
from tests.checkpoints import checkpoints as made
from unmask.checkpoints import mdlm, sedd, unpickle
from unmask.checkpoints.contents import look
from unmask.checkpoints.convert import to_own
from unmask.checkpoints.formats import recognise
from unmask.checkpoints.report import inspect
from unmask.cli import inspect as command

VOCAB = 20


def omegaconf(monkeypatch):
    """A stand-in for OmegaConf's classes with their pickled state: contents, and the way back to the parent."""
    module = types.ModuleType("omegaconf.dictconfig")

    class DictConfig:
        def __init__(self, content, parent=None):
            self.__dict__["_parent"], self.__dict__["_metadata"] = parent, object
            self.__dict__["_content"] = {
                key: DictConfig(value, self) if isinstance(value, dict) else AnyNode(value, self)
                for key, value in content.items()
            }

    class AnyNode:
        def __init__(self, value, parent):
            self._val, self._parent = value, parent

    for cls in (DictConfig, AnyNode):
        cls.__module__, cls.__qualname__ = module.__name__, cls.__name__
        setattr(module, cls.__name__, cls)
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def lightning(path, weights, average, monkeypatch, *, buffers=None, tokenizer=None, **config):
    """A .ckpt as MDLM's training leaves it: compiled names, the average as a bare list, and pickled settings."""
    module = omegaconf(monkeypatch)
    settings = made.nested_config() | {"parameterization": "subs", "time_conditioning": False} | config
    ema = {"decay": 0.9999, "num_updates": 7, "shadow_params": [t for n, t in average.items() if "inv_freq" not in n]}
    content = {
        "epoch": 1,
        "state_dict": {f"backbone._orig_mod.{name}": tensor for name, tensor in weights.items()} | (buffers or {}),
        "loops": {"fit_loop": {}},
        "ema": ema if average else None,
        "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}],
        "hyper_parameters": {
            "config": module.DictConfig(settings),
            "tokenizer": tokenizer or argparse.Namespace(name="gpt2"),
        },
    }
    torch.save(content, path)
    for name in (module.__name__, "omegaconf"):  # they need not be there to read the file
        monkeypatch.delitem(sys.modules, name)
    return path


def test_lightnings_average_is_what_is_sampled(tmp_path, monkeypatch):
    weights, average = made.state(VOCAB), made.state(VOCAB, seed=9)
    found = look(lightning(tmp_path / "last.ckpt", weights, average, monkeypatch))
    assert found.ema and recognise(found) is mdlm
    assert found.config["config"]["model"]["n_heads"] == 2
    assert "omegaconf.dictconfig.DictConfig" in found.pickled and "argparse.Namespace" in found.pickled
    tokens = made.canvas(VOCAB, VOCAB - 1)
    for ema, source in ((True, average), (False, weights)):
        loaded = mdlm.load(found, ema=ema)
        expected = made.without(made.forward(source, tokens, torch.zeros(3)), VOCAB - 1)
        torch.testing.assert_close(loaded.denoiser(tokens).log_softmax(-1), expected, atol=1e-5, rtol=1e-5)
        assert loaded.about["ema"] is ema
    assert torch.equal(found.read()["backbone.blocks.1.norm2.weight"], average["blocks.1.norm2.weight"])
    baseline = look(
        lightning(tmp_path / "sedd.ckpt", weights, {}, monkeypatch, parameterization="sedd", time_conditioning=True)
    )
    assert mdlm.about(baseline)["variant"] == "SEDD baseline" and not baseline.ema
    t = torch.tensor([0.2, 0.5, 0.9])
    expected = made.without(made.forward(weights, tokens, made.log_linear(t)), VOCAB - 1)
    torch.testing.assert_close(mdlm.load(baseline).denoiser(tokens, t).log_softmax(-1), expected, atol=1e-5, rtol=1e-5)


def test_an_average_that_does_not_fit_is_refused(tmp_path, monkeypatch):
    average = made.state(VOCAB)
    del average["blocks.1.norm2.weight"]
    path = lightning(tmp_path / "odd.ckpt", made.state(VOCAB), average, monkeypatch)
    with pytest.raises(ValueError, match="its average has 29 tensors, which do not fit its 30 parameters"):
        look(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_sedds_own_checkpoints_in_both_of_torchs_formats(tmp_path, zipped):
    weights, average = made.state(VOCAB), made.state(VOCAB, seed=9)
    shadow = [torch.nn.Parameter(tensor) for name, tensor in average.items() if "inv_freq" not in name]
    content = {"optimizer": {}, "model": weights, "ema": {"shadow_params": shadow, "decay": 0.9}, "step": 3}
    torch.save(content, tmp_path / "checkpoint.pth", _use_new_zipfile_serialization=zipped)
    found = look(tmp_path / "checkpoint.pth")
    assert found.ema and recognise(found) is sedd
    loaded, tokens, t = (
        sedd.load(found, length=12, mask_id=VOCAB - 1),
        made.canvas(VOCAB, VOCAB - 1),
        torch.tensor([0.2, 0.5, 0.9]),
    )
    expected = made.without(made.forward(average, tokens, made.log_linear(t)), VOCAB - 1)
    torch.testing.assert_close(loaded.denoiser(tokens, t).log_softmax(-1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_come_as_torch_reads_them(tmp_path, zipped):
    base = torch.arange(24.0).view(4, 6)
    content = {
        "a": base.t(),
        "b": base[1:3, ::2],
        "c": base,
        "half": torch.tensor([0.5, 65504], dtype=torch.float16),
        "brain": torch.tensor([1e30], dtype=torch.bfloat16),
        "long": torch.tensor([2**60]),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(3.0),
        "p": torch.nn.Parameter(torch.ones(2)),
        "flag": torch.tensor([True, False]),
    }
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    found = look(tmp_path / "x.pt").read()
    for name, tensor in torch.load(tmp_path / "x.pt", weights_only=True).items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def shards(folder, where=None):
    weights = {f"backbone.{name}": tensor for name, tensor in made.state(VOCAB).items()}
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[:15], "model-00002-of-00002.safetensors": names[15:]}
    folder.mkdir(exist_ok=True)
    for file, inside in parts.items():
        save_file({name: weights[name] for name in inside}, folder / file)
    index = {name: file for file, inside in parts.items() for name in inside} | (where or {})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    (folder / "config.json").write_text(json.dumps(made.hub_config(VOCAB)))
    return weights


def test_shards_are_joined(tmp_path):
    weights = shards(tmp_path)
    found = look(tmp_path)
    assert found.tensors.keys() == weights.keys() and len(found.weights) == 2
    assert all(torch.equal(found.read()[name], tensor) for name, tensor in weights.items())
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"names model-00002-of-00002\.safetensors, which is not there"):
        look(tmp_path)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "..", "a/../../b", "..\\secret", ""])
def test_an_index_that_leaves_its_folder_is_refused(tmp_path, name):
    save_file({"x": torch.ones(1)}, tmp_path / "secret.safetensors")
    shards(tmp_path / "m", {"x": name})
    with pytest.raises(ValueError, match="leaves its folder: it names the file"):
        look(tmp_path / "m")


def test_an_index_that_promises_too_much_is_refused(tmp_path):
    shards(tmp_path, {"x": "model-00001-of-00002.safetensors"})
    with pytest.raises(ValueError, match="has no x, which the index says it has"):
        look(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(ValueError, match="has no weight_map"):
        look(tmp_path)


def test_wrong_and_truncated_files_are_reported_in_a_line(tmp_path):
    folder = made.hub_folder(tmp_path / "m", made.state(VOCAB), made.hub_config(VOCAB))
    whole = (folder / "model.safetensors").read_bytes()
    torch.save(made.state(VOCAB), tmp_path / "whole.pt")
    torch.save(made.state(VOCAB), tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
    zipped, legacy = (tmp_path / "whole.pt").read_bytes(), (tmp_path / "legacy.pt").read_bytes()
    for content, message in (
        (whole[:-1], "is truncated: it should have"),
        (whole[:40], "is truncated, or no safetensors file"),
        (whole + b"\0", "is damaged: it should have"),
        (whole.replace(b'"F32"', b'"F99"', 1), "damaged safetensors header"),
        (zipped[:-30], "is not a whole torch file"),
        (zipped[: len(zipped) // 2], "is not a whole torch file"),
        (legacy[:-1], "the file is truncated"),
        (legacy[: len(legacy) // 2], "is not a whole torch file"),
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>404</html>", "a web page"),
        (b"GGUF" + b"\0" * 60, "is a GGUF file that cannot be read"),
        (b"hello, I am text" * 9, "neither safetensors, a torch file nor GGUF"),
        (b"\x80\x04N.", "bare pickle without torch's magic number"),
    ):
        file = tmp_path / "file.bin"
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            look(file)
        assert "\n" not in str(error.value) and str(file) in str(error.value)
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("readme", "hello")
    with pytest.raises(ValueError, match=r"without one NAME/data\.pkl"):
        look(tmp_path / "other.zip")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds no dict of weights"):
        look(tmp_path / "list.pt")
    torch.save({"step": 3, "optimizer": {}}, tmp_path / "empty.pt")
    with pytest.raises(ValueError, match=r"holds no weights\. Found: step, optimizer"):
        look(tmp_path / "empty.pt")
    (folder / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        look(folder)


def test_a_folder_without_one_set_of_weights_is_reported(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ValueError, match=r"holds no weights. Found: notes.txt. Needed: model.safetensors"):
        look(tmp_path)
    for name in ("a.ckpt", "b.ckpt"):
        torch.save({"x": torch.ones(1)}, tmp_path / name)
    with pytest.raises(ValueError, match=r"2 weight files and no index: give one of a\.ckpt, b\.ckpt"):
        look(tmp_path)
    with pytest.raises(ValueError, match="there is no file or folder"):
        look(tmp_path / "none")


def test_an_unknown_layout_lists_what_was_found_and_what_is_needed(tmp_path):
    made.written(tmp_path, {"encoder.w": torch.ones(2, 3)}, {"model_type": "vit"})
    with pytest.raises(ValueError) as error:
        unmask.load(tmp_path)
    said = str(error.value)
    assert "encoder.w [2, 3]" in said and "{'model_type': 'vit'}" in said and "model.safetensors with 1 tensors" in said
    assert all(f"{name} has" in said for name in ("MDLM", "SEDD", "RADD", "unmask"))


class Payload:
    """Unpickling one of these runs a program."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def hostile(tmp_path):
    """Files that create ``mark`` when they are unpickled, each by another opcode."""
    mark = tmp_path / "mark"
    payload, weights = Payload(mark), {f"backbone.{n}": t for n, t in made.state(VOCAB).items()}
    for zipped in (True, False):
        kind = "zip" if zipped else "old"
        torch.save(payload, tmp_path / f"alone_{kind}.pt", _use_new_zipfile_serialization=zipped)
        torch.save(
            {"state_dict": weights, "hyper_parameters": {"config": payload}},
            tmp_path / f"beside_{kind}.ckpt",
            _use_new_zipfile_serialization=zipped,
        )
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(payload))
    (tmp_path / "text.pkl").write_bytes(b"\x80\x02" + pickle.dumps(payload, 0))
    command = f"touch {mark}".encode()
    inst = b"\x80\x02(S'" + command + b"'\nios\nsystem\n."  # INST
    obj = b"\x80\x02(cos\nsystem\nS'" + command + b"'\no."  # OBJ
    build = b"\x80\x02cos\nsystem\n)\x81}S'x'\nS'y'\nsb."  # NEWOBJ and BUILD
    for name, program in (("inst", inst), ("obj", obj), ("build", build)):
        with zipfile.ZipFile(tmp_path / f"{name}.pt", "w") as archive:
            archive.writestr("archive/data.pkl", program)
    return mark


def test_a_hostile_pickle_is_listed_and_not_run(tmp_path):
    mark = hostile(tmp_path)
    files = sorted(file for file in tmp_path.iterdir())
    assert len(files) == 9
    for file in files:
        try:
            said = " ".join(inspect(file)["runs"])
        except ValueError as error:
            said = str(error)
            assert "nothing of it was run" in said or "neither" in said, (file, said)
        assert "system" in said, (file.name, said)
        with pytest.raises(ValueError):
            mdlm.load(look(file))
        assert not mark.exists(), file
    report = inspect(tmp_path / "beside_zip.ckpt")
    assert report["format"] == "MDLM" and report["runs"] == [f"{os.system.__module__}.system"]
    pickle.loads((tmp_path / "bare.pkl").read_bytes())  # the payload is real
    assert mark.exists()


def test_no_module_that_a_pickle_names_is_imported(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Thing: pass\n")
    program = b"\x80\x02ctrap\nThing\n)\x81."
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("archive/data.pkl", program)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match=r"it names trap\.Thing: nothing of it was run"):
        look(tmp_path / "x.pt")
    assert "trap" not in sys.modules and not (tmp_path / "mark").exists()


def test_greedy_and_endless_pickles_are_refused(tmp_path):
    deep = b"\x80\x02" + b"(" * 50_000 + b"t" * 50_000 + b"."  # a tuple in a tuple in a tuple ...
    keyed = b"\x80\x02}" + deep[2:-1] + b"Ns."  # ... as a key
    huge = b"\x80\x04\x8e" + (2**50).to_bytes(8, "little") + b"x."  # this many bytes are declared to follow
    storage = (
        b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\n"
        b"FloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQK\x00(\x8a\x05\x00\x00\x00\x00\x01t(K\x00t\x89}"
        b"tRs."
    )
    for i, program in enumerate((deep, keyed, huge, storage)):
        with zipfile.ZipFile(tmp_path / f"{i}.pt", "w") as archive:
            archive.writestr("archive/data.pkl", program)
            archive.writestr("archive/data/0", b"\0" * 8)
        with pytest.raises(ValueError):
            look(tmp_path / f"{i}.pt").read()


def test_damaged_bytes_give_nothing_but_an_error_in_a_line(tmp_path):
    """300 damaged files: each is read all the same, or refused with a ValueError."""
    rng = random.Random(0)
    small = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}
    save_file(small, tmp_path / "a.safetensors")
    torch.save({"state_dict": small}, tmp_path / "b.pt")
    torch.save({"state_dict": small}, tmp_path / "c.pt", _use_new_zipfile_serialization=False)
    refused = 0
    for name in ("a.safetensors", "b.pt", "c.pt"):
        whole = (tmp_path / name).read_bytes()
        for _ in range(100):
            content = bytearray(whole)
            for _ in range(rng.choice((1, 1, 4, 16))):
                content[rng.randrange(len(content))] = rng.randrange(256)
            if rng.random() < 0.2:
                del content[rng.randrange(len(content)) :]
            (tmp_path / "damaged").write_bytes(content)
            try:
                look(tmp_path / "damaged").read()
            except ValueError:
                refused += 1
    assert refused > 100


def test_safetensors_whose_first_byte_is_a_pickles_is_no_pickle(tmp_path):
    for i in range(200):
        save_file({"x" * (i + 1): torch.ones(1)}, tmp_path / "a.safetensors")
        if (tmp_path / "a.safetensors").read_bytes()[0] == 0x80:
            break
    assert (tmp_path / "a.safetensors").read_bytes()[0] == 0x80
    assert look(tmp_path / "a.safetensors").tensors


def test_buffers_of_bd3lms_training_are_not_in_the_average(tmp_path, monkeypatch):
    weights, average = made.state(VOCAB), made.state(VOCAB, seed=9)
    buffers = {"sampling_eps_min": torch.tensor(1e-3), "sampling_eps_max": torch.tensor(1.0)}
    found = look(lightning(tmp_path / "last.ckpt", weights, average, monkeypatch, buffers=buffers))
    assert torch.equal(found.read()["backbone.blocks.1.norm2.weight"], average["blocks.1.norm2.weight"])
    tokens = made.canvas(VOCAB, VOCAB - 1)
    expected = made.without(made.forward(average, tokens, torch.zeros(3)), VOCAB - 1)
    torch.testing.assert_close(mdlm.load(found).denoiser(tokens).log_softmax(-1), expected, atol=1e-5, rtol=1e-5)


def test_the_tokenizer_in_a_checkpoint_is_used_and_converted(tmp_path, monkeypatch):
    """MDLM's hyper_parameters hold the tokenizer itself, as transformers pickles it."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = {token: i for i, token in enumerate([f"w{i}" for i in range(VOCAB - 2)] + ["[UNK]", "[MASK]"])}
    plain = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, mask_token="[MASK]", unk_token="[UNK]")
    found = look(lightning(tmp_path / "last.ckpt", made.state(VOCAB), {}, monkeypatch, tokenizer=fast))
    assert mdlm.about(found)["tokenizer"] == "in the checkpoint"
    model = unmask.load(tmp_path / "last.ckpt")
    assert model.tokenizer.encode("w3 w1") == [3, 1] and model.denoiser.mask_id == VOCAB - 1
    to_own(found, tmp_path / "ours")
    ours = unmask.load(tmp_path / "ours")
    assert ours.tokenizer == model.tokenizer and ours.tokenizer.encode("w3 w1") == [3, 1]
    assert ours.sample(3, seed=1).text == model.sample(3, seed=1).text


def test_weights_that_are_not_numbers_are_refused(tmp_path):
    weights = made.state(VOCAB)
    weights["blocks.1.norm2.weight"][3] = torch.nan
    folder = made.hub_folder(tmp_path / "m", weights, made.hub_config(VOCAB))
    with pytest.raises(ValueError, match=r"1 values of backbone.blocks.1.norm2.weight are NaN or infinite"):
        mdlm.load(look(folder))


def test_pipes_links_and_other_libraries_are_reported_in_a_sentence(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(ValueError, match="a pipe, a socket or a device"):
            look(path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"gone is a link to .*nowhere, which does not exist"):
        look(tmp_path / "gone")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ValueError, match="loop cannot be read: Too many levels"):
        look(tmp_path / "loop")
    (tmp_path / "md4").mkdir()
    (tmp_path / "md4" / "_METADATA").write_text("{}")
    with pytest.raises(ValueError, match="a checkpoint of orbax"):
        look(tmp_path / "md4")


def test_the_command_says_so_too(tmp_path, capsys):
    """By its path, as a user gives it; what a config's link leads to is not guessed."""
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "md4").mkdir()
    (tmp_path / "md4" / "_METADATA").write_text("{}")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    folder = made.hub_folder(tmp_path / "loop", made.state(20), made.hub_config(20))
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    said = {
        "pipe.pt": "but a pipe, a socket or a device",
        "md4": "a checkpoint of orbax",
        "gone": "which does not exist",
        "loop": "config.json cannot be read: Too many levels",
    }
    for name, says in said.items():
        assert command.main([str(tmp_path / name)]) == 2
        assert says in capsys.readouterr().err
        with pytest.raises(ValueError, match=says):
            unmask.load(tmp_path / name)


def test_a_pickle_of_millions_of_operations_is_refused_soon(tmp_path):
    content = b"\x80\x02" + b"N0" * (unpickle.ITEM_LIMIT // 2 + 10) + b"."
    with zipfile.ZipFile(tmp_path / "long.pt", "w") as archive:
        archive.writestr("long/data.pkl", content)
    with pytest.raises(ValueError, match=f"more than {unpickle.ITEM_LIMIT} operations"):
        look(tmp_path / "long.pt")
