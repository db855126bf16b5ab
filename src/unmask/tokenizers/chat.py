"""Chat templates of checkpoints: messages as one text. A template is third-party code: it runs in a sandbox."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from unmask.files import parsed

CHAT = "chat_template.jinja"


def template_of(folder: Path) -> str | None:
    """The chat template in a folder of the Hugging Face hub, if it has one; its bos_token and eos_token are set."""
    alone, config = folder / CHAT, folder / "tokenizer_config.json"
    settings: dict[str, Any] = parsed(config) if config.is_file() else {}
    template = alone.read_text(encoding="utf-8") if alone.is_file() else settings.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {one.get("name"): one.get("template") for one in template}.get("default")
    if not isinstance(template, str):
        return None
    tokens = {name: settings.get(name) for name in ("bos_token", "eos_token") if name in template}
    plain = {name: one.get("content") if isinstance(one, dict) else one for name, one in tokens.items()}
    named = {name: json.dumps(one, ensure_ascii=False) for name, one in plain.items() if isinstance(one, str)}
    return "".join(f"{{% set {name} = {one} %}}" for name, one in named.items()) + template


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
