"""Dream's checkpoints, their shifted logits and their decoding, against both written out from their description."""

import json
import math

import pytest
import torch

from tests.checkpoints import llama_checkpoints as small
from tests.helpers import FALSE_ALARM, chi_square, frequencies
from unmask import sample
from unmask.checkpoints import dream as adapter
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.samplers import decoding

VOCAB, MASK = 13, 11


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dream")
    weights = small.dream(folder, VOCAB, MASK)
    return folder, weights, recognise(look(folder)).load(look(folder))


def canvases(prompt, masked, seed=3):
    return small.canvases(2, prompt, masked, VOCAB, MASK, seed)


def test_it_is_recognised_by_config_and_tensors_and_described(checkpoint, tmp_path):
    folder, weights, loaded = checkpoint
    assert recognise(look(folder)) is adapter
    about = adapter.about(look(folder))
    assert about == loaded.about
    assert about["parameters"] == sum(tensor.numel() for tensor in weights.values())
    assert (about["mask_id"], about["length"], about["missing"], about["unexpected"]) == (MASK, 2048, [], [])
    small.dream(tmp_path / "qwen2", VOCAB, MASK, model_type="qwen2", architectures=["Qwen2ForCausalLM"])
    assert not adapter.recognises(look(tmp_path / "qwen2"))


def test_its_logits_are_those_of_the_forward_pass_written_out_and_shifted(checkpoint):
    _, weights, loaded = checkpoint
    tokens = canvases(4, 5)
    expected = torch.stack([small.dream_logits(weights, row) for row in tokens.tolist()])
    every = loaded.denoiser(tokens)
    data = [i for i in range(VOCAB) if i != MASK]
    torch.testing.assert_close(every[..., data].double(), expected[..., data], rtol=0, atol=1e-5)
    assert bool((every[..., MASK] == -math.inf).all())
    rows = torch.tensor([[8, 0, 1], [3, 3, 7]])
    some = loaded.denoiser(tokens, rows=rows)
    torch.testing.assert_close(some, every.gather(1, rows.unsqueeze(-1).expand(-1, -1, VOCAB)), rtol=0, atol=1e-5)


def published(logits, tokens, *, steps, alg, eps=1e-3):
    """Dream's diffusion_generate at temperature 0: in the step from t to s, of the masked positions floor(n (1 - s/t))
    are filled, those of the highest confidence by alg, with their likeliest tokens; in the last step all.

    Every step calls the network, those that fill nothing too. The mask is not among the predictions.
    """
    x = tokens.clone()
    times = torch.linspace(1, eps, steps + 1)
    for step in range(steps):
        p = torch.softmax(logits(x), -1)
        best = p.sort(-1, descending=True).values
        confidence = {
            "maskgit_plus": best[..., 0],
            "topk_margin": best[..., 0] - best[..., 1],
            "entropy": (p * torch.log(p + 1e-10)).sum(-1),
        }[alg]
        for row in range(len(x)):
            masked = x[row] == MASK
            ratio = 1 - times[step + 1] / times[step] if step < steps - 1 else 1.0
            ranked = confidence[row].masked_fill(~masked, -math.inf).sort(descending=True).indices
            chosen = ranked[: int(masked.sum() * ratio)]
            x[row, chosen] = p[row, chosen].argmax(-1)
    return x


@pytest.mark.parametrize("steps", [1, 3, 7, 12])
@pytest.mark.parametrize("alg", ["entropy", "maskgit_plus", "topk_margin"])
def test_at_temperature_0_the_order_is_the_published_algorithm(checkpoint, alg, steps):
    _, weights, loaded = checkpoint
    tokens = canvases(4, 7)

    def logits(x):
        written_out = torch.stack([small.dream_logits(weights, row) for row in x.tolist()])
        return written_out.index_fill(-1, torch.tensor([MASK]), -math.inf)

    expected = published(logits, tokens, steps=steps, alg=alg)
    made = sample(loaded.denoiser, sampler=decoding.dream(alg), canvas=tokens, steps=steps, temperature=0.0)
    assert torch.equal(made.tokens, expected)
    assert made.calls <= min(steps, 7)


