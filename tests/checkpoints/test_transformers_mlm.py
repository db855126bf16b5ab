"""Masked LMs of transformers: small random checkpoints, built here, against passes that are not the adapter's."""

import json

import pytest
import torch
from torch.nn import functional as F

import tokenizers
import unmask
from tests.helpers import generator
from unmask.checkpoints import transformers_mlm
from unmask.checkpoints.contents import look
from unmask.checkpoints.formats import recognise
from unmask.protocol import takes_lengths

transformers = pytest.importorskip("transformers")

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(30)), *(f"##{c}" for c in "abcde")]
ESM = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
POSITIONS = 24
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}


def config(kind: str):
    """A tiny network of each family, with positions for at most 24 tokens."""
    wide = len(WORDS) + 3  # as many are: wider than the vocabulary
    if kind == "bert":
        return transformers.BertConfig(vocab_size=wide, max_position_embeddings=POSITIONS, **SMALL)
    if kind == "roberta":
        most = POSITIONS + 2  # positions are counted from 2
        return transformers.RobertaConfig(vocab_size=300, max_position_embeddings=most, pad_token_id=1, **SMALL)
    if kind == "distilbert":
        return transformers.DistilBertConfig(
            vocab_size=wide, max_position_embeddings=POSITIONS, dim=16, n_layers=2, n_heads=2, hidden_dim=24
        )
    if kind == "modernbert":
        return transformers.ModernBertConfig(
            vocab_size=300,
            max_position_embeddings=POSITIONS,
            pad_token_id=1,
            global_attn_every_n_layers=2,
            local_attention=8,
            bos_token_id=0,
            eos_token_id=2,
            cls_token_id=0,
            sep_token_id=2,
            **SMALL,
        )
    assert kind == "esm"
    return transformers.EsmConfig(
        vocab_size=len(ESM),
        mask_token_id=32,
        pad_token_id=1,
        max_position_embeddings=POSITIONS,
        position_embedding_type="rotary",
        token_dropout=True,
        **SMALL,
    )


FAMILIES = ("bert", "roberta", "distilbert", "modernbert", "esm")
BPE = tokenizers.ByteLevelBPETokenizer()
BPE.train_from_iterator(
    ["the fox jumps over the lazy dog"] * 9,
    vocab_size=300,
    show_progress=False,
    special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
)
NO_WORDS = {*range(5), *range(len(WORDS), len(WORDS) + 3)}
NO_BYTES = {*range(5), *range(BPE.get_vocab_size(), 300)}
SPECIAL = {
    "bert": NO_WORDS,
    "distilbert": NO_WORDS,
    "roberta": NO_BYTES,
    "modernbert": NO_BYTES,
    "esm": {0, 1, 2, 3, 31, 32},
}


def write_tokenizer(folder, kind: str) -> None:
    if kind in ("bert", "distilbert"):
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "mask_token": "[MASK]"}))
    elif kind == "esm":
        (folder / "vocab.txt").write_text("\n".join(ESM))
    else:
        BPE.save(str(folder / "tokenizer.json"))


def checkpoint(folder, kind: str, *, tokenizer: bool = True):
    """A folder as transformers writes it; weights large enough that logits differ."""
    torch.manual_seed(FAMILIES.index(kind))
    network = transformers.AutoModelForMaskedLM.from_config(config(kind)).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    network.save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder, kind)
    return network


def canvas(denoiser, *, batch: int = 3, length: int = 9) -> torch.Tensor:
    """Data ids with a third of them masked."""
    data = (~denoiser.suppressed).nonzero().flatten()
    tokens = data[torch.randint(len(data), (batch, length), generator=generator(1))]
    tokens[torch.rand(batch, length, generator=generator(2)) < 0.4] = denoiser.mask_id
    return tokens


