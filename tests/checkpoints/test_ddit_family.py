"""MDLM, SEDD and RADD against forward passes written from the formats' descriptions."""

from __future__ import annotations

import json
import math

import pytest
import torch

import unmask
from tests.checkpoints import checkpoints as made
from unmask.checkpoints import ddit_family, mdlm, radd, sedd
from unmask.checkpoints.contents import Scan, look
from unmask.checkpoints.formats import recognise
from unmask.checkpoints.weight_file import Tensorlike
from unmask.network import logits_at
from unmask.networks.ddit import DDiT, preset
from unmask.tokenizers.vocabularies import bytes_of_utf8

VOCAB = 20
ROWS = torch.tensor([[0, 5, 11], [3, 3, 7], [10, 1, 0]])
TIME = torch.tensor([0.3, 0.9, 0.999], dtype=torch.float64)


def agree(denoiser, tokens, expected, time=None):
    """The adapter's distribution is the expected one, at all rows and at some."""
    whole = denoiser(tokens, time).log_softmax(-1)
    some = logits_at(denoiser, tokens, time, ROWS).log_softmax(-1)
    torch.testing.assert_close(whole, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(some, expected[torch.arange(3)[:, None], ROWS], atol=1e-5, rtol=1e-5)
    sampled = denoiser.for_sampling()(tokens, time).log_softmax(-1)
    torch.testing.assert_close(sampled, expected, atol=1e-5, rtol=1e-5)


def test_mdlm_from_the_hub_without_and_with_the_time(tmp_path):
    weights = made.state(VOCAB)
    folder = made.hub_folder(tmp_path / "m", weights, made.hub_config(VOCAB))
    found = look(folder)
    assert recognise(found) is mdlm
    tokens = made.canvas(VOCAB, VOCAB - 1)
    loaded = mdlm.load(found)
    agree(loaded.denoiser, tokens, made.without(made.forward(weights, tokens, torch.zeros(3)), VOCAB - 1))
    assert (loaded.denoiser.length, loaded.denoiser.mask_id) == (12, 19)
    assert loaded.about["time"] == "none: sigma is fed as 0"
    fed = mdlm.load(found, time=True)
    expected = made.without(made.forward(weights, tokens, made.log_linear(TIME)), VOCAB - 1)
    agree(fed.denoiser, tokens, expected, TIME)
    assert "though it was trained without" in fed.about["time"]
    trained = made.hub_folder(tmp_path / "t", weights, made.hub_config(VOCAB, time_conditioning=True))
    agree(mdlm.load(look(trained)).denoiser, tokens, expected, TIME)
    agree(
        mdlm.load(look(trained), time=False).denoiser,
        tokens,
        made.without(made.forward(weights, tokens, torch.zeros(3)), VOCAB - 1),
    )


def test_the_noise_level_of_an_empty_canvas_is_the_published_one(tmp_path):
    """At t = 1 the log-linear noise has sigma = -log(0.001), not infinity."""
    weights = made.state(VOCAB)
    loaded = mdlm.load(look(made.hub_folder(tmp_path, weights, made.hub_config(VOCAB, time_conditioning=True))))
    tokens = torch.full((3, 12), VOCAB - 1)
    expected = made.without(made.forward(weights, tokens, torch.full((3,), -math.log(1e-3))), VOCAB - 1)
    agree(loaded.denoiser, tokens, expected, torch.ones(3, dtype=torch.float64))


def test_sedd_is_the_softmax_of_its_scores(tmp_path):
    weights, tokens = made.state(VOCAB, seed=1), made.canvas(VOCAB, VOCAB - 1)
    for scaled in (True, False):
        config = made.nested_config(scale_by_sigma=scaled) | {"tokens": VOCAB - 1}
        found = look(made.written(tmp_path / str(scaled), weights, config))
        assert recognise(found) is sedd
        sigma = made.log_linear(TIME)
        score = made.forward(weights, tokens, sigma)
        if scaled:
            score = score - torch.log(torch.expm1(sigma))[:, None, None].float() - math.log(VOCAB - 1)
        score = score.exp()[..., : VOCAB - 1]  # the ratios p(y)/p(mask) of the data tokens
        mean = score / score.sum(-1, keepdim=True)
        expected = torch.cat((mean.log(), torch.full((3, 12, 1), -torch.inf)), -1)
        agree(sedd.load(found).denoiser, tokens, expected, TIME)
    config["graph"]["type"] = "other"
    with pytest.raises(ValueError, match=r"graph\.type='other'; 'absorb' or 'uniform' is known"):
        sedd.load(look(made.written(tmp_path / "other", weights, config)))


def test_radd_drops_its_last_column(tmp_path):
    weights, tokens = made.state(VOCAB, adaln=False, norm_bias=True, seed=2), made.canvas(VOCAB, VOCAB - 1)
    found = look(made.written(tmp_path, weights, made.nested_config() | {"tokens": VOCAB - 1}))
    assert recognise(found) is radd
    out = made.forward(weights, tokens)[..., :-1].log_softmax(-1)
    expected = torch.cat((out, torch.full((3, 12, 1), -torch.inf)), -1)
    agree(radd.load(found).denoiser, tokens, expected)


def test_a_mask_that_is_not_the_last_id(tmp_path):
    """LM1B's models: 30,522 ids of bert-base-uncased, and its [MASK] is 103."""
    weights = made.state(30_522, seed=3)
    found = look(made.hub_folder(tmp_path, weights, made.hub_config(30_522)))
    loaded, tokens = mdlm.load(found), made.canvas(30_522, 103)
    assert loaded.denoiser.mask_id == 103
    agree(loaded.denoiser, tokens, made.without(made.forward(weights, tokens, torch.zeros(3)), 103))
    assert loaded.tokenizer is None and "no tokenizer" in loaded.about["needs"]
    assert mdlm.load(found, mask_id=30_521).denoiser.mask_id == 30_521


def test_the_left_to_right_baseline(tmp_path):
    weights = made.state(50_258, adaln=False, seed=4)
    config = {"config": made.nested_config() | {"parameterization": "ar"}}
    found = look(made.hub_folder(tmp_path, weights, config))
    assert recognise(found) is mdlm
    model, tokens = mdlm.load(found).denoiser, made.canvas(50_258, 50_257)
    assert model.causal and mdlm.about(found)["variant"] == "AR baseline"
    first = torch.full((3, 1, 50_258), -torch.inf)
    first[:, 0, 50_256] = 0.0  # every sequence begins with <|endoftext|>
    rest = made.without(made.forward(weights, tokens, causal=True), 50_257)
    agree(model, tokens, torch.cat((first, rest[:, :-1]), 1))
    drawn = unmask.sample(model, num=2, length=6, seed=1).tokens  # with the cache, against the same draws without it
    again = torch.full((2, 6), 50_257)
    for at, row in enumerate(drawn.T):
        p = model(again, rows=torch.full((2, 1), at))[:, 0].softmax(-1)
        assert bool((p.gather(1, row[:, None]) > 0).all())
        again[:, at] = row
    assert drawn[:, 0].tolist() == [50_256, 50_256]
    prompt = torch.tensor([50_256, 5, 7])
    begun = torch.cat((prompt, torch.full((3,), 50_257)))[None]
    cached = model.for_sampling()(begun, rows=torch.tensor([[3]]))[:, 0].log_softmax(-1)
    plain = made.without(made.forward(weights, prompt[None], causal=True), 50_257)[:, -1]
    torch.testing.assert_close(cached, plain, atol=1e-5, rtol=1e-5)


def test_the_published_sizes_have_the_published_number_of_tensors():
    """130 tensors and 169,627,218 parameters: the hub's class by shapes alone."""
    with torch.device("meta"):
        network = DDiT(preset("small", 50_258, 1024, mask_id=50_257))
    assert len(network.state_dict()) == 131  # the rotary frequencies are a buffer
    assert len(list(network.parameters())) == 130
    assert sum(p.numel() for p in network.parameters()) == 169_627_218


def test_missing_and_unexpected_tensors_are_reported(tmp_path):
    weights = made.state(VOCAB)
    config = made.hub_config(VOCAB)
    less = {name: tensor for name, tensor in weights.items() if name != "blocks.1.mlp.2.bias"}
    said = mdlm.about(look(made.hub_folder(tmp_path / "less", less, config)))
    assert said["missing"] == ["backbone.blocks.1.mlp.2.bias"]
    with pytest.raises(ValueError, match=r"backbone\.blocks\.1\.mlp\.2\.bias is missing"):
        mdlm.load(look(tmp_path / "less"))
    more = weights | {"blocks.0.attn_qkv.bias": torch.zeros(48)}
    with pytest.raises(ValueError, match=r"backbone\.blocks\.0\.attn_qkv\.bias does not belong"):
        mdlm.load(look(made.hub_folder(tmp_path / "more", more, config)))
    wrong = weights | {"sigma_map.mlp.0.weight": torch.zeros(8, 128)}
    with pytest.raises(ValueError, match=r"sigma_map\.mlp\.0\.weight is \[8, 128\] and not \[8, 256\]"):
        mdlm.load(look(made.hub_folder(tmp_path / "wrong", wrong, config)))
    # The frequencies can be computed; what else they say must agree.
    bare = {name: tensor for name, tensor in weights.items() if "inv_freq" not in name}
    assert mdlm.load(look(made.hub_folder(tmp_path / "bare", bare, config))).denoiser.config.heads == 2
    with pytest.raises(ValueError, match="number of heads is neither"):
        mdlm.load(look(made.hub_folder(tmp_path / "headless", bare, {"time_conditioning": False})))
    with pytest.raises(ValueError, match="heads=4, and its rotary frequencies are those of 2"):
        mdlm.load(look(tmp_path / "wrong"), heads=4)
    with pytest.raises(ValueError, match="whether it was trained with the time"):
        mdlm.load(look(made.hub_folder(tmp_path / "silent", weights, {})))
    with pytest.raises(ValueError, match="no setting 'temperature'; there are time, ema"):
        mdlm.load(look(tmp_path / "silent"), temperature=1)


def test_texts_from_a_folder_with_a_tokenizer(tmp_path):
    """MDLM's layout over bytes: 257 ids and the mask."""
    folder = made.hub_folder(tmp_path, made.state(258), made.hub_config(258))
    bare = unmask.load(folder)
    assert bare.sample(2, seed=1).tokens.shape == (2, 12)
    for text_method in (lambda: bare.infill("In ____ end"), lambda: bare.decode([1, 2]), lambda: bare.bound(["In"])):
        with pytest.raises(ValueError, match=r"has no tokenizer of 257 ids.* --ids prints"):
            text_method()
    bytes_of_utf8().save(folder / "tokenizer.json")
    model = unmask.load(folder)
    assert model.length == 12 and len(model.sample(2, seed=1).text) == 2
    filled = model.infill("In ____ end", seed=2).text[0]
    assert filled.startswith("In ") and filled.endswith(" end")
    fed = unmask.load(folder, time=True)
    assert fed.denoiser.config.conditioning == "time" and fed.sample(1, seed=1).text != model.sample(1, seed=1).text


def test_gpt2s_files_in_the_folder_are_used(tmp_path):
    """A byte-level BPE of GPT-2's two files, here with one merge."""
    from unmask.tokenizers.tokenizer import byte_spelling

    vocab = [*sorted(byte_spelling()), "th", "<|endoftext|>"]
    folder = made.hub_folder(tmp_path, made.state(len(vocab) + 1), made.hub_config(len(vocab) + 1))
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(vocab)}))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\n")
    model = unmask.load(folder)
    assert model.tokenizer.encode("th") == [256] and model.tokenizer.eos_id == 257
    assert model.infill("the ____", seed=0).text[0].startswith("the")
    (folder / "merges.txt").write_text("#version: 0.2\nt h x\n")
    with pytest.raises(ValueError, match=r"not a GPT-2 tokenizer"):
        unmask.load(folder)


