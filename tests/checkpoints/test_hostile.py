"""Files that mean harm or are broken in odd ways: each is refused in one sentence, before memory or time is spent."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from tests.small_models import folder
from unmask.checkpoints.contents import look
from unmask.checkpoints.report import inspect
from unmask.checkpoints.settings import check_numbers
from unmask.checkpoints.steps import CheckpointError, verify
from unmask.files import content_of, parsed


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ({"layers": 20_000}, "layers=20,000, and its weights are 21 tensors"),
        ({"width": 10**9}, "width=1,000,000,000, and its weights are tensors of at most"),
        ({"length": 10**12}, "length=1,000,000,000,000, and no sequence is longer"),
    ],
)
def test_absurd_numbers_of_a_config_are_compared_with_the_weights(
    setting: dict[str, Any], says: str, tmp_path: Path
) -> None:
    path = folder(tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | setting))
    for read in (unmask.load, look):
        with pytest.raises(ValueError, match=says):
            read(path)


def test_numbers_are_looked_for_in_nested_settings() -> None:
    check_numbers(Path("x"), {"model": {"n_blocks": 12, "hidden_size": 768}}, [(768, 768)] * 12)
    with pytest.raises(ValueError, match="n_blocks=1,000,000,000"):
        check_numbers(Path("x"), {"model": {"n_blocks": 10**9}}, [(768, 768)] * 12)
    for name in ("num_labels", "type_vocab_size", "num_experts"):
        with pytest.raises(ValueError, match=f"{name}=1,000,000,000"):
            check_numbers(Path("x"), {name: 10**9}, [(768, 768)] * 12)


def test_weights_that_cannot_be_read_are_refused_in_a_sentence(tmp_path: Path) -> None:
    path = folder(tmp_path / "model")
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").symlink_to("/proc/self/mem")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        unmask.load(path)


@pytest.mark.parametrize("content", ['{"a":' * 100_000, '{"format": 1, "kind": "external", "a": ' + "[" * 100_000])
def test_a_deeply_nested_tokenizer_is_refused(content: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "model")
    (path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError):
        unmask.load(path)
    assert not inspect(path)["can_be_sampled"]


def test_a_pipe_and_a_device_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "large").write_bytes(bytes(11))
    for name in ("pipe", "zero"):
        with pytest.raises(ValueError, match="is a pipe, a socket or a device"):
            content_of(tmp_path / name)
    with pytest.raises(ValueError, match="larger than 10 bytes"):
        content_of(tmp_path / "large", most=10)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_a_model_with_a_pipe_is_refused_and_does_not_hang(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path / "model")
    (path / name).unlink()
    os.mkfifo(path / name)
    with pytest.raises(ValueError):
        unmask.load(path)


def test_sums_that_are_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "SHA256SUMS")
    with pytest.raises(CheckpointError, match="is a pipe, a socket or a device"):
        verify(tmp_path)


def test_json_of_a_hundred_thousand_brackets_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not JSON"):
        parsed(tmp_path / "x.json")


def test_a_compressed_storage_is_not_inflated(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(4)}, tmp_path / "plain.bin")
    with (
        zipfile.ZipFile(tmp_path / "plain.bin") as plain,
        zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as packed,
    ):
        for name in plain.namelist():
            storage = "/data/" in name
            content = bytes(10_000_000) if storage else plain.read(name)
            packed.writestr(name, content, zipfile.ZIP_DEFLATED if storage else zipfile.ZIP_STORED)
    with pytest.raises(ValueError, match="is compressed, which torch's files never are"):
        look(tmp_path / "pytorch_model.bin")