def test_first_hitting_on_the_same_weights_is_exact(tmp_path):
    """3,000 samples of three positions against enumeration over all orders."""
    weights = small.dream(tmp_path / "tiny", 4, 3)
    loaded = adapter.load(look(tmp_path / "tiny"))
    law = small.over_orders(lambda canvas: small.dream_logits(weights, canvas), 4, 3, 3)
    made = sample(loaded.denoiser, num=3000, length=3, seed=1)
    assert chi_square(frequencies(made.tokens, 4), law) > FALSE_ALARM


def test_a_head_that_is_tied_to_the_embedding(tmp_path):
    weights = small.dream_weights(VOCAB)
    del weights["lm_head.weight"]
    small._saved(tmp_path / "tied", weights, small.DREAM | {"mask_token_id": MASK, "tie_word_embeddings": True})
    made = adapter.load(look(tmp_path / "tied")).denoiser
    expected = small.dream_logits(weights | {"lm_head.weight": weights["model.embed_tokens.weight"]}, [1, MASK, 2])
    torch.testing.assert_close(
        made(torch.tensor([[1, MASK, 2]]))[0, :, :MASK].double(), expected[:, :MASK], rtol=0, atol=1e-5
    )


def test_its_tokenizer_is_read_without_its_code(tmp_path):
    """vocab.json, merges.txt and the added tokens of tokenizer_config.json; digits are separate, as in Qwen2."""
    from unmask.tokenizers.tokenizer import byte_spelling

    spelling = byte_spelling()
    letters = list(dict.fromkeys(spelling))
    pairs = [("t", "h"), ("th", "e"), (spelling[32], "the"), ("1", "2")]
    vocab = {token: i for i, token in enumerate([*letters, *("".join(pair) for pair in pairs)])}
    added = {str(len(vocab) + i): {"content": token} for i, token in enumerate(("<|endoftext|>", "<|mask|>"))}
    eos, mask = len(vocab), len(vocab) + 1
    weights = small.dream(tmp_path / "made", len(vocab) + 5, mask, eos_token_id=eos, pad_token_id=eos)
    assert weights["lm_head.weight"].shape[0] == len(vocab) + 5
    folder = tmp_path / "made"
    (folder / "vocab.json").write_text(json.dumps(vocab))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs))
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    loaded = adapter.load(look(folder))
    tokenizer = loaded.tokenizer
    assert (tokenizer.mask_id, tokenizer.eos_id, tokenizer.vocab_size) == (mask, eos, len(vocab) + 2)
    ids = tokenizer.encode("the the 12")
    assert ids == [vocab["the"], vocab[spelling[32] + "the"], vocab[spelling[32]], vocab["1"], vocab["2"]]
    assert tokenizer.decode(ids) == "the the 12"
    logits = loaded.denoiser(torch.tensor([[1, mask]]))
    assert bool((logits[..., [mask, len(vocab) + 2, len(vocab) + 4]] == -math.inf).all())
    assert bool(logits[..., eos].isfinite().all())


def test_what_this_network_is_not_is_named(tmp_path):
    small.dream(tmp_path / "made", VOCAB, MASK, rope_scaling={"type": "longrope"})
    with pytest.raises(ValueError, match="rotary positions are scaled by 'longrope'; known are default, linear"):
        adapter.load(look(tmp_path / "made"))
    small.dream(tmp_path / "other", VOCAB, MASK, num_key_value_heads=4)
    with pytest.raises(ValueError, match=r"k_proj.bias is \[8\], by the config it should be \[16\]"):
        adapter.load(look(tmp_path / "other"))


@pytest.mark.parametrize("where", ["config.json", "generation_config.json", "added_tokens.json"])
def test_a_dreamon_is_refused_because_its_tokens_change_the_length(tmp_path, where):
    small.dream(tmp_path, 12, 11, **({"expand_token_id": 10} if where == "config.json" else {}))
    if where != "config.json":
        assert recognise(look(tmp_path)) is adapter
        sign = {"expand_token_id": 10} if where == "generation_config.json" else {"<|expand|>": 10}
        (tmp_path / where).write_text(json.dumps(sign))
    with pytest.raises(ValueError, match="is DreamOn, whose expand and delete tokens"):
        recognise(look(tmp_path))
