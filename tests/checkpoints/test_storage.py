"""``weights=``: what is stored how, what it costs, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import unmask
from tests.checkpoints import llama_checkpoints as small
from tests.helpers import generator
from unmask.checkpoints import llada
from unmask.checkpoints.contents import look
from unmask.checkpoints.storage import store
from unmask.cli import main
from unmask.evaluate.likelihood.partial import fingerprint
from unmask.networks import stored

VOCAB, MASK = 13, 11
# Largest differences of log-probabilities of the small LLaDA that were measured are 0.02, 0.06 and 0.6.
CLOSE = {"bfloat16": 0.1, "int8": 0.2, "int4": 2.0}


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    monkeypatch.setattr(stored, "has_bfloat16", lambda kind: False)


def checkpoint(folder, dtype=torch.float32, **changes):
    small.llada(folder, VOCAB, MASK, **changes)
    file = folder / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)
    return llada.load(look(folder)).denoiser


def kinds(network):
    return {one.name for one in network.modules() if isinstance(one, stored.Matrix)}


def tokens():
    return torch.randint(0, VOCAB - 2, (2, 9), generator=generator(0))


@pytest.mark.parametrize(("weights", "expected"), [("bfloat16", {"bfloat16"}), ("int8", {"int8"}), ("int4", {"int8"})])
def test_a_llama_is_stored_whole(tmp_path, weights, expected):
    plain = checkpoint(tmp_path)
    x, want = tokens(), plain(tokens()).log_softmax(-1)
    network = store(checkpoint(tmp_path), weights)
    assert kinds(network) == expected  # its rows of 16 and 24 weights are no groups of int4
    assert not any(type(one) in (nn.Linear, nn.Embedding) for one in network.modules())
    data = [i for i in range(VOCAB) if i != MASK]
    away = (network(x).log_softmax(-1) - want)[..., data].abs().max()
    assert 0 < float(away) < CLOSE[weights]
    torch.testing.assert_close(store(checkpoint(tmp_path), "float32")(x), plain(x))


def test_auto_keeps_float32_and_the_tensors_of_a_file_in_bfloat16(tmp_path):
    plain = checkpoint(tmp_path)
    assert store(plain, "auto") is plain
    assert not kinds(plain)
    half = checkpoint(tmp_path, torch.bfloat16)
    there = half.blocks[0].q.weight.data_ptr()
    want = checkpoint(tmp_path, torch.bfloat16).float()(tokens())
    assert not kinds(store(checkpoint(tmp_path, torch.bfloat16), "auto", on_cpu=False))
    network = store(half, "auto")
    assert network.blocks[0].q.matrix.weight.data_ptr() == there
    torch.testing.assert_close(network(tokens()), want, rtol=0, atol=1e-5)


def test_a_tied_matrix_is_stored_once(tmp_path):
    weights = small.llada_weights(VOCAB)
    del weights["model.transformer.ff_out.weight"]
    small.llada(tmp_path, VOCAB, MASK, weight_tying=True)
    save_file(weights, tmp_path / "model.safetensors")
    network = store(llada.load(look(tmp_path)).denoiser, "int8")
    plain = llada.load(look(tmp_path)).denoiser
    assert network.head is None
    assert float((network(tokens()).softmax(-1) - plain(tokens()).softmax(-1)).abs().max()) < 0.1


@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
def test_the_networks_of_the_box_are_sampled_from_stored_blocks(weights):
    """The network for sampling, with its constants folded and its parts cached, is the stored one."""
    network = unmask.load("digits", weights=weights).denoiser
    assert weights in kinds(network)
    x = torch.full((2, network.length), network.mask_id)
    x[:, 3] = 5
    rows = torch.arange(network.length).expand(2, -1)
    with torch.inference_mode():
        plain = unmask.load("digits").denoiser(x).softmax(-1)
        direct, sampling = network(x).softmax(-1), network.for_sampling()(x, rows=rows).softmax(-1)
    # float16 scales of int4 are rounded again when the gates are folded into them
    torch.testing.assert_close(direct, sampling, rtol=0, atol=5e-3 if weights == "int4" else 1e-5)
    assert 1e-6 < float((direct - plain).abs().max()) < 0.5
    tokens = unmask.sample(network, num=2, seed=1, steps=4).tokens
    assert not bool((tokens == network.mask_id).any())


def test_two_storages_have_two_fingerprints():
    assert len({fingerprint(unmask.load("digits", weights=w).denoiser) for w in ("auto", "int8", "int4")}) == 3


def test_evaluation_says_what_a_storage_costs(capsys):
    def evaluated(*arguments):
        command = ["evaluate", "digits", "digits", "--number", "6", "--passes", "2", "--json", *arguments]
        assert main(command) == 0
        return json.loads(capsys.readouterr().out)

    coarse, plain = evaluated("--weights", "int4", "--beside", "float32"), evaluated("--weights", "float32")
    gap = coarse["bits_per_token"]["value"] - plain["bits_per_token"]["value"]
    beside = coarse["beside"]
    assert (beside["weights"], beside["than"]) == ("int4", "float32")
    assert beside["difference_in_bits_per_token"] == pytest.approx(gap, abs=1e-12)
    # Paired: what the sequences have in common is in no difference.
    assert 0 < beside["error_of_difference"] < 0.3 * plain["bits_per_token"]["error_over_sequences"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--beside", "auto"], "what --weights already says"),
        (["--beside", "int8", "--until", "0.1"], "leave --until out"),
        (["--weights", "int3"], "invalid choice"),
    ],
)
def test_what_cannot_be_compared_is_refused(capsys, arguments, message):
    try:
        code = main(["evaluate", "digits", "digits", *arguments])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err


def test_what_cannot_be_stored_is_refused():
    with pytest.raises(unmask.OptionError, match="must be one of auto, float32") as refusal:
        unmask.load("digits", weights="int3")
    assert refusal.value.option == "weights"
    with pytest.raises(unmask.OptionError, match="no linear maps"):
        store(nn.Conv1d(1, 1, 1), "int8")
    with pytest.raises(unmask.OptionError, match="no weights"):
        store(object(), "int8")
