"""``unmask models``: the models that can be loaded by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from unmask.checkpoints.packages import NAMED
from unmask.cli.command import Command
from unmask.cli.options import guarded
from unmask.fetch import cache_folder
from unmask.loading import Known, available, describe


@dataclass(frozen=True, kw_only=True)
class ModelsOptions:
    """List the models that can be loaded by name, and show how to add one."""

    json: bool = False
    """One JSON line per model."""


COMMAND = Command("models", ModelsOptions, {}, ("unmask models", "unmask models --json"))


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask models``."""
    chosen = COMMAND.parsed(arguments)
    return guarded("models", lambda: _models(chosen))


def _models(chosen: ModelsOptions) -> None:
    models = available()
    if chosen.json:
        for model in models:
            print(json.dumps(describe(model)))
        return
    cache = cache_folder() / "models"
    for where, title in (("box", "Bundled"), ("cache", f"In {cache}"), ("hub", "Downloaded from the Hugging Face hub")):
        here = [model for model in models if model.where == where]
        print(f"{title}:{'' if here else ' none'}")
        for model in here:
            print(f"  {_line(model)}")
    print("Downloaded from the package index on first use:")
    for name, weights in NAMED.items():
        print(f"  {name}: masked, {weights.megabytes} MB, {weights.licence}; {weights.note}")
    print(
        f"\nTo add one: unmask train DATA --out RUN, then unmask sample RUN. To load it by a name, copy RUN/model to"
        f"\n{cache / 'NAME'}. ORG/NAME is downloaded from the Hugging Face hub on first use."
    )


def _line(model: Known) -> str:
    about = describe(model)
    if "error" in about:
        return f"{model.name}: cannot be used: {about['error']}"
    parts = [
        {"causal": "left-to-right", "any-order": "any order"}.get(about["architecture"], "masked"),
        f"{about['megabytes']:.1f} MB",
        f"{about['length']} tokens, {about['tokenizer']} of {about['vocab_size']:,}",
    ]
    if about["characters_per_token"]:
        parts.append(f"{about['characters_per_token']:.2f} characters per token")
    card = about["card"]
    if card.get("bound") is not None:
        parts.append(f"{card['bound']:.3f} {card.get('bound_unit', 'bits per token')}")
    return f"{model.name}: {', '.join(parts)}" + (f"; {card['data']}" if card.get("data") else "")
