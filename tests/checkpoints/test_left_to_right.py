"""Llamas of transformers, left to right: the logits of transformers' own class, and what becomes of them."""

import json
import math

import pytest
import torch

import unmask
from tests.helpers import generator
from unmask.checkpoints import left_to_right
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.cli import main
from unmask.likelihood import per_position
from unmask.networks.adapters import AdaptedDDiT
from unmask.networks.any_order import OneStream
from unmask.networks.causal import Causal
from unmask.networks.left_reading import LeftReadingDDiT
from unmask.tokenizers.external import from_json

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
LETTERS = "abcdefgh .<|endoftext|>"


SHAPES = {
    "Llama": {},
    "Llama, wide heads": {"head_dim": 16, "rms_norm_eps": 1e-2},
    "Qwen2": {"kind": "Qwen2"},  # with biases of queries, keys and values
    "Qwen3": {"kind": "Qwen3", "head_dim": 16, "rms_norm_eps": 1e-6},  # with norms of queries and keys
}


def checkpoint(folder, kind="Llama", **changes):
    """A small model with shared keys, saved by transformers, with a tokenizer of characters."""
    torch.manual_seed(1)
    vocab = {letter: i + 1 for i, letter in enumerate("abcdefgh .")} | {"<|endoftext|>": 0}
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    given = {"num_key_value_heads": 2, "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 100000.0}
    ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": True}
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(vocab), **(sizes | given | ends | changes))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(8)
            else:  # norms, and biases, which start at zero
                parameter.add_(torch.rand_like(parameter), alpha=0.5)
    model.save_pretrained(folder)
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<|endoftext|>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    made.add_special_tokens(["<|endoftext|>"])
    made.save(str(folder / "tokenizer.json"))
    return model, len(vocab)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tied", [True, False])
def test_its_logits_are_those_of_transformers(tmp_path, tied, shape):
    model, vocab = checkpoint(tmp_path, tie_word_embeddings=tied, **SHAPES[shape])
    assert recognise(look(tmp_path)) is left_to_right
    network = left_to_right.load(look(tmp_path)).denoiser
    assert isinstance(network, Causal)
    x = torch.randint(1, vocab, (3, 16), generator=generator(0))
    with torch.no_grad():
        # transformers reads the token that begins a text, and then all but the last
        want = model(torch.cat((torch.zeros(3, 1, dtype=torch.int64), x[:, :-1]), 1)).logits.log_softmax(-1)
        torch.testing.assert_close(network(x).log_softmax(-1), want, rtol=0, atol=1e-4)
    assert float(want.std()) > 0.5  # not uniform


def test_an_eps_that_was_stored_in_float32_is_the_same(tmp_path):
    checkpoint(tmp_path, rms_norm_eps=float(torch.tensor(1e-5)), unk_token_id=0)
    assert left_to_right.about(look(tmp_path))["layers"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias=True"),
        ({"kind": "Qwen2", "use_sliding_window": True, "max_window_layers": 1}, "use_sliding_window=True"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "'linear'"),
    ],
)
def test_another_network_is_refused_by_the_setting(tmp_path, changes, message):
    checkpoint(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        left_to_right.about(look(tmp_path))


def test_every_end_of_the_generation_config_ends_a_text(tmp_path):
    """As chat models have them: one end for a turn and one for a document."""
    checkpoint(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [10, 0]}))
    model, alone = unmask.load(tmp_path), (0,)
    assert model.rows.ends == (0, 10) and model.tokenizer.eos_id == 0
    assert model.decode([1, 2, 10, 3]) == "ab" and model.rows.ended([1, 10]) and not model.rows.ended([1, 2])
    assert from_json(model.tokenizer.to_json()).other_ends == (10,)
    with_all, with_one = (model.sample(32, length=16, seed=1, stop=stop).tokens for stop in (True, alone))
    ends = torch.isin(with_all, torch.tensor([0, 10]))
    behind = ends.long().cumsum(1) - ends.long() > 0
    assert bool((with_all[behind] == 0).all())
    first = ends & ~behind
    assert bool((with_all[first] == 10).any()) and bool((with_all[first] == 0).any())
    assert torch.equal(with_all[~behind], with_one[~behind])  # the same tokens up to the first end
    assert not torch.equal(with_all, with_one)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join("".join("abcdefgh ."[(i * 7 + j * j) % 10] for j in range(15)) for i in range(60)))
    return path


@pytest.mark.parametrize("shape", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize(
    ("process", "more", "kind"),
    [
        ("masked", ["--anneal", "2"], LeftReadingDDiT),
        ("blocks", ["--block", "2"], AdaptedDDiT),
        ("any-order", ["--neighbours", "1"], OneStream),
    ],
)
def test_training_starts_from_it(tmp_path, text, process, more, kind, shape):
    """A step that changes nothing: the saved model answers from left to right as the checkpoint does."""
    checkpoint(tmp_path / "base", **SHAPES[shape])
    out = tmp_path / "run"
    still = ["--steps", "1", "--learning-rate", "1e-30", "--batch", "2", "--no-preview", "--no-tensorboard"]
    command = ["train", str(text), "--init", str(tmp_path / "base"), "--process", process, "--out", str(out), *more]
    assert main([*command, *still, "--device", "cpu", "--threads", "1"]) == 0
    model, given = unmask.load(out), unmask.load(tmp_path / "base")
    assert isinstance(model.denoiser, kind)
    x = torch.randint(1, 11, (2, 16), generator=generator(3))
    want = given.denoiser(x).log_softmax(-1).gather(2, x.unsqueeze(2)).sum((1, 2)).double()
    if process != "masked":
        nats = per_position(model.denoiser, x, torch.arange(2), None)
        torch.testing.assert_close(-nats.sum(1), want, rtol=0, atol=1e-4)
    assert len(model.sample(1, seed=2).text[0]) > 0
    assert math.isfinite(json.loads((out / "metrics.jsonl").read_text().splitlines()[-1]).get("loss", 0.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--process", "blocks"], "name it with init"),
        (["--init", "digits", "--process", "masked"], "starts from a left-to-right"),
        (["--init", "BASE", "--process", "masked", "--layers", "2"], "cannot be chosen"),
        (["--init", "BASE", "--anneal", "2"], "is for process='masked'"),
    ],
)
def test_what_does_not_start_from_it_is_refused(tmp_path, text, capsys, arguments, message):
    checkpoint(tmp_path / "base")
    named = [str(tmp_path / "base") if one == "BASE" else one for one in arguments]
    try:
        code = main(["train", str(text), "--out", str(tmp_path / "run"), *named])
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert message in capsys.readouterr().err
