"""What can be audited: anybody's function from probabilities or logits to ids, and the built-in subjects by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unmask import draw, theory
from unmask.noise import Streams
from unmask.samplers.published import TorchRand, race

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]

# Values that are a distribution as they stand and another one as logits.
TELLTALE: Floats = np.array([1, 2, 4, 8], dtype=np.float32) / np.float32(15)
TELLTALE_ROWS = 2000


@dataclass(frozen=True)
class AuditedDraw:
    """A draw with one interface: probabilities float32 [R, V] in, ids int64 [R] out."""

    name: str
    function: Callable[..., Any]
    library: str  # "torch", "numpy" or "jax": the arrays that it takes
    takes: str  # "probabilities" or "logits"
    source: Source

    def law(self, probabilities: NDArray[np.float64]) -> tuple[Floats, NDArray[np.float64]]:
        """The float32 values passed for these probabilities, and the distribution that these values have."""
        if self.takes == "probabilities":
            values = probabilities.astype(np.float32)
            weights = values.astype(np.float64)
        else:
            values = np.log(probabilities).astype(np.float32)
            weights = np.exp(values.astype(np.float64))
        return values, weights / weights.sum()

    def ids(self, values: Floats, rows: int) -> Ids:
        """Draw `rows` times from one row of values. The function gets a copy, which it may change."""
        return _call(self.function, np.tile(values, (rows, 1)), self.library, self.source)


class Source:
    """Generators for functions that take one, by the name of the argument: one stream each, from one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.torch = torch.Generator().manual_seed(seed)
        self.numpy = np.random.default_rng(seed)
        self.calls = 0

    def argument(self, name: str, rows: int) -> Any:
        self.calls += 1
        if name == "noise":  # fresh in every call, and different for each row
            return Streams(((self.seed, self.calls),)).at("audit", rows)[0]
        if name == "key":
            jax = importlib.import_module("jax")
            return jax.random.fold_in(jax.random.key(self.seed), self.calls)
        return self.torch if name == "generator" else self.numpy


RANDOM = ("noise", "generator", "key", "rng")


def subject(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    takes: str | None = None,
    library: str | None = None,
    seed: int = 0,
) -> AuditedDraw:
    """Detect how to call a function: with which arrays, and with probabilities or logits.

    Arguments named noise (as in unmask.draw), generator, key or rng are supplied. Options that are not given are tried:
    torch tensors, then numpy arrays; and 2,000 draws from TELLTALE's values, which distinguish probabilities from
    logits.
    """
    if not callable(function):
        raise ValueError(f"draw must be a function from probabilities or logits to ids, got {function!r}")
    for option, value, allowed in (
        ("takes", takes, ("probabilities", "logits")),
        ("library", library, ("torch", "numpy", "jax")),
    ):
        if value is not None and value not in allowed:
            raise ValueError(f"{option} must be one of {allowed}, or None to find out, got {value!r}")
    source = Source(seed)
    many: Floats = np.tile(TELLTALE, (TELLTALE_ROWS, 1))
    failures = []
    for way in (library,) if library else ("torch", "numpy"):
        try:
            ids = _call(function, many, way, source)
        except Exception as error:  # user code may fail in any way
            failures.append(f"given {way}: {type(error).__name__}: {error}")
            continue
        if takes is None:
            counts = np.bincount(ids, minlength=4)
            readings = {"probabilities": TELLTALE, "logits": np.exp(TELLTALE) / np.exp(TELLTALE).sum()}
            takes = max(readings, key=lambda reading: float((counts * np.log(readings[reading])).sum()))
        return AuditedDraw(name or str(getattr(function, "__name__", function)), function, way, takes, source)
    raise ValueError(
        "draw must take an array [rows, classes] of probabilities or logits and return one id per row; "
        + "; ".join(failures)
    )


