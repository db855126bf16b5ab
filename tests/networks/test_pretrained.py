"""Saved models come back bit for bit, broken folders are one clear error, and no pickle is ever run."""

from __future__ import annotations

import json
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file, save_file

import unmask
from tests.small_models import scrambled
from unmask.checkpoints.folder import load_network as load
from unmask.networks.adapters import AdaptedDDiT, AdaptersConfig
from unmask.networks.any_order import AnyOrderConfig, OneStream
from unmask.networks.blocks import BlockDDiT, BlocksConfig
from unmask.networks.card import card_text
from unmask.networks.causal import Causal, twin
from unmask.networks.config import TransformerConfig, blocks_of
from unmask.networks.ddit import DDiT, DDiTConfig
from unmask.networks.insertion import InsertionConfig, InsertionDDiT
from unmask.networks.kinds import described, read_config
from unmask.networks.left_reading import LeftReadingDDiT
from unmask.networks.pretrained import Card, save
from unmask.networks.self_conditioned import SelfConditionedDDiT
from unmask.networks.transformer import Transformer
from unmask.networks.uniform import UniformDDiT
from unmask.networks.visible import VisibleDDiT

CONFIG = DDiTConfig(vocab_size=9, mask_id=4, length=6, width=16, layers=2, heads=2, cond_dim=8)
CARD = Card(
    data="the King James Bible, BPE of 4,096",
    tokens_seen=5_060_000,
    bound=6.8,
    bound_error=0.02,
    held_out="the last 5% of the text",
    license="mit",
    notes='quotes " and: colons',
)
TOKENS = torch.tensor([[4, 1, 4, 4, 0, 8], [4, 4, 4, 4, 4, 4]])


def network(cls: type[Transformer] = DDiT, config: TransformerConfig = CONFIG) -> Any:
    torch.manual_seed(0)
    return scrambled(cls(config)).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path / "model", network(), card=CARD)
    return tmp_path / "model"


@pytest.mark.parametrize(
    ("cls", "config"),
    [
        (DDiT, CONFIG),
        (DDiT, replace(CONFIG, mask_id=9, tie_embeddings=True, convolution=3, conditioning="time")),
        (SelfConditionedDDiT, replace(CONFIG, adaln=False, norm_bias=True)),
        (VisibleDDiT, replace(CONFIG, conditioning="ratio")),
        (BlockDDiT, blocks_of(CONFIG, BlocksConfig, block=3)),
        (InsertionDDiT, blocks_of(CONFIG, InsertionConfig, mask_id=9)),
        (OneStream, blocks_of(CONFIG, AnyOrderConfig, neighbours=1, start=2)),
        (Causal, twin(CONFIG)),
        (Causal, blocks_of(CONFIG, TransformerConfig, convolution=3)),
        (AdaptedDDiT, blocks_of(CONFIG, AdaptersConfig, adaln=False, adapters=2, start=0, block=2)),
        (LeftReadingDDiT, CONFIG),
    ],
)
def test_round_trip_is_bit_equal(cls: type[Transformer], config: TransformerConfig, tmp_path: Path) -> None:
    model = network(cls, config).train()
    assert model.save_pretrained(tmp_path / "a") is None
    for back in (cls.from_pretrained(tmp_path / "a"), cls.from_pretrained(str(tmp_path / "a")), load(tmp_path / "a")):
        assert type(back) is cls and back.config == config and not back.training
        assert back.state_dict().keys() == model.state_dict().keys()
        for name, tensor in model.state_dict().items():
            assert back.state_dict()[name].dtype == torch.float32 and torch.equal(back.state_dict()[name], tensor), name
        assert all(p.requires_grad for p in back.parameters())
        time = torch.tensor([0.3, 1.0])
        assert torch.equal(back(TOKENS.clamp(max=7), time=time), model.eval()(TOKENS.clamp(max=7), time=time))
    assert isinstance(model, PyTorchModelHubMixin)
    save(tmp_path / "b", back)
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["README.md", "config.json", "model.safetensors"]


