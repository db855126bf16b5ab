"""LLaDA's checkpoints, their logits and their decoding, against both written out from their description."""

import json
import math

import pytest
import torch

import unmask
from tests.checkpoints import llama_checkpoints as small
from tests.helpers import FALSE_ALARM, chi_square, frequencies
from unmask import plan, sample
from unmask.checkpoints import llada as adapter
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.checkpoints.report import inspect
from unmask.cli import main
from unmask.network import logits_at
from unmask.samplers import decoding

VOCAB, MASK = 13, 11


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llada")
    weights = small.llada(folder, VOCAB, MASK)
    return folder, weights, recognise(look(folder)).load(look(folder))


def canvases(prompt, masked, seed=3):
    return small.canvases(3, prompt, masked, VOCAB, MASK, seed)


def test_it_is_recognised_by_its_tensors_and_described(checkpoint):
    folder, weights, loaded = checkpoint
    assert recognise(look(folder)) is adapter
    about = adapter.about(look(folder))
    assert about == loaded.about
    assert about["parameters"] == sum(tensor.numel() for tensor in weights.values())
    assert (about["mask_id"], about["length"], about["missing"], about["unexpected"]) == (MASK, 32, [], [])
    assert loaded.tokenizer is None
    assert (loaded.denoiser.vocab_size, loaded.denoiser.mask_id, loaded.denoiser.length) == (VOCAB, MASK, 32)


def test_its_logits_are_those_of_the_forward_pass_written_out(checkpoint):
    _, weights, loaded = checkpoint
    tokens = canvases(4, 5)
    expected = torch.stack([small.llada_logits(weights, row) for row in tokens.tolist()])
    every = loaded.denoiser(tokens)
    data = [i for i in range(VOCAB) if i != MASK]
    torch.testing.assert_close(every[..., data].double(), expected[..., data], rtol=0, atol=1e-5)
    assert bool((every[..., MASK] == -math.inf).all())
    rows = torch.tensor([[8, 0], [3, 3], [5, 7]])
    some = logits_at(loaded.denoiser, tokens, None, rows)
    torch.testing.assert_close(some, every.gather(1, rows.unsqueeze(-1).expand(-1, -1, VOCAB)), rtol=0, atol=1e-5)


def published(logits, tokens, *, prompt, steps, block_length):
    """LLaDA's generate at temperature 0: block by block; of a block's masked positions, those whose likeliest token is
    the most probable are kept, an even share in each step, the remainder going to the first steps.

    Every step calls the network, those that keep nothing too. The mask is not among the predictions.
    """
    x = tokens.clone()
    count = (x.shape[1] - prompt) // block_length
    per_block = steps // count
    for block in range(count):
        end = prompt + (block + 1) * block_length
        masked = (x[:, :end] == MASK).sum(1)
        for step in range(per_block):
            p = torch.softmax(logits(x), -1)
            best, x0 = p.max(-1)
            best[:, end:] = -1
            best[x != MASK] = -1
            for row in range(len(x)):
                share = int(masked[row]) // per_block + (step < int(masked[row]) % per_block)
                chosen = best[row].sort(descending=True, stable=True).indices[:share]
                x[row, chosen] = x0[row, chosen]
    return x


