"""``unmask inspect`` and ``unmask convert``: what they say, and round trips."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import unmask
from tests.checkpoints import checkpoints as made
from tests.small_models import folder as own_folder
from unmask.checkpoints import mdlm
from unmask.checkpoints.contents import look
from unmask.checkpoints.convert import to_mdlm, to_own
from unmask.cli import main
from unmask.tokenizers.vocabularies import bytes_of_utf8

VOCAB = 258  # 256 bytes, eos and the mask


def hub(path, **changes):
    folder = made.hub_folder(path, made.state(VOCAB), made.hub_config(VOCAB, **changes))
    bytes_of_utf8().save(folder / "tokenizer.json")
    return folder


def test_mdlms_hub_layout_comes_back_bit_for_bit(tmp_path):
    before = hub(tmp_path / "hub")
    to_own(look(before), tmp_path / "ours")
    to_mdlm(look(tmp_path / "ours"), tmp_path / "back")
    was, now = load_file(before / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert was.keys() == now.keys()
    assert all(was[name].dtype == now[name].dtype and torch.equal(was[name], now[name]) for name in was)
    assert json.loads((before / "config.json").read_text()) == json.loads((tmp_path / "back/config.json").read_text())
    with safe_open(tmp_path / "back" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
    texts = [unmask.load(tmp_path / name).sample(2, seed=3).text for name in ("hub", "ours", "back")]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precisions_come_back_too(tmp_path, dtype):
    weights = {name: tensor if "inv_freq" in name else tensor.to(dtype) for name, tensor in made.state(VOCAB).items()}
    before = made.hub_folder(tmp_path / "hub", weights, made.hub_config(VOCAB, torch_dtype=str(dtype)[6:]))
    bytes_of_utf8().save(before / "tokenizer.json")
    to_own(look(before), tmp_path / "ours")
    to_mdlm(look(tmp_path / "ours"), tmp_path / "back")
    was, now = load_file(before / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert was.keys() == now.keys()
    assert all(was[name].dtype == now[name].dtype and torch.equal(was[name], now[name]) for name in was)


def test_the_time_that_is_fed_is_kept_in_the_folder(tmp_path, capsys):
    before = hub(tmp_path / "hub")
    assert main(["convert", str(before), str(tmp_path / "fed"), "--time", "yes"]) == 0
    assert "MDLM -> unmask" in capsys.readouterr().err
    fed = unmask.load(tmp_path / "fed")
    assert fed.denoiser.config.conditioning == "time"
    assert fed.sample(2, seed=1).text == unmask.load(before, time=True).sample(2, seed=1).text
    unfed = unmask.load(tmp_path / "fed", time=False)
    assert unfed.sample(2, seed=1).text == unmask.load(before).sample(2, seed=1).text
    assert main(["convert", str(tmp_path / "fed"), str(tmp_path / "back"), "--to", "mdlm"]) == 0
    assert json.loads((tmp_path / "back" / "config.json").read_text())["time_conditioning"] is True


def test_our_own_networks_go_to_mdlms_layout_with_a_column_for_the_mask(tmp_path):
    ours = own_folder(tmp_path / "ours", "bytes")
    to_mdlm(look(ours), tmp_path / "hub")
    stored = load_file(tmp_path / "hub" / "model.safetensors")
    assert stored["backbone.output_layer.linear.weight"].shape[0] == 258
    config = json.loads((tmp_path / "hub" / "config.json").read_text())
    assert (config["model_type"], config["vocab_size"], config["n_blocks"]) == ("mdlm", 258, 1)
    back = mdlm.load(look(tmp_path / "hub"))
    tokens = made.canvas(257, 257)
    theirs, own = back.denoiser(tokens), unmask.load(ours).denoiser(tokens)
    torch.testing.assert_close(theirs[..., :257].log_softmax(-1), own.log_softmax(-1), atol=1e-5, rtol=1e-5)
    assert unmask.load(tmp_path / "hub").sample(2, seed=1).text == unmask.load(ours).sample(2, seed=1).text


def test_sedd_and_radd_become_our_folders(tmp_path):
    t, tokens = torch.tensor([0.2, 0.5, 0.9]), made.canvas(VOCAB, VOCAB - 1)
    for name, adaln in (("sedd", True), ("radd", False)):
        weights = made.state(VOCAB, adaln=adaln, norm_bias=not adaln)
        folder = made.written(tmp_path / name, weights, made.nested_config())
        bytes_of_utf8().save(folder / "tokenizer.json")
        to_own(look(folder), tmp_path / f"our-{name}")
        model = unmask.load(tmp_path / f"our-{name}")
        sigma = made.log_linear(t) if adaln else None
        expected = made.without(made.forward(weights, tokens, sigma), VOCAB - 1)
        torch.testing.assert_close(model.denoiser(tokens, t).log_softmax(-1), expected, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="MDLM's network has no adaln=False, norm_bias=True"):
        to_mdlm(look(tmp_path / "our-radd"), tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_what_cannot_be_converted_is_an_error_and_nothing_is_written(tmp_path, capsys):
    baseline = made.hub_folder(tmp_path / "ar", made.state(50_258, adaln=False), made.hub_config(50_258))
    before = hub(tmp_path / "hub")
    for arguments, message in (
        ((str(baseline), "out"), "whose network (Given) is not the DDiT"),
        ((str(before), str(before)), "already exists; nothing was written"),
        ((str(before), "out", "--to", "mdlm", "--half"), "--half is for the layout unmask"),
        ((str(tmp_path / "none"), "out"), "there is no model"),
    ):
        given = [str(tmp_path / "out") if argument == "out" else argument for argument in arguments]
        assert main(["convert", *given]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_inspect_says_what_it_is(tmp_path, capsys):
    folder = hub(tmp_path / "hub")
    assert main(["inspect", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    wanted = {
        "format": "MDLM",
        "variant": "MDLM",
        "mask_id": 257,
        "vocab_size": 258,
        "length": 12,
        "layers": 2,
        "width": 16,
        "heads": 2,
        "time": "none: sigma is fed as 0",
        "has_average": False,
        "tokenizer": "tokenizer.json, of this project",
        "missing": [],
        "unexpected": [],
        "pickled": [],
        "runs": [],
        "can_be_sampled": True,
        "why_not": None,
    }
    assert {key: said[key] for key in wanted} == wanted
    assert said["dtypes"].keys() == {"float32"} and said["tensors"] == 31
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "MDLM" in shown and "mask        257 of 258 ids" in shown and "sampling    possible" in shown


def test_inspect_says_why_not(tmp_path, capsys):
    weights = made.state(VOCAB)
    del weights["blocks.0.norm1.weight"]
    made.hub_folder(tmp_path / "less", weights, made.hub_config(VOCAB))
    bytes_of_utf8().save(tmp_path / "less" / "tokenizer.json")
    assert main(["inspect", str(tmp_path / "less")]) == 1
    shown = capsys.readouterr().out
    assert "missing     backbone.blocks.0.norm1.weight" in shown and "not possible: 1 tensors are missing" in shown
    made.hub_folder(tmp_path / "mute", made.state(VOCAB), made.hub_config(VOCAB))
    assert main(["inspect", str(tmp_path / "mute")]) == 0
    shown = capsys.readouterr().out
    assert "token ids only: " in shown and "no tokenizer of 257 ids" in shown
    made.written(tmp_path / "what", {"encoder.w": torch.ones(2, 3)}, None)
    assert main(["inspect", str(tmp_path / "what"), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["format"] is None and said["parameters"] == 6 and "has an unknown format" in said["why_not"]
    (tmp_path / "broken.ckpt").write_bytes(b"PK\x03\x04 and nothing more")
    assert main(["inspect", str(tmp_path / "broken.ckpt")]) == 2
    assert "is not a whole torch file" in capsys.readouterr().err


def test_inspect_lists_what_a_pickle_names(tmp_path, capsys):
    content = {"model": made.state(VOCAB), "config": made.nested_config(), "args": torch.optim.SGD, "step": 1}
    torch.save(content, tmp_path / "checkpoint.pth")
    bytes_of_utf8().save(tmp_path / "tokenizer.json")
    assert main(["inspect", str(tmp_path / "checkpoint.pth")]) == 0
    shown = capsys.readouterr().out
    assert "SEDD" in shown and "torch.optim.sgd.SGD" in shown and "none was imported or run" in shown
    assert "WARNING" not in shown


def test_inspect_knows_our_own_folders(tmp_path, capsys):
    assert main(["inspect", str(own_folder(tmp_path / "m", "bytes")), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["format"], said["variant"], said["mask_id"], said["can_be_sampled"]) == ("unmask", "ddit", 257, True)


def test_sample_and_infill_work_from_the_command_line(tmp_path, capsys):
    folder = hub(tmp_path / "hub")
    assert main(["sample", str(folder), "--number", "2", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(records) == 2 and all(max(record["tokens"]) < 257 for record in records)
    assert main(["infill", str(folder), "a____b"]) == 0
    filled = capsys.readouterr().out
    assert filled.startswith("a") and filled.endswith("b\n")