# config.json of version 0.1: one class had the settings of every kind.
BEFORE = {
    "vocab_size": 9,
    "mask_id": 9,
    "length": 6,
    "width": 16,
    "layers": 2,
    "heads": 2,
    "cond_dim": 8,
    "mlp_ratio": 4,
    "hidden": 0,
    "mlp": "gelu",
    "dropout": 0.1,
    "conditioning": "none",
    "time_embedding": "sigma",
    "sigma_max": 6.907755278982137,
    "self_conditioning": False,
    "convolution": 0,
    "tie_embeddings": False,
    "learned_positions": False,
    "reads_left": False,
    "adaln": True,
    "norm": "layer",
    "norm_bias": False,
    "attention": "bidirectional",
    "block": 0,
    "insertion": False,
    "adapters": 0,
    "start": -1,
    "neighbours": 0,
}


@pytest.mark.parametrize(
    ("architecture", "settings", "expected"),
    [
        ("ddit", {"conditioning": "time"}, DDiT),
        ("ddit", {"self_conditioning": True, "conditioning": "ratio"}, SelfConditionedDDiT),
        ("ddit", {"attention": "visible", "conditioning": "time"}, VisibleDDiT),
        ("ddit", {"attention": "block", "block": 3}, BlockDDiT),
        ("ddit", {"insertion": True}, InsertionDDiT),
        ("ddit", {"uniform": True, "conditioning": "time"}, UniformDDiT),
        ("ddit", {"adapters": 2, "adaln": False, "start": 4, "attention": "block", "block": 2}, AdaptedDDiT),
        ("ddit", {"adapters": 2, "adaln": False}, AdaptedDDiT),
        ("ddit", {"reads_left": True}, LeftReadingDDiT),
        ("any-order", {"attention": "order", "neighbours": 2, "start": 4}, OneStream),
        ("causal", {"adaln": False, "shifted": False}, Causal),
    ],
)
def test_what_earlier_versions_wrote_is_read(
    architecture: str, settings: dict[str, Any], expected: type[Transformer], tmp_path: Path
) -> None:
    cls, config = described({**BEFORE, **settings}, architecture)
    assert cls is expected
    model = network(cls, config)
    save(tmp_path, model)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architecture": architecture, "unmask_version": "0.1.0", **BEFORE, **settings}))
    back = load(tmp_path)
    assert type(back) is expected and back.config == config
    for name, value in settings.items():
        assert getattr(config, name, value) == value
    assert torch.equal(back(CANVAS, torch.ones(1)), model(CANVAS, torch.ones(1)))
    edit_config(tmp_path, block=5)  # which no such network can have
    with pytest.raises(ValueError, match=r"config\.json"):
        load(tmp_path)


CANVAS = torch.tensor([[4, 1, 0, 8, 9, 9]])


def test_folder_says_what_it_is(folder: Path) -> None:
    raw = json.loads((folder / "config.json").read_text())
    assert raw["architecture"] == "ddit" and raw["unmask_version"] == unmask.__version__
    assert raw["vocab_size"] == 9 and raw["mask_id"] == 4 and raw["storage"] == "float32"
    config, header = read_config(folder)
    assert config == CONFIG and header["card"]["tokens_seen"] == 5_060_000
    assert load(folder).card == CARD
    save(folder, network(), extra={"schedule": "linear"})
    assert read_config(folder)[1]["extra"] == {"schedule": "linear"}


def test_a_loaded_model_outlives_its_file(folder: Path) -> None:
    model = load(folder)
    before = model(TOKENS)
    (folder / "model.safetensors").write_bytes(b"\0" * (folder / "model.safetensors").stat().st_size)
    shutil.rmtree(folder)
    assert torch.equal(model(TOKENS), before)


def test_half_precision_is_storage_alone(tmp_path: Path) -> None:
    model = network()
    save(tmp_path, model, half=True)
    stored = load_file(tmp_path / "model.safetensors")
    assert {t.dtype for name, t in stored.items() if name != "rotary_emb.inv_freq"} == {torch.float16}
    back = load(tmp_path)
    assert read_config(tmp_path)[1]["storage"] == "float16"
    assert torch.equal(back.rotary_emb.inv_freq, model.rotary_emb.inv_freq)
    for name, parameter in back.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, dict(model.named_parameters())[name].half().float())
    torch.testing.assert_close(back(TOKENS), model(TOKENS), rtol=1e-2, atol=1e-2)
    with torch.no_grad():
        model.output_layer.linear.bias[0] = 1e6  # more than float16 holds
    with pytest.raises(ValueError, match=r"output_layer\.linear\.bias"):
        save(tmp_path, model, half=True)
    assert torch.equal(load(tmp_path)(TOKENS), back(TOKENS))  # and what was there is untouched


