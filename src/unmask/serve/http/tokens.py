"""/tokenize, /detokenize and /tokenizer_info, compatible with vLLM, for evaluation tools that count and send ids."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor
from typing import Any

from fastapi import FastAPI

from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served
from unmask.serve.http.refusals import RESPONSES, ApiError, check_text
from unmask.serve.http.request import find
from unmask.serve.http.schemas import DetokenizeRequest, TokenizeRequest


def add_tokens(app: FastAPI, models: Mapping[str, Served], limits: Limits, threads: Executor) -> None:
    known: dict[int | str, dict[str, Any]] = {status: RESPONSES[status] for status in (400, 401, 404, 422)}

    @app.post("/tokenize", responses=known, summary="The ids of a text")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        model = find(models, body.model).model
        longest = limits.length_of(model.length)
        check_text("prompt", body.prompt, longest)
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(threads, model.tokenizer.encode, body.prompt)
        except ValueError as error:  # a character that the tokenizer does not have
            raise ApiError(400, str(error), param="prompt") from error
        return {"tokens": list(ids), "count": len(ids), "max_model_len": longest}

    @app.post("/detokenize", responses=known, summary="The text of ids")
    async def detokenize(body: DetokenizeRequest) -> dict[str, Any]:
        model = find(models, body.model).model
        wrong = next((i for i in body.tokens if i >= model.tokenizer.vocab_size), None)
        if wrong is not None:
            says = f"tokens has the id {wrong}: allowed are 0..{model.tokenizer.vocab_size - 1}"
            raise ApiError(400, says, param="tokens")
        return {"prompt": model.rows.written(body.tokens)}

    @app.get("/tokenizer_info", responses={401: RESPONSES[401]}, summary="The tokenizer of the first model")
    async def tokenizer_info() -> dict[str, Any]:
        served = find(models, None)
        # The ids that end texts have no spelling.
        special = dict.fromkeys(("bos_token", "eos_token", "pad_token"))
        kind, size = served.model.tokenizer.kind, served.model.tokenizer.vocab_size
        return {"tokenizer_class": kind, "vocab_size": size, "chat_template": served.chat_template, **special}