def _call(function: Callable[..., Any], values: Floats, library: str, source: Source) -> Ids:
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # compiled functions may have no signature
        parameters = []
    extras = {name: source.argument(name, len(values)) for name in parameters if name in RANDOM}
    given: Any = torch.from_numpy(values) if library == "torch" else values
    if library == "jax":
        given = importlib.import_module("jax.numpy").asarray(values)
    # By name if a generator comes before the values, as in jax.
    first = next((name for name in parameters if name not in RANDOM), None)
    if extras and first is not None and parameters[0] in RANDOM:
        drawn = function(**{first: given}, **extras)
    else:
        drawn = function(given, **extras)
    ids = np.asarray(drawn.detach().cpu() if isinstance(drawn, Tensor) else drawn)
    if ids.size != len(values) or ids.dtype.kind not in "iu":
        raise ValueError(f"one id per row was expected, {len(values)} integers; got {ids.dtype} {ids.shape}")
    ids = ids.reshape(-1).astype(np.int64)
    if ids.min() < 0 or ids.max() >= values.shape[1]:
        raise ValueError(f"ids must be in 0..{values.shape[1] - 1}, got {ids.min()}..{ids.max()}")
    return ids


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators of torch and numpy, and restore their states afterwards."""
    state = np.random.get_state()  # noqa: NPY002 (it is the legacy state that others' code uses)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


def _multinomial(p: Tensor, generator: torch.Generator) -> Tensor:
    return torch.multinomial(p, 1, generator=generator)


def _torch_exponential(p: Tensor, generator: torch.Generator) -> Tensor:
    return (p / torch.empty_like(p).exponential_(generator=generator)).argmax(-1)


def _gumbel_log1p(p: Tensor, generator: torch.Generator) -> Tensor:
    """The usual advice, -log1p(-u) for -log(u): small clocks are now fine-grained, but 0 is one of them."""
    u = torch.rand(p.shape, generator=generator)
    return (p.log() - torch.log(-torch.log1p(-u))).argmax(-1)


def _published_race(precision: str, p: Tensor, generator: torch.Generator) -> Tensor:
    return race(precision, eps=1e-10)(p, TorchRand(torch.randint(2**62, (1,), generator=generator), places=len(p)))


def _numpy_choice(p: Floats, rng: np.random.Generator) -> Ids:
    exact = p.astype(np.float64)
    exact /= exact.sum(axis=1, keepdims=True)
    return np.array([rng.choice(len(row), p=row) for row in exact])


def _numpy_gumbel(p: Floats, rng: np.random.Generator) -> Ids:
    with np.errstate(divide="ignore"):
        return np.asarray((p / -np.log(rng.random(p.shape, dtype=np.float32))).argmax(-1))


def _numpy_cumulative(p: Floats, rng: np.random.Generator) -> Ids:
    cumulative = np.cumsum(p, axis=1)  # term by term, in float32
    return np.asarray((cumulative > rng.random((len(p), 1)) * cumulative[:, -1:]).argmax(1))


def _jax_categorical(mode: str | None, logits: Any, key: Any) -> Any:
    jax = importlib.import_module("jax")
    return jax.random.categorical(key, logits, **({} if mode is None else {"mode": mode}))


def _jax_choice(p: Any, key: Any) -> Any:
    jax = importlib.import_module("jax")
    return jax.random.choice(key, p.shape[1], shape=(p.shape[0],), p=p[0])


@dataclass(frozen=True)
class Builtin:
    """A built-in subject: what it is, and how it is called."""

    what: str
    function: Callable[..., Any]
    takes: str = "probabilities"
    library: str = "torch"

    @property
    def available(self) -> bool:
        return importlib.util.find_spec(self.library) is not None


BUILTIN = {
    "exponential_race": Builtin("unmask's default, in float64", draw.exponential_race, "logits"),
    "inverse_cdf": Builtin("unmask.draw.inverse_cdf", draw.inverse_cdf, "logits"),
    "gumbel_float64": Builtin("unmask.draw.gumbel(torch.float64)", draw.gumbel(torch.float64), "logits"),
    "gumbel_float32": Builtin("unmask.draw.gumbel(torch.float32)", draw.gumbel(torch.float32), "logits"),
    "gumbel_float16": Builtin("unmask.draw.gumbel(torch.float16)", draw.gumbel(torch.float16), "logits"),
    "gumbel_bfloat16": Builtin("unmask.draw.gumbel(torch.bfloat16)", draw.gumbel(torch.bfloat16), "logits"),
    "truncated": Builtin(
        "unmask.draw.truncated at float32's M", draw.truncated(theory.maximum_gumbel("float32")), "logits"
    ),
    "published_float32": Builtin("the published race: argmax p / (-log u)", partial(_published_race, "float32")),
    "published_float64": Builtin("the same in float64", partial(_published_race, "float64")),
    "gumbel_log1p": Builtin("float32 Gumbels by -log(-log1p(-u))", _gumbel_log1p),
    "torch_multinomial": Builtin("torch.multinomial(p, 1)", _multinomial),
    "torch_exponential": Builtin("argmax p / Tensor.exponential_()", _torch_exponential),
    "numpy_choice": Builtin("numpy.random.Generator.choice", _numpy_choice, library="numpy"),
    "numpy_gumbel": Builtin("argmax p / (-log u), numpy float32", _numpy_gumbel, library="numpy"),
    "numpy_cumulative": Builtin("inversion by numpy.cumsum, float32", _numpy_cumulative, library="numpy"),
    "jax_categorical": Builtin("jax.random.categorical", partial(_jax_categorical, None), "logits", "jax"),
    "jax_categorical_high": Builtin(
        'jax.random.categorical(mode="high")', partial(_jax_categorical, "high"), "logits", "jax"
    ),
    "jax_choice": Builtin("jax.random.choice(p=...)", _jax_choice, library="jax"),
}


def builtin(name: str, *, seed: int = 0) -> AuditedDraw:
    """A built-in subject by name."""
    if name not in BUILTIN:
        raise ValueError(f"there is no built-in subject {name!r}; they are {', '.join(BUILTIN)}")
    known = BUILTIN[name]
    if not known.available:
        raise ModuleNotFoundError(f"{name} needs {known.library}: pip install {known.library}", name=known.library)
    return subject(known.function, name=name, takes=known.takes, library=known.library, seed=seed)
