"""A real headless Chromium, and the page in it as a person uses it."""

from __future__ import annotations

import shutil
import time as clock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
PATIENCE = 600.0  # seconds until a test that waits for nothing gives up; no measurement


def missing() -> str | None:
    """Why there is no browser to test with, or None."""
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        return "needs chromium and chromedriver: `make browser` installs them on Debian"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "needs selenium: pip install selenium"
    return None


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A browser with an empty profile, and nothing left of it afterwards."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.set_page_load_timeout(PATIENCE)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page at an address. Everything is done as a person does it: by clicking, typing and looking."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver, self.address, self.patience = driver, address, PATIENCE

    def open(self, fragment: str = "#stage", *, ready: bool = True) -> Page:
        """Without a fragment the first example runs by itself; #stage is none of a run."""
        self.driver.get("about:blank")  # a change of the fragment alone would not load the page
        self.driver.get_log("browser")
        self.driver.get(self.address + fragment)
        return self.ready() if ready else self

    def ready(self) -> Page:
        """Wait for the models; then play what arrives as it arrives."""
        self.wait(lambda: self.js("return document.body.dataset.ready !== undefined"), "the models")
        self.js("pace.value = 'live'; pace.dispatchEvent(new Event('change'))")
        return self

    def size(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def js(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return self.js("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def click(self, selector: str) -> None:
        # Radio buttons lie invisibly over their labels; a click that misses raises.
        self.js("arguments[0].scrollIntoView({block: 'center'})", self.find(selector))
        self.find(selector).click()

    def put(self, selector: str, value: object) -> None:
        """Type a value over the old one, or choose it."""
        field = self.find(selector)
        if field.tag_name == "select":
            field.find_element("css selector", f"option[value='{value}']").click()
        else:
            field.clear()
            field.send_keys(str(value))

    def keys(self, *keys: str) -> None:
        self.driver.switch_to.active_element.send_keys(*keys)

    def blur(self) -> None:
        """Remove the keyboard focus."""
        self.js("document.activeElement.blur()")

    def run(self, *, whole: bool = True) -> None:
        self.click("#run")
        if whole:
            self.finished()

    def finished(self) -> None:
        """Wait until nothing is running and the playhead has come to rest."""
        rest = ("#stop[hidden]", "#play[aria-label=Play]", ".pane, #message:not([hidden])")
        self.wait(lambda: all(self.all(selector) for selector in rest), "the end of the run")

    def settled(self) -> None:
        """Wait until every colour has changed to what it will be."""
        self.wait(lambda: self.js("return document.getAnimations().length === 0"), "the end of the transitions")

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        end = clock.monotonic() + self.patience
        while clock.monotonic() < end:
            if found := condition():
                return found
            clock.sleep(0.05)
        raise AssertionError(f"waited in vain for {what}")

    def states(self, pane: int = 0) -> list[str]:
        """What each position of a pane's canvas is: blank, given, filled or new."""
        found = f"[...document.querySelectorAll('.pane')].slice({pane}, {pane + 1})"
        cells = "'.text .token, .grid .pixel, .symbols .token'"
        return self.js(f"return {found}.flatMap(e => [...e.querySelectorAll({cells})].map(e => e.dataset.state))")

    def canvas(self, pane: int = 0) -> str:
        return self.js(f"return document.querySelectorAll('.pane')[{pane}].querySelector('.canvas').textContent")

    def number(self, name: str, pane: int = 0) -> str:
        return self.js(f"return document.querySelectorAll('.pane')[{pane}].querySelector('[data-{name}]').textContent")

    def complaints(self) -> list[str]:
        """What the browser's console has, CSP violations included."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
