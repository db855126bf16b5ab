"""What the server sends the page beyond tokens: guesses of a look-ahead run, and how a model is displayed."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
from tests.serve.served import SERVED, Served, library, listening, model
from tests.small_models import TOKENIZERS
from unmask.networks.pretrained import Card


def asked(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.loads(answer.read())


@pytest.mark.parametrize("name", ["anyorder", "tiny"])
def test_a_trace_has_the_guesses_and_how_many_were_wrong(name: str) -> None:
    body = {"model": name, "length": 12, "ahead": 8, "seed": 1, "number": 4}
    expected = library(body)
    with listening(SERVED) as (address, _):
        made = asked(address, "/v1/unmask", body | {"trace": True})
    decode = TOKENIZERS["bpe"].pieces
    wrong = 0
    for i, choice in enumerate(made["choices"]):
        steps = [(step, step.sequences.tolist().index(i)) for step in expected.trace if i in step.sequences]
        assert len(steps) == len(choice["trace"]) < 12
        for entry, (step, row) in zip(choice["trace"], steps, strict=True):
            guessed = [(p, token) for p, token in step.guessed[row].tolist() if p >= 0]
            assert [(p, token) for p, token, _ in entry["guessed"]] == guessed
            shown = [decode([token])[0].decode(errors="ignore") for _, token in guessed]
            assert [piece for _, _, piece in entry["guessed"]] == shown
            assert entry["corrected"] == int(step.corrected[row])
            wrong += entry["corrected"]
        assert choice["trace"][-1]["guessed"] == []
    assert wrong > 0


def test_without_looking_ahead_there_is_no_guess() -> None:
    with listening(SERVED) as (address, _):
        made = asked(address, "/v1/unmask", {"model": "tiny", "length": 6, "seed": 3, "trace": True})
    assert all("guessed" not in entry and "corrected" not in entry for entry in made["choices"][0]["trace"])


def test_a_model_says_how_it_is_shown() -> None:
    served = {
        "text": Served(model()),
        "molecule": Served(model("smiles", "molecule")),
        "image": Served(model("levels", "image", length=16)),
        "line": Served(model("levels", "line", length=15)),
        "grid": Served(model("levels", "grid", length=16), {"display": "grid"}),
    }
    with listening(served) as (address, _):
        listed = {one["id"]: one["unmask"] for one in asked(address, "/v1/models")["data"]}
    assert {name: one["display"] for name, one in listed.items()} == {
        "tiny": "text",
        "molecule": "molecule",
        "image": "image",
        "line": "text",
        "grid": "grid",
    }
    assert listed["grid"]["symbols"] == [str(i) for i in range(17)] and listed["image"]["symbols"] is None


def test_a_card_refuses_an_unknown_display() -> None:
    assert Card(display="grid").display == "grid"
    with pytest.raises(ValueError, match=r"display must be one of text, molecule, image, grid, got 'cube'"):
        Card(display="cube")
