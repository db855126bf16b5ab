"""The page in a real headless Chromium, against the real server and real tiny models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.serve.browser import Page
from tests.serve.pages import IMAGE, KEYS, SCRIPT, choose, downloaded
from unmask import plan
from unmask.samplers.law import CoupledByLaw

TEXT = "In the ____________ God created ________ earth."


def test_a_prompt_is_continued_as_the_library_does(page: Page, models: Any, tmp_path: Path) -> None:
    choose(page, "tiny")
    page.click("[name=source][value=prompt]")
    page.put("#prompt", "In the")
    page.put("#seed", 7)
    page.run()
    expected = models["tiny"].sample(prompt="In the", seed=7)
    (record,) = downloaded(page, tmp_path)
    assert record["tokens"] == expected.tokens[0].tolist()
    assert record["text"] == expected.text[0]
    assert len(record["trace"]) == expected.calls
    assert "blank" not in page.states()
    assert page.number("calls") == f"{expected.calls} / {expected.calls}"
    assert float(page.number("entropy")) > 0
    assert len(page.all("circle.happened")) == expected.calls
    assert page.complaints() == []


def test_blanks_are_punched_and_filled(page: Page, models: Any, tmp_path: Path) -> None:
    choose(page, "tiny")
    page.click("[name=source][value=text]")
    page.put("#text", "In the beginning God created the earth.")
    page.js("text.focus(); text.setSelectionRange(6, 16)")  # " beginning": the space stays
    page.keys(KEYS["control"], "b")
    assert page.js("return text.value") == "In the _________ God created the earth."
    page.js("text.setSelectionRange(22, 22)")
    page.click("#punch")  # without a selection: the word at the cursor
    assert page.js("return text.value") == "In the _________ God _______ the earth."
    assert page.find("#blanks").text == "2 blanks, about 4 tokens"
    page.run()
    expected = models["tiny"].infill("In the _________ God _______ the earth.", seed=0)
    (record,) = downloaded(page, tmp_path)
    assert (record["text"], record["tokens"]) == (expected.text[0], expected.tokens[0].tolist())
    given = [state == "given" for state in page.states()]
    blanks = models["tiny"].rows.blanks("In the _________ God _______ the earth.")
    assert given == [i != models["tiny"].denoiser.mask_id for i in blanks.ids]


def test_undo_brings_a_blank_back(page: Page) -> None:
    choose(page, "tiny")
    page.click("[name=source][value=text]")
    page.put("#text", "one two three")
    page.js("text.focus(); text.setSelectionRange(4, 7)")
    page.click("#punch")
    assert page.js("return text.value") == "one ___ three"
    page.js("text.focus()")
    page.keys(KEYS["control"], "z")
    assert page.js("return text.value") == "one two three"


def test_float32_is_compared_with_exact_on_one_seed(page: Page, tmp_path: Path) -> None:
    choose(page, "tiny")
    page.put("#preset", "float32")
    assert "float32" in page.find("#preset-help").text
    page.put("#settings-b [data-name=sampler]", "published-ancestral")  # every draw of it, at fewer steps
    for side in "ab":
        page.put(f"#settings-{side} [data-name=steps]", 60)
    page.put("#number", 2)
    page.put("#seed", 3)
    page.run()
    assert len(page.all(".pane")) == 2
    assert [set(page.states(pane)) <= {"filled", "new"} for pane in (0, 1)] == [True, True]
    assert "over 2 sequences each" in page.find("#verdict").text
    assert len(page.all("#entropy polyline")) == len(page.all("#surprise polyline")) == 2
    records = downloaded(page, tmp_path)
    assert [record["sampler"] for record in records] == ["ancestral"] * 2 + ["published-ancestral"] * 2
    assert {record["seed"] for record in records} == {3} and [record["index"] for record in records] == [0, 1, 0, 1]
    bits = [-math.log2(p) for record in records[:2] for entry in record["trace"] for p in entry["probabilities"]]
    shown = page.texts("#verdict dd .a")[0]
    assert float(shown.removeprefix("A ")) == pytest.approx(sum(bits) / len(bits), abs=0.006)
    assert page.find(".pane [data-which]").text == "sequence 1 of 2"
    page.click(".pane .sheet:nth-child(2)")
    assert page.find(".pane [data-which]").text == "sequence 2 of 2"


def test_the_float32_error_is_visible(page: Page, models: Any, tmp_path: Path) -> None:
    """The preset as offered: B is what the library's float32 simulation gives, and A what the exact plan gives."""
    titles = page.texts("#examples .card b")
    page.all("#examples .card")[titles.index("See float32 truncation")].click()
    page.finished()
    records = downloaded(page, tmp_path)
    assert [record["sampler"] for record in records] == ["ancestral"] * 8 + ["published-law"] * 8
    model = next(models[record["model"]] for record in records)
    how = {"length": len(records[0]["tokens"]), "steps": 100_000, "seed": records[0]["seed"]}
    exact = model.sample(8, plan=plan.ancestral, **how)
    coupled = model.sample(8, sampler=CoupledByLaw(), **how)
    assert [record["tokens"] for record in records] == [*exact.tokens.tolist(), *coupled.tokens.tolist()]


