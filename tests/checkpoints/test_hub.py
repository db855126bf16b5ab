"""A repository of another project, as huggingface_hub caches it, and no network."""

from __future__ import annotations

from fnmatch import fnmatch

import huggingface_hub
import pytest

import unmask
from tests.checkpoints import checkpoints as made
from unmask import hub
from unmask.tokenizers.vocabularies import bytes_of_utf8


def test_a_hub_id_is_loaded_and_its_code_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    repository, revision = tmp_path / "models--group--mdlm", "a" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    folder = made.hub_folder(
        repository / "snapshots" / revision,
        made.state(258),
        made.hub_config(258, auto_map={"AutoModelForMaskedLM": "modeling_mdlm.MDLM"}),
    )
    bytes_of_utf8().save(folder / "tokenizer.json")
    (folder / "modeling_mdlm.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')")
    model = unmask.load("group/mdlm", time=True)
    assert model.name == "group/mdlm"
    assert model.sample(1, seed=1).text == unmask.load(folder, time=True).sample(1, seed=1).text
    assert not (tmp_path / "mark").exists()
    with pytest.raises(ValueError, match="group/none is not a folder, and could not be downloaded from the hub"):
        unmask.load("group/none")


def test_no_code_is_fetched():
    patterns = (*hub.DATA_FILES, *hub.PICKLES)
    assert not any(fnmatch(name, pattern) for name in ("modeling_mdlm.py", "lib.so", "x.sh") for pattern in patterns)
    assert all(any(fnmatch(name, p) for p in patterns) for name in ("model.safetensors", "vocab.txt", "config.json"))
