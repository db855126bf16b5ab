"""transformers' models in three lines, and first-hitting as a scheduler for another sampling loop."""

import pytest
import torch

import tokenizers
import unmask
from unmask import hf

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(20))]


@pytest.fixture(scope="module")
def bert():
    return tiny_bert()


def tiny_bert():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    backend = tokenizers.BertWordPieceTokenizer({word: i for i, word in enumerate(WORDS)}, lowercase=True)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend._tokenizer, mask_token="[MASK]", **names)
    return transformers.BertForMaskedLM(config), tokenizer


class TestGenerate:
    def test_masks_of_a_text_are_filled(self, bert):
        model, tokenizer = bert
        out = hf.generate(model, tokenizer, "w1 [MASK] w3 [MASK] .", num=6, seed=1)
        assert out.tokens.shape[1] == 7 and out.calls == 2 and len(set(out.text)) > 1
        assert bool((out.tokens[:, [0, 1, 3, 6]] == torch.tensor([2, 6, 8, 3])).all())
        assert not set(out.tokens[:, [2, 4]].flatten().tolist()) & {0, 1, 2, 3, 4}
        assert all(text.startswith("w1 w") and "[" not in text for text in out.text)

    def test_it_is_unmask_sample(self, bert):
        model, tokenizer = bert
        canvas = torch.tensor([tokenizer("w1 [MASK] w3 [MASK] [MASK]")["input_ids"]] * 3)
        out = hf.generate(model, tokenizer, "w1 [MASK] w3 [MASK] [MASK]", num=3, seed=4, steps=2, temperature=0.7)
        same = unmask.sample(
            hf.denoiser(model, tokenizer), canvas=canvas, seed=4, plan=unmask.plan.parallel, steps=2, temperature=0.7
        )
        assert torch.equal(out.tokens, same.tokens) and out.calls == 2

    def test_length_appends_masks(self, bert):
        model, tokenizer = bert
        out = hf.generate(model, tokenizer, "w1 w2", length=5, seed=1)
        assert out.tokens.shape == (1, 9) and out.text[0].startswith("w1 w2 w") and out.calls == 5
        assert len(hf.generate(model, tokenizer, "", length=3).text[0].split()) == 3

    def test_the_distribution_is_the_models(self, bert):
        """One mask: the frequencies of 4,000 draws against softmax over the data ids; 5 sigma, about 1e-5 in all."""
        model, tokenizer = bert
        out = hf.generate(model, tokenizer, "w1 [MASK] w3", num=4000, seed=2)
        with torch.no_grad():
            logits = model.eval()(torch.tensor([tokenizer("w1 [MASK] w3")["input_ids"]])).logits[0, 2].double()
        logits[:5] = -torch.inf
        p = logits.softmax(-1)
        found = torch.bincount(out.tokens[:, 2], minlength=len(WORDS)) / 4000
        assert bool(((found - p).abs() <= 5 * (p * (1 - p) / 4000).sqrt() + 1e-12).all())

    def test_the_model_stays_in_its_mode(self, bert):
        model, tokenizer = bert
        model.train()
        same = [hf.generate(model, tokenizer, "w1 [MASK] [MASK]", seed=3).text for _ in range(2)]
        assert model.training and same[0] == same[1]
        model.eval()

    def test_wrap_is_a_model(self, bert):
        model = hf.wrap(*bert)
        assert model.length == 14 and model.infill("w1 [MASK] w3", seed=1).text[0].startswith("w1 w")
        assert model.bound(["w1 w2 w3"], passes=3).nats.isfinite().all()
        assert len(model.sample(2, length=6).text) == 2

    def test_what_cannot_be_filled_is_an_error(self, bert):
        model, tokenizer = bert
        with pytest.raises(ValueError, match=r"the text has no \[MASK\]"):
            hf.generate(model, tokenizer, "w1 w2")
        with pytest.raises(ValueError, match="must be at least 1, got 0"):
            hf.generate(model, tokenizer, "w1", length=0)
        with pytest.raises(ValueError, match="a canvas of 20 tokens: this network takes at most 16"):
            hf.generate(model, tokenizer, "", length=18)
        with pytest.raises(ValueError, match="has no mask token"):
            hf.generate(model, object(), "w1 [MASK]")