def test_50258_ids_fall_back_to_gpt2s_tokenizer(tmp_path, monkeypatch):
    found = look(made.hub_folder(tmp_path, made.state(50_258), made.hub_config(50_258)))
    assert "GPT-2's" in mdlm.about(found)["tokenizer"] and mdlm.about(found)["mask_id"] == 50_257

    def unreachable(*_):
        raise ddit_family.FetchError("no network")

    monkeypatch.setattr(ddit_family, "gpt2_tokenizer", unreachable)
    with pytest.raises(ValueError, match=r"GPT-2's tokenizer is needed \(no network\), or put its vocab.json"):
        unmask.load(tmp_path).decode([1])


def test_the_hub_folder_of_the_published_size_is_read_by_its_shapes(tmp_path):
    names = {"vocab_embed.embedding": (50_258, 768), "rotary_emb.inv_freq": (32,)}
    names |= {"sigma_map.mlp.0.weight": (128, 256), "sigma_map.mlp.0.bias": (128,)}
    names |= {"sigma_map.mlp.2.weight": (128, 128), "sigma_map.mlp.2.bias": (128,)}
    for i in range(12):
        names |= {
            f"blocks.{i}.{name}": shape
            for name, shape in {
                "norm1.weight": (768,),
                "attn_qkv.weight": (2304, 768),
                "attn_out.weight": (768, 768),
                "norm2.weight": (768,),
                "mlp.0.weight": (3072, 768),
                "mlp.0.bias": (3072,),
                "mlp.2.weight": (768, 3072),
                "mlp.2.bias": (768,),
                "adaLN_modulation.weight": (4608, 128),
                "adaLN_modulation.bias": (4608,),
            }.items()
        }
    names |= {"output_layer.norm_final.weight": (768,), "output_layer.linear.weight": (50_258, 768)}
    names |= {"output_layer.linear.bias": (50_258,), "output_layer.adaLN_modulation.weight": (1536, 128)}
    names |= {"output_layer.adaLN_modulation.bias": (1536,)}
    tensors = {f"backbone.{name}": Tensorlike(shape, "float32") for name, shape in names.items()}
    config = made.hub_config(50_258, model_length=1024, n_heads=12)
    said = mdlm.about(Scan(tmp_path, config, tensors, ()))
    assert (said["missing"], said["unexpected"], said["wrong"]) == ([], [], [])
    assert (said["parameters"], said["heads"], said["length"]) == (169_627_218, 12, 1024)


