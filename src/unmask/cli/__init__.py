"""The command line: one verb, one function. Each verb reads its own arguments and returns an exit code."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import unmask
from unmask.cli.memory import keep_freed_memory


@dataclass(frozen=True)
class Verb:
    """What a verb is for, and the function that does it, as "module:function", imported when it is called."""

    summary: str
    target: str

    def load(self) -> Callable[[Sequence[str]], int]:
        module, function = self.target.split(":")
        run: Callable[[Sequence[str]], int] = getattr(importlib.import_module(module), function)
        return run


VERBS = {
    "prepare": Verb("turn text, CSV, JSON lines or a dataset into a token file", "unmask.cli.prepare:main"),
    "train": Verb("train a model on a corpus, a token file or a text file", "unmask.cli.train:main"),
    "sample": Verb("sample texts from a model, and watch them appear", "unmask.cli.sample:main"),
    "infill": Verb("fill the blanks of a text", "unmask.cli.infill:main"),
    "models": Verb("list the models that can be called by name", "unmask.cli.models:main"),
    "evaluate": Verb("the likelihood of data under a model, with its errors", "unmask.cli.evaluate:main"),
    "judge": Verb("the perplexity of samples under a judge, and their entropy", "unmask.cli.judge:main"),
    "frontier": Verb("models and samplers by perplexity, entropy and cost", "unmask.cli.frontier:main"),
    "serve": Verb("serve models: OpenAI's API, our own, and a page", "unmask.cli.serve:main"),
    "inspect": Verb("say what anybody's checkpoint is, without running it", "unmask.cli.checkpoints:inspect"),
    "convert": Verb("turn a checkpoint into our folder or MDLM's", "unmask.cli.checkpoints:convert"),
    "audit": Verb("measure whether a categorical sampler has the law it should have", "unmask.cli.audit:main"),
    "reproduce": Verb("the paper's figures and tables, each with its numbers", "unmask.cli.reproduce:main"),
}


def usage() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return f"""unmask {unmask.__version__}: train, sample and evaluate masked (diffusion) models of discrete data

usage: unmask VERB [options]

{verbs}

unmask VERB --help says everything about a verb. In Python: import unmask; help(unmask.sample)."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a verb. Exit codes: 0 done, 1 it failed and stderr says why, 2 the command line was wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if arguments[0] in ("-V", "--version"):
        print(unmask.__version__)
        return 0
    name, *rest = arguments
    if name not in VERBS:
        close = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the verbs are {', '.join(VERBS)}"
        print(f"unmask: there is no verb {name!r}; {hint}", file=sys.stderr)
        return 2
    keep_freed_memory()
    try:
        return VERBS[name].load()(rest)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("unmask"):
            raise
        print(f"unmask {name}: {error}; install it, or everything with: pip install 'unmask[all]'", file=sys.stderr)
    except BrokenPipeError:  # whoever read our output has gone: say nothing, as other programs do
        sys.stdout = None
        return 141
    except (ValueError, OSError) as error:
        print(f"unmask {name}: {error}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