def test_masked_is_compared_with_left_to_right(page: Page) -> None:
    choose(page, "tiny")
    page.put("#preset", "left-to-right")
    assert page.find("#settings-b [data-name=sampler]").get_attribute("disabled")
    assert page.find("[name=source][value=text]").get_attribute("disabled")  # the twin cannot fill blanks
    page.put("#prompt", "In the")
    page.run()
    assert [len(page.states(pane)) for pane in (0, 1)] == [24, 24]
    page.blur()
    page.keys(KEYS["home"])
    for _ in range(3):
        page.keys(KEYS["right"])
    visible = [i for i, state in enumerate(page.states(1)) if state in ("filled", "new")]
    assert visible == list(range(visible[0], visible[0] + 3))  # left to right


def test_the_trace_is_scrubbed_by_hand_and_by_keys(page: Page) -> None:
    choose(page, "tiny", sampler="parallel", steps=6)
    page.click("[name=source][value=empty]")
    page.run()
    whole = page.canvas()
    page.blur()
    page.keys(KEYS["home"])
    assert set(page.states()) == {"blank"} and page.find("#where").text == "0 / 6"
    page.keys(KEYS["right"])
    assert page.states().count("new") == 4 and page.states().count("blank") == 20
    page.keys(KEYS["right"])
    assert (page.states().count("filled"), page.states().count("new")) == (4, 4)
    page.keys(KEYS["left"])
    assert page.states().count("blank") == 20
    page.js("scrub.value = 5; scrub.dispatchEvent(new Event('input'))")
    assert page.states().count("blank") == 4
    page.find("#scrub").send_keys(KEYS["right"])  # the slider moves by itself, and by one
    assert page.canvas() == whole and page.find("#where").text == "6 / 6"
    page.find("#scrub").send_keys(KEYS["home"])
    assert set(page.states()) == {"blank"}
    page.blur()
    page.keys(" ")
    page.finished()
    assert page.canvas() == whole
    page.keys(KEYS["home"])
    page.keys(KEYS["end"])
    assert page.canvas() == whole


def test_colours_say_when_or_how_sure(page: Page, tmp_path: Path) -> None:
    choose(page, "tiny")
    page.click("[name=source][value=empty]")
    page.run()

    def tones() -> list[float]:
        tokens = "[...document.querySelectorAll('.text .token')]"
        return [float(tone) for tone in page.js(f"return {tokens}.map(e => e.style.getPropertyValue('--at'))")]

    when = tones()
    assert sorted(when) == pytest.approx([i / 23 for i in range(24)], abs=1e-3)
    page.blur()
    page.keys("c")
    (record,) = downloaded(page, tmp_path)
    entries = [(entry["positions"], entry["probabilities"]) for entry in record["trace"]]
    probability = {p: q for positions, values in entries for p, q in zip(positions, values, strict=True)}
    sure = [max(0.0, 1 + math.log2(probability[p]) / 10) for p in range(24)]
    assert tones() == pytest.approx(sure, abs=1e-3)
    assert page.find("#low").text.startswith("unsure")
    bits = -sum(map(math.log2, probability.values())) / 24
    assert float(page.number("bits")) == pytest.approx(bits, abs=0.006)