def test_the_card_is_filled_in(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    for part in (
        "the King James Bible",
        "5,060,000",
        "6.800 ± 0.02 bits per token",
        "on the last 5% of the text",
        "mit",
    ):
        assert part in text
    assert "not recorded" not in text
    card = ModelCard(text)  # huggingface_hub reads the metadata
    assert card.data.library_name == "unmask" and card.data.license == "mit" and "unmask" in card.data.tags
    assert card_text(network(), Card()).count("not recorded") == 4


@pytest.mark.parametrize("cls", [DDiT, Causal])
def test_the_cards_code_runs(cls: type[Transformer], tmp_path: Path) -> None:
    model = network(cls, blocks_of(CONFIG, cls.config_class))
    save(tmp_path, model, card=CARD)
    code = (tmp_path / "README.md").read_text().split("```python\n")[1].split("```")[0]
    names: dict[str, torch.Tensor] = {}
    exec(code.replace("this folder or repository", str(tmp_path)), names)
    assert names["tokens"].shape == (4, 6) and (names["tokens"] != 4).all()


def test_saving_again_brings_the_new_card(folder: Path) -> None:
    model = load(folder)
    assert isinstance(model, DDiT)
    model.card = replace(CARD, bound=5.5)
    model.save_pretrained(folder)
    assert "5.500 ± 0.02" in (folder / "README.md").read_text() and load(folder).card == model.card


def edit_config(folder: Path, **changes: object) -> None:
    raw = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v != "drop"}))


def edit_weights(folder: Path, **changes: torch.Tensor | None) -> None:
    state = {**load_file(folder / "model.safetensors"), **changes}
    save_file({k: v for k, v in state.items() if v is not None}, folder / "model.safetensors")


