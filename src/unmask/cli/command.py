"""A verb's command line: a dataclass of options, parsed by tyro, with readable help."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, make_dataclass
from dataclasses import field as new_field
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unmask.options import help_texts

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Command(Generic[Chosen]):
    """The options of a verb.

    options: a dataclass; the string below a field is its help. positional: the fields without a flag, in order, each
    with its help. examples: two command lines to start with. pairs: whether every switch has --X and --no-X, for
    options whose defaults come from a file.
    """

    verb: str
    options: type[Chosen]
    positional: Mapping[str, str]
    examples: tuple[str, ...]
    note: str = ""
    pairs: bool = False

    def parsed(self, arguments: Sequence[str], defaults: Mapping[str, Any] | None = None) -> Chosen:
        """The options from the command line. tyro exits with 2 if they are wrong, and with 0 after --help.

        defaults: instead of those of the dataclass.
        """
        import tyro

        kind = self._kind()
        known: Any = tyro.MISSING_NONPROP
        if defaults:
            known = kind(**(dict.fromkeys(self.positional, tyro.MISSING) | dict(defaults)))
        chosen: Chosen = tyro.cli(kind, args=list(arguments), default=known, **self._how())
        try:
            _check(chosen)
        except ValueError as error:
            print(f"{program(self.verb)}: {error}", file=sys.stderr)
            raise SystemExit(2) from error
        return chosen

    def parser(self) -> Any:
        """The same as an argparse parser, to inspect the options."""
        import tyro

        return tyro.extras.get_parser(self._kind(), **self._how())

    def _how(self) -> dict[str, Any]:
        import tyro

        examples = "\n".join(f"  {example}" for example in self.examples)
        about = " ".join(part for part in (inspect.cleandoc(self.options.__doc__ or ""), self.note) if part)
        config = (tyro.conf.OmitArgPrefixes, *(() if self.pairs else (tyro.conf.FlagCreatePairsOff,)))
        return {"prog": program(self.verb), "description": f"{about}\n\nexamples:\n{examples}", "config": config}

    def _kind(self) -> Any:
        """The dataclass with tyro's annotations for each field."""
        return self._shown(self.options, self.positional)

    def _shown(self, options: Any, first: Collection[str]) -> Any:
        hints, helps = get_type_hints(options), help_texts(options)
        known: dict[str, Field[Any]] = {one.name: one for one in fields(options)}
        ordered = [*first, *(name for name in known if name not in first)]
        redeclared: list[Any] = []
        for name in ordered:
            if not isinstance(known[name].default_factory, type(MISSING)):
                if is_dataclass(hints[name]):  # nested options
                    inner = self._shown(hints[name], ())
                    redeclared.append((name, inner, new_field(default_factory=inner)))
                continue
            kind = self._annotated(name, hints[name], known[name].default, helps.get(name, ""))
            given = () if known[name].default is MISSING else (new_field(default=known[name].default),)
            redeclared.append((name, kind, *given))
        unchecked = {"__post_init__": lambda self: None}  # tyro would print the error in its own format
        return make_dataclass("Parsed", redeclared, bases=(options,), namespace=unchecked, frozen=True, kw_only=True)

    def _annotated(self, name: str, hint: Any, default: Any, help_text: str) -> Any:
        import tyro

        about: dict[str, Any] = {"help": self.positional.get(name) or help_text or None}
        several = hint == tuple[str, ...]
        if default in (None, "", ()) or (isinstance(default, bool) and not self.pairs) or several:
            about["help_behavior_hint"] = ""  # the help says what happens without it
        if default is None:
            about["metavar"] = metavar(hint)
        if name not in self.positional:
            return Annotated[hint, tyro.conf.arg(**about)]
        shown = f"{name.upper().removesuffix('S')} ..." if several else name.upper()
        about["metavar"] = shown if default is MISSING else f"[{shown}]"
        return Annotated[hint, tyro.conf.Positional, tyro.conf.arg(**about)]


def _check(chosen: Any) -> None:
    """The checks of the dataclasses themselves, after parsing."""
    for one in fields(chosen):
        if is_dataclass(value := getattr(chosen, one.name)):
            _check(value)
    if check := getattr(super(type(chosen), chosen), "__post_init__", None):
        check()


def metavar(hint: Any) -> str:
    """A type as shown in the help; None is the value of an omitted option."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    if get_origin(hint) in (Union, types.UnionType):
        return "|".join(metavar(part) for part in get_args(hint) if part is not type(None))
    return "{True,False}" if hint is bool else str(getattr(hint, "__name__", hint)).upper()


def program(verb: str) -> str:
    """The words that call a command: ``unmask VERB``, or those of a program beside the package."""
    return verb if verb.startswith("python") else f"unmask {verb}"
