"""/v1/chat/completions: messages in the model's chat template are the prompt of a completion."""

from __future__ import annotations

from unmask.serve.engine.work import Served
from unmask.serve.http.refusals import ApiError
from unmask.serve.http.schemas import ChatRequest, CompletionRequest
from unmask.tokenizers.chat import written

DEFAULT_TOKENS = 128  # of an answer, if neither the request nor the model says


def chat_completion(served: Served, body: ChatRequest) -> CompletionRequest:
    """The completion that answers a chat."""
    model = served.model
    if served.chat_template is None:
        says = f"{model.name} has no chat template: it completes texts, at /v1/completions"
        raise ApiError(400, says, param="model", code="no_chat_template")
    try:
        prompt = written(served.chat_template, [message.model_dump() for message in body.messages])
    except ValueError as error:
        raise ApiError(400, str(error), param="messages") from None
    besides = {"messages", "max_completion_tokens", "max_tokens"}
    given = body.model_dump(exclude_unset=True, exclude=besides, by_alias=True)
    tokens = body.max_completion_tokens or body.max_tokens or model.length or DEFAULT_TOKENS
    return CompletionRequest(**given, prompt=prompt, max_tokens=tokens)
