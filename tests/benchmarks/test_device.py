"""The benchmark of accelerators runs, on a CPU, and says what it did not count."""

import json
from pathlib import Path

import pytest

from benchmarks import device


def test_every_sampler_has_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "device.json"
    device.main(["--device", "cpu", "--quick", "--output", str(path)])
    rows = {row["run"]: row for row in json.loads(path.read_text())["rows"]}
    assert rows.keys() == device.runs(device.Setting()).keys()
    assert rows["parallel"]["calls"] == 4 and rows["first-hitting"]["calls"] == 16
    assert rows[device.BASE]["ratio"] == 1 and all(row["seconds"] > 0 for row in rows.values())
    assert capsys.readouterr().out.count("not counted") == len(rows)
