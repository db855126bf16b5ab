"""The page by keyboard, by screen reader, on a phone, in the dark: in a real headless Chromium."""

from __future__ import annotations

import pytest

from tests.serve.browser import Page
from tests.serve.pages import KEYS, choose


def test_everything_can_be_reached_by_keyboard(page: Page) -> None:
    """From the first element with Tab alone to the Run button, then Run by Enter and by Ctrl+Enter."""
    choose(page, "tiny")
    page.blur()
    reached = []
    for _ in range(60):
        page.keys(KEYS["tab"])
        reached.append(page.js("const {id, dataset} = document.activeElement; return id || dataset.name"))
    wanted = {"theme", "help", "text", "punch", "scatter", "run", "seed", "dice", "preset", "number", "share"}
    wanted |= {"model", "sampler", "predictor", "decoding", "draw", "temperature", "top_p", "top_k", "ahead"}
    assert wanted <= set(reached)
    page.js("text.focus()")
    page.keys(KEYS["control"], KEYS["enter"])
    page.finished()
    assert "blank" not in page.states()
    page.blur()
    page.keys("?")
    assert page.find("#keys").is_displayed()
    page.keys(KEYS["escape"])
    assert not page.find("#keys").is_displayed()


def test_every_control_has_a_name_for_a_screen_reader(page: Page) -> None:
    choose(page, "tiny")
    page.put("#preset", "calls")
    page.run()
    page.driver.execute_cdp_cmd("Accessibility.enable", {})
    nodes = page.driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = [(n["role"]["value"], n.get("name", {}).get("value", "")) for n in nodes if not n.get("ignored")]
    controls = {"button", "textbox", "combobox", "slider", "radio", "spinbutton"}
    assert controls <= {role for role, _ in seen}
    assert [role for role, name in seen if role in controls | {"image", "link", "dialog"} and not name.strip()] == []
    assert "Done after" in page.js("return document.getElementById('status').textContent")


@pytest.mark.parametrize("compare", ["", "calls"])
def test_a_phone_shows_everything_without_scrolling_sideways(page: Page, compare: str) -> None:
    page.size(360, 740)
    page.open()
    page.js("document.querySelectorAll('details').forEach(e => { e.open = true })")
    choose(page, "tiny")
    page.put("#preset", compare)
    page.run()
    assert page.js("return document.documentElement.scrollWidth") == 360
    # The examples are a strip of their own that scrolls.
    shown = "[...document.querySelectorAll('body *')].filter(e => e.offsetParent && !e.closest('#examples'))"
    assert page.js(f"return {shown}.filter(e => e.getBoundingClientRect().right > 361).map(e => e.outerHTML)") == []


def test_both_panes_of_a_comparison_are_in_sight_on_a_phone(page: Page) -> None:
    page.size(390, 844)
    page.open()
    page.js("document.querySelectorAll('details').forEach(e => { e.open = true })")
    choose(page, "tiny")
    page.put("#preset", "calls")
    page.put("#number", "8")
    page.run()
    page.js("panes.scrollIntoView()")
    tops = page.js(
        "return [...document.querySelectorAll('.pane')].map(e => e.querySelector('.sheet').getBoundingClientRect().top)"
    )
    assert len(page.all(".sheet")) == 16 and len(tops) == 2 and max(tops) < 844 - 100, tops
    assert page.js("return document.documentElement.scrollWidth") == 390


def test_dark_and_light_follow_the_system_until_one_is_chosen(page: Page) -> None:
    def brightness() -> float:
        shown = page.js("return getComputedStyle(document.documentElement).backgroundColor")
        return float(shown.removeprefix("oklch(").split()[0])

    page.scheme("light")
    assert brightness() > 0.9
    page.scheme("dark")
    assert brightness() < 0.3
    page.click("#theme")  # auto, then light
    assert brightness() > 0.9
    page.open()
    assert brightness() > 0.9  # remembered
    page.js("localStorage.clear()")
    page.scheme("light")


@pytest.mark.parametrize("model", ["tiny", "sudoku", "tiny-ar"])
def test_the_settings_are_not_clipped_where_a_scroll_bar_takes_room(page: Page, model: str) -> None:
    """At 1280 pixels the form is 330 wide beside its scroll bar; the browser of the tests hides scroll bars."""
    page.size(1280, 720)
    page.open()
    page.js("document.getElementById('form').style.width = '330px'")
    choose(page, model)
    assert page.js("return form.scrollWidth <= form.clientWidth")
