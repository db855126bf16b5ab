"""A Ray cluster of two nodes on this machine gives the bytes of one process, also when one of them dies."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.evaluate.files import write
from tests.small_models import folder
from unmask.cli import evaluate as evaluate_cli
from unmask.cli import judge as judge_cli
from unmask.cli import sample as sample_cli
from unmask.evaluate import processes

ray = pytest.importorskip("ray", reason="needs ray: pip install 'unmask[ray]'")
pytestmark = pytest.mark.slow  # a cluster takes half a minute to start


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    """A cluster whose first node has one core, and to which tests add a second."""
    from ray.cluster_utils import Cluster

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a worker has as many cores as this process has threads
    sizes = {"num_cpus": 1, "object_store_memory": 10**8}
    cluster = Cluster(initialize_head=True, head_node_args=sizes | {"include_dashboard": False})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        torch.set_num_threads(threads)


@pytest.fixture
def second(nodes: Any) -> Any:
    """The second node."""
    node = nodes.add_node(num_cpus=1, object_store_memory=10**8)
    yield node
    if node in nodes.worker_nodes:
        nodes.remove_node(node)
    until(lambda: len(alive()) == 1)


def alive() -> list[Any]:
    return [node for node in ray.nodes() if node["Alive"]]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 100  # no measurement
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class Stuck:
    """Squares a number, and on one of the nodes never comes to an end."""

    def __init__(self, place: Path, node: str) -> None:
        self.place, self.node = place, node

    def __call__(self, piece: int) -> int:
        here = ray.get_runtime_context().get_node_id()
        (self.place / f"{piece}-{here}").touch()
        while here == self.node:
            time.sleep(0.05)
        until(lambda: any(self.place.glob(f"*-{self.node}")))  # or one worker would do it all before the other is there
        return piece**2


def test_what_a_dead_node_had_begun_is_done_by_another(nodes: Any, second: Any, tmp_path: Path) -> None:
    until(lambda: len(alive()) == 2)

    def kill() -> None:
        until(lambda: any(tmp_path.glob(f"*-{second.node_id}")))
        nodes.remove_node(second, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with processes.joined(ray=True):
        assert processes.device("auto") == "cpu" and processes.worker_device() == "cpu"
        found = list(processes.results(range(12), Stuck(tmp_path, second.node_id)))
    killer.join()
    assert found == [i**2 for i in range(12)]
    begun = [file.name.split("-")[0] for file in tmp_path.iterdir()]
    assert len(begun) == len(set(begun)) + 1  # one piece was begun twice


class Dies:
    """Takes its process with it."""

    def __call__(self, piece: int) -> int:
        sys.exit(3) if piece == 1 else None
        return piece


def refuses(piece: int) -> int:
    raise ValueError(f"no square of {piece}")


def test_errors_of_the_work_are_reported_as_they_are(nodes: Any) -> None:
    with processes.joined(ray=True):
        with pytest.raises(ValueError, match="no square of 0"):
            list(processes.results([0], refuses))
        with pytest.raises(ValueError, match="fail repeatedly"):
            list(processes.results([0, 1], Dies()))
        assert list(processes.results([], refuses)) == []
        with pytest.raises(ValueError, match="auto, cpu or cuda"):
            processes.device("xpu")
        with pytest.raises(ValueError, match="no node of the cluster has a GPU"):
            processes.device("cuda")
        torch.set_num_threads(2)
        try:
            with pytest.raises(ValueError, match="give fewer --threads"):
                list(processes.results([1], refuses))
        finally:
            torch.set_num_threads(1)


class KillsAtTheFirstWord:
    """stderr that removes a node, on which a worker is or is about to be, when the first sequences are reported."""

    def __init__(self, nodes: Any, node: Any) -> None:
        self.nodes, self.node, self.said = nodes, node, ""

    def write(self, text: str) -> None:
        if not self.said:
            self.nodes.remove_node(self.node, allow_graceful=False)
        self.said += text

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return False


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder(tmp_path_factory.mktemp("models") / "tiny", "bpe")


def test_samples_are_the_bytes_of_one_process_while_a_node_dies(
    nodes: Any, second: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until(lambda: len(alive()) == 2)
    options = [str(model), "--number", "14", "--batch", "2", "--seed", "5", "--device", "cpu", "--threads", "1"]
    options += ["--sampler", "ancestral", "--steps", "9", "--json", "--output"]  # sequences need different calls
    assert sample_cli.main([*options, str(tmp_path / "one")]) == 0
    told = KillsAtTheFirstWord(nodes, second)
    monkeypatch.setattr(sys, "stderr", told)
    assert sample_cli.main([*options, str(tmp_path / "two"), "--ray"]) == 0, told.said
    monkeypatch.undo()
    assert told.said.count("of 14 sequences") == 7
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    records = [json.loads(line) for line in (tmp_path / "two").read_text().splitlines()]
    assert [record["index"] for record in records] == list(range(14))
    assert len({record["nfe"] for record in records}) > 1


def test_evaluation_and_judgement_are_those_of_one_process(nodes: Any, model: Path, tmp_path: Path) -> None:
    from tests.evaluate.files import LENGTH, TOKENIZER
    from tests.small_models import network
    from unmask.networks.pretrained import save

    save(tmp_path / "rows", network(TOKENIZER, length=LENGTH), extra={"schedule": "cosine", "layout": "rows"})
    TOKENIZER.save(tmp_path / "rows" / "tokenizer.json")
    data = str(write(tmp_path / "some.tokens").path)
    scored = [str(tmp_path / "rows"), data, "--passes", "4", "--batch", "8", "--until", "0.025", "--device", "cpu"]
    scored += ["--threads", "1", "--output"]
    twin = folder(tmp_path / "twin", "bpe", causal=True)
    samples = str(tmp_path / "samples")
    assert sample_cli.main([str(model), "--number", "6", "--json", "--device", "cpu", "--output", samples]) == 0
    judged = [samples, "--judge", str(twin), "--device", "cpu", "--output"]
    for main, arguments in ((evaluate_cli.main, scored), (judge_cli.main, judged)):
        assert main([*arguments, str(tmp_path / "one.json")]) == 0
        assert main([*arguments, str(tmp_path / "two.json"), "--ray"]) == 0
        assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
