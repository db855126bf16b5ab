"""The quick forms of the benchmarks of serving."""

import json

from benchmarks import serving, traffic


def test_the_benchmark_runs(capsys):
    """Every part of benchmarks/serving.py with tiny networks; it raises if an accepted request is lost."""
    assert serving.main(["--quick"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("| any-order, cached |") == 2 and "40 requests at once" in printed and "Soak: 90" in printed


def test_the_benchmark_of_traffic_runs(capsys, tmp_path):
    stored = tmp_path / "traffic.json"
    assert traffic.main(["--quick", "--models", "digits", "--only", "lengths", "--output", str(stored)]) == 0
    assert "| digits |" in capsys.readouterr().out and json.loads(stored.read_text())["lengths"]["digits"]["kept"] > 0