def test_a_tokenizer_with_a_mask_of_its_own(tmp_path):
    """LM1B's layout: BERT's WordPiece, whose [CLS] and [SEP] are part of the sequence."""
    words = ["[PAD]", "[UNK]", "[CLS]", "the", "[SEP]", "[MASK]", "man", "##s", "a", "b", "c"]
    for name, data in (("named", {}), ("rows", {"wrap": False})):
        config = made.hub_config(len(words), data=data)
        folder = made.hub_folder(tmp_path / name, made.state(len(words)), config)
        (folder / "vocab.txt").write_text("\n".join(words))
        model = unmask.load(folder)
        assert model.denoiser.mask_id == 5 and model.layout == ("rows" if data else "wrapped")
        assert model.rows.blanks("the [MASK] a").ids == (2, 3, 5, 8, 4)
        assert model.infill("the [MASK] a", seed=1).text[0].startswith("the")
        assert 5 not in model.sample(4, seed=1).tokens


def test_text8s_characters(tmp_path):
    config = made.nested_config() | {"parameterization": "subs", "time_conditioning": False}
    config["data"] = {"tokenizer_name_or_path": "text8"}
    folder = made.hub_folder(tmp_path, made.state(35), {"config": config})
    model = unmask.load(folder)
    assert model.denoiser.mask_id == 4 and model.rows.blanks("a_b").ids == (2, 8, 4, 9, 3)
    assert "text8" in mdlm.about(look(folder))["tokenizer"]


