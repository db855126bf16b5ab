"""unmask in the lm-evaluation-harness: a tiny task from end to end, offline, and each kind of request by itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.small_models import LENGTH, TOKENIZERS, folder
from unmask.evaluate.likelihood.continuation import Page, encode_pair, windows
from unmask.loading import load

pytest.importorskip("lm_eval", reason="the harness is an extra: pip install 'unmask[harness]'")
from unmask.evaluate.likelihood.harness import Generation, UnmaskLM

QUESTIONS = [
    {"question": "In the beginning God", "choices": ["created", "and the earth"], "answer": 0},
    {"question": "And the earth was", "choices": ["void", "without form, and void; and the earth was"], "answer": 1},
]
TASK = """
task: tiny_{kind}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: {kind}
doc_to_text: "{{{{question}}}}"
"""
CHOICE = 'doc_to_choice: "{{choices}}"\ndoc_to_target: answer\n'
FREE = (
    'doc_to_target: "{{choices[answer]}}"\ngeneration_kwargs: {until: [";"], max_gen_toks: 5, do_sample: true, '
    "temperature: 1.0}\nmetric_list: [{metric: exact_match}]\n"
)


def request(*arguments: Any) -> Any:
    return SimpleNamespace(args=arguments)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    kinds: dict[str, dict[str, Any]] = {"masked": {}, "causal": {"causal": True}}
    kinds["adapters"] = {"adaln": False, "adapters": 2}
    return {kind: str(folder(root / kind, **sizes)) for kind, sizes in kinds.items()}


@pytest.mark.filterwarnings("ignore")  # the harness and its dependencies warn of themselves
@pytest.mark.parametrize("which", ["masked", "causal"])
def test_a_local_task_offline(
    which: str, folders: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks from YAML and JSON lines through simple_evaluate, with the model made by its registered name."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for kind, rest in (("multiple_choice", CHOICE), ("generate_until", FREE)):
        (tmp_path / f"{kind}.yaml").write_text(TASK.format(kind=kind, data=data, cache=tmp_path / "cache") + rest)
    found = lm_eval.simple_evaluate(
        model="unmask",
        model_args=f"model={folders[which]},passes=8,seed=3",
        batch_size=4,
        bootstrap_iters=0,
        tasks=["tiny_multiple_choice", "tiny_generate_until"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
    )
    assert found is not None
    lm = UnmaskLM(load(folders[which]), passes=8, seed=3)
    asked = [(q["question"], f" {choice}") for q in QUESTIONS for choice in q["choices"]]
    alone = [lm.loglikelihood([request(*pair)], disable_tqdm=True)[0] for pair in asked]
    given = [tuple(r[0]) for sample in found["samples"]["tiny_multiple_choice"] for r in sample["resps"]]
    assert [score for score, _ in given] == pytest.approx([score for score, _ in alone], rel=1e-5)
    assert [greedy for _, greedy in given] == [greedy for _, greedy in alone]
    best = [max((0, 1), key=lambda k: alone[2 * i + k][0]) for i in range(2)]
    accuracy = sum(b == q["answer"] for b, q in zip(best, QUESTIONS, strict=True)) / 2
    assert found["results"]["tiny_multiple_choice"]["acc,none"] == accuracy
    texts = [sample["resps"][0][0] for sample in found["samples"]["tiny_generate_until"]]
    assert len(texts) == 2 and not any(";" in text for text in texts)
    assert ("exact" if which == "causal" else "bound") in found["config"]["loglikelihood"]
    assert found["config"]["loglikelihood_error"] == lm.loglikelihood_error
    assert (lm.loglikelihood_error == 0) is (which == "causal")


def test_requests_do_not_depend_on_their_company(folders: dict[str, str]) -> None:
    """Likelihoods to the network's rounding, texts to the letter; a repeated request gets another text."""
    options = {"do_sample": True, "max_gen_toks": 6, "until": []}
    contexts = ["In the", "And the earth was without form", ""]
    for which, sampler in (("masked", {}), ("masked", {"steps": 4, "predictor": "extrapolate"}), ("causal", {})):
        lm = UnmaskLM(folders[which], batch_size=2, passes=5, **sampler)
        pairs = [request(context, " God created") for context in contexts]
        together = lm.loglikelihood(pairs, disable_tqdm=True)
        apart = [lm.loglikelihood([pair], disable_tqdm=True)[0] for pair in pairs[::-1]][::-1]
        assert [s for s, _ in together] == pytest.approx([s for s, _ in apart], rel=1e-5)
        asked = [request(context, options) for context in [*contexts, contexts[0]]]
        texts = lm.generate_until(asked, disable_tqdm=True)
        assert texts[:3] == [lm.generate_until([one], disable_tqdm=True)[0] for one in asked[:3]]
        assert texts[3] != texts[0]


