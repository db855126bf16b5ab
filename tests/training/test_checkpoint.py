import json
import shutil
from pathlib import Path

import pytest
import torch

from unmask.training import checkpoint
from unmask.training.checkpoint import CheckpointError, copy_into, listed, newest, prune, read, verify, write

TENSORS = {
    "model": {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.tensor(1.5)},
    "optimizer": {"step/weight": torch.tensor(3, dtype=torch.int64)},
}


def test_what_is_written_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    path = write(tmp_path, 7, TENSORS, {"validated": 3})
    found = read(path)
    assert (path.name, found.step, found.state["validated"]) == ("step-00000007", 7, 3)
    for group, tensors in TENSORS.items():
        assert set(found.tensors[group]) == set(tensors)
        for name, tensor in tensors.items():
            assert found.tensors[group][name].dtype == tensor.dtype
            assert torch.equal(found.tensors[group][name], tensor)


def test_the_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    import subprocess

    path = write(tmp_path, 1, TENSORS, {})
    assert subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=path, capture_output=True).returncode == 0


def test_a_view_of_a_larger_tensor_is_written_alone(tmp_path: Path) -> None:
    large = torch.arange(1000.0)
    path = write(tmp_path, 1, {"model": {"a": large[:2], "b": large[2:4], "c": large.view(10, 100).t()}}, {})
    assert torch.equal(read(path).tensors["model"]["c"], large.view(10, 100).t())


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_every_damage_is_noticed(tmp_path: Path, name: str, damage: str) -> None:
    file = write(tmp_path, 1, TENSORS, {}) / name
    content = file.read_bytes()
    if damage == "remove":
        file.unlink()
    else:
        file.write_bytes(content[:-2] if damage == "cut" else bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(CheckpointError, match="step-00000001"):
        read(file.parent)


def test_a_file_that_does_not_belong_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path, 1, TENSORS, {})
    (path / "extra.pt").write_bytes(b"x")
    with pytest.raises(CheckpointError, match=r"extra\.pt"):
        verify(path)


def test_the_newest_is_the_largest_step(tmp_path: Path) -> None:
    for step in (9, 123_456_789, 10):
        write(tmp_path, step, TENSORS, {})
    (tmp_path / "step-abc").mkdir()
    (tmp_path / ".step-00000099.partial").mkdir()
    assert [path.name for path in listed(tmp_path)] == ["step-00000009", "step-00000010", "step-123456789"]
    found = newest(tmp_path)
    assert found is not None and found.step == 123_456_789
    assert newest(tmp_path / "nothing") is None


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    for step in range(1, 6):
        write(tmp_path, step, TENSORS, {})
    prune(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_a_sound_checkpoint_is_left_and_a_damaged_one_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, 1, TENSORS, {"mark": "first"})
    write(tmp_path, 1, TENSORS, {"mark": "second"})
    assert read(path).state["mark"] == "first"
    (path / "model.safetensors").write_bytes(b"")
    write(tmp_path, 1, TENSORS, {"mark": "third"})
    assert read(path).state["mark"] == "third"


def test_the_next_save_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / ".step-00000001.partial").mkdir()
    (tmp_path / ".step-00000001.partial" / "model.safetensors").write_bytes(b"half")
    (tmp_path / ".step-00000000.removed").mkdir()
    write(tmp_path, 2, TENSORS, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]


def test_tensors_are_copied_only_into_their_equals() -> None:
    target = {"a": torch.zeros(2), "b": torch.zeros(3)}
    copy_into(target, {"b": torch.ones(3), "a": torch.full((2,), 2.0)}, "file")
    assert target["a"].tolist() == [2, 2] and target["b"].tolist() == [1, 1, 1]
    wrong = {
        "b is missing": {"a": torch.ones(2)},
        "c does not belong": {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(1)},
        r"b is \[1\] and not \[3\]": {"a": torch.ones(2), "b": torch.ones(1)},
        "b is torch.float64 and not torch.float32": {"a": torch.ones(2), "b": torch.ones(3, dtype=torch.float64)},
    }
    for message, source in wrong.items():
        with pytest.raises(CheckpointError, match=f"file does not fit this run: {message}$"):
            copy_into(target, source, "file")
    assert target["a"].tolist() == [2, 2], "nothing is copied when anything is wrong"


def test_a_state_that_is_not_json_is_one_error(tmp_path: Path) -> None:
    path = write(tmp_path, 1, TENSORS, {})
    for content in (b"\x80\x04", b"[]", b"{}", b'{"step": "one"}'):
        (path / "state.json").write_bytes(content)
        lines = [f"{checkpoint.sha256_of(file)}  {file.name}\n" for file in path.iterdir() if file.name != "SHA256SUMS"]
        (path / "SHA256SUMS").write_text("".join(lines))
        with pytest.raises(CheckpointError, match=r"state\.json is not the state of a run"):
            read(path)


def test_the_state_is_plain_json(tmp_path: Path) -> None:
    path = write(tmp_path, 3, TENSORS, {"bound": None})
    assert json.loads((path / "state.json").read_text()) == {"bound": None, "step": 3}
    shutil.rmtree(path)
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        read(path)