def test_the_left_to_right_baseline_has_an_exact_likelihood(tmp_path):
    """-log p of a text that is framed by eos is the sum of the network's own next-token losses."""
    vocab, weights = 258, made.state(258, adaln=False)
    folder = made.hub_folder(tmp_path, weights, made.hub_config(vocab))
    bytes_of_utf8().save(folder / "tokenizer.json")
    with pytest.raises(ValueError, match="the id that every sequence begins with is not known: give first"):
        unmask.load(folder)
    model = unmask.load(folder, first=256)
    ids = torch.tensor([[256, *b"a man", 256]])
    logp = made.without(made.forward(weights, ids[:, :-1], causal=True), 257)
    expected = -logp.gather(-1, ids[:, 1:, None]).sum()
    assert float(model.bound(["a man"]).nats[0]) == pytest.approx(float(expected), abs=1e-4)
    assert model.sample(1, prompt="a man", length=10, seed=1).text[0].startswith("a man")


def test_what_has_mdlms_tensors_and_is_another_model_is_refused_by_name(tmp_path):
    """Each of these would load, and every answer would be wrong."""
    weights = made.state(VOCAB)
    runs = made.nested_config() | {"data": {}}
    for number, (config, named) in enumerate(
        (
            (made.hub_config(VOCAB, model_type="bd3lm", cross_attn=True), "block_size must be a whole number"),
            (made.hub_config(VOCAB, model_type="bd3lm", block_size=4, causal=True), "says causal=True"),
            (made.hub_config(VOCAB, model_type="bd3lm", block_size=4, cross_attn=False), "says cross_attn=False"),
            (made.hub_config(VOCAB, model_type="udlm", cfg=True), "a network that takes labels"),
            ({"config": runs | {"parameterization": "subs", "diffusion": "uniform_data_marginals"}}, "diffusion='unif"),
            ({"config": runs | {"parameterization": "subs", "backbone": "dimamba"}}, "backbone='dimamba'"),
            (made.hub_config(VOCAB, rotary_scaling=2.0), "says rotary_scaling=2.0, an unknown setting"),
            (made.hub_config(VOCAB, model_type="mdlm2"), "model_type='mdlm2'"),
        )
    ):
        found = look(made.hub_folder(tmp_path / str(number), weights, config))
        for read in (mdlm.load, mdlm.about):
            with pytest.raises(ValueError, match=named):
                read(found, time=False)


