"""What the page's tests share: how a person sets things, and a network that does what a test wants."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.serve.browser import PATIENCE, Page
from unmask.cli import trace
from unmask.network import logits_at

SCRIPT = "<script>window.hacked = 1</script>"
IMAGE = "<img src=x onerror='window.hacked = 1'>"
KEYS = {
    "left": "\ue012",
    "right": "\ue014",
    "home": "\ue011",
    "end": "\ue010",
    "control": "\ue009",
    "enter": "\ue007",
    "escape": "\ue00c",
    "delete": "\ue017",
    "tab": "\ue004",
}
FOREVER = 10**9


def choose(page: Page, model: str, **settings: object) -> None:
    """Choose a model and the settings of the first pane."""
    page.put("#head-a [data-name=model]", model)
    for setting, value in settings.items():
        page.put(f"#settings-a [data-name={setting}]", value)


def downloaded(page: Page, folder: Path) -> list[dict[str, Any]]:
    """Press Export trace, and read the file."""
    folder.mkdir(exist_ok=True)
    where = {"behavior": "allow", "downloadPath": str(folder)}
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", where)
    page.click("#export")
    file = page.wait(lambda: next(folder.glob("*.jsonl"), None), "the file")
    page.wait(lambda: file.read_text().endswith("\n"), "the whole file")
    return [trace.parse(line) for line in file.read_text().splitlines()]


class Held(nn.Module):
    """A network that makes as many calls as it is allowed, waits for the others, and fails from one on."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network, self.allowed, self.fails_at, self.made = network, FOREVER, FOREVER, 0
        self.vocab_size, self.mask_id, self.length = network.vocab_size, network.mask_id, network.length
        self.changed = threading.Condition()
        self.eval()

    def hold(self, allowed: int = FOREVER, fails_at: int = FOREVER) -> None:
        """From now on: the calls of the server's warm-up do not count."""
        with self.changed:
            self.allowed, self.fails_at, self.made = allowed, fails_at, 0

    def allow(self, calls: int = FOREVER) -> None:
        with self.changed:
            self.allowed = calls
            self.changed.notify_all()

    def forward(self, tokens: Tensor, time: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        with self.changed:
            assert self.changed.wait_for(lambda: self.made < self.allowed, PATIENCE)
            self.made += 1
        if self.made >= self.fails_at:
            raise RuntimeError("this network was told to fail")
        if rows is None:
            rows = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
        return logits_at(self.network, tokens, time, rows)