@pytest.mark.parametrize(
    ("steps", "block_length"), [(8, 8), (4, 8), (3, 8), (1, 8), (4, 4), (8, 4), (6, 2), (4, 2), (24, 4), (8, 1)]
)
def test_at_temperature_0_the_order_is_the_published_algorithm(checkpoint, steps, block_length):
    _, weights, loaded = checkpoint
    tokens = canvases(5, 8)
    if steps % (8 // block_length):
        steps = 8 // block_length * (steps // (8 // block_length) + 1)

    def logits(x):
        written_out = torch.stack([small.llada_logits(weights, row) for row in x.tolist()])
        return written_out.index_fill(-1, torch.tensor([MASK]), -math.inf)

    expected = published(logits, tokens, prompt=5, steps=steps, block_length=block_length)
    made = sample(loaded.denoiser, sampler=decoding.llada(block_length), canvas=tokens, steps=steps, temperature=0.0)
    assert torch.equal(made.tokens, expected)
    assert made.calls == min(steps, 8)  # steps that would keep nothing cost no call
    if block_length > 1:  # and that is not left to right
        other = sample(loaded.denoiser, plan=plan.left_to_right, canvas=tokens, temperature=0.0).tokens
        assert not torch.equal(expected, other)


def test_first_hitting_on_the_same_weights_is_exact(tmp_path):
    """3,000 samples of three positions against enumeration over all orders."""
    weights = small.llada(tmp_path / "tiny", 4, 3)
    loaded = adapter.load(look(tmp_path / "tiny"))
    law = small.over_orders(lambda canvas: small.llada_logits(weights, canvas), 4, 3, 3)
    made = sample(loaded.denoiser, num=3000, length=3, seed=1)
    assert chi_square(frequencies(made.tokens, 4), law) > FALSE_ALARM
    assert made.calls == 3


def test_bfloat16_weights_stay_so_and_logits_are_float32(checkpoint, tmp_path):
    folder, _, loaded = checkpoint
    half = adapter.load(look(folder), dtype=torch.bfloat16).denoiser
    assert half.embed.weight.dtype == torch.bfloat16
    tokens = canvases(4, 4)
    assert half(tokens).dtype == torch.float32
    finite = loaded.denoiser(tokens).isfinite()
    assert float((half(tokens) - loaded.denoiser(tokens))[finite].abs().max()) < 0.2


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"rope_theta": None}, "its config has no number rope_theta .*: give theta"),
        ({"n_heads": 3}, "width=16 must be a multiple of heads=3"),
        ({"n_kv_heads": 2}, r"blocks.0.k_proj.weight is \[16, 16\], by the config it should be \[8, 16\]"),
        ({"alibi": True}, "a LLaDA with alibi=True is not known, only False"),
        ({"mask_token_id": None}, "neither config nor tokenizer says which id is the mask: give mask_id"),
        ({"mask_token_id": 14}, "mask_id must be in 0..vocab_size=13, got 14"),
    ],
)
def test_a_config_that_does_not_fit_is_named(tmp_path, changes, what):
    small.llada(tmp_path / "made", VOCAB, MASK, **changes)
    with pytest.raises(ValueError, match=what):
        adapter.load(look(tmp_path / "made"))


def test_missing_and_foreign_tensors_are_named(tmp_path):
    weights = small.llada_weights(VOCAB)
    del weights["model.transformer.blocks.1.up_proj.weight"]
    weights["model.transformer.extra"] = torch.zeros(2)
    small._saved(tmp_path / "made", weights, small.LLADA | {"mask_token_id": MASK})
    about = adapter.about(look(tmp_path / "made"))
    assert (about["missing"], about["unexpected"]) == (["blocks.1.up.weight"], ["model.transformer.extra"])
    with pytest.raises(ValueError, match=r"lacks 1 of the network's tensors, the first is our blocks.1.up.weight"):
        adapter.load(look(tmp_path / "made"))
    with pytest.raises(ValueError, match="LLaDA takes mask_id, length, theta and dtype, not ema=False"):
        adapter.load(look(tmp_path / "made"), ema=False)


def test_text_goes_in_and_comes_out(tmp_path, capfd):
    """A folder with a tokenizer.json, as a model and on the command line, by its own order and by first-hitting."""
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<|endoftext|>", "<|mdm_mask|>"],
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(["the heaven and the earth " * 9], trainer)
    size = made.get_vocab_size()
    small.llada(tmp_path / "made", size + 3, 1, eos_token_id=0)
    made.save(str(tmp_path / "made" / "tokenizer.json"))
    model = unmask.load(tmp_path / "made")
    assert (model.tokenizer.mask_id, model.tokenizer.eos_id, model.length) == (1, 0, 32)
    begun = model.sample(2, prompt="the heaven", length=9, sampler=decoding.llada(3), steps=6, temperature=0.0)
    assert all(
        text.startswith("the heaven") or 0 in row for text, row in zip(begun.text, begun.tokens.tolist(), strict=True)
    )
    assert bool((begun.tokens < size).all() and (begun.tokens != 1).all())
    exact = model.infill("the ____ and the earth", seed=3)
    assert exact.text[0].startswith("the ") and exact.text[0].endswith(" and the earth")
    flags = ["--decoding", "llada", "--block", "3", "--steps", "6", "--temperature", "0", "--prompt", "the heaven"]
    assert main(["sample", str(tmp_path / "made"), "--length", "9", "--number", "2", "--json", *flags]) == 0
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["tokens"] for line in lines] == begun.tokens.tolist()


def test_inspect_reports_the_sizes_and_the_ids_that_are_never_drawn(tmp_path):
    small.llada(tmp_path / "made", 40, 39)
    said = inspect(tmp_path / "made")
    assert (said["layers"], said["width"], said["heads"], said["vocab_size"]) == (2, 16, 4, 40)
    assert said["special_ids"] == [39]
