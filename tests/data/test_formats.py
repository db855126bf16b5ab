"""Every kind of file gives the same documents, and what is left out or cut is counted."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unmask.data.formats import preferred
from unmask.data.prepare import prepare
from unmask.data.source import Reader
from unmask.data.tokens import TokenFile

TEXTS = ["one small text", "two, with a comma", 'three "quoted"\nover two lines', "four é"]


def documents(path: Path, column: str | None = None, by_line: bool = False) -> list[str]:
    return [text for text, _ in Reader(path, column, by_line=by_line)]


def parquet(texts: list[str]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({"id": list(range(len(texts))), "body": texts})
    pytest.importorskip("pyarrow.parquet").write_table(table, sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def csv(texts: list[str], comma: str = ",") -> bytes:
    rows = ['{}{}"{}"'.format(i, comma, text.replace('"', '""')) for i, text in enumerate(texts)]
    return "\n".join([f"id{comma}body", *rows]).encode()


CONTENT: dict[str, Callable[[list[str]], bytes]] = {
    "x.csv": csv,
    "x.tsv": lambda texts: csv(texts, "\t"),
    "x.jsonl": lambda texts: "\n".join(json.dumps({"id": 1, "body": text}) for text in texts).encode(),
    "x.parquet": parquet,
}


@pytest.mark.parametrize("name", CONTENT)
def test_tables_give_the_texts_of_a_column(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(CONTENT[name](TEXTS))
    assert documents(path, "body") == TEXTS
    with pytest.raises(ValueError, match=r"column='text': .*'id', 'body'; name one with --column"):
        documents(path)


def zstd(content: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(content)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("ending", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress), ("zst", zstd)]
)
def test_every_compression_is_read_and_a_cut_file_refused(ending: str, compress: Any, tmp_path: Path) -> None:
    whole, cut = tmp_path / f"x.csv.{ending}", tmp_path / f"cut.txt.{ending}"
    whole.write_bytes(compress(CONTENT["x.csv"](TEXTS)))
    assert documents(whole, "body") == TEXTS
    cut.write_bytes(b"no such thing")
    with pytest.raises((ValueError, OSError)):
        documents(cut)


def test_fasta_is_residues_without_headers(tmp_path: Path) -> None:
    path = tmp_path / "x.fasta"
    path.write_text(">sp|P1 first\nMKV\nlaa\n*\n\n;a comment\n>second\nGG\n>empty\n")
    assert documents(path) == ["MKVLAA*", "GG"]
    path.write_text(">x\nMK1\n")
    with pytest.raises(ValueError, match=r"x.fasta, line 2: 'MK1' is not a sequence of residues"):
        documents(path)


def test_fasta_becomes_rows_of_characters_split_at_random(tmp_path: Path) -> None:
    sequences = ["".join(np.random.default_rng(i).choice(list("ACDEF"), size=5 + i % 7)) for i in range(100)]
    path = tmp_path / "x.fa"
    path.write_text("".join(f">{i}\n{sequence}\n" for i, sequence in enumerate(sequences)))
    train, valid = prepare(str(path), tmp_path / "out")
    assert (train.header.layout, train.tokenizer.kind, train.length) == ("rows", "characters", 12)
    found = [read(file) for file in (train, valid)]
    assert [len(part) for part in found] == [95, 5] and sorted(found[0] + found[1]) == sorted(sequences)
    assert found[1] != sequences[-5:]


def read(file: TokenFile) -> list[str]:
    return [file.tokenizer.decode(row) for row in file.sequences(range(len(file))).tolist()]


@pytest.mark.parametrize(
    ("name", "first", "column"),
    [
        ("x.smi", "", None),
        ("x.csv", "id,smiles", "smiles"),
        ("x.csv", "id,SMILES", None),
        ("x.csv", "id,canonical_smiles", "canonical_smiles"),
        ("x.tsv", "id\tsmiles", None),
        ("x.parquet", "", None),
    ],
)
def test_molecules_are_known_by_their_file_and_column(
    name: str, first: str, column: str | None, tmp_path: Path
) -> None:
    molecules, path = ["CCO", "c1ccccc1", "CCCl"] * 10, tmp_path / name
    if name == "x.parquet":
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame({"id": range(30), "smiles": molecules}).to_parquet(path)
    elif name == "x.smi":
        path.write_text("\n".join(f"{smiles} name" for smiles in molecules))
    else:
        between = "\t" if name == "x.tsv" else ","
        path.write_text("\n".join([first, *(f"{i}{between}{smiles}" for i, smiles in enumerate(molecules))]))
    train, _ = prepare(str(path), tmp_path / "out", column=column)
    assert (train.tokenizer.kind, train.header.layout) == ("smiles", "rows") and "Cl" in train.tokenizer.vocab


def test_a_table_without_a_header_has_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("\n".join(f"{smiles},{i}" for i, smiles in enumerate(["CCO", "c1ccccc1", "CCCl", "CN"] * 10)))
    with pytest.raises(ValueError, match="first line has 'CCO', '0'; name one with --column, or give its number"):
        prepare(str(path), tmp_path / "unnamed")
    with pytest.warns(UserWarning, match="takes the first line as data too: 'CCO'"):
        train, held_out = prepare(str(path), tmp_path / "out", column="1", tokenizer="smiles", layout="rows")
    assert sorted(read(train) + read(held_out)) == sorted(["CCO", "c1ccccc1", "CCCl", "CN"] * 10)
    assert read(held_out) != ["CCCl", "CN"]  # drawn at random, as molecules are
    with pytest.raises(ValueError, match=r"column='3'.*has '1', '2'"):
        prepare(str(path), tmp_path / "none", column="3")
    path.write_text("1,text\n" + "a,b\n" * 40)  # a name is a name
    train, _ = prepare(str(path), tmp_path / "named", column="1", tokenizer="characters", length=4)
    assert set(train.tokenizer.vocab) - {"<eos>"} == {"a"}


def test_copies_of_a_document_are_on_one_side(tmp_path: Path) -> None:
    (tmp_path / "x.smi").write_text("\n".join(["C" * (1 + i % 30) for i in range(300)]))
    train, held_out = prepare(str(tmp_path / "x.smi"), tmp_path / "out")
    kept, out = read(train), read(held_out)
    assert len(kept) + len(out) == 300 and out and not set(kept) & set(out)
    (tmp_path / "same.smi").write_text("CCO\n" * 20)
    with pytest.raises(ValueError, match="is one document: its end can be held out"):
        prepare(str(tmp_path / "same.smi"), tmp_path / "none")


@pytest.mark.parametrize(("long", "rows"), [("drop", 23), ("cut", 38)])
def test_rows_that_are_too_long_are_dropped_or_cut_with_a_count(long: str, rows: int, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n".join(["abc", "abcdefgh", "ab", "c", "abcd"] * 8))
    options: dict[str, Any] = {"tokenizer": "characters", "layout": "rows", "length": 4}
    with pytest.raises(ValueError, match=r"length=4 is too short for it; long='drop' or 'cut' \(--long\)"):
        prepare(str(tmp_path / "x.txt"), tmp_path / "no", **options)
    with pytest.warns(UserWarning, match=rf"rows are longer than length=4, the longest with .* and were {long}"):
        train, valid = prepare(str(tmp_path / "x.txt"), tmp_path / "out", long=long, **options)
    kept = read(train)
    assert len(kept) == rows and max(map(len, kept)) == 3
    counted = sum(len(text) for text in kept)
    assert train.header.characters == counted and len(valid)


def test_nothing_of_a_folder_is_left_out_in_silence(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    for name in ("a.md", "deep/b.py", "c", "d.html"):
        (folder / name).write_text(f"the text of {name}")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / ".hidden").write_text("not meant")
    with pytest.warns(UserWarning, match=r"1 of 5 files are not text and were skipped: picture\.png"):
        found = documents(folder)
    assert sorted(found) == sorted(f"the text of {name}" for name in ("a.md", "deep/b.py", "c", "d.html"))


def test_documents_of_wrapped_text_are_held_out_at_random_and_whole(tmp_path: Path) -> None:
    texts = [f"document {i} " + "word " * (i % 5) for i in range(200)]
    train, valid = prepare(texts, tmp_path / "out", tokenizer="characters", length=20, held_out="random", holdout=0.1)
    held = "".join(read(valid))
    assert 15 < sum(f"document {i} " in held for i in range(200)) <= 20
    assert train.header.characters > 5 * valid.header.characters
    with pytest.raises(ValueError, match="is one document: its end can be held out"):
        prepare(["a " * 500], tmp_path / "no", tokenizer="characters", held_out="random")


def test_a_dataset_of_a_local_repository_is_trained_on(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    from tests.training.runs import settings
    from unmask.training.data import find

    (tmp_path / "repository").mkdir()
    lines = [json.dumps({"body": f"text number {i} " * 5}) for i in range(50)]
    (tmp_path / "repository" / "train.jsonl").write_text("\n".join(lines))
    config = settings(tmp_path, tmp_path / "run", tokenizer="characters", length=16, column="body")
    from dataclasses import replace

    data = find(replace(config, data=f"datasets:{tmp_path / 'repository'}"))
    assert "text number 3" in "".join(read(data.train))


@pytest.mark.parametrize("giants", [1, 2])
def test_a_few_giants_that_pad_all_rows_are_reported(
    giants: int, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """One long row of 100 does not make all of them as long; two are more than a hundredth of the data."""
    table = tmp_path / "some.csv"
    rows = ["ab" * 5] * (100 - giants) + ["ab" * 20] * giants
    table.write_text("text\n" + "\n".join(f"{i % 10}{row}" for i, row in enumerate(rows)))
    train, _ = prepare(str(table), tmp_path / "out", tokenizer="characters", layout="rows", column="text")
    assert train.length == 42
    told = [str(one.message) for one in recwarn if "padded" in str(one.message)]
    says = "rows are padded to 42 tokens, and 99% of them have 12 at most: --length 12 --long drop makes a step"
    assert [one.startswith(says) for one in told] == [True] * (giants == 1)


NAMES = [
    f"{first}{last}" for first in ("Ann", "Bob", "Eva", "Ida") for last in ("berg", "mann", "stein", "son", "feld")
]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.csv", "name\n" + "\n".join(NAMES)),
        ("x.jsonl", "\n".join(json.dumps({"name": name}) for name in NAMES)),
        ("x.json", json.dumps(NAMES)),
        ("y.json", json.dumps([{"name": name} for name in NAMES], indent=1)),
        ("z.json", "\n".join(json.dumps({"name": name}) for name in NAMES)),
    ],
)
def test_short_records_are_a_sample_each_and_few_are_enough(name: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.warns(UserWarning, match=f"{name}: each record is a sample; --layout wrapped joins them"):
        train, valid = prepare(str(path), tmp_path / "out")
    assert sorted(read(train) + read(valid)) == sorted(NAMES)
    assert (train.header.layout, train.tokenizer.kind, train.length) == ("rows", "characters", 9)


def test_a_list_of_names_is_a_sample_for_each_line(tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_text("\n".join(NAMES) + "\n")
    with pytest.warns(UserWarning, match="names.txt: each line is a sample; --layout wrapped joins them"):
        train, valid = prepare(str(path), tmp_path / "out")
    assert sorted(read(train) + read(valid)) == sorted(NAMES)


@pytest.mark.parametrize(
    "lines",
    [
        [*NAMES, "a line of prose, or of verse, or of code that is long enough to be seen"],
        [f"{name}," for name in NAMES],
        [line for name in NAMES for line in (name, "")],
        NAMES[:10],
    ],
)
def test_other_short_lines_are_one_text(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "verse.txt"
    path.write_text("\n".join(lines))
    assert preferred(str(path), None) == {}


def test_long_records_are_joined_and_this_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("text\n" + "\n".join(f"{i} " + "many words " * 30 for i in range(90)))
    with pytest.warns(UserWarning, match="joined to one text; --layout rows makes each a sample"):
        train, _ = prepare(str(path), tmp_path / "out", vocab=300)
    assert train.header.layout == "wrapped"


def test_json_that_is_no_list_of_records_is_a_text(tmp_path: Path) -> None:
    for content in ('{"a": [1, 2]}', "[1, 2]", "[" * 100_000, '["a", {"b": 1}]'):
        (tmp_path / "x.json").write_text(content)
        assert "".join(documents(tmp_path / "x.json")) == content


def test_a_table_may_be_separated_by_semicolons(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("id;text\n1;a, b\n2;c\n3;d, e, f\n")
    assert documents(path) == ["a, b", "c", "d, e, f"]
    path.write_text("text\na; b\nc; d\n")  # one column, and texts with semicolons
    assert documents(path) == ["a; b", "c; d"]


def test_a_header_is_no_sample_where_columns_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text("name,age\nAnn,31\nBob,24\n")
    with pytest.warns(UserWarning, match="the first line is left out, because it is a header: name, age"):
        assert documents(path, "1") == ["Ann", "Bob"]
    path.write_text("name,city\nAnn,Rome\n")  # it cannot be told
    with pytest.warns(UserWarning, match="--column 1 takes the first line as data too: 'name'"):
        assert documents(path, "1") == ["name", "Ann"]


def test_a_column_of_a_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("a b\n" * 90)
    with pytest.raises(ValueError, match=r"column='text': .*x.txt is no table and has no columns"):
        prepare(str(path), tmp_path / "out", column="text")


def test_the_length_of_sequences_follows_from_them(tmp_path: Path) -> None:
    """A few that are long are dropped; where most are, the rows are longer, and cut if that is not enough."""
    few, most, near = [300] * 99 + [900], [600] * 50 + [700] * 50, [700] * 97 + [800] * 3
    cases = (("a", few, 512, 99), ("b", most, 701, 100), ("c", [3000] * 100, 1024, 100), ("d", near, 801, 100))
    for name, sizes, length, rows in cases:
        path = tmp_path / f"{name}.fa"
        letters = np.random.default_rng(0).choice(list("ACGT"), size=(100, 3000))
        path.write_text("".join(f">{i}\n{''.join(letters[i, :size])}\n" for i, size in enumerate(sizes)))
        if name in "bd":
            train, valid = prepare(str(path), tmp_path / name)
        else:
            with pytest.warns(UserWarning, match=f"the longest with {max(sizes) + 1:,} tokens, and were"):
                train, valid = prepare(str(path), tmp_path / name)
        assert (train.length, len(train) + len(valid)) == (length, rows)


def test_fasta_without_headers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.fa").write_text("MKVLAA\nMKV\n")
    with pytest.raises(ValueError, match="line 1: a FASTA record begins with a line that starts with >"):
        documents(tmp_path / "x.fa")
