"""What the page shows and gives away: molecules, galleries, grids, ghosts, films and pictures, in a real Chromium."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.serve.browser import Page
from tests.serve.pages import choose, downloaded
from unmask.serve.http.structure import structure
from unmask.tokenizers.molecules import problem as unmask_problem

Image = pytest.importorskip("PIL.Image", reason="needs Pillow to look at pictures")


def test_the_first_example_runs_by_itself_and_long_enough(page: Page) -> None:
    page.driver.get("about:blank")
    page.driver.get(page.address)
    page.wait(lambda: page.all(".pane"), "the first run")
    page.finished()
    assert "blank" not in page.states() and page.find("#where").text != "0 / 0"
    seconds = "const {watchable} = await import('./web/player.js'); return [1, 14, 64, 500].map(n => n / watchable(n))"
    assert page.js(f"return (async () => {{ {seconds} }})()") == [4, 4, 4, 8]


def test_molecules_are_drawn_atom_by_atom_in_the_colours_of_their_tokens(
    page: Page, models: Any, tmp_path: Path
) -> None:
    choose(page, "hostile")  # its tokens are SMILES of a kind: "C" is an atom
    page.click("[name=source][value=empty]")
    made = {seed: models["hostile"].sample(seed=seed).tokens[0].tolist() for seed in range(50)}
    page.put("#seed", max(made, key=lambda seed: made[seed].count(2)))
    page.run()
    (record,) = downloaded(page, tmp_path)
    if unmask_problem(record["text"]):  # shown as it is, and as no molecule
        assert page.all(".atom") == [] and page.find(".smiles").text == record["text"].strip()
        assert page.find(".molecule .verdict").text.startswith("not a molecule: ")
        tokens, eos = record["tokens"], models["hostile"].tokenizer.eos_id
        end = tokens.index(eos) if eos in tokens else len(tokens)
        before = max(k for k, entry in enumerate(record["trace"]) if min(entry["positions"]) < end)
        page.js(f"scrub.value = {before}; scrub.dispatchEvent(new Event('input'))")
        there = {p for entry in record["trace"][:before] for p in entry["positions"]}
        record["tokens"] = [token if i in there and i < end else -1 for i, token in enumerate(tokens)]
    positions = [int(p) for p in page.js("return [...document.querySelectorAll('.atom')].map(e => e.dataset.position)")]
    carbons = [i for i, token in enumerate(record["tokens"]) if token == 2]
    assert carbons and positions == carbons and page.find(".smiles").text == "C" * len(carbons)
    tones = "e => e.style.getPropertyValue('--at')"
    atoms = page.js(f"return [...document.querySelectorAll('.atom')].map({tones})")
    tokens = page.js(f"return [...document.querySelectorAll('.tokens .token')].map({tones})")
    assert atoms == [tokens[i] for i in carbons]
    page.js("scrub.value = 0; scrub.dispatchEvent(new Event('input'))")
    assert page.all(".atom") == [] and page.find(".smiles").text == "no atom yet"


def test_an_incomplete_molecule_is_drawn_as_far_as_possible() -> None:
    whole = ["C", "C", "(", "=", "O", ")", "N", "c", "1", "c", "c", "c", "c", "c", "1"]
    assert structure(whole, "smiles") == {"smiles": "CC(=O)Nc1ccccc1", "atoms": [0, 1, 4, 6, 7, 9, 10, 11, 12, 13]}
    holes = [None if i in (1, 5, 8) else token for i, token in enumerate(whole)]
    assert structure(holes, "smiles")["smiles"] == "C=ONcccccc"
    assert structure([*whole[:-1], "C"], "smiles") == {"smiles": "CC(=O)Nc1cccccC", "atoms": []}  # no repair at the end
    assert structure([None, "(", ")", "=", "1"], "smiles") == {"smiles": "", "atoms": []}


def test_sixteen_pictures_fill_at_once_and_one_is_looked_at(page: Page) -> None:
    choose(page, "squares")
    page.put("#number", 16)
    page.run()
    assert len(page.all(".sheet .grid")) == 16 and len(page.states()) == 16 * 16
    page.js("scrub.value = 5; scrub.dispatchEvent(new Event('input'))")
    assert page.states().count("blank") == 16 * 11
    page.click(".sheet:nth-child(7)")
    assert page.find("[data-which]").text == "sequence 7 of 16"


def test_guesses_are_ghosts_until_they_settle(page: Page, models: Any, tmp_path: Path) -> None:
    choose(page, "anyorder", ahead=8)
    page.click("[name=source][value=empty]")
    page.put("#seed", 4)
    page.run()
    (record,) = downloaded(page, tmp_path)
    expected = models["anyorder"].sample(seed=4)
    assert record["tokens"] == expected.tokens[0].tolist() and len(record["trace"]) < 24
    assert "ghost" not in page.states() and float(page.number("per")) > 1
    page.js("scrub.value = 1; scrub.dispatchEvent(new Event('input'))")
    settled = len(record["trace"][0]["positions"])
    assert page.states().count("ghost") == 8 - settled and page.states().count("blank") == 16


def test_a_puzzle_is_typed_and_solved_with_how_sure_each_cell_is(page: Page, tmp_path: Path) -> None:
    choose(page, "sudoku")
    assert page.js("return document.querySelector('[name=source]:checked').value") == "puzzle"
    page.click("#clear")
    page.click("#puzzle input:nth-child(6)")
    page.keys("3")
    page.keys("16")  # symbols of two characters: the next cell comes when the symbol is whole
    page.run()
    (record,) = downloaded(page, tmp_path)
    states = page.states()
    given = [i for i, state in enumerate(states) if state == "given"]
    assert 5 in given and record["tokens"][5] == 3 and "blank" not in states
    texts = page.js("return [...document.querySelectorAll('.symbols .token b')].map(e => e.textContent)")
    assert texts == [str(token) for token in record["tokens"]]
    sure = page.js("return [...document.querySelectorAll('.symbols .token small')].map(e => e.textContent)")
    entries = [
        (p, q) for entry in record["trace"] for p, q in zip(entry["positions"], entry["probabilities"], strict=True)
    ]
    assert {p: sure[p] for p, _ in entries} == {p: f"{int(100 * q + 0.5)}%" for p, q in entries}


def test_another_model_starts_from_what_suits_it(page: Page) -> None:
    chosen = "return document.querySelector('[name=source]:checked').value"
    choose(page, "tiny")
    page.click("[name=source][value=empty]")
    for model, source in (("squares", "empty"), ("tiny", "text"), ("sudoku", "puzzle"), ("tiny-ar", "prompt")):
        choose(page, model)
        assert page.js(chosen) == source, model


@pytest.mark.parametrize(
    ("link", "said"),
    [
        ("#model=tiny&seed=-1", "seed=-1, which must be a whole number of at least 0"),
        ("#model=tiny&seed=1&steps=many", "steps=many, which must be a whole number"),
        ("#model=tiny&seed=1&sampler=best", "sampler=best, which must be one of first-hitting"),
        ("#model=tiny&seed=1&top_p=2", "top_p=2, which must be above 0 and at most 1"),
        ("#model=tiny&seed=1&colour=red", "colour=red, which this page does not know"),
        ("#model=tiny&seed=1&canvas=1,x", "canvas has an id that tiny does not know"),
        ("#model=tiny&seed=1&compare=model%3Dtiny%26top_k%3D0", "top_k=0, which must be a whole number of at least 1"),
    ],
)
def test_what_is_wrong_in_a_link_is_said(page: Page, link: str, said: str) -> None:
    page.open(link)
    assert said in page.find("#message").text and page.all(".pane") == []


def test_a_run_is_saved_as_a_film(page: Page, tmp_path: Path) -> None:
    choose(page, "tiny", sampler="parallel", steps=4)
    page.click("[name=source][value=empty]")
    page.run()
    where = {"behavior": "allow", "downloadPath": str(tmp_path)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    page.click("#gif")
    file = page.wait(lambda: next(tmp_path.glob("*.gif"), None), "the film")
    page.wait(lambda: file.read_bytes().endswith(b"\x3b"), "the whole film")
    with Image.open(file) as film:
        assert film.n_frames == 5 and film.info["loop"] == 0
        durations, pictures = [], []
        for i in range(5):
            film.seek(i)
            durations.append(film.info["duration"])
            pictures.append(film.convert("RGB").tobytes())
    assert durations == [800] * 4 + [1600] and len(set(pictures)) == 5
    assert "blank" not in page.states()  # the page is as it was
    page.click("#webm")
    video = page.wait(lambda: next(tmp_path.glob("*.webm"), None), "the video")
    assert video.read_bytes()[:4] == b"\x1a\x45\xdf\xa3"


def test_a_link_with_a_picture_previews_the_run(page: Page) -> None:
    choose(page, "tiny")
    page.click("[name=source][value=empty]")
    page.run()
    page.js("Object.defineProperty(navigator, 'clipboard', {value: {writeText: async t => { window.given = t; }}})")
    page.click("#preview")
    link = page.wait(lambda: page.js("return window.given"), "the link")
    before, fragment = link.split("#")
    assert "model=tiny" in fragment and "model" not in before  # the run stays out of what the server sees
    with urllib.request.urlopen(before) as answer:
        head = answer.read().decode()
    picture = head.split('property="og:image" content="')[1].split('"')[0]
    with urllib.request.urlopen(picture) as answer, Image.open(io.BytesIO(answer.read())) as shown:
        assert shown.size == (1200, 630) and len(shown.convert("RGB").getcolors(10**6)) > 5
    with urllib.request.urlopen(before.split("?")[0] + "?picture=%22%3E%3Cscript%3E") as answer:
        assert "<script>" not in answer.read().decode().split("</head>")[0].replace('<script type="module"', "")
    request = urllib.request.Request(before.split("?")[0] + "pictures", b"GIF89a", method="POST")
    with pytest.raises(urllib.error.HTTPError) as failure:
        urllib.request.urlopen(request)
    assert "must be a PNG" in json.loads(failure.value.read())["error"]["message"]
