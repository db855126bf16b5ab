"""``unmask sample``, ``unmask infill`` and ``unmask models``: results on stdout, everything else on stderr."""

from __future__ import annotations

import functools
import json
import os
import sys
import time as clock
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.cli import trace
from unmask.cli.options import (
    DEFAULT_MODEL,
    MODEL_HELP,
    TEXT_HELP,
    InfillOptions,
    ModelsOptions,
    Options,
    SampleOptions,
    parsed,
    use_threads,
)
from unmask.cli.view import picture, printable, view
from unmask.models.files import write_whole
from unmask.text.fetch import cache_folder
from unmask.text.find import Found, available, describe, load, tokenizer_of
from unmask.text.foreign import Foreign
from unmask.text.model import Model, TextSample
from unmask.text.tokenizer import Tokenizer
from unmask.text.weights import NAMED

REPLAY_SECONDS, REPLAY_CALLS_PER_SECOND = 6.0, 20.0


def sample(arguments: Sequence[str]) -> int:
    """Run ``unmask sample``."""

    def run() -> None:
        chosen = parsed(SampleOptions, arguments, "sample", model=f"{MODEL_HELP}. Default: {DEFAULT_MODEL}")
        _watch(chosen) if chosen.watch is not None else _sample(chosen)

    return _guarded("sample", run)


def infill(arguments: Sequence[str]) -> int:
    """Run ``unmask infill``."""
    return _guarded(
        "infill", lambda: _infill(parsed(InfillOptions, arguments, "infill", model=MODEL_HELP, text=TEXT_HELP))
    )


def models(arguments: Sequence[str]) -> int:
    """Run ``unmask models``."""
    return _guarded("models", lambda: _models(parsed(ModelsOptions, arguments, "models")))


def _sample(chosen: SampleOptions) -> None:
    _check(chosen)
    use_threads(chosen.threads)
    model = _ready(load(chosen.model or _default(), device=_device(chosen.device)), chosen)
    if chosen.prompt:
        ids = model.prompted(chosen.prompt, chosen.length).ids
    else:
        length = chosen.length if chosen.length is not None else model.length or 0
        ids = (model.denoiser.mask_id,) * length
    with _view(model, ids, chosen.number) as callback:
        made = model.sample(
            chosen.number, prompt=chosen.prompt, length=chosen.length, callback=callback, **chosen.chosen()
        )
    _write(chosen, model, made)


def _infill(chosen: InfillOptions) -> None:
    _check(chosen)
    use_threads(chosen.threads)
    # The newline that ends the last line of stdin comes back when the text is printed.
    text = sys.stdin.read().removesuffix("\n") if chosen.text == "-" else chosen.text
    model = _ready(load(chosen.model, device=_device(chosen.device)), chosen)
    ids = model.blanks(text, chosen.mask_character).ids
    if model.length is not None and len(ids) > model.length:
        print(f"note: {len(ids)} tokens, and the model was trained on {model.length} at a time", file=sys.stderr)
    with _view(model, ids, chosen.number) as callback:
        made = model.infill(
            text, chosen.number, mask_character=chosen.mask_character, callback=callback, **chosen.chosen()
        )
    _write(chosen, model, made)


def _watch(chosen: SampleOptions) -> None:
    """Show each saved sequence as it was filled, at a pace that eyes follow, and then its text."""
    saved = sys.stdin.read() if chosen.watch == "-" else Path(str(chosen.watch)).read_text(encoding="utf-8")
    known = functools.cache(tokenizer_of)
    for number, line in enumerate(saved.splitlines(), 1):
        try:
            record = trace.parse(line)
            tokenizer = known(chosen.model or record["model"])
            _replay(record, tokenizer)
        except ValueError as error:
            raise ValueError(f"{chosen.watch}, line {number}: {error}") from error
        shown = _for_terminal(record["text"], record["tokens"], tokenizer) if _terminal() else record["text"]
        print(shown, flush=True)


def _replay(record: dict[str, Any], tokenizer: Tokenizer | Foreign) -> None:
    mask_id = tokenizer.mask_id if isinstance(tokenizer, Foreign) else None
    mask_id, steps = tokenizer.vocab_size if mask_id is None else mask_id, trace.steps(record)
    pause = min(REPLAY_SECONDS / max(len(steps), 1), 1 / REPLAY_CALLS_PER_SECOND) if sys.stderr.isatty() else 0.0
    width = len(record["text"]) / max(len(record["tokens"]), 1)
    with view(tokenizer, trace.canvas(record, mask_id), mask_id, stream=sys.stderr, width=width) as show:
        for step in steps:
            show(step)
            clock.sleep(pause)


