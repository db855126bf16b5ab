"""The Ray Serve application on a cluster on this machine: the library's answers, streams, and errors in our words."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.small_models import folder
from unmask.loading import load

ray = pytest.importorskip("ray", reason="needs ray: pip install 'unmask[ray]'")
serve = pytest.importorskip("ray.serve", reason="needs Ray Serve: pip install 'unmask[ray]'", exc_type=ImportError)
pytestmark = pytest.mark.slow  # a cluster and two replicas take a minute to start


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("models") / "tiny", "bpe")


@pytest.fixture(scope="module")
def address(model: Path) -> Iterator[str]:
    from unmask.serve.replicas import application

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ray.init(num_cpus=4, log_to_driver=False, logging_level="ERROR", include_dashboard=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(application({"models": str(model), "min_replicas": "2", "max_replicas": "2", "cpus": "0.5"}))
        yield f"http://127.0.0.1:{port}"
    finally:
        serve.shutdown()
        ray.shutdown()


def asked(address: str, body: dict[str, Any]) -> Any:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/v1/unmask", json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=120)


def test_any_replica_gives_the_library_s_answer(address: str, model: Path) -> None:
    expected = load(model).sample(2, length=12, seed=7)
    for _ in range(8):  # more than one of the two replicas gets
        made = json.loads(asked(address, {"length": 12, "number": 2, "seed": 7}).read())
        assert [choice["tokens"] for choice in made["choices"]] == expected.tokens.tolist()


def test_a_stream_comes_event_by_event(address: str) -> None:
    with asked(address, {"length": 12, "seed": 7, "stream": True}) as answer:
        names = [line.split()[1] for line in answer.read().decode().splitlines() if line.startswith("event:")]
    assert names == ["plan", *["step"] * 12, "done", "end"]


def test_what_is_wrong_is_said_as_elsewhere(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as failure:
        asked(address, {"length": 0})
    assert failure.value.code == 422 and "length" in json.loads(failure.value.read())["error"]["message"]


def test_an_argument_that_is_not_known_is_refused() -> None:
    from unmask.serve.replicas import application

    with pytest.raises(ValueError, match="max_replica"):
        application({"max_replica": "3"})
