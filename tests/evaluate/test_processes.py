"""Several processes have the numbers of one."""

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import torch

from tests.evaluate.files import LENGTH, TOKENIZER, in_two_processes, oracle_model, read, write
from tests.evaluate.likelihood.test_tokenfiles import Killed, killed_after
from tests.helpers import accelerate_launch
from tests.small_models import network
from unmask.cli.evaluate import main
from unmask.evaluate import processes
from unmask.evaluate.likelihood.tokenfiles import evaluate
from unmask.loading import load
from unmask.networks.pretrained import save


def test_a_single_process_has_everything() -> None:
    assert processes.share(4).tolist() == [0, 1, 2, 3] and processes.main()
    values = torch.arange(4.0)
    assert processes.gather(values) is values and processes.broadcast("a") == "a" and processes.world() == 1
    with processes.joined():
        assert processes.rank() == 0 and processes.device("cpu") == "cpu"


def share_and_gather() -> None:
    with processes.joined():
        assert processes.world() == 2 and processes.main() == (processes.rank() == 0)
        for num in (0, 1, 5, 6):
            own = processes.share(num)
            assert own.tolist() == list(range(processes.rank(), num, 2))
            everything = processes.gather(torch.stack([own, own + 10], 1))
            if num:
                assert everything.tolist() == [[i, i + 10] for i in range(num)]
            assert processes.gather([str(i) for i in own.tolist()]) == [str(i) for i in range(num)]
        assert processes.broadcast(f"from {processes.rank()}") == "from 0"
    assert processes.world() == 1


def run(arguments: list[str], log: Path) -> None:
    """The command, with what it says in files of the processes."""
    path = log / f"said-by-{os.environ['RANK']}"
    with path.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        code = main(arguments)
    sys.exit(code)


def said(log: Path) -> list[str]:
    return [(log / f"said-by-{rank}").read_text() for rank in range(2)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    save(folder, network(TOKENIZER, length=LENGTH), extra={"schedule": "cosine", "layout": "rows"})
    TOKENIZER.save(folder / "tokenizer.json")
    return folder


def test_two_processes_share_and_gather_in_order() -> None:
    assert in_two_processes(share_and_gather) == [0, 0]


def test_two_processes_have_the_numbers_of_one_to_the_last_bit(model: Path, tmp_path: Path) -> None:
    """Five batches a round, where the error decides how many rounds; two processes go on where one was killed."""
    tokens = write(tmp_path / "some.tokens")
    options: list[str] = ["--passes", "4", "--batch", "8", "--until", "0.025", "--device", "cpu"]
    arguments = [str(model), str(tokens.path), *options, "--output"]
    assert main([*arguments, str(tmp_path / "one.json")]) == 0
    assert in_two_processes(run, [*arguments, str(tmp_path / "two.json")], tmp_path) == [0, 0]
    first, second = said(tmp_path)
    assert first.count("bound by count") == 1 and second == "", "one of them prints"
    assert read(tmp_path / "one.json") == read(tmp_path / "two.json")
    assert read(tmp_path / "one.json")["passes"] > 4
    partial = tmp_path / "again.json.partial"
    with pytest.raises(Killed):
        evaluate(load(model), tokens, passes=4, batch=8, until=0.025, partial=partial, progress=killed_after(3))
    assert in_two_processes(run, [*arguments, str(tmp_path / "again.json")], tmp_path) == [0, 0]
    assert read(tmp_path / "one.json") == read(tmp_path / "again.json") and not partial.exists()


def test_two_processes_fail_together_and_one_says_why(model: Path, tmp_path: Path) -> None:
    data = str(write(tmp_path / "some.tokens").path)
    (tmp_path / "r.json.partial").write_text('{"seed": 5}\n')
    arguments = [str(model), data, "--passes", "2", "--device", "cpu", "--output", str(tmp_path / "r.json")]
    assert in_two_processes(run, arguments, tmp_path) == [2, 2]
    first, second = said(tmp_path)
    assert "belongs to another evaluation" in first and second == ""
    assert not (tmp_path / "r.json").exists()


@pytest.mark.slow
def test_accelerate_launch_runs_the_command(model: Path, tmp_path: Path) -> None:
    data = str(write(tmp_path / "some.tokens").path)
    arguments = [str(model), data, "--passes", "4", "--batch", "8", "--device", "cpu", "--output"]
    assert main([*arguments, str(tmp_path / "one.json")]) == 0
    command = accelerate_launch("unmask", "evaluate", *arguments, str(tmp_path / "two.json"))
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "one.json") == read(tmp_path / "two.json")


def test_an_oracle_is_a_model_like_any_other() -> None:
    assert oracle_model().bound(["abcd", "dcba"], passes=2).tokens.tolist() == [4, 4]
