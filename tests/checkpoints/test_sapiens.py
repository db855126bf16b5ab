"""fairseq's RoBERTa: a small random file built here, and the real Sapiens, against a forward pass in plain torch."""

import argparse

import pytest
import torch
from torch.nn import functional as F

import unmask
from tests.data.test_corpora import index_needed
from tests.helpers import generator
from unmask.checkpoints import packages as weights
from unmask.checkpoints import sapiens
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise

ALPHABET = "ACDEFGHIKLMNPQRSTVWY"
TRASTUZUMAB = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRY"
    "ADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYWGQGTLVTVSS"
)
GERMLINE = (  # made up after the human germline: IGHV3-23, a D segment, IGHJ4
    "EVQLLESGGGLVQPGGSLRLSCAASGFTFSSYAMSWVRQAPGKGLEWVSAISGSGGSTYYADSVKGRFTISRDNSKNTLYLQMNSLRAEDTAVYYCAKDGYSSGWYFDYWGQGTLVTVSS"
)
LIGHT = "DIQMTQSPSSLSASVGDRVTITCRASQSISSYLNWYQQKPGKAPKLLIYAASSLQSGVPSRFSGSGSGTDFTLTISSLQPEDFATYYCQQSYSTPLTFGGGTKVEIK"


def plain(state: dict[str, torch.Tensor], ids: torch.Tensor, *, layers: int, heads: int, at: str) -> torch.Tensor:
    """fairseq's RoBERTa: positions from 2, norm after each residual, exact GELU; dense, GELU, norm, linear."""

    def linear(x, name):
        return x @ state[f"{at}.{name}.weight"].T + state[f"{at}.{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred / scale * state[f"{at}.{name}.weight"] + state[f"{at}.{name}.bias"]

    encoder = "sentence_encoder"
    positions = state[f"{at}.{encoder}.embed_positions.weight"][2 : 2 + ids.shape[1]]
    x = norm(state[f"{at}.{encoder}.embed_tokens.weight"][ids] + positions, f"{encoder}.emb_layer_norm")
    for i in range(layers):
        layer = f"{encoder}.layers.{i}"
        q, k, v = (linear(x, f"{layer}.self_attn.{name}_proj").unflatten(-1, (heads, -1)) for name in "qkv")
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5, -1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)
        x = norm(x + linear(mixed, f"{layer}.self_attn.out_proj"), f"{layer}.self_attn_layer_norm")
        x = norm(x + linear(F.gelu(linear(x, f"{layer}.fc1")), f"{layer}.fc2"), f"{layer}.final_layer_norm")
    return linear(norm(F.gelu(linear(x, "lm_head.dense")), "lm_head.layer_norm"), "lm_head")