@pytest.mark.parametrize("which", ["causal", "adapters"])
def test_a_model_that_is_sampled_from_left_to_right_is_exact(which: str, folders: dict[str, str]) -> None:
    """log p(a, b) = log p(a) + log p(b | a), and the likeliest tokens are what greedy decoding gives."""
    lm = UnmaskLM(folders[which])
    assert lm.get_model_info()["loglikelihood"] == "exact"
    whole, first, then = lm.loglikelihood(
        [request("", "In the beginning"), request("", "In the"), request("In the", " beginning")], disable_tqdm=True
    )
    assert whole[0] == pytest.approx(first[0] + then[0], rel=1e-5)
    assert lm.loglikelihood_rolling([request("In the beginning")], disable_tqdm=True) == pytest.approx([whole[0]])
    ids = lm.model.tokenizer.encode("In the")
    start = torch.tensor([[*lm.page.before, *ids]])
    masks = torch.full((1, lm.page.length - start.shape[1]), lm.model.denoiser.mask_id)
    token = int(lm.model.denoiser(torch.cat([start, masks], 1))[0, start.shape[1]].argmax())
    text = lm.model.tokenizer.decode([token])
    greedy = lm.generate_until([request("In the", {"until": None, "max_gen_toks": 1})], disable_tqdm=True)
    assert greedy == [text if token != lm.model.tokenizer.eos_id else ""]


def test_long_texts_are_scored_in_parts(folders: dict[str, str]) -> None:
    for which in ("masked", "causal"):
        lm = UnmaskLM(folders[which], passes=2)
        long = "And the earth was without form, and void; " * 6
        score, rolling = lm.loglikelihood([request(long, long)], disable_tqdm=True)[0][0], None
        rolling = lm.loglikelihood_rolling([request(long), request("")], disable_tqdm=True)
        assert math.isfinite(score) and score < 0 and rolling[0] < 0 and rolling[1] == 0
        new = lm.generate_until([request(long, {"max_gen_toks": 1000})], disable_tqdm=True)
        assert isinstance(new[0], str)


def test_windows_score_every_token_once() -> None:
    for before, scored, room in ((3, 4, 10), (9, 4, 10), (0, 25, 10), (7, 25, 10), (2, 3, 1), (5, 0, 4), (0, 10, 10)):
        context, continuation = list(range(before)), list(range(100, 100 + scored))
        parts = windows(context, continuation, room)
        assert [i for _, part in parts for i in part] == continuation
        for given, part in parts:
            assert len(given) + len(part) <= room
            whole = context + continuation
            start = whole.index(part[0])
            assert given == whole[start - len(given) : start], "what is given stands right before what is scored"
    assert windows([1, 2, 3], [4], 3) == [([2, 3], [4])]


def test_pairs_and_pages() -> None:
    """The ids spell the text; spaces at a BPE context's end go to the continuation; the frame is the training's."""
    model = load_model("bpe")
    for pair in (("In the", " beginning"), ("In the ", "beginning"), ("In th", "e beginning"), ("", "In")):
        given, scored = encode_pair(model, *pair)
        assert model.tokenizer.decode([*given, *scored]) == "".join(pair)
    assert encode_pair(model, "In the ", "beginning") == encode_pair(model, "In the", " beginning")
    eos, mask = model.tokenizer.eos_id, model.denoiser.mask_id
    canvas, asked = Page(model, LENGTH).canvases([([1, 2], [3]), ([], [])])
    assert canvas[0].tolist() == [eos, 1, 2, 3] + [mask] * (LENGTH - 5) + [eos]
    assert asked.nonzero().tolist() == [[0, 3]]
    with pytest.raises(ValueError, match="no room"):
        Page(model, 2)


def load_model(kind: str) -> Any:
    from tests.small_models import network
    from unmask.model import Model

    return Model(network(TOKENIZERS[kind]), TOKENIZERS[kind])


def test_what_generation_means() -> None:
    assert Generation.of({"until": "\n"}).temperature == 0.0, "greedy unless asked otherwise, as in the harness"
    assert Generation.of({"do_sample": True}).temperature == 1.0
    assert Generation.of({"temperature": 0.5}).temperature == 0.5
    assert Generation.of({"do_sample": False, "temperature": 0.5}).temperature == 0.0
    assert Generation.of({"until": ["a", ""], "max_new_tokens": 7}) == Generation(("a",), 7, 0.0, None, None)


def test_wrong_options(folders: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="takes no steps"):
        UnmaskLM(folders["causal"], steps=4)
    with pytest.raises(ValueError, match="published-euler"):
        UnmaskLM(folders["masked"], sampler="published-euler")  # type: ignore[arg-type]