def test_a_link_brings_the_run_back(page: Page, tmp_path: Path) -> None:
    shape = {"temperature": 0.7, "top_p": 0.9, "draw": "inverse-cdf", "predictor": "extrapolate"}
    choose(page, "tiny", sampler="parallel", steps=3, **shape)
    page.click("[name=source][value=text]")
    page.put("#text", TEXT + ' <b>&"#=+% é 神')
    page.put("#seed", 11)
    page.put("#preset", "own")
    page.put("#settings-b [data-name=sampler]", "first-hitting")
    page.put("#settings-b [data-name=predictor]", "first-order")
    page.run()
    before, link = downloaded(page, tmp_path / "before"), page.driver.current_url
    page.open(link.removeprefix(page.address))
    page.finished()
    after = downloaded(page, tmp_path / "after")
    assert [record["text"] for record in after] == [record["text"] for record in before]
    for one, other in zip(before, after, strict=True):
        for key in ("model", "sampler", "steps", "predictor", "draw", "temperature", "top_p", "seed", "tokens"):
            assert one.get(key) == other.get(key), key
    assert after[0]["temperature"] == 0.7 and after[1]["sampler"] == "first-hitting" and after[0]["seed"] == 11
    assert page.driver.current_url == link


def test_a_link_to_a_model_that_is_not_there_says_so(page: Page) -> None:
    page.open("#model=elsewhere&seed=1")
    assert "elsewhere, which this server does not have" in page.find("#message").text
    assert page.all(".pane") == []


def test_html_in_a_sample_is_text(page: Page, models: Any) -> None:
    choose(page, "hostile")
    page.click("[name=source][value=empty]")
    page.run()
    expected = models["hostile"].sample(seed=0).text[0]
    assert SCRIPT in expected and IMAGE in expected
    assert page.js("return document.querySelector('.tokens').textContent") == expected
    assert page.js("return window.hacked") is None
    assert page.js("return document.querySelectorAll('.pane script, .pane img').length") == 0
    page.find(".canvas").send_keys(KEYS["right"])
    assert "<" in page.find("#inspector").text or "C" in page.find("#inspector").text
    assert SCRIPT in page.js("return document.getElementById('status').textContent")
    assert page.complaints() == []


def test_erased_tokens_are_filled_again_and_the_others_stay(page: Page, tmp_path: Path) -> None:
    choose(page, "tiny")
    page.click("[name=source][value=empty]")
    page.run()
    (before,) = downloaded(page, tmp_path / "before")
    for _ in range(3):
        page.find(".canvas").send_keys(KEYS["right"])
    page.keys(KEYS["delete"])  # position 2
    page.click("[data-position='5']")
    page.click("#erase")
    assert "2 of 24 tokens erased" in page.find("#canvas-help").text
    page.put("#seed", 5)
    page.run()
    (after,) = downloaded(page, tmp_path / "after")
    assert sorted(p for entry in after["trace"] for p in entry["positions"]) == [2, 5]
    others = [i for i in range(24) if i not in (2, 5)]
    assert [after["tokens"][i] for i in others] == [before["tokens"][i] for i in others]


def test_levels_are_drawn_as_an_image(page: Page, tmp_path: Path) -> None:
    choose(page, "squares")
    page.run()
    (record,) = downloaded(page, tmp_path)
    levels = page.js("return [...document.querySelectorAll('.pixel')].map(e => e.style.getPropertyValue('--level'))")
    assert [round(float(level) * 16) for level in levels] == record["tokens"]
    boxes = page.js("return [...document.querySelectorAll('.pixel')].map(e => [e.offsetLeft, e.offsetTop])")
    assert len({x for x, _ in boxes}) == len({y for _, y in boxes}) == 4
    page.click(".pixel[data-position='6']")
    page.run()
    assert page.states().count("given") == 15


