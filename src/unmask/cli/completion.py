"""``unmask --completion SHELL``: shell completion of verbs, options and their values."""

from __future__ import annotations

import importlib
import shlex
from dataclasses import dataclass

from unmask.cli import VERBS
from unmask.cli.command import Command
from unmask.loading import available

SHELLS = ("bash", "zsh", "fish")
MODELS = ("model", "models", "path")  # positional arguments that may be the name of a model


@dataclass(frozen=True)
class Words:
    """What may follow a verb."""

    options: dict[str, tuple[str, ...]]  # each with its values, if they are few
    helps: dict[str, str]
    models: bool


def script(shell: str) -> str:
    """The script for a shell; bash and zsh share one."""
    if shell not in SHELLS:
        raise ValueError(f"--completion knows {', '.join(SHELLS)}, not {shell!r}")
    verbs = {verb: words(verb) for verb in VERBS}
    if shell == "fish":
        return fish(verbs)
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + bash(verbs)


def words(verb: str) -> Words:
    command: Command[object] = importlib.import_module(f"unmask.cli.{verb}").COMMAND
    options, helps = {}, {}
    for action in command.parser()._actions:
        values = tuple(str(value) for value in action.choices or () if value != "None")
        for option in action.option_strings:
            if option.startswith("--"):
                options[option], helps[option] = tuple(sorted(values)), str(action.help or "").split(". ")[0]
    return Words(options, helps, any(name in command.positional for name in MODELS))


def bash(verbs: dict[str, Words]) -> str:
    values = "\n".join(
        f'    "{verb} {option}") words="{" ".join(choices)}" ;;'
        for verb, shape in verbs.items()
        for option, choices in shape.options.items()
        if choices
    )
    options = "\n".join(f'      {verb}) words="{" ".join(shape.options)}" ;;' for verb, shape in verbs.items())
    models = "|".join(verb for verb, shape in verbs.items() if shape.models)
    return f"""_unmask() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" verb="${{COMP_WORDS[1]}}" words=""
  case "$verb $before" in
{values}
  esac
  if [[ "$COMP_CWORD" == 1 ]]; then
    words="{" ".join(verbs)} --help --version --completion"
  elif [[ "$before" == --completion ]]; then
    words="{" ".join(SHELLS)}"
  elif [[ -z "$words" && "$current" == -* ]]; then
    case "$verb" in
{options}
    esac
  elif [[ -z "$words" && "$before" != -* ]]; then
    case "$verb" in
      {models}) words="{" ".join(model.name for model in available())}" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _unmask unmask
"""


def fish(verbs: dict[str, Words]) -> str:
    lines = ["complete -c unmask -n __fish_use_subcommand -f"]
    for verb, shape in verbs.items():
        lines.append(f"complete -c unmask -n __fish_use_subcommand -a {verb} -d {shlex.quote(VERBS[verb])}")
        for option, choices in shape.options.items():
            given = f" -xa {shlex.quote(' '.join(choices))}" if choices else ""
            about = f" -l {option.removeprefix('--')}{given} -d {shlex.quote(shape.helps[option])}"
            lines.append(f"complete -c unmask -n '__fish_seen_subcommand_from {verb}'{about}")
        if shape.models:
            names = " ".join(model.name for model in available())
            lines.append(f"complete -c unmask -n '__fish_seen_subcommand_from {verb}' -a {shlex.quote(names)}")
    return "\n".join(lines) + "\n"
