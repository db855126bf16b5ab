"""Errors of requests, in OpenAI's format."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from unmask.errors import OptionError
from unmask.serve.engine.job import Refused
from unmask.serve.http.exchange import error_of
from unmask.serve.http.refusals import ApiError, error_body


def add_errors(app: FastAPI) -> None:
    async def api_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return JSONResponse(error.body, error.status)

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        retry = {"Retry-After": str(error.retry_after)}
        return JSONResponse(error_of(error), 503, headers=retry)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        if first["type"] == "json_invalid":  # the place is a number of characters, and no field
            why = first.get("ctx", {}).get("error", first["msg"])
            says = f"the body is not JSON: {why} at character {first['loc'][-1]}"
            return JSONResponse(error_body(422, says, None, "json_invalid"), 422)
        if not request.headers.get("content-type", "").startswith("application/json"):
            first = {"loc": (), "msg": "the body must be JSON, with Content-Type: application/json", "type": "no_json"}
        # For a field of several types the location ends with the type; only the part that the client wrote is reported.
        cause = first.get("ctx", {}).get("error")
        place = [str(part) for part in first["loc"] if part != "body"]
        place += [cause.option] if isinstance(cause, OptionError) else []
        where = ".".join(place[:1] if first["type"] == "value_error" else place)
        where = where.encode(errors="backslashreplace").decode()  # a name may contain half of a surrogate pair
        says = str(first["msg"]).removeprefix("Value error, ")
        says = f"{where}: {says}" if where else says
        return JSONResponse(error_body(422, says, where or None, str(first["type"])), 422)

    async def other(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        says = str(error.detail)
        if error.status_code == 404 and request.url.path.startswith("/v1/") and says == "Not Found":
            says = "there is no such endpoint here: texts are made by /v1/completions, /v1/chat/completions, /v1/unmask"
        return JSONResponse(error_body(error.status_code, says), error.status_code, headers=error.headers)

    app.add_exception_handler(ApiError, api_error)
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, other)
