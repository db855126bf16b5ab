"""deploy/: nginx, with the block as it is, in front of real servers; and the manifest beside the server's options."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from tests.serve.served import listening, until
from tests.serve.test_engine import Gated
from tests.small_models import TOKENIZERS, network
from unmask import Model
from unmask.serve.engine.limits import Limits
from unmask.serve.engine.work import Served

DEPLOY = Path(__file__).parents[2] / "deploy"
NAME = "unmask.example.com"


@contextmanager
def nginx(folder: Path, first: str, second: str) -> Iterator[httpx.Client]:
    """A client of nginx in front of two servers; it listens on a socket in the folder."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/opt/homebrew/bin")
    if program is None:
        pytest.skip("needs nginx")
    block = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    for old, new in (
        ("127.0.0.1:8000", first.removeprefix("http://")),
        ("127.0.0.1:8001", second.removeprefix("http://")),
        ("listen 8080", f"listen unix:{folder}/socket"),
    ):
        assert old in block
        block = block.replace(old, new)
    temporary = "\n".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = (
        f"pid {folder}/pid;\nerror_log {folder}/log;\nevents {{}}\nhttp {{ access_log off; {temporary}\n{block} }}\n"
    )
    (folder / "nginx.conf").write_text(whole, encoding="utf-8")
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", "daemon off;"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: (folder / "socket").exists() or process.poll() is not None)
            transport = httpx.HTTPTransport(uds=str(folder / "socket"))
            with httpx.Client(transport=transport, base_url=f"http://{NAME}", timeout=300) as client:
                yield client
        finally:
            process.terminate()


def test_nginx_passes_a_stream_on_as_it_comes_and_sends_what_is_refused_to_another(tmp_path: Path) -> None:
    made = Gated(network(TOKENIZERS["bpe"]))
    served = {"c": Served(Model(made, TOKENIZERS["bpe"], name="c"))}
    hosts = ("127.0.0.1", NAME)
    with (
        listening(served, Limits(max_batch=2), hosts=hosts) as (first, _),
        listening(served, hosts=hosts) as (second, ending),
        nginx(tmp_path, first, second) as client,
    ):
        assert client.get("/readyz").status_code == 200
        assert f"http://{NAME}/web/preview.png" in client.get("/").text
        ending.state.server.engine.close()  # this replica says 503 from now on
        answers = [client.post("/v1/unmask", json={"length": 3, "seed": i}) for i in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        made.hold()
        with client.stream("POST", "/v1/unmask", json={"length": 3, "seed": 1, "stream": True}) as stream:
            lines = stream.iter_lines()
            # The network has not answered yet, and what is known before is here.
            assert next(line for line in lines if line) == "event: plan"
            assert not made.gate.is_set()
            made.gate.set()
            assert list(lines).count("event: step") == 3


def test_the_manifest_gives_a_replica_the_time_that_it_takes() -> None:
    deployment = next(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text(encoding="utf-8")))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    grace = float(container["args"][container["args"].index("--grace-seconds") + 1])
    waits = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > waits + grace
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/readyz"
    command = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (port,) = {port["containerPort"] for port in container["ports"]}
    assert re.search(rf'"--port", "{port}"', command) and f"EXPOSE {port}" in command