def plain_bert(state: dict[str, torch.Tensor], ids: torch.Tensor, *, layers: int, heads: int) -> torch.Tensor:
    """BERT as its paper and the names of its tensors describe it: post-norm, exact GELU, segment 0."""

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.square().mean(-1, keepdim=True)
        return centred / (variance + 1e-12).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]

    at = "bert.embeddings"
    x = state[f"{at}.word_embeddings.weight"][ids] + state[f"{at}.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + state[f"{at}.token_type_embeddings.weight"][0], f"{at}.LayerNorm")
    for i in range(layers):
        at = f"bert.encoder.layer.{i}"
        q, k, v = (
            linear(x, f"{at}.attention.self.{name}").unflatten(-1, (heads, -1)) for name in ("query", "key", "value")
        )
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5, -1)
        mixed = torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2)
        x = norm(x + linear(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        y = linear(F.gelu(linear(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        x = norm(x + y, f"{at}.output.LayerNorm")
    head = "cls.predictions.transform"
    x = norm(F.gelu(linear(x, f"{head}.dense")), f"{head}.LayerNorm")
    return x @ state["bert.embeddings.word_embeddings.weight"].T + state["cls.predictions.bias"]


@pytest.mark.parametrize("container", ["model.safetensors", "pytorch_model.bin"])
def test_bert_is_what_its_tensors_say(tmp_path, container):
    network = checkpoint(tmp_path, "bert")
    if container == "pytorch_model.bin":
        # As the first releases wrote it: gamma and beta, a buffer, another task's head.
        (tmp_path / "model.safetensors").unlink()
        state = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in network.state_dict().items()
        }
        extra = {"bert.embeddings.position_ids": torch.arange(24)[None], "cls.seq_relationship.bias": torch.zeros(2)}
        torch.save(state | extra, tmp_path / container)
    model = unmask.load(tmp_path)
    tokens = canvas(model.denoiser)
    framed = torch.cat([torch.full((3, 1), 2), tokens, torch.full((3, 1), 3)], 1)
    expected = plain_bert(network.state_dict(), framed, layers=2, heads=2)[:, 1:-1]
    data = sorted(set(range(expected.shape[-1])) - SPECIAL["bert"])
    found = model.denoiser(tokens)
    assert torch.allclose(found[..., data], expected[..., data], atol=1e-5)
    assert bool(found[..., sorted(SPECIAL["bert"])].isneginf().all())
    assert float(expected.std()) > 0.3  # a comparison of something


@pytest.mark.parametrize("kind", FAMILIES)
def test_each_family_is_transformers_own(tmp_path, kind):
    network = checkpoint(tmp_path, kind)
    found = look(tmp_path)
    assert recognise(found) is transformers_mlm
    loaded = transformers_mlm.load(found)
    denoiser, tokenizer = loaded.denoiser, loaded.tokenizer
    assert denoiser.network.has_head
    around = (2, 3) if kind in ("bert", "distilbert") else (0, 2)
    assert tokenizer.around == ((around[0],), (around[1],))
    tokens = canvas(denoiser)
    framed = torch.cat([torch.full((3, 1), around[0]), tokens, torch.full((3, 1), around[1])], 1)
    with torch.no_grad():
        expected = network(input_ids=framed, attention_mask=torch.ones_like(framed)).logits[:, 1:-1]
        whole = denoiser(tokens)
        rows = torch.tensor([[0, 8, 3], [1, 1, 2], [4, 5, 6]])
        some = denoiser(tokens, time=torch.rand(3), rows=rows)
    data = sorted(set(range(expected.shape[-1])) - SPECIAL[kind])
    assert torch.allclose(whole[..., data], expected[..., data], atol=1e-5)
    assert bool(whole[..., sorted(SPECIAL[kind])].isneginf().all())
    assert torch.allclose(some, whole.gather(1, rows.unsqueeze(-1).expand(-1, -1, whole.shape[-1])), atol=1e-5)
    assert denoiser.length == POSITIONS - 2 == loaded.about["length"]
    assert loaded.about["missing"] == [] and loaded.about["mask_id"] == tokenizer.mask_id
    assert transformers_mlm.about(found)["parameters"] == sum(t.count for t in found.tensors.values())


@pytest.mark.parametrize("kind", ["bert", "esm"])
def test_it_samples_and_infills(tmp_path, kind):
    checkpoint(tmp_path, kind)
    model = unmask.load(tmp_path)
    out = model.sample(4, seed=1)
    assert out.tokens.shape == (4, POSITIONS - 2) and not set(out.tokens.flatten().tolist()) & SPECIAL[kind]
    text = "w1 [MASK] w3" if kind == "bert" else "MKV___LL"
    for made in model.infill(text, 4, seed=1).text:
        assert made.startswith(text[:2]) and made.endswith(text[-2:]) and "[MASK]" not in made
    with pytest.raises(ValueError, match=r"a canvas of 23 tokens: this network takes at most 22 \(24 with"):
        model.sample(length=23)


def test_a_head_that_is_not_known_is_asked_for_everything(tmp_path, monkeypatch):
    network = checkpoint(tmp_path, "roberta")
    by_rows = transformers_mlm.ByRows(network, 1)
    monkeypatch.setattr(transformers_mlm, "_head", lambda model: None)
    by_gathering = transformers_mlm.ByRows(network, 1)
    assert by_rows.has_head and not by_gathering.has_head
    monkeypatch.undo()
    ids, rows = torch.randint(5, 290, (2, 7), generator=generator(3)), torch.tensor([[0, 6], [2, 3]])
    with torch.no_grad():
        assert torch.allclose(by_rows(ids, rows), by_gathering(ids, rows), atol=1e-5)
    # One that is there and does something else is found out, too.
    monkeypatch.setattr(transformers_mlm, "_head", lambda model: lambda hidden: model.lm_head(hidden) + 1)
    assert not transformers_mlm.ByRows(network, 1).has_head


@pytest.mark.parametrize("kind", FAMILIES)
def test_padding_is_not_looked_at(tmp_path, kind):
    checkpoint(tmp_path, kind)
    tokenizer = transformers_mlm.load(look(tmp_path)).tokenizer
    network = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    by_rows = transformers_mlm.ByRows(network, tokenizer.pad_id)
    ids = torch.randint(5, 30, (2, 7), generator=generator(3))
    padded = torch.cat([ids, torch.full((2, 4), tokenizer.pad_id)], 1)
    rows = torch.arange(7).expand(2, -1)
    with torch.no_grad():
        assert torch.allclose(by_rows(ids, rows), by_rows(padded, rows), atol=1e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_sequences_of_several_lengths_share_a_call(tmp_path, kind):
    checkpoint(tmp_path, kind)
    denoiser = transformers_mlm.load(look(tmp_path)).denoiser
    assert takes_lengths(denoiser)
    tokens, lengths = canvas(denoiser), torch.tensor([9, 4, 1])
    rows = torch.stack([torch.zeros_like(lengths), lengths - 1], 1)
    with torch.no_grad():
        together = denoiser(tokens, rows=rows, lengths=lengths)
        for i, length in enumerate(lengths.tolist()):
            alone = denoiser(tokens[i : i + 1, :length], rows=rows[i : i + 1])
            assert torch.allclose(together[i : i + 1], alone, atol=1e-5)


class TestBadInput:
    def test_a_checkpoint_of_another_task(self, tmp_path):
        transformers.BertForSequenceClassification(config("bert")).save_pretrained(tmp_path)
        write_tokenizer(tmp_path, "bert")
        with pytest.raises(ValueError, match="a bert without the head that predicts tokens"):
            unmask.load(tmp_path)

    def test_without_a_tokenizer_the_mask_must_be_given(self, tmp_path):
        checkpoint(tmp_path, "bert", tokenizer=False)
        found = look(tmp_path)
        with pytest.raises(ValueError, match=r"its mask is not known\. Found: config\.json, .*Needed: a tokenizer"):
            transformers_mlm.load(found)
        loaded = transformers_mlm.load(found, mask_id=4)
        assert loaded.tokenizer is None and loaded.denoiser.mask_id == 4
        with pytest.raises(ValueError, match="there is no setting 'maskid'; there is mask_id"):
            transformers_mlm.load(found, maskid=4)

    def test_tensors_that_do_not_fit(self, tmp_path):
        network = checkpoint(tmp_path, "bert")
        (tmp_path / "model.safetensors").unlink()
        state = network.state_dict()
        torch.save({k: v for k, v in state.items() if "layer.1." not in k}, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match=r"lacks 16 of the network's tensors, the first is bert\.encoder\.layer"):
            unmask.load(tmp_path)
        torch.save(state | {"cls.predictions.bias": torch.zeros(3)}, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match="its tensors do not fit its config: size mismatch for cls"):
            unmask.load(tmp_path)
        untied = {"cls.predictions.decoder.weight": state["cls.predictions.decoder.weight"] + 1}
        torch.save(state | untied, tmp_path / "pytorch_model.bin")
        with pytest.raises(ValueError, match="is tied to another tensor in its config, and differs"):
            unmask.load(tmp_path)

    def test_code_that_comes_with_a_checkpoint_is_not_run(self, tmp_path):
        checkpoint(tmp_path, "bert")
        content = json.loads((tmp_path / "config.json").read_text())
        content |= {"auto_map": {"AutoModelForMaskedLM": "evil.Evil"}, "architectures": ["Evil"], "model_type": "evil"}
        (tmp_path / "config.json").write_text(json.dumps(content))
        (tmp_path / "evil.py").write_text("raise SystemExit('it was run')")
        with pytest.raises(ValueError, match="has an unknown format"):
            unmask.load(tmp_path)

    def test_an_unknown_model_type(self, tmp_path):
        checkpoint(tmp_path, "bert")
        content = json.loads((tmp_path / "config.json").read_text())
        content |= {"model_type": "nonesuch"}
        (tmp_path / "config.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match="this version of transformers does not know model_type 'nonesuch'"):
            unmask.load(tmp_path)


@pytest.mark.parametrize(("kind", "most"), [("bert", 20), ("roberta", 18), ("mpnet", 18), ("luke", 18)])
def test_the_most_tokens_are_those_that_there_are_positions_for(kind, most):
    """RoBERTa's kin count positions from pad_token_id + 1, so that two of 20 are never used."""
    config = pytest.importorskip("transformers").CONFIG_MAPPING[kind](max_position_embeddings=20, pad_token_id=1)
    assert transformers_mlm._limit(config.to_dict()) == most


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"dplm_type": "dplm2_bit"}, "is DPLM-2, whose rotary positions pair residues with structure tokens"),
        ({"dplm_type": "another"}, "dplm_type='another', which transformers' EsmConfig does not know"),
        ({"surprise": 1}, "surprise=1, which transformers' EsmConfig does not know: it could change the network"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads="),
    ],
)
def test_a_setting_that_the_installed_class_does_not_know_is_refused(settings, what, tmp_path):
    transformers.EsmForMaskedLM(config("esm")).save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | {"dplm_type": "dplm", "gradient_checkpointing": True}))
    assert transformers_mlm.about(look(tmp_path))["mask_id"] == 32
    (tmp_path / "config.json").write_text(json.dumps(said | settings))
    with pytest.raises(ValueError, match=what):
        recognise(look(tmp_path)).load(look(tmp_path))