def write(folder, *, width=16, hidden=24, layers=2, positions=20, at="decoder", symbols=ALPHABET, **arguments):
    """A fairseq file of random weights, in torch's old container, with its dictionary."""
    random = generator(1)

    def normal(*shape):
        return torch.randn(shape, generator=random)

    vocab = len(symbols) + 5
    state = {
        "sentence_encoder.embed_tokens.weight": normal(vocab, width),
        "sentence_encoder.embed_positions.weight": normal(positions, width),
    }
    linears = {"lm_head": (vocab, width), "lm_head.dense": (width, width)}
    norms = ["sentence_encoder.emb_layer_norm", "lm_head.layer_norm"]
    for i in range(layers):
        layer = f"sentence_encoder.layers.{i}"
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linears[f"{layer}.self_attn.{name}"] = (width, width)
        linears |= {f"{layer}.fc1": (hidden, width), f"{layer}.fc2": (width, hidden)}
        norms += [f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"]
    for name, shape in linears.items():
        state |= {f"{name}.weight": 0.4 * normal(*shape), f"{name}.bias": 0.4 * normal(shape[0])}
    for name in norms:
        state |= {f"{name}.weight": 1 + 0.2 * normal(width), f"{name}.bias": 0.2 * normal(width)}
    state = {f"{at}.{name}": tensor for name, tensor in state.items()}
    settings = argparse.Namespace(**{"encoder_attention_heads": 4, "arch": "roberta_small", **arguments})
    path = folder / "checkpoint.pt"
    torch.save({"args": settings, "model": state}, path, _use_new_zipfile_serialization=False)
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    return path, state


def framed(tokens: torch.Tensor) -> torch.Tensor:
    return F.pad(F.pad(tokens, (1, 0), value=0), (0, 1), value=2)


@pytest.mark.parametrize("at", ["decoder", "encoder"])
def test_it_is_what_its_tensors_say(tmp_path, at):
    path, state = write(tmp_path, at=at)
    found = look(path)
    assert recognise(found) is sapiens and "argparse.Namespace" in found.pickled
    denoiser = sapiens.load(found).denoiser
    tokens = torch.randint(4, 25, (3, 11), generator=generator(2))
    expected = plain(state, framed(tokens), layers=2, heads=4, at=at)[:, 1:-1]
    whole = denoiser(tokens)
    assert torch.allclose(whole[..., 4:24], expected[..., 4:24], atol=1e-5) and float(expected.std()) > 0.3
    assert bool(whole[..., [0, 1, 2, 3, 24]].isneginf().all())
    rows = torch.tensor([[10, 0], [3, 3], [4, 5]])
    some = whole.gather(1, rows.unsqueeze(-1).expand(-1, -1, 25))
    assert torch.allclose(denoiser(tokens, rows=rows), some, atol=1e-5)


def test_it_samples_and_infills(tmp_path):
    path, _ = write(tmp_path)
    model = unmask.load(path)
    assert model.length == 16  # 20 positions from 2 on, and two special tokens
    assert all(set(text) <= set(ALPHABET) and len(text) == 16 for text in model.sample(5).text)
    for text in model.infill("ACD___WY", 5).text:
        assert text.startswith("ACD") and text.endswith("WY") and len(text) == 8
    with pytest.raises(ValueError, match=r"a canvas of 17 tokens: this network takes at most 16 \(18 with the special"):
        model.infill("A" * 16 + "_")
    with pytest.raises(ValueError, match="the character 'x' at 0 is not among the tokenizer's 20: ACDEF"):
        model.infill("x___")


def test_what_is_wrong_with_a_file_is_reported(tmp_path):
    path, state = write(tmp_path)
    (tmp_path / "dict.txt").write_text("A 1\n")
    with pytest.raises(ValueError, match=r"knows 25 ids, and dict\.txt 6: they do not belong together"):
        unmask.load(path)
    (tmp_path / "dict.txt").unlink()
    with pytest.raises(ValueError, match=r"without fairseq's dict\.txt"):
        unmask.load(path)
    for wrong in (3, None):
        write(tmp_path, encoder_attention_heads=wrong)
        with pytest.raises(ValueError, match=f"encoder_attention_heads must divide 16, and its arguments say {wrong}"):
            unmask.load(path)
    write(tmp_path, encoder_normalize_before=True)
    with pytest.raises(ValueError, match="only post-norm networks"):
        unmask.load(path)
    with pytest.raises(ValueError, match="there is no setting 'mask_id'"):
        unmask.load(write(tmp_path)[0], mask_id=3)
    del state["decoder.lm_head.bias"]
    torch.save({"args": argparse.Namespace(encoder_attention_heads=4), "model": state}, path)
    with pytest.raises(ValueError, match=r"lm_head\.bias should be \[25\] and is missing; 1 of 42 tensors do not fit"):
        unmask.load(path)


def masked_recovery(model: unmask.Model, chain: str, *, repeats: int = 20) -> tuple[float, float]:
    """The part of 30 masked residues that are the likeliest ones, and -log p of a residue, over several masks."""
    tokens = torch.tensor([model.tokenizer.encode(chain)] * repeats)
    at = torch.stack([torch.randperm(len(chain), generator=generator(i))[:30] for i in range(repeats)])
    truth = tokens.gather(1, at)
    with torch.no_grad():
        logits = model.denoiser(tokens.scatter(1, at, model.denoiser.mask_id), rows=at).double()
    nats = -logits.log_softmax(-1).gather(-1, truth.unsqueeze(-1))
    return float((logits.argmax(-1) == truth).double().mean()), float(nats.mean())


class TestSapiens:
    def test_the_real_heavy_chain_model(self):
        """Names, sizes and outputs of the file itself; a chain near the germline is recovered, a light one not."""
        with index_needed():
            path = weights.fetch("sapiens")
        model = unmask.load("sapiens")
        assert model.name == "sapiens" and model.length == 142 and model.tokenizer.kind == "characters"
        tokens = torch.tensor([model.tokenizer.encode(TRASTUZUMAB)])
        tokens[0, ::3] = model.denoiser.mask_id
        with torch.no_grad():
            expected = plain(look(path).read(), framed(tokens), layers=4, heads=8, at="decoder")[:, 1:-1]
            assert torch.allclose(model.denoiser(tokens)[..., 4:24], expected[..., 4:24], atol=1e-5)
        recovered, nats = masked_recovery(model, GERMLINE)
        assert recovered > 0.9 and nats < 0.5
        assert masked_recovery(model, LIGHT)[1] > 2.0

    def test_infilling_by_name(self):
        with index_needed():
            weights.fetch("sapiens")
        blank = GERMLINE[:49] + "_" * 9 + GERMLINE[58:]
        out = unmask.load("sapiens").infill(blank, 4, seed=1)
        assert all(text[:49] == GERMLINE[:49] and text[58:] == GERMLINE[58:] for text in out.text)
        assert len(set(out.text)) == 4 and out.calls == 9
        assert all(set(text) <= set(ALPHABET) for text in out.text)

    def test_the_real_light_chain_model(self):
        with index_needed():
            weights.fetch("sapiens-light")
        recovered, nats = masked_recovery(unmask.load("sapiens-light"), LIGHT)
        assert recovered > 0.9 and nats < 0.5

    @pytest.mark.slow
    def test_antiberty(self):
        """97 MB to fetch, and transformers' BERT."""
        pytest.importorskip("transformers")
        with index_needed():
            weights.fetch("antiberty")
        model = unmask.load("antiberty")
        assert model.length == 510 and model.tokenizer.kind == "characters" and model.denoiser.mask_id == 4
        recovered, nats = masked_recovery(model, GERMLINE, repeats=5)
        assert recovered > 0.9 and nats < 0.5
        assert model.infill("EVQLVESGG____QPGGSLRLSCAAS", seed=1).text[0].startswith("EVQLVESGG")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match="the weights are sapiens, sapiens-light, antiberty"):
        weights.fetch("esm2")
    with pytest.raises(ValueError, match="did you mean 'sapiens'"):
        unmask.load("sapien")


def test_sequences_of_several_lengths_share_a_call(tmp_path):
    """Padding is never attended to: each sequence gets what it gets alone."""
    model = sapiens.load(look(write(tmp_path)[0])).denoiser
    assert model.takes_lengths
    tokens, lengths = torch.randint(4, 9, (2, 6), generator=torch.Generator().manual_seed(0)), torch.tensor([6, 3])
    tokens[:, 1] = model.mask_id
    together = model(tokens, lengths=lengths)
    for i, length in enumerate(lengths.tolist()):
        alone = model(tokens[i : i + 1, :length])[0]
        torch.testing.assert_close(together[i, :length], alone, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model(tokens)[1, :3], together[1, :3], atol=1e-4)
