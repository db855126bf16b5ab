"""What the page says when something goes wrong, in a real headless Chromium and against real servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.serve.browser import PATIENCE, Page
from tests.serve.pages import KEYS, Held, choose

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
from tests.serve.served import Limits, Served, listening  # they need both of these

WATCH = """
  window.told = [];
  new MutationObserver(() => {
    const button = document.querySelector("#message button");
    button && window.told.push([button.textContent, button.disabled]);
  }).observe(document.body, { subtree: true, childList: true, attributes: true });
"""


@contextmanager
def held(driver: Any, models: Any, *, limits: Limits | None = None, **options: Any) -> Iterator[tuple[Page, Held]]:
    """The page of a server whose one network is held back, and the network."""
    network = Held(models["tiny"].denoiser)
    served = Served(replace(models["tiny"], denoiser=network))
    with listening({"tiny": served}, limits or Limits(max_batch=4)) as (address, _):
        network.hold(**options)
        page = Page(driver, f"{address}/")
        page.size(1280, 900)
        try:
            page.open().click("[name=source][value=empty]")
            yield page, network
        finally:
            page.driver.get("about:blank")  # its request is cancelled
            network.allow()


def filled(page: Page) -> int:
    return sum(state in ("filled", "new") for state in page.states())


def test_a_wrong_setting_is_named_in_words(page: Page) -> None:
    choose(page, "tiny", sampler="parallel", steps=0)
    page.click("[name=source][value=empty]")
    page.run()
    assert "steps" in page.find("#message").text
    assert page.find("#settings-a [data-name=steps]").get_attribute("aria-invalid") == "true"
    assert page.find("#player").get_attribute("inert")  # there is nothing to play
    page.put("#settings-a [data-name=steps]", 4)
    page.run()
    assert not page.find("#message").is_displayed() and "blank" not in page.states()


def test_a_full_server_says_when_to_come_back(driver: Any, models: Any) -> None:
    limits = Limits(max_batch=1, max_queue=1, grace_seconds=5.0)
    with held(driver, models, limits=limits, allowed=0) as (page, network):
        asked = urllib.request.Request(f"{page.address}v1/unmask", b'{"seed": 1}', {"Content-Type": "application/json"})

        def ask() -> None:
            urllib.request.urlopen(asked, timeout=PATIENCE).read()

        others = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
        for other, busy in zip(others, ('"live":1', '"queued":1'), strict=True):
            other.start()
            page.wait(lambda busy=busy: busy in _health(page.address), "a server that is busy")
        page.js(WATCH)
        page.run()
        assert "no more runs at the moment" in page.find("#message").text
        told = page.js("return window.told")
        assert told[0][0].startswith("Try again in") and told[0][1]  # the button counts down before it can be pressed
        network.allow()
        for other in others:
            other.join(PATIENCE)
        page.wait(lambda: page.find("#message button").is_enabled(), "the end of the wait")
        page.click("#message button")
        page.wait(lambda: page.all("[data-state=new]"), "the second try")
        page.finished()
        assert "blank" not in page.states() and not page.find("#message").is_displayed()


def _health(address: str) -> str:
    with urllib.request.urlopen(f"{address}health", timeout=PATIENCE) as answer:
        return str(answer.read().decode()).replace(" ", "")


def test_what_arrived_before_a_model_failed_is_kept(driver: Any, models: Any) -> None:
    with held(driver, models, fails_at=4) as (page, _):
        page.run()
        assert "server's log" in page.find(".note").text and "Try again" in page.find(".note").text
        assert "told to fail" not in page.find(".note").text  # a message may quote a user's text
        assert filled(page) == 3 and page.states().count("blank") == 21
        assert not page.find("#export").is_enabled()
        page.blur()
        page.keys(KEYS["home"])
        assert set(page.states()) == {"blank"}  # what is there can be looked through


def test_a_token_is_asked_for_and_never_shared(driver: Any, models: Any) -> None:
    with listening({"tiny": Served(models["tiny"])}, token="secret") as (address, _):
        page = Page(driver, f"{address}/").open(ready=False)
        page.wait(lambda: page.all(".token-form input"), "the question")
        assert "wants a token" in page.find("#message").text
        page.find(".token-form input").send_keys("wrong", KEYS["enter"])
        page.wait(lambda: page.js("return document.querySelector('.token-form input')?.value === ''"), "another try")
        page.find(".token-form input").send_keys("secret", KEYS["enter"])
        page.ready()
        page.run()
        assert page.all("[data-state=new]") and not page.find("#message").is_displayed()
        assert "secret" not in page.driver.current_url
        page.js("sessionStorage.clear()")


def test_a_run_is_stopped_halfway_and_another_takes_its_place(driver: Any, models: Any) -> None:
    with held(driver, models, allowed=3) as (page, network):
        page.run(whole=False)
        page.wait(lambda: filled(page) == 3, "three tokens")
        page.blur()
        page.keys(KEYS["escape"])
        page.finished()
        assert "Stopped after call 3" in page.find(".note").text and filled(page) == 3
        page.run(whole=False)
        network.allow(8)
        page.wait(lambda: 0 < filled(page) < 24, "the first tokens")
        page.click("#run")
        network.allow()
        page.finished()
        assert "blank" not in page.states() and not page.find(".note").is_displayed()


def test_pause_holds_the_canvas_while_more_arrives(driver: Any, models: Any) -> None:
    with held(driver, models, allowed=3) as (page, network):
        page.run(whole=False)
        page.wait(lambda: filled(page) == 3, "three tokens")
        page.blur()
        page.keys(" ")
        network.allow()
        page.finished()
        assert filled(page) == 3 and page.find("#play").get_attribute("aria-label") == "Play"
        page.keys(KEYS["end"])
        assert filled(page) == 24


@contextmanager
def command(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """``unmask serve`` itself."""
    line = [sys.executable, "-m", "unmask", "serve", str(folder), "--port", str(port)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=os.environ) as server:
        assert server.stderr is not None
        try:
            while "serving" not in (said := server.stderr.readline()):
                assert said, f"unmask serve ended with {server.wait()}"
            yield server
        finally:
            server.kill()


def test_a_server_that_is_gone_is_reported(driver: Any, folders: Any) -> None:
    """The command is killed in the middle of a run, and again before one; then it comes back, at the same address."""
    with held_port() as port:
        gone_and_back(driver, folders, port)


@contextmanager
def held_port() -> Iterator[int]:
    """A port that no other process gets meanwhile: bound here, without listening, and free to be shared."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def gone_and_back(driver: Any, folders: Any, port: int) -> None:
    page = Page(driver, f"http://127.0.0.1:{port}/")
    with command(folders["tiny"], port) as server:
        page.open()
        slow = {"sampler": "published-ancestral", "steps": 100000}  # the most that is allowed: it will not be finished
        for setting, value in slow.items():
            page.put(f"#settings-a [data-name={setting}]", value)
        page.click("[name=source][value=empty]")
        page.run(whole=False)
        page.wait(lambda: filled(page) > 0, "the first tokens")
        server.kill()
        page.finished()
        assert "connection broke" in page.find(".note").text and 0 < filled(page) < 24
    page.put("#settings-a [data-name=sampler]", "first-hitting")
    before = page.canvas()
    page.run()
    assert "does not answer" in page.find("#message").text and "unmask serve" in page.find("#message").text
    assert page.canvas() == before and 0 < filled(page) < 24  # what was there is still there
    page.blur()
    page.keys(KEYS["home"])
    assert filled(page) == 0  # and can be looked through
    with command(folders["tiny"], port):
        page.click("#message button")
        page.wait(lambda: not page.find("#message").is_displayed(), "the second try")
        page.wait(lambda: filled(page) == 24, "the run after the server has come back")
        page.finished()
        assert "blank" not in page.states()
