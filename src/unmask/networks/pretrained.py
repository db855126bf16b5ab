"""Saving and loading: model.safetensors, config.json and a model card in one folder, here or on the Hugging Face hub.

Weights are read from safetensors alone; no pickle is ever opened.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from unmask.files import write_whole
from unmask.networks.card import card_text
from unmask.networks.config import TransformerConfig
from unmask.networks.former import modern

if TYPE_CHECKING:
    from typing import Self

    from unmask.networks.transformer import Transformer

    class HubMixin:
        def save_pretrained(self, save_directory: str | Path, **options: Any) -> str | None: ...
        def push_to_hub(self, repo_id: str, **options: Any) -> str: ...
        @classmethod
        def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self: ...

else:
    from huggingface_hub import PyTorchModelHubMixin as HubMixin


WEIGHTS, CONFIG, README = "model.safetensors", "config.json", "README.md"
AVERAGE = "ema.safetensors"
USER_NETWORK = "own"  # the architecture of a network whose class the user provides
DISPLAYS = ("text", "molecule", "image", "grid")
RESERVED = ("architecture", "unmask_version", "storage", "card", "extra")  # in config.json beside the network's fields


@dataclass(frozen=True)
class Card:
    """What a reader of the model must know. Missing fields are shown as not recorded."""

    data: str | None = None
    tokens_seen: int | None = None
    bound: float | None = None  # the held-out likelihood bound
    bound_error: float | None = None  # its standard error over the sequences
    estimate_error: float | None = None  # the part of it that is the estimate's, from its passes; None if exact
    bound_unit: str = "bits per token"
    held_out: str | None = None  # the data on which the bound was measured
    measured_by: str | None = None  # the command that measured it
    random_order: str | None = None  # the bound over random orders, if the default order is another, and its command
    mixture: str | None = None  # the tighter bound by several orders, and its command
    ngram: str | None = None  # the result of a Kneser-Ney model on the same sequences, and its command
    truth: str | None = None  # for data from a known distribution: its own bits, and the divergence from it
    license: str | None = None
    notes: str | None = None
    command: str | None = None  # the command that trained it
    samples: Sequence[str] = ()
    display: str | None = None  # how a page shows its sequences, one of DISPLAYS; by default as the tokens suggest

    def __post_init__(self) -> None:
        if self.display not in (None, *DISPLAYS):
            raise ValueError(f"display must be one of {', '.join(DISPLAYS)}, got {self.display!r}")
        object.__setattr__(self, "samples", tuple(self.samples))  # JSON gives a list


class Pretrained(HubMixin):
    """save_pretrained, from_pretrained and push_to_hub, by huggingface_hub's PyTorchModelHubMixin.

    ``model.card`` is saved to the folder with the weights and loaded with them.
    """

    architecture: ClassVar[str]
    config_class: ClassVar[type[TransformerConfig]]
    config: TransformerConfig
    card: Card | None = None

    def _save_pretrained(self, save_directory: Path) -> None:
        save(save_directory, self)  # type: ignore[arg-type]

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """A folder, or a repository's name on the hub; options as in huggingface_hub."""
        name = pretrained_model_name_or_path
        if Path(name).is_dir():
            return cls._loaded(name)
        try:
            return super().from_pretrained(name, **options)
        except FileNotFoundError as error:  # huggingface_hub's LocalEntryNotFoundError: not cached and not reachable
            raise ValueError(f"{name} is not a folder, and could not be downloaded from the hub: {error}") from error

    @classmethod
    def _from_pretrained(cls, *, model_id: str, **options: Any) -> Self:
        """From the hub: fetch the two files, then read them as a folder."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

        names = ("revision", "cache_dir", "force_download", "local_files_only", "token")
        where: dict[str, Any] = {name: options[name] for name in names if name in options}
        folders = set()
        for file in (CONFIG, WEIGHTS):
            try:
                folders.add(Path(hf_hub_download(repo_id=model_id, filename=file, **where)).parent)
            except LocalEntryNotFoundError:
                raise
            except EntryNotFoundError as error:
                raise ValueError(f"{model_id} has no {file}; weights are read only from safetensors") from error
        assert len(folders) == 1, folders
        return cls._loaded(folders.pop())

    @classmethod
    def _loaded(cls, folder: str | Path) -> Self:
        architecture = read_header(folder)["architecture"]
        if architecture != cls.architecture:
            raise ValueError(f"{folder} holds a {architecture!r} network, not a {cls.architecture!r} one")
        model: Self = read(folder, cls)
        return model


def save(
    folder: str | Path,
    model: Transformer,
    *,
    card: Card | None = None,
    half: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write the weights, the config and the card of a model; each file is written atomically.

    half: store float16, half the size; it is float32 again when loaded. extra: anything else to store in config.json.
    """
    write(folder, model, described(model, card, extra, half=half), half=half)