def _models(chosen: ModelsOptions) -> None:
    found = available()
    if chosen.json:
        for model in found:
            print(json.dumps(describe(model)))
        return
    cache = cache_folder() / "models"
    for where, title in (("box", "In the box"), ("cache", f"In {cache}"), ("hub", "Fetched from the Hugging Face hub")):
        here = [model for model in found if model.where == where]
        print(f"{title}:{'' if here else ' none'}")
        for model in here:
            print(f"  {_line(model)}")
    print("Fetched from the package index when first used:")
    for name, weights in NAMED.items():
        print(f"  {name}: masked, {weights.megabytes} MB, {weights.licence}; {weights.note}")
    print(
        f"\nTo add one: unmask train DATA --out RUN, then unmask sample RUN. To call it by a name, copy RUN/model to"
        f"\n{cache / 'NAME'}. ORG/NAME is fetched from the Hugging Face hub when it is first used."
    )


def _line(model: Found) -> str:
    about = describe(model)
    if "error" in about:
        return f"{model.name}: cannot be used: {about['error']}"
    parts = [
        "left-to-right" if about["architecture"] == "causal" else "masked",
        f"{about['megabytes']:.1f} MB",
        f"{about['length']} tokens, {about['tokenizer']} of {about['vocab_size']:,}",
    ]
    if about["characters_per_token"]:
        parts.append(f"{about['characters_per_token']:.2f} characters per token")
    card = about["card"]
    if card.get("bound") is not None:
        parts.append(f"{card['bound']:.3f} {card.get('bound_unit', 'bits per token')}")
    return f"{model.name}: {', '.join(parts)}" + (f"; {card['data']}" if card.get("data") else "")


def _view(model: Model, ids: Sequence[int], number: int) -> Any:
    """The canvas and the bar where stdout is a terminal too; with results going into a pipe, the bar alone."""
    canvas = torch.tensor(ids, dtype=torch.int64).expand(number, -1)
    width = model.token_width
    return view(
        model.tokenizer, canvas, model.denoiser.mask_id, stream=sys.stderr, with_canvas=_terminal(), width=width
    )


def _write(chosen: Options, model: Model, made: TextSample) -> None:
    """Texts or JSON lines, to stdout or whole into a file."""
    if chosen.json:
        how = chosen.recorded()
        if model.left_to_right:  # it has no sampler to choose: one token per call, in order
            how |= {"sampler": "left-to-right"}
        lines: Iterable[str] = map(json.dumps, trace.records(made, model=model.name, seed=chosen.seed, **how))
        between = "\n"
    else:
        lines, between = made.text, "\n\n" if model.layout == "wrapped" else "\n"
        if chosen.output is None and _terminal():
            rows = made.tokens.tolist()
            lines = [_for_terminal(text, row, model.tokenizer) for text, row in zip(made.text, rows, strict=True)]
    content = between.join(lines) + "\n"
    if chosen.output is None:
        sys.stdout.write(content)
    else:
        write_whole(Path(chosen.output), content.encode())


def _for_terminal(text: str, ids: Sequence[int], tokenizer: Tokenizer | Foreign) -> str:
    """An image as a picture, text without what would move the cursor."""
    drawn = picture(ids, tokenizer.vocab_size) if tokenizer.kind == "levels" else None
    return printable(text) if drawn is None else f"{drawn}\n"


def _terminal() -> bool:
    return sys.stdout.isatty()


def _check(chosen: Options) -> None:
    """What would otherwise be found out after minutes of work."""
    if chosen.number < 1:
        raise ValueError(f"--number must be at least 1, got {chosen.number}")
    if isinstance(chosen, SampleOptions) and chosen.length is not None and chosen.length < 1:
        raise ValueError(f"--length must be at least 1, got {chosen.length}")
    if chosen.output is not None:
        path = Path(chosen.output)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise ValueError(f"--output {chosen.output}: {'it is' if path.is_dir() else 'it is in no'} folder")


def _ready(model: Model, chosen: Options) -> Model:
    """The model as it was asked for: compiled, or as it is."""
    if not chosen.compile:
        return model
    from unmask.models.compiled import Compiled

    model = replace(model, denoiser=Compiled(model.denoiser))
    print("compiling the network: its first calls warm up, half a minute or more", file=sys.stderr)
    return model


def _default() -> str:
    names = [model.name for model in available()]
    if not names:
        raise ValueError("no model is in the box: give the folder of a run, or ORG/NAME on the Hugging Face hub")
    return DEFAULT_MODEL if DEFAULT_MODEL in names else names[0]


def _device(name: str) -> str:
    if name != "auto":
        return name
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    # Draws are in float64, which Apple's GPUs do not have.
    return accelerator.type if accelerator is not None and accelerator.type != "mps" else "cpu"


def _guarded(verb: str, run: Callable[[], None]) -> int:
    """0; 1 with one line for what went wrong; 130 after Ctrl-C; 141, in silence, when nobody reads stdout any more."""
    try:
        try:
            run()
        finally:
            sys.stdout.flush()
        return 0
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # what is still in the buffer must go somewhere when Python ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError, torch.OutOfMemoryError) as error:
        print(f"unmask {verb}: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
