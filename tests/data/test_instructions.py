"""Prompts with their responses as rows, and token files of another library's tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.runs import settings
from unmask.data.instructions import is_instructions, prepare_instructions
from unmask.data.prepare import prepare
from unmask.data.tokens import TokenFile
from unmask.tokenizers.external import ExternalTokenizer, alphabet
from unmask.training.events import Validated
from unmask.training.loop import train

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}[assistant]"
VOCAB = ["<s>", "<pad>", "</s>", "<mask>", "<eos>", *"abcdefghijklmnopqrstuvwxyz[];"]


def letters(*, pad: bool = False) -> ExternalTokenizer:
    """As in LLaDA: eos is data and there is no padding; or as in a masked LM: padding is not data."""
    made = alphabet(VOCAB)
    return made if pad else replace(made, eos_id=4, pad_id=None, special_ids=frozenset({0, 1, 2, 3}), around=((), ()))


def write(path: Path, records: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_row_is_prompt_response_and_eos_to_the_end(tmp_path: Path) -> None:
    tokenizer = letters()
    pairs = [("ask", "yes"), ("b", "no"), ("cc", "maybe"), ("d", "e")]
    source = write(tmp_path / "a.jsonl", [{"prompt": p, "response": r} for p, r in pairs])
    assert is_instructions(source)
    train, valid = prepare_instructions(source, tmp_path / "out", tokenizer)
    assert (len(train), len(valid), train.length) == (3, 1, 8)
    seen = {}
    for part in (train, valid):
        rows, asked = part.sequences(range(len(part))), part.asked(range(len(part)))
        assert asked is not None and part.lengths(rows) is None
        for row, predicted in zip(rows, asked, strict=True):
            response = row[predicted].tolist()
            end = response.index(4)
            assert set(response[end:]) == {4}  # eos, and eos behind it, which is predicted too
            seen[tokenizer.decode(row[~predicted].tolist())] = tokenizer.decode(response[:end])
    assert seen == dict(pairs)
    assert TokenFile.open(tmp_path / "out" / "train.tokens").tokenizer.hash == tokenizer.hash


def test_messages_are_written_by_the_checkpoints_template(tmp_path: Path) -> None:
    tokenizer = letters()
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    more = [*turns, {"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    source = write(tmp_path / "a.jsonl", [{"messages": turns}, {"messages": more}])
    train, valid = prepare_instructions(source, tmp_path / "out", tokenizer, template=TEMPLATE)
    texts = set()
    for part in (train, valid):
        asked = part.asked([0])
        assert asked is not None
        texts.add(tokenizer.decode(part.sequences([0])[~asked].tolist()))
    assert texts == {"[user]hi;[assistant]", "[user]hi;[assistant]ho;[user]x;[assistant]"}
    with pytest.raises(ValueError, match="several messages need a chat template"):
        prepare_instructions(source, tmp_path / "none", tokenizer)


def test_what_is_wrong_is_named_with_its_line(tmp_path: Path) -> None:
    for record, says in (
        ({"prompt": "a", "response": 3}, "line 1: the content of a message must be a text"),
        ({"messages": [{"role": "user", "content": "a"}]}, "the last of its messages must be the assistant's"),
        ({"text": "a"}, "neither messages nor a prompt and a response"),
    ):
        source = write(tmp_path / "a.jsonl", [record] * 3)
        with pytest.raises(ValueError, match=says):
            prepare_instructions(source, tmp_path / "out", letters())
    long = write(tmp_path / "b.jsonl", [{"prompt": "abc", "response": "d" * n} for n in (1, 2, 30)])
    with pytest.raises(ValueError, match="1 of 3 records are longer than length=8"):
        prepare_instructions(long, tmp_path / "out", letters(), length=8)
    with pytest.warns(UserWarning, match="1 of 3 records are longer"):
        prepare_instructions(long, tmp_path / "out", letters(), length=8, long="drop")
    assert not is_instructions(write(tmp_path / "c.jsonl", [{"text": "a"}]))


def test_padding_that_is_no_data_is_not_predicted(tmp_path: Path) -> None:
    source = tmp_path / "a.fasta"
    source.write_text("".join(f">{i}\n{'acde'[: 1 + i % 4]}\n" for i in range(8)).replace("acde", "acde"))
    tokenizer = alphabet(["<s>", "<pad>", "</s>", "<mask>", *"ACDE"])
    train, _ = prepare(str(source), tmp_path / "out", tokenizer=tokenizer)
    rows = train.sequences(range(len(train)))
    lengths, asked = train.lengths(rows), train.asked(range(len(train)))
    assert lengths is not None and asked is not None and train.length == 4
    assert torch.equal(asked.sum(1), lengths) and bool((rows[asked] >= 4).all()) and bool((rows[~asked] == 1).all())
    bound = train.bound(torch.ones(len(train)), None, asked)
    assert bound.tokens.tolist() == lengths.tolist()


def test_a_run_learns_the_responses_alone(tmp_path: Path) -> None:
    """The prompt determines the response, and the bound counts only the tokens of responses."""
    pairs = [("abc"[i % 3] * (1 + i % 2), "xyz"[i % 3]) for i in range(120)]
    source = write(tmp_path / "a.jsonl", [{"prompt": p, "response": r} for p, r in pairs])
    often = {"patience": 0, "validate_every": 300, "save_every": 300}
    config = settings(source, tmp_path / "run", steps=300, batch=16, micro_batch=16, objective="count", **often)
    found = []
    train(config, report=lambda event: found.append(event.bound) if isinstance(event, Validated) else None)
    assert found[-1].nats_per_token < 0.6  # log 257 = 5.5 before
    data = TokenFile.open(tmp_path / "run" / "data" / "valid.tokens")
    asked = data.asked(range(len(data)))
    assert asked is not None and int(found[-1].tokens.sum()) == int(asked.sum())