def test_smdm_is_refused_by_its_name(tmp_path):
    names = ("lm_head.weight", "transformer.wte.weight", "transformer.h.0.attn.attn.weight", "transformer.ln_f.weight")
    torch.save({"model": {name: torch.ones(4, 4) for name in names}}, tmp_path / "mdm-1028M.pth")
    with pytest.raises(ValueError, match="is an SMDM checkpoint"):
        unmask.load(tmp_path / "mdm-1028M.pth")


@pytest.mark.parametrize("adaln", [True, False])
def test_bd3lm_sees_its_block_and_the_blocks_before(tmp_path, adaln):
    """Without adaLN it has the left-to-right baseline's tensors. A run keeps its settings under algo."""
    weights, block = made.state(VOCAB, adaln=adaln), 4
    x0, run = made.canvas(VOCAB, 0), made.nested_config() | {"data": {}, "block_size": block}
    noised = made.canvas(VOCAB, VOCAB - 1)
    of_hub = made.hub_config(VOCAB, model_type="bd3lm", adaln=adaln, block_size=block, cross_attn=True, var_min=True)
    section = {"name": "bd3lm", "parameterization": "subs", "cross_attn": True, "time_conditioning": False}
    for number, config in enumerate((of_hub, {"config": run | {"algo": section}})):
        found = look(made.hub_folder(tmp_path / str(number), weights, config))
        loaded = mdlm.load(found)
        assert loaded.about["variant"] == "BD3-LM, blocks of 4" and loaded.denoiser.config.block == block
        for first in range(0, 12, block):
            tokens = torch.full_like(x0, VOCAB - 1)
            tokens[:, :first], tokens[:, first : first + block] = x0[:, :first], noised[:, first : first + block]
            sigma = torch.zeros(3) if adaln else None
            expected = made.without(made.forward(weights, tokens, sigma, block=block), VOCAB - 1)
            torch.testing.assert_close(loaded.denoiser(tokens).log_softmax(-1), expected, atol=1e-5, rtol=1e-5)
        with pytest.raises(ValueError, match="time conditioning is not supported"):
            mdlm.about(found, time=True)
    made_of_it = unmask.sample(loaded.denoiser, num=2, seed=1)
    assert made_of_it.tokens.shape == (2, 12) and int(made_of_it.nfe[0]) == 12


