"""From the word DATA on the command line to a token file that a model can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from unmask.data import corpora
from unmask.data.prepare import Progress, prepare
from unmask.data.tokens import TokenFile
from unmask.text.fetch import cache_folder
from unmask.text.model import Model
from unmask.text.tokenizer import Tokenizer


@contextmanager
def found(data: str, model: Model, *, split: str = "valid", progress: Progress | None = None) -> Iterator[TokenFile]:
    """The tokens of a .tokens file, of a split of prepared data or of a corpus, or of a text, for this model.

    Prepared data may be in the folder of a run that was made from a text. A text is laid out as the model's training
    data were, all of it, in a folder that is gone afterwards.
    """
    path, tokenizer = Path(data), model.tokenizer
    if not isinstance(tokenizer, Tokenizer):
        raise ValueError(f"{model.name} has a tokenizer of its own kind: unmask.load(...).bound(texts) evaluates texts")
    if path.is_file() and path.suffix == ".tokens":
        yield TokenFile.open(path, tokenizer=tokenizer)
    elif folder := next((folder for folder in (path, path / "data") if (folder / "tokenizer.json").is_file()), None):
        yield TokenFile.open(folder / f"{split}.tokens", tokenizer=tokenizer)
    elif data in corpora.NAMES and not path.is_file():
        yield _of_corpus(data, model, tokenizer, split, progress)
    elif path.exists():
        with TemporaryDirectory() as scratch:
            # Both parts of what `prepare` makes are of the whole text; one of them is what is wanted.
            _, whole = prepare(
                data, Path(scratch) / "data", tokenizer=tokenizer, length=model.length, layout=model.layout, name=data,
                valid=data, progress=progress,
            )  # fmt: skip
            yield whole
    else:
        raise ValueError(f"data={data!r}: it is no file, no folder and no corpus ({', '.join(corpora.NAMES)})")


def _of_corpus(name: str, model: Model, tokenizer: Tokenizer, split: str, progress: Progress | None) -> TokenFile:
    """Prepared with the model's tokenizer and length: found in the cache, or made there once."""
    length = model.length or corpora.load(name).length
    for folder in sorted((cache_folder() / "prepared").glob(f"{name}-*-{length}")):
        try:
            return TokenFile.open(folder / f"{split}.tokens", tokenizer=tokenizer)
        except ValueError:  # another tokenizer's, or damaged
            continue
    folder = corpora.prepared(name, tokenizer=tokenizer, length=length, progress=progress)
    return TokenFile.open(folder / f"{split}.tokens", tokenizer=tokenizer)