BREAKS = {
    "missing key": (lambda f: edit_weights(f, **{"blocks.1.norm1.weight": None}), r"norm1\.weight is missing"),
    "extra key": (lambda f: edit_weights(f, surplus=torch.zeros(2)), "surplus does not belong"),
    "wrong shape": (
        lambda f: edit_weights(f, **{"vocab_embed.embedding": torch.zeros(9, 8)}),
        r"vocab_embed\.embedding is \[9, 8\] and not \[9, 16\]",
    ),
    "integers": (lambda f: edit_weights(f, **{"output_layer.linear.bias": torch.zeros(9, dtype=torch.int64)}), "int64"),
    "another config": (lambda f: edit_config(f, layers=3), r"blocks\.2\..* is missing"),
    "many": (lambda f: edit_config(f, width=32, layers=4), r"and \d+ more"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), r"no model\.safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), r"no config\.json"),
    "not a folder": (lambda f: shutil.rmtree(f), r"no config\.json"),
    "broken JSON": (lambda f: (f / "config.json").write_text("{"), "not JSON"),
    "bytes for JSON": (lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"), "not JSON"),
    "a list": (lambda f: (f / "config.json").write_text("[]"), "not written by unmask"),
    "no architecture": (lambda f: edit_config(f, architecture="drop"), "not written by unmask"),
    "unknown architecture": (lambda f: edit_config(f, architecture="gpt"), "'gpt'"),
    "list architecture": (lambda f: edit_config(f, architecture=["ddit"]), "architecture must be"),
    "unknown field": (lambda f: edit_config(f, depth=3), "depth"),
    "missing field": (lambda f: edit_config(f, width="drop"), "width"),
    "wrong type": (lambda f: edit_config(f, width="wide"), r"config\.json: width must be of type int, got 'wide'"),
    "a fraction": (lambda f: edit_config(f, layers=2.0), r"config\.json: layers must be of type int, got 2\.0"),
    "impossible": (lambda f: edit_config(f, mask_id=77), "mask_id"),
    "broken card": (lambda f: edit_config(f, card=[1]), "Card"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_folder_is_one_clear_error(name: str, folder: Path) -> None:
    damage, message = BREAKS[name]
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value) and "model" in str(caught.value)
    if folder.is_dir():
        with pytest.raises(ValueError, match=message):
            DDiT.from_pretrained(folder)


HEADERS = {
    "empty": lambda whole: b"",
    "cut in the length": lambda whole: whole[:5],
    "cut in the header": lambda whole: whole[:100],
    "cut in the data": lambda whole: whole[:-10],
    "longer than it says": lambda whole: whole + b"\0" * 10,
    "enormous header": lambda whole: b"\xff" * 8 + whole[8:],
    "header not JSON": lambda whole: whole[:8] + b"]" + whole[9:],
    "other bytes": lambda whole: b"A" * len(whole),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_corrupt_weights_file_is_one_clear_error(name: str, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(HEADERS[name](path.read_bytes()))
    with pytest.raises(ValueError, match=r"model\.safetensors is (?:neither safetensors|damaged|truncated)"):
        load(folder)


class Payload:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.write_text, (self.mark, "run")


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors", "model.pt"])
def test_no_pickle_is_ever_run(file: str, folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (folder / "model.safetensors").unlink()
    (folder / file).write_bytes(pickle.dumps(Payload(mark)))
    for attempt in (load, DDiT.from_pretrained):
        with pytest.raises(ValueError, match="safetensors"):
            attempt(folder)
    assert not mark.exists()
    pickle.loads((folder / file).read_bytes())
    assert mark.exists()  # the payload works: it was not run before


def test_the_other_architecture_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="'ddit' network, not a 'causal' one"):
        Causal.from_pretrained(folder)


def test_a_failed_save_leaves_the_old_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        Path(_[1]).write_bytes(b"half")  # type: ignore[arg-type]
        raise OSError("disk full")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="disk full"):
        save(folder, network(config=replace(CONFIG, layers=1)))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def cached(folder: Path, cache: Path, files: tuple[str, ...]) -> None:
    """Lay files out as huggingface_hub keeps a downloaded repository."""
    repository = cache / "models--someone--words"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    for file in files:
        shutil.copy(folder / file, snapshot / file)


def test_from_the_hubs_cache(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cached(folder, tmp_path / "cache", ("config.json", "model.safetensors"))
    model = DDiT.from_pretrained("someone/words", cache_dir=tmp_path / "cache", local_files_only=True)
    assert torch.equal(model(TOKENS), load(folder)(TOKENS)) and model.card == CARD
    assert capsys.readouterr().out == ""


def test_a_pickle_in_the_hubs_cache_is_not_opened(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(tmp_path / "mark")))
    cached(folder, tmp_path / "cache", ("config.json", "pytorch_model.bin"))
    with pytest.raises(ValueError, match="is not a folder, and could not be downloaded"):
        DDiT.from_pretrained("someone/words", cache_dir=tmp_path / "cache", local_files_only=True)

    def absent(**_: object) -> str:
        raise EntryNotFoundError("404")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", absent)  # the hub's own answer that there is no such file
    with pytest.raises(ValueError, match=r"someone/words has no config\.json; weights are read only from safetensors"):
        DDiT.from_pretrained("someone/words", cache_dir=tmp_path / "cache", local_files_only=True)
    assert not (tmp_path / "mark").exists()
    with pytest.raises(ValueError, match="is not a folder"):
        DDiT.from_pretrained("nobody/nothing", cache_dir=tmp_path / "cache", local_files_only=True)


def test_push_to_hub_uploads_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub itself is out of reach: what the mixin hands to the upload is caught and loaded again."""

    class Api:
        def __init__(self, token: str | None = None) -> None: ...

        def create_repo(self, repo_id: str, **_: object) -> object:
            return type("Url", (), {"repo_id": repo_id})

        def upload_folder(self, folder_path: Path, repo_id: str, **_: object) -> str:
            shutil.copytree(folder_path, tmp_path / "uploaded")
            return f"pushed {repo_id}"

    monkeypatch.setattr("huggingface_hub.hub_mixin.HfApi", Api)
    model = network()
    assert isinstance(model, DDiT)
    model.card = CARD
    assert model.push_to_hub("someone/words") == "pushed someone/words"
    back = DDiT.from_pretrained(tmp_path / "uploaded")
    assert torch.equal(back(TOKENS), model(TOKENS)) and back.card == CARD
    assert "the King James Bible" in (tmp_path / "uploaded" / "README.md").read_text()