@pytest.mark.parametrize("algo", ["mdlm", "sedd", "d3pm"])
def test_settings_may_stand_under_algo(tmp_path, algo):
    """As in files of the repositories of DUO and BD3-LM."""
    weights, tokens = made.state(VOCAB), made.canvas(VOCAB, VOCAB - 1)
    names = {"mdlm": "subs", "sedd": "score", "d3pm": "mean"}
    section = {"name": algo, "parameterization": names[algo], "time_conditioning": True, "T": 0, "cross_attn": False}
    config = {"config": made.nested_config() | {"algo": section}}
    loaded = mdlm.load(look(made.hub_folder(tmp_path, weights, config)))
    assert loaded.about["variant"] == {"mdlm": "MDLM", "sedd": "SEDD baseline", "d3pm": "D3PM"}[algo]
    expected = made.without(made.forward(weights, tokens, made.log_linear(TIME)), VOCAB - 1)
    agree(loaded.denoiser, tokens, expected, TIME)


def test_a_run_of_sedd_is_read_with_its_own_settings(tmp_path):
    """Graph, noise and length are in .hydra/config.yaml; without it whether there is a mask is not known."""
    weights, tokens = made.state(VOCAB, seed=1), made.canvas(VOCAB, VOCAB - 1)
    (tmp_path / "checkpoints-meta").mkdir()
    torch.save({"model": weights, "step": 1}, tmp_path / "checkpoints-meta" / "checkpoint.pth")
    with pytest.raises(ValueError, match=r"whether this SEDD has a mask .* is not in its files"):
        sedd.load(look(tmp_path))
    settings = made.nested_config(length=10) | {"noise": {"type": "geometric", "sigma_min": 1e-4, "sigma_max": 20}}
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    for path in (tmp_path, tmp_path / "checkpoints-meta" / "checkpoint.pth"):
        loaded = sedd.load(look(path))
        assert loaded.denoiser.length == 10
        # Late times, where sigma is above that of the log-linear noise: at equal alpha, up to sigma_max.
        late = torch.tensor([0.9, 1 - 1e-6, 1.0], dtype=torch.float64)
        sigma = torch.tensor([-math.log(0.1), -math.log(1e-6), 20.0], dtype=torch.float64)
        expected = made.without(made.forward(weights, tokens, sigma), VOCAB - 1)
        agree(loaded.denoiser, tokens, expected, late)
    settings["graph"]["type"] = "uniform"
    (tmp_path / ".hydra" / "config.yaml").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"takes no mask_id and no model\.scale_by_sigma"):
        sedd.load(look(tmp_path), mask_id=3)
