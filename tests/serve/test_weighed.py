"""Blanks that the text itself weighs: over HTTP as in the library, with valid molecules by default."""

import json

import httpx
import pytest

pytest.importorskip("fastapi")

import unmask
from tests.serve.browser import Page
from tests.serve.served import Limits, Served, listening

TEXT = "c1ccccc1____"
BODY = {"text": TEXT, "number": 3, "seed": 1}


@pytest.fixture(scope="module")
def molecules():
    return unmask.load("molecules")


@pytest.fixture(scope="module")
def client(molecules):
    limits = Limits(max_batch=2)  # the particles of a text take one place: three wait until the server is free
    served = {"molecules": Served(molecules)}
    with listening(served, limits) as (address, _), httpx.Client(base_url=address, timeout=300) as one:
        yield one


def test_molecules_are_filled_by_particles_as_in_the_library(client, molecules):
    """With both sides in view instead, these three are no molecules."""
    expected = molecules.infill(TEXT, 3, seed=1)
    plain = molecules.infill(TEXT, 3, seed=1, particles=1)
    choices = client.post("/v1/unmask", json=BODY).json()["choices"]
    assert client.post("/v1/unmask", json={**BODY, "decoding": "left-to-right"}).json()["choices"] == choices
    assert [one["text"] for one in choices] == expected.text != plain.text
    assert all(one["valid"] and one["particles"] == 128 for one in choices)


def test_the_calls_of_the_chosen_particle_are_shown(client, molecules):
    text = "c1ccc(____)cc1"
    lines = client.post("/v1/unmask", json={**BODY, "text": text, "stream": True}).text.splitlines()
    events = [(name[7:], json.loads(data[6:])) for name, data in zip(lines[::3], lines[1::3], strict=True)]
    for index, sought in enumerate(molecules.infill(text, 3, seed=1).tokens.tolist()):
        plan, *steps, done = [data for _, data in events if data.get("index") == index]
        assert [step["call"] for step in steps] == list(range(1, len(steps) + 1)) and len(steps) == plan["calls"]
        assert sum(one is None for one in plan["canvas"]) == 4, "what is given stays visible"
        assert plan["order"] == [at for step in steps for at in step["positions"]]
        assert plan["tau"] == [tau for step in steps for tau in step["tau"]]
        ids = list(plan["canvas"])
        for step in steps:
            assert all(ids[at] is None for at in step["positions"])
            for at, token in zip(step["positions"], step["tokens"], strict=True):
                ids[at] = token
        assert ids == done["tokens"] == sought


def test_a_chosen_order_and_a_pattern_fill_without_particles(client, molecules):
    orders = {"decoding": "margin", "steps": 4}, {"pattern": "[a-zA-Z0-9]*"}
    expected = molecules.infill(TEXT, seed=1, pattern="[a-zA-Z0-9]*").text
    margin, pattern = (
        client.post("/v1/unmask", json={**BODY, "number": 1, **order}).json()["choices"][0] for order in orders
    )
    assert "particles" not in margin and pattern.get("particles", 1) == 1
    assert [pattern["text"]] == expected


def test_a_server_with_little_room_draws_fewer_particles(molecules):
    limits = Limits(max_joint=4 * 3 * molecules.denoiser.vocab_size)
    with listening({"molecules": Served(molecules)}, limits) as (address, _):
        choices = httpx.post(f"{address}/v1/unmask", json=BODY, timeout=300).json()["choices"]
    assert [one["particles"] for one in choices] == [4, 4, 4]
    assert [one["text"] for one in choices] == molecules.infill(TEXT, 3, seed=1, particles=4).text


def test_the_page_shows_valid_molecules(molecules, driver):
    """It names the model's own order in its request, and draws the calls of the chosen particle."""
    with listening({"molecules": Served(molecules)}, Limits()) as (address, _):
        driver.get("about:blank")
        driver.get(f"{address}/#model=molecules&text={TEXT}&seed=1&number=3")
        page = Page(driver, f"{address}/")
        page.wait(lambda: page.all(".pane"), "the run")
        page.finished()
        told = driver.find_element("css selector", "body").text
    assert "3 of 3 are valid molecules" in told
    assert all(text in told for text in molecules.infill(TEXT, 3, seed=1).text)
