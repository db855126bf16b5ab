"""The data of an evaluation, as a token file for the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from unmask.data import corpora
from unmask.data.instructions import is_instructions
from unmask.data.layout import AnyTokenizer
from unmask.data.parts import Progress
from unmask.data.prepare import prepare
from unmask.data.resolve import content, resolve
from unmask.data.runs import RunData
from unmask.data.tokens import TokenFile
from unmask.fetch import cache_folder
from unmask.model import Model


@contextmanager
def found(
    data: str | None,
    model: Model,
    *,
    split: str = "valid",
    run: RunData | None = None,
    template: str | None = None,
    progress: Progress | None = None,
) -> Iterator[TokenFile]:
    """The tokens for a model: of a .tokens file, a split of prepared data or of a corpus, or a text.

    A text is laid out like the model's training data, in full, in a temporary folder. Without data, or with the text
    that the model's run was trained on, the run's split of it is used. template: the model's chat template, for data
    with prompts.
    """
    tokenizer = model.tokenizer
    if data is None or own_text(data, run):
        if run is None:
            source = getattr(getattr(model.denoiser, "card", None), "data", None)
            known = f"is no run of this machine; it was trained on {source}" if source else "does not say its data"
            raise ValueError(f"{model.name} {known}: name the DATA to evaluate it on, a corpus or a text")
        yield run.open(split)
        return
    kind, path = resolve(data)
    if kind == "tokens":
        yield TokenFile.open(path, tokenizer=tokenizer).verified()
    elif kind == "prepared":
        yield TokenFile.open(path / f"{split}.tokens", tokenizer=tokenizer).verified()
    elif kind == "corpus":
        yield _of_corpus(data, model, tokenizer, split, progress)
    else:
        # Masked models of other libraries take rows of any length; ours were trained on rows of one length.
        free = tokenizer.frame is not None and model.layout == "rows"
        with TemporaryDirectory() as scratch:
            # `prepare` writes two splits; here both are the whole text, and one is used.
            _, whole = prepare(
                data,
                Path(scratch) / "data",
                tokenizer=tokenizer,
                length=None if free or is_instructions(path) else model.length,
                layout=model.layout,
                long="drop",
                name=data,
                valid=data,
                template=template,
                progress=progress,
            )
            if free and model.length is not None and whole.length > model.length:
                raise ValueError(
                    f"{data} has rows of {whole.length} tokens, and {model.name} takes {model.length} at most"
                )
            yield whole


def train_and(split: str, data: str | None, *, progress: Progress | None = None) -> tuple[TokenFile, TokenFile]:
    """The training split of prepared data or of a corpus, and ``split``, for models that are fitted first."""
    if data is None:
        raise ValueError("give DATA: an n-gram model is fitted to it, and the truth is its distribution")
    kind, path = resolve(data)
    if kind == "corpus":
        path = corpora.prepared(data, progress=progress)
    elif kind != "prepared":
        raise ValueError(f"data={data!r} has no training part: give prepared data (unmask prepare) or a corpus")
    train, tokens = (TokenFile.open(path / f"{part}.tokens").verified() for part in ("train", split))
    return train, tokens


def own_text(data: str, run: RunData | None) -> bool:
    """Whether this is the text that the run was trained on."""
    return run is not None and run.sha256 is not None and resolve(data)[0] == "text" and content(data) == run.sha256


def _of_corpus(name: str, model: Model, tokenizer: AnyTokenizer, split: str, progress: Progress | None) -> TokenFile:
    """A corpus prepared with the model's tokenizer and length: from the cache, or prepared once."""
    length = model.length or corpora.load(name).length
    for folder in sorted((cache_folder() / "prepared").glob(f"{name}-*-{length}")):
        try:
            return TokenFile.open(folder / f"{split}.tokens", tokenizer=tokenizer).verified()
        except ValueError:  # prepared with another tokenizer, or damaged
            continue
    folder = corpora.prepared(name, tokenizer=tokenizer, length=length, progress=progress)
    return TokenFile.open(folder / f"{split}.tokens", tokenizer=tokenizer)
