"""Instructions from the command line: LLaDA is fine-tuned on chats, evaluated on their responses, and answers one."""

from __future__ import annotations

import json
from pathlib import Path

import openai
import pytest
import torch

import unmask
from tests.serve.served import listening
from tests.training.families import made
from unmask.cli import main
from unmask.cli.serve import served
from unmask.data.tokens import TokenFile

QUESTIONS = "abcdefgh"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on chats in which the answer is the letter behind the asked one, and its data."""
    folder = tmp_path_factory.mktemp("chat")
    base, data, run = made(folder / "base", "llada"), folder / "chats.jsonl", folder / "run"

    def record(i: int) -> dict[str, object]:
        asked, answer = QUESTIONS[i % 8], chr(ord(QUESTIONS[i % 8]) + 1) * (1 + i % 8 // 4)
        said = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        return {"messages": said} if i % 2 else {"prompt": asked, "response": answer}

    data.write_text("".join(json.dumps(record(i)) + "\n" for i in range(64)))
    options = "--steps 200 --batch 16 --learning-rate 1e-2 --objective count --patience 0 --threads 1 --device cpu"
    arguments = ["train", str(data), "--init", str(base), "--out", str(run), "--no-tensorboard", *options.split()]
    assert main(arguments) == 0
    return run, data


def test_a_row_is_the_templates_prompt_and_a_response_that_ends(tuned: tuple[Path, Path]) -> None:
    run, _ = tuned
    tokens = TokenFile.open(run / "data" / "train.tokens")
    tokenizer, asked = tokens.tokenizer, tokens.asked([0])
    assert asked is not None
    row = tokens.sequences([0])[0]
    prompt, response = tokenizer.decode(row[~asked[0]].tolist()), row[asked[0]].tolist()
    assert prompt.startswith("<u>") and prompt.endswith("<a>") and len(prompt) == 7
    assert response[-1] == tokenizer.eos_id and tokenizer.decode(response)[0] == chr(ord(prompt[3]) + 1)


def test_evaluate_counts_the_responses_alone(tuned: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """The run's own held-out part, the file of chats itself, and ``unmask.nelbo`` where the responses are."""
    run, data = tuned
    tokens = TokenFile.open(run / "data" / "valid.tokens")
    every = range(len(tokens))
    asked, model = tokens.asked(every), unmask.load(run)
    expected = unmask.nelbo(model.denoiser, tokens.sequences(every), passes=4, where=asked)
    assert main(["evaluate", str(run), "--passes", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["nats_per_token"]["value"] == pytest.approx(expected.nats_per_token, rel=1e-6)
    assert told["nats_per_token"]["value"] < 0.5  # log 31 = 3.4 of a uniform guess
    base = str(run.parent / "base")
    assert main(["evaluate", base, str(data), "--passes", "4", "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert before["sequences"] == 64 and before["nats_per_token"]["value"] > 2 and before["data"] == str(data)


def test_it_answers_a_chat(tuned: tuple[Path, Path]) -> None:
    run, _ = tuned
    one = served(str(run), "cpu", "tuned")
    messages = [{"role": "user", "content": "c"}]
    with (
        listening({"tuned": one}) as (address, _),
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        made = client.chat.completions.create(model="tuned", messages=messages, max_tokens=3, temperature=0)  # type: ignore[arg-type]
    assert made.choices[0].message.content == "d"


def test_sampling_continues_the_prompt(tuned: tuple[Path, Path]) -> None:
    run, _ = tuned
    torch.manual_seed(0)
    made = unmask.load(run).sample(8, prompt="<u>f<a>", max_tokens=3, seed=0)
    assert sum(text == "<u>f<a>gg" for text in made.text) >= 6, made.text
