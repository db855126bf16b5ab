"""``unmask serve``: models behind OpenAI's API and a page, on this machine only by default."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import math
import os
import re
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask import devices
from unmask.checkpoints.storage import Weights
from unmask.cli.command import Command
from unmask.cli.options import MODEL_HELP, OnMachine, StoredWeights, UserNetwork, guarded, loaded, use_threads
from unmask.extras import needed
from unmask.loading import Known, available, default, describe, locate
from unmask.networks.pretrained import USER_NETWORK
from unmask.serve.engine.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from unmask.serve.engine.work import Served

LOOPBACK = ("localhost", "127.0.0.1", "::1")
TOKEN = "UNMASK_TOKEN"
FOLDERS = re.compile(r"(?<![\w:/.~-])[/~](?:[^\s/]*/)+")  # the folders of an absolute path
LAST_SECONDS = 5  # after the grace period, for the last answers


@dataclass(frozen=True, kw_only=True)
class ServeOptions(OnMachine, StoredWeights, UserNetwork):
    """Serve models: OpenAI's /v1/completions and /v1/models, our own /v1/unmask, and a web page at /.

    The environment variable UNMASK_TOKEN, or the file --token-file, holds a bearer token that clients must send. After
    Ctrl-C or SIGTERM running requests finish; a second signal ends the server at once.
    """

    models: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    """The address to listen on. The default is reachable only from this machine; 0.0.0.0 is reachable from anywhere."""
    port: int = 8000
    """The port; 0 chooses a free one and prints it."""
    hosts: tuple[str, ...] = ()
    """The accepted host names behind a proxy. A server on the loopback interface accepts those of this machine."""
    token_file: str | None = None
    """A file of bearer tokens, one per line. Each token is a client with its own share."""
    limits: Limits = field(default_factory=Limits)


COMMAND = Command(
    "serve",
    ServeOptions,
    {"models": f"{MODEL_HELP}; one or more. The default is all bundled models"},
    ("unmask serve", "unmask serve runs/book kjv --port 8080"),
)


def main(arguments: Sequence[str]) -> int:
    """Run ``unmask serve``. 0 after SIGTERM or Ctrl-C; 2 with one line for what was wrong."""
    chosen = COMMAND.parsed(arguments)
    return guarded("serve", lambda: _serve(chosen))


def served(
    name: str, device: str, called: str | None = None, network: str | None = None, weights: Weights = "auto"
) -> Served:
    """A model by name, with its card; clients see no path of this machine."""
    from unmask.serve.engine.work import Served
    from unmask.tokenizers.chat import template_of

    place = locate(name)
    about = describe(Known(name, "cache", place))
    card = about.get("card") or {}
    own = network if about.get("architecture") == USER_NETWORK else None
    model = loaded(name, own, devices.chosen(device), weights)
    model = replace(model, name=called or short_names([name])[0])
    public = {key: FOLDERS.sub("", value) if isinstance(value, str) else value for key, value in card.items()}
    return Served(model, public, template_of(Path(place)))


def short_names(names: Sequence[str]) -> list[str]:
    """The models' names for clients: a folder by its name, with its parent's if two would be equal."""

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
    """The default of `unmask sample`, and then the other bundled models."""
    first = default()
    return [first, *(known.name for known in available() if known.where == "box" and known.name != first)]


def _serve(options: ServeOptions) -> int:
    for module in ("fastapi", "prometheus_client", "uvicorn"):
        needed(module, f"the server needs {module}", "serve")
    import uvicorn

    from unmask.serve.http.app import create_app
    from unmask.serve.http.connection import timed

    use_threads(options.threads)
    tokens = _tokens(options)
    loopback = options.host == "localhost" or _is_loopback(options.host)
    if not loopback and not tokens:
        print(f"note: whoever reaches {options.host} can use this server; {TOKEN} sets a token", file=sys.stderr)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    with _listening(options) as listening:  # before loading the models, which may take long
        names = options.models or _boxed()
        called = zip(names, short_names(names), strict=True)
        models = [served(name, options.device, short, options.network, options.weights) for name, short in called]
        own = (*LOOPBACK, options.host) if loopback or options.hosts else ()
        app = create_app(models, options.limits, token=tokens, hosts=(*own, *options.hosts))
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            http=timed(options.limits),
            timeout_keep_alive=math.ceil(options.limits.keep_alive_seconds),
            # The engine answers everybody when the grace period ends; this is for clients that do not read.
            timeout_graceful_shutdown=math.ceil(options.limits.grace_seconds) + LAST_SECONDS,
        )
        _server(config, app, models, bool(tokens)).run(sockets=[listening])
        fault = app.state.server.engine.fault
        if fault is not None:
            print(f"unmask serve: the engine has failed with {type(fault).__name__}", file=sys.stderr)
            return 1
    return 0


def _listening(options: ServeOptions) -> socket.socket:
    if not 0 <= options.port < 2**16:
        raise ValueError(f"--port must be in 0..65535, got {options.port}")
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family)
    except OSError as error:
        what = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
        raise ValueError(f"{options.host}:{options.port} {what}; --port 0 takes a free port") from error


def hello(address: str, models: Sequence[Served], token: bool) -> str:
    """The address to open, and commands to try."""
    model = models[0].model
    path, asked = "v1/unmask", f'{{"model": "{model.name}"}}'
    if model.layout == "wrapped":
        path, asked = "v1/completions", f'{{"model": "{model.name}", "prompt": "In the ", "max_tokens": 24}}'
    headers = "-H 'Content-Type: application/json'"
    if token:
        headers += f' -H "Authorization: Bearer ${TOKEN}"'
    return f"""serving {", ".join(one.model.name for one in models)} at {address}
open it in a browser, or type
  curl {address}/{path} {headers} -d '{asked}'"""


def _server(config: Any, app: FastAPI, models: Sequence[Served], token: bool) -> Any:
    """uvicorn's server, which prints its address, and for which being stopped is not an error."""
    import uvicorn

    server = app.state.server
    engine = server.engine

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
            engine.close(server.limits.grace_seconds)
            self.should_exit = True
            if count := len(server.open):
                what = "1 request" if count == 1 else f"{count} requests"
                print(f"finishing {what}; a second signal ends at once", file=sys.stderr, flush=True)

        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            if not self.started:
                return
            while not (server.warm.is_set() or engine.closing):
                await asyncio.sleep(0.01)
            gc.collect()
            gc.freeze()  # modules and models stay: looking at them again took most of the time of reading a large body
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            host = {"0.0.0.0": "localhost", "::": "localhost"}.get(host, f"[{host}]" if ":" in host else host)
            print(hello(f"http://{host}:{port}", models, token), file=sys.stderr, flush=True)

        async def on_tick(self, counter: int) -> bool:
            # A supervisor restarts it.
            return await super().on_tick(counter) or not engine.alive

    return UvicornServer(config)


def _tokens(options: ServeOptions) -> list[str]:
    if options.token_file is None:
        return [os.environ[TOKEN]] if os.environ.get(TOKEN) else []
    lines = [line.strip() for line in Path(options.token_file).read_text(encoding="utf-8").split("\n")]
    if not lines[0]:
        raise ValueError(f"--token-file {options.token_file}: its first line is empty")
    return [token for token in lines if token]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
