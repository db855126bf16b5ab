import json

import pytest

from tests.small_models import LENGTH, TEXT, folder
from unmask.cli import main


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("model") / "bpe", "bpe")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(TEXT * 4)
    return path


def test_the_profile_is_measured_kept_and_found_again(small, text, capfd):
    assert main(["steps", str(small)]) == 2
    assert "give DATA" in capfd.readouterr().err
    asked = ["steps", str(small), str(text), "--samples", "2", "--output", str(small / "profile.json")]
    assert main(asked) == 0
    told = capfd.readouterr().out
    assert f"sequences of {LENGTH}" in told and "calls with a window of 8" in told
    assert main(["steps", str(small), "--samples", "2"]) == 0
    assert capfd.readouterr().out == told


def test_the_record_has_all_that_is_shown(small, text, capfd):
    assert main(["steps", str(small), str(text), "--json", "--number", "6"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert len(record["profile"]["nats"]) == LENGTH and record["profile"]["sequences"] == 6
    assert [cost["steps"] for cost in record["costs"]] == [4, 8, 16, LENGTH]
    assert all(sum(cost["sizes"]) == LENGTH and len(cost["sizes"]) == cost["steps"] for cost in record["costs"])
    assert record["costs"][-1]["equal"] == record["costs"][-1]["optimal"] == 0
    assert all(1 <= calls <= LENGTH for calls in record["ahead"].values())


def test_bundled_models_have_a_profile(capfd):
    assert main(["steps", "kjv", "--samples", "0"]) == 0
    assert "412 sequences of 128" in capfd.readouterr().out


def test_a_left_to_right_model_has_none(tmp_path, text, capfd):
    assert main(["steps", str(folder(tmp_path / "causal", "bpe", causal=True)), str(text)]) == 2
    assert "left-to-right model" in capfd.readouterr().err
