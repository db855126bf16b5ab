"""Chat templates of checkpoints: messages as one text. A template is somebody else's program: it runs in a sandbox."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

CHAT = "chat_template.jinja"


def template_of(folder: Path) -> str | None:
    """The chat template in a folder of the Hugging Face hub, if it has one."""
    alone, config = folder / CHAT, folder / "tokenizer_config.json"
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    if not config.is_file():
        return None
    found = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {one.get("name"): one.get("template") for one in found}.get("default")
    return found if isinstance(found, str) else None


def written(template: str, messages: list[dict[str, Any]]) -> str:
    """The messages as one text, and the beginning of the answer."""
    from jinja2 import TemplateError

    try:
        text: str = _compiled(template).render(
            messages=messages, add_generation_prompt=True, bos_token="", eos_token="", tools=None
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise ValueError(f"the model's chat template cannot write these messages: {error}") from None
    return text


@lru_cache(maxsize=16)
def _compiled(template: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    place = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    place.globals["raise_exception"] = refuse
    return place.from_string(template)