def write(folder: str | Path, model: nn.Module, texts: Mapping[str, str], *, half: bool = False) -> None:
    """Write the weights of any network, and these files beside them."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parameters = {name for name, _ in model.named_parameters()}
    state = {}
    for name, tensor in model.state_dict().items():
        # Buffers are not converted: the rotary frequencies do not fit into float16.
        dtype = torch.float16 if half and name in parameters else torch.float32
        state[name] = tensor.detach().to("cpu", dtype if tensor.is_floating_point() else tensor.dtype)
        if not bool(state[name].isfinite().all()):
            raise ValueError(f"{name} has values that are not finite in {dtype}: the model was not saved")
    partial = folder / f".{WEIGHTS}.partial"
    try:
        save_file(apart(state), partial, metadata={"format": "pt"})
        os.replace(partial, folder / WEIGHTS)
    finally:
        partial.unlink(missing_ok=True)
    for name, text in texts.items():
        write_whole(folder / name, text.encode())


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors without shared memory: tied weights have several names."""
    seen: set[int] = set()
    made = {}
    for name, tensor in tensors.items():
        made[name] = tensor.clone() if tensor.untyped_storage().data_ptr() in seen else tensor.contiguous()
        seen.add(tensor.untyped_storage().data_ptr())
    return made


def described(
    model: Transformer, card: Card | None = None, extra: Mapping[str, Any] | None = None, *, half: bool = False
) -> dict[str, str]:
    """The files beside the weights, by name: config.json and the card."""
    from unmask import __version__

    card = card or model.card or Card()
    config = {
        "architecture": model.architecture,
        "unmask_version": __version__,
        "storage": "float16" if half else "float32",
        **asdict(model.config),
        "card": asdict(card),
        "extra": dict(extra or {}),
    }
    return {CONFIG: json.dumps(config, indent=2, sort_keys=False) + "\n", README: card_text(model, card)}


def read(folder: str | Path, cls: type[Any]) -> Any:
    """Read a saved network of this class, float32 and ready to sample. Any problem is one ValueError."""
    folder = Path(folder)
    config, header = config_of(folder, read_header(folder), cls)
    stored = read_weights(folder / WEIGHTS)
    if (folder / AVERAGE).is_file():  # a checkpoint of a run: the averaged weights are the ones to use
        stored |= read_weights(folder / AVERAGE)
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in cls(config).state_dict().items()}
    problems = [f"{name} is missing" for name in expected if name not in stored]
    problems += [f"{name} does not belong" for name in stored if name not in expected]
    problems += [
        f"{name} is {list(stored[name].shape)} and not {list(shape)}"
        for name, shape in expected.items()
        if name in stored and stored[name].shape != shape
    ]
    problems += [f"{name} is {tensor.dtype}" for name, tensor in stored.items() if not tensor.is_floating_point()]
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise ValueError(f"{folder / WEIGHTS} does not fit its {CONFIG}: {'; '.join(problems[:5])}{more}")
    check_finite(stored, folder / WEIGHTS)
    # A copy, because safetensors maps the file, and a model must outlive it.
    model = cls.built(config, {name: tensor.to(torch.float32, copy=True) for name, tensor in stored.items()})
    model.card = _dataclass(Card, header.get("card") or {}, folder)
    return model.eval()


def check_finite(weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights that are not finite: every sample would be meaningless, without any other sign."""
    for name, tensor in weights.items():
        # A sum is not finite if any of its terms is not, and needs no second tensor of that size.
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float().sum())):
            bad = int((~torch.isfinite(tensor.float())).sum())
            if bad:
                raise ValueError(f"{path}: {bad} values of {name} are NaN or infinite; the checkpoint is damaged")


def config_of(folder: str | Path, header: dict[str, Any], cls: type[Any]) -> tuple[Any, dict[str, Any]]:
    """The config of a network of this class, and what else config.json holds."""
    raw = {name: value for name, value in header.items() if name not in RESERVED}
    rest = {name: header[name] for name in RESERVED if name in header}
    return _dataclass(cls.config_class, raw, Path(folder) / CONFIG), rest


def read_header(folder: str | Path) -> dict[str, Any]:
    """Everything that config.json holds, of any architecture; what an earlier version wrote is put as it is now."""
    path = Path(folder) / CONFIG
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a saved model: it has no {CONFIG}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(raw, dict) or "architecture" not in raw:
        raise ValueError(f"{path} was not written by unmask: it names no architecture")
    if not isinstance(raw["architecture"], str):
        raise ValueError(f"{path}: architecture must be a name, got {raw['architecture']!r}")
    if raw["architecture"] == USER_NETWORK:
        return raw
    settings = {name: value for name, value in raw.items() if name not in RESERVED}
    architecture, settings = modern(raw["architecture"], settings)
    rest = {name: value for name, value in raw.items() if name in RESERVED}
    return {**rest, **settings, "architecture": architecture}


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(
            f"{path.parent} has no {path.name}; weights are read only from safetensors, never from a pickle"
        )
    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a whole safetensors file: {error}") from None


def _dataclass(cls: type[Any], values: Any, where: Path) -> Any:
    """The dataclass from JSON; wrong, missing and unknown fields are reported."""
    if not isinstance(values, dict):
        raise ValueError(f"{where}: {cls.__name__} must be an object, got {values!r}")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    unknown = [name for name in values if name not in fields]
    missing = [n for n, field in fields.items() if field.default is dataclasses.MISSING and n not in values]
    if unknown or missing:
        raise ValueError(f"{where}: {cls.__name__} fields unknown: {unknown or 'none'}; missing: {missing or 'none'}")
    try:
        return cls(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from None
