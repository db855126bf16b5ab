"""/v1/chat/completions: messages as a model's own template writes them, which is the prompt of a completion."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from unmask.serve.engine.work import Served
from unmask.serve.http.request import ApiError
from unmask.serve.http.schemas import ChatRequest, CompletionRequest

DEFAULT_TOKENS = 128  # of an answer, where neither the request nor the model says


def template_of(folder: Path) -> str | None:
    """The chat template in a folder of the Hugging Face hub, if it has one."""
    alone, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if alone.is_file():
        return alone.read_text(encoding="utf-8")
    if not config.is_file():
        return None
    found = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
    if isinstance(found, list):  # several, by name
        found = {one.get("name"): one.get("template") for one in found}.get("default")
    return found if isinstance(found, str) else None


def chat_completion(served: Served, body: ChatRequest) -> CompletionRequest:
    """The completion that answers a chat."""
    model = served.model
    if served.chat_template is None:
        says = f"{model.name} has no chat template: it completes texts, at /v1/completions"
        raise ApiError(400, says, param="model", code="no_chat_template")
    prompt = written(served.chat_template, [message.model_dump() for message in body.messages])
    given = body.model_dump(exclude_unset=True, exclude={"messages", "max_completion_tokens", "max_tokens"})
    tokens = body.max_completion_tokens or body.max_tokens or model.length or DEFAULT_TOKENS
    return CompletionRequest(**given, prompt=prompt, max_tokens=tokens)


def written(template: str, messages: list[dict[str, Any]]) -> str:
    """The messages as one text, and the beginning of the answer. A template is a checkpoint's: it runs in a sandbox."""
    from jinja2 import TemplateError

    try:
        text: str = _compiled(template).render(
            messages=messages, add_generation_prompt=True, bos_token="", eos_token="", tools=None
        )
    except (TemplateError, TypeError, ValueError) as error:
        raise ApiError(
            400, f"the model's chat template cannot write these messages: {error}", param="messages"
        ) from None
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
