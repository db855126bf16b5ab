"""A run's settings as a file: TOML, with every name and type checked."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from unmask.training.config import TrainConfig


def from_mapping(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Check names and types of settings that come from a file."""
    known = {field.name: field for field in fields(TrainConfig)}
    checked = {}
    for name, value in values.items():
        key = name.replace("-", "_")
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            raise ValueError(f"{where}: no setting {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
        kind = str(known[key].type)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        fits = {
            "bool": isinstance(value, bool),
            "int": number and isinstance(value, int),
            "float": number,
            "str": isinstance(value, str),
        }.get(kind.removesuffix(" | None"), isinstance(value, str))
        if not fits:
            raise ValueError(f"{where}: {name} = {value!r} is not of type {kind.removesuffix(' | None')}")
        checked[key] = float(value) if kind.startswith("float") else value
    return checked


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings of a TOML file, by name."""
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path}: the configuration cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    return from_mapping(values, str(path))


def to_toml(config: TrainConfig) -> str:
    """The configuration as a file that --config reads; what is open, and the order to resume, are left out."""
    # JSON's strings, numbers and booleans are TOML's.
    values = dataclasses.asdict(replace(config, resume=False, resume_from=None))
    del values["resume"]
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items() if value is not None)
