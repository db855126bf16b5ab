"""Models, a server and the browser of the page's tests: one of each for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import unmask
from tests.serve.browser import Page, chromium, missing
from tests.serve.pages import IMAGE, SCRIPT
from tests.small_models import folder, network
from unmask.networks.pretrained import Card, save
from unmask.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models as folders: a masked one, its left-to-right twin, an image, a grid, blocks, and one that writes HTML."""
    place = tmp_path_factory.mktemp("models")
    extra = {"characters_per_token": 4.0}
    made = {
        "tiny": folder(place / "tiny", "bpe", length=24, extra=extra),
        "tiny-ar": folder(place / "tiny-ar", "bpe", length=24, causal=True, extra=extra),
        "squares": folder(place / "squares", "levels", length=16),
        "sudoku": folder(place / "sudoku", "levels", length=16),
        "tale": folder(place / "tale", "bpe", length=24, attention="block", block=2, extra=extra),
        "anyorder": folder(place / "anyorder", "bpe", length=24, attention="order", extra=extra),
    }
    hostile = Tokenizer("smiles", (SCRIPT, IMAGE, "C"))
    save(place / "hostile", network(hostile, length=12), card=Card(data="tags"), extra={"schedule": "linear"})
    hostile.save(place / "hostile" / "tokenizer.json")
    return made | {"hostile": place / "hostile"}


@pytest.fixture(scope="session")
def models(folders: dict[str, Path]) -> dict[str, unmask.Model]:
    return {name: replace(unmask.load(path), name=name) for name, path in folders.items()}


@pytest.fixture(scope="session")
def address(models: dict[str, unmask.Model]) -> Iterator[str]:
    """A server with the models."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    from tests.serve.served import Limits, Served, listening

    cards = {"sudoku": {"display": "grid"}}
    with listening({name: Served(model, cards.get(name, {})) for name, model in models.items()}, Limits()) as (
        found,
        _,
    ):
        yield f"{found}/"


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if reason := missing():
        pytest.skip(reason)
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def page(driver: Any, address: str) -> Page:
    found = Page(driver, address)
    found.size(1280, 900)
    return found.open()
