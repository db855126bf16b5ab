"""``unmask serve``: models behind OpenAI's API and a page, on this machine alone unless told otherwise."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.cli.command import Command
from unmask.cli.options import MODEL_HELP, OnMachine, device_named, guarded, use_threads
from unmask.serve.engine.limits import Limits
from unmask.text.find import Known, available, default, describe, load, locate

if TYPE_CHECKING:
    from fastapi import FastAPI

    from unmask.serve.engine.work import Served

LOOPBACK = ("localhost", "127.0.0.1", "::1")
TOKEN = "UNMASK_TOKEN"
FOLDERS = re.compile(r"(?<![\w:/.~-])[/~](?:[^\s/]*/)+")  # the folders of an absolute path


@dataclass(frozen=True, kw_only=True)
class ServeOptions(OnMachine):
    """Serve models: OpenAI's /v1/completions and /v1/models, our own /v1/unmask, and a page at /.

    The environment variable UNMASK_TOKEN, or the file --token-file, holds a bearer token that clients must send. Ctrl-C
    and SIGTERM let what is running finish; a second one ends at once.
    """

    models: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    """The address to listen on. By default this machine alone can reach it; 0.0.0.0 is everybody."""
    port: int = 8000
    """0 takes a free one, and says which."""
    token_file: str | None = None
    """A file whose first line is the token that clients must send."""
    limits: Limits = field(default_factory=Limits)


COMMAND = Command(
    "serve",
    ServeOptions,
    {"models": f"{MODEL_HELP}; several if you like. By default every model in the box"},
    ("unmask serve", "unmask serve runs/book kjv --port 8080"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask serve``. 0 after SIGTERM or Ctrl-C; 2 with one line for what was wrong."""
    chosen = COMMAND.parsed(arguments)
    return guarded("serve", lambda: _serve(chosen))


def served(name: str, device: str, called: str | None = None) -> Served:
    """A model by its name, with its card; clients are told no path of this machine."""
    from unmask.serve.engine.work import Served

    card = describe(Known(name, "cache", locate(name))).get("card") or {}
    model = replace(load(name, device=device_named(device)), name=called or short_names([name])[0])
    told = {key: FOLDERS.sub("", value) if isinstance(value, str) else value for key, value in card.items()}
    return Served(model, told)


def short_names(names: Sequence[str]) -> list[str]:
    """What clients call the models: a folder by its own name, with its parent's before it where two would be alike."""

    def parts(name: str) -> list[str]:
        path = Path(name).expanduser()
        if not path.exists():
            return [name]
        path = path.resolve()
        kept = [part for part in path.parts[1:] if part not in ("model", "checkpoints")] or [path.name]
        return [*kept[:-1], Path(kept[-1]).stem if path.is_file() else kept[-1]]

    short = [parts(name)[-1] for name in names]
    return ["-".join(parts(name)[-2:]) if short.count(one) > 1 else one for name, one in zip(names, short, strict=True)]


def _boxed() -> list[str]:
    """What `unmask sample` would take, and then the rest of the box."""
    first = default()
    return [first, *(found.name for found in available() if found.where == "box" and found.name != first)]


def _serve(options: ServeOptions) -> None:
    import uvicorn

    from unmask.serve.http.app import create_app

    use_threads(options.threads)
    token = _token(options)
    loopback = options.host == "localhost" or _is_loopback(options.host)
    if not loopback and token is None:
        print(f"note: whoever reaches {options.host} can use this server; {TOKEN} sets a token", file=sys.stderr)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    with _listening(options) as listening:  # before the models are read, which may take a while
        names = options.models or _boxed()
        called = zip(names, short_names(names), strict=True)
        models = [served(name, options.device, short) for name, short in called]
        app = create_app(models, options.limits, token=token, hosts=(*LOOPBACK, options.host) if loopback else ())
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=max(1, round(options.limits.grace_seconds)),
        )
        _server(config, app, models, token).run(sockets=[listening])


def _listening(options: ServeOptions) -> socket.socket:
    if not 0 <= options.port < 2**16:
        raise ValueError(f"--port must be in 0..65535, got {options.port}")
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
        raise ValueError(f"{options.host}:{options.port} {what}; --port 0 takes a free port") from error


def hello(address: str, models: Sequence[Served], token: str | None) -> str:
    """What to open, and what to type."""
    model = models[0].model
    path, asked = "v1/unmask", f'{{"model": "{model.name}"}}'
    if model.layout == "wrapped":
        path, asked = "v1/completions", f'{{"model": "{model.name}", "prompt": "In the ", "max_tokens": 24}}'
    headers = "-H 'Content-Type: application/json'"
    if token is not None:
        headers += f' -H "Authorization: Bearer ${TOKEN}"'
    return f"""serving {", ".join(one.model.name for one in models)} at {address}
open it in a browser, or type
  curl {address}/{path} {headers} -d '{asked}'"""


def _server(config: Any, app: FastAPI, models: Sequence[Served], token: str | None) -> Any:
    """uvicorn's server, which says where it listens, and for which being asked to end is no failure."""
    import uvicorn

    from unmask.serve.engine.job import Refused

    engine = app.state.server.engine

    class UvicornServer(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            before = {number: signal.signal(number, self._asked) for number in (signal.SIGTERM, signal.SIGINT)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        def _asked(self, number: int, frame: Any) -> None:
            if self.should_exit:
                os._exit(128 + number)
            engine.close()
            self.should_exit = True
            if count := len(app.state.server.open):
                what = "1 request" if count == 1 else f"{count} requests"
                print(f"finishing {what}; a second signal ends at once", file=sys.stderr, flush=True)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if not self.started:
                return
            with suppress(Refused):  # it was asked to end already
                for one in models:
                    await asyncio.to_thread(engine.warm, one)
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)
            print(hello(f"http://{host}:{port}", models, token), file=sys.stderr, flush=True)

    return UvicornServer(config)


def _token(options: ServeOptions) -> str | None:
    if options.token_file is not None:
        token = Path(options.token_file).read_text(encoding="utf-8").split("\n")[0].strip()
        if not token:
            raise ValueError(f"--token-file {options.token_file}: its first line is empty")
        return token
    return os.environ.get(TOKEN) or None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