def test_an_order_without_a_plan_shows_its_marks_as_they_come(page: Page) -> None:
    choose(page, "tiny", decoding="confidence")
    assert page.find("#settings-a [data-name=sampler]").get_attribute("disabled")
    page.click("[name=source][value=empty]")
    page.run()
    assert "No plan" in page.find(".plan figcaption").text
    page.blur()
    page.keys(KEYS["home"])
    seen = "[...document.querySelectorAll('.mark')].filter(e => getComputedStyle(e).visibility !== 'hidden')"
    assert page.js(f"return {seen}.length") == 0
    page.keys(KEYS["end"])
    assert page.js(f"return {seen}.length") == 24


def test_characters_of_several_tokens_appear_whole(page: Page, models: Any) -> None:
    choose(page, "tiny")
    page.click("[name=source][value=text]")
    page.put("#text", "é 神 ____ ü.")
    page.run()
    shown = page.canvas()
    assert "é 神" in shown and " ü." in shown and "\ufffd" not in shown.split(" ")[0]


def test_the_request_is_what_the_form_says(page: Page) -> None:
    page.js(
        "window.sent = []; const real = window.fetch;"
        "window.fetch = (where, how) => { window.sent.push(how.body); return real(where, how); };"
    )
    choose(page, "tiny", sampler="parallel", steps=3, top_k=5)
    page.click("[name=source][value=text]")
    page.put("#text", TEXT)
    page.put("#seed", 2)
    page.run()
    form = {"predictor": "first-order", "draw": "exponential-race", "temperature": 1, "top_k": 5}
    form |= {"sampler": "parallel", "steps": 3}
    assert page.js("return JSON.parse(window.sent.at(-1))") == {
        "text": TEXT,
        "seed": 2,
        "model": "tiny",
        "stream": True,
        **form,
    }
    choose(page, "tiny-ar", temperature=0.5)
    page.put("#prompt", "In the")
    page.run()
    form = {"draw": "exponential-race", "temperature": 0.5, "top_k": 5}
    assert page.js("return JSON.parse(window.sent.at(-1))") == {
        "prompt": "In the",
        "seed": 2,
        "model": "tiny-ar",
        "stream": True,
        **form,
    }


def test_a_newcomer_has_something_to_click(page: Page) -> None:
    titles = page.texts("#examples .card b")
    assert titles[:2] == ["Fill the blanks", "Write a story"]
    assert {"Make molecules", "Draw digits", "Solve a puzzle", "Look ahead", "Race left to right"} < set(titles)
    for i, title in enumerate(titles):
        if title == "See float32 truncation":
            continue  # has a test of its own
        page.open()
        page.all("#examples .card")[i].click()
        page.wait(lambda: page.all(".pane"), "the first tokens")
        page.finished()
        assert "blank" not in page.states() and "ghost" not in page.states(), title


def test_why_there_are_no_blanks_is_said_beside_them(page: Page) -> None:
    reasons = {
        "tiny": "",
        "tiny-ar": "No Blanks: tiny-ar sees only what comes before, so it continues a prompt.",
        "tale": "No Blanks: tale sees only what comes before, so it continues a prompt.",
        "squares": "No Blanks and no Prompt: what squares makes is no text.",
        "sudoku": "No Blanks and no Prompt: sudoku makes grids, which are typed as a puzzle.",
    }
    for model, reason in reasons.items():
        choose(page, model)
        assert page.find("#source-help").text == reason  # "" where it is hidden
        assert bool(page.find("[name=source][value=text]").get_attribute("disabled")) == bool(reason)
    choose(page, "tiny")
    page.put("#preset", "left-to-right")
    assert page.find("#source-help").text == reasons["tiny-ar"]
