"""Reading: every kind of source gives its documents, in bounded pieces, or one clear error."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.source import Reader, last_space, open_dataset


def documents(source, column=None, *, by_line=False, size=1 << 20) -> list[str]:
    found, current = [], ""
    for text, ends in Reader(source, column, by_line, size):
        current += text
        if ends:
            found.append(current)
            current = ""
    assert not current
    return found


@settings(deadline=None)
@given(st.lists(st.text(max_size=50)), st.integers(1, 20))
def test_pieces_are_small_and_make_the_documents_again(texts: list[str], size: int) -> None:
    assert documents(texts, size=size) == [text for text in texts if text]
    assert all(0 < len(text) <= size for text, _ in Reader(texts, size=size))


def test_long_documents_are_cut_before_a_space() -> None:
    pieces = [text for text, _ in Reader(["one two  three\nfour"], size=8)]
    assert pieces == ["one two", "  three", "\nfour"]
    assert last_space("unbroken") == last_space("") == last_space(" x") == 0


def test_a_text_file_is_one_document_or_one_per_line(tmp_path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffone\r\n\r\ntwo é\n".encode())
    assert documents(path) == ["one\r\n\r\ntwo é\n"]
    assert documents(str(path), by_line=True) == ["one", "two é"]


def test_a_folder_is_read_in_order_of_names(tmp_path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "1.txt").write_text("third")
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "a2.txt.gz").write_bytes(gzip.compress(b"second"))
    (tmp_path / "ignored.bin").write_bytes(b"\xff")
    (tmp_path / "empty.txt").write_text("")
    with pytest.warns(UserWarning, match="1 of 5 files are not text and were skipped"):
        assert documents(tmp_path) == ["first", "second", "third"]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_tables_and_json_lines(tmp_path, suffix: str) -> None:
    def write(name: str, content: str) -> Path:
        path = tmp_path / (name + suffix)
        path.write_bytes(gzip.compress(content.encode()) if suffix else content.encode())
        return path

    long = "x" * 200_000
    csv = write("a.csv", f'id,text\n1,"a, ""b""\nc"\n2,{long}\n\n3,\n')
    assert documents(csv) == documents(csv, "text") == ['a, "b"\nc', long]
    assert documents(csv, "id") == ["1", "2", "3"]
    assert documents(write("one.csv", "SMILES\nCC\nC\n")) == ["CC", "C"]
    assert documents(write("a.tsv", "id\ttext\n1\ta, b\n")) == ["a, b"]
    lines = [{"text": "a\nb", "n": 1}, {"text": "é"}]
    assert documents(write("a.jsonl", "\n\n".join(map(json.dumps, lines)))) == ["a\nb", "é"]


def test_records_and_texts_of_an_iterable() -> None:
    assert documents([{"text": "a", "n": 1}, {"text": "b", "n": 2}]) == ["a", "b"]
    assert documents([{"body": "a"}]) == ["a"]
    with pytest.raises(ValueError, match="list, item 1 is int"):
        documents(["a", 3])


def test_a_stream_is_copied_once_and_a_list_is_not(tmp_path) -> None:
    reports: list[int] = []
    once = Reader(iter(["one\n", "", "zwei é"])).repeatable(tmp_path / "copy.jsonl", reports.append)
    assert [list(once), list(once)] == [[("one\n", True), ("zwei é", True)]] * 2
    assert reports == [4, 4, 10] and once.name == "list_iterator"
    reader = Reader(["a"])
    assert reader.repeatable(tmp_path / "other.jsonl", reports.append) is reader


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"abc" * 10_000 + b"\xffdef", "byte 0xff at 30,000"),
        ("a.csv", b"text\nok\n\xe9\n", "byte 0xe9 at 8"),
        ("a.jsonl", b'{"text": "\x80"}', "byte 0x80 at 10"),
        ("cut.txt", "é".encode()[:1], "byte 0xc3 at 0"),
        ("a.txt.gz", gzip.compress(b"\xff\xfe", mtime=0), "byte 0xff at 0"),
        ("b.txt.gz", gzip.compress(b"x" * 1000, mtime=0)[:-9], "not a whole gzip file"),
        ("c.txt.gz", b"plain", "not a whole gzip file"),
        ("b.csv", b"id,body\n1,2\n", "column='text'.*has 'id', 'body'"),
        ("c.csv", b"id,text\n1\n", "line 2: it has 1 cells, 'text' is missing"),
        ("b.jsonl", b'{"text": "a"}\n{"text"\n', "line 2 is not JSON"),
        ("c.jsonl", b'["a"]\n', "line 1 is not a JSON object"),
        ("d.jsonl", b'{"a": "b", "c": "d"}\n', "column='text'.*line 1 has 'a', 'c'"),
        ("e.jsonl", b'{"text": 3}\n', "line 1 holds int there"),
    ],
)
def test_bad_files_are_named_with_the_place(tmp_path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=says) as error:
        documents(tmp_path / name)
    assert name in str(error.value)


def test_missing_sources_are_named(tmp_path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        documents(tmp_path / "nothing.txt")
    with pytest.raises(ValueError, match="no file of text"):
        documents(tmp_path)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_dataset_of_the_datasets_library(tmp_path, streaming: bool, monkeypatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "one", "n": 1}\n{"text": "two", "n": 2}\n')
    dataset = open_dataset(f"datasets:{folder}", "train", streaming)
    assert documents(dataset) == ["one", "two"]
    reader = Reader(dataset).repeatable(tmp_path / "copy.jsonl", lambda done: None)
    assert (tmp_path / "copy.jsonl").exists() == streaming
    assert list(reader) == list(reader) == [("one", True), ("two", True)]


def test_a_hub_that_is_out_of_reach_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the library's own switch, which fails where a connection would."""
    pytest.importorskip("datasets")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="datasets:nobody/nothing: there is no such folder, and the Hugging Face hub"):
        open_dataset("datasets:nobody/nothing", "train", True)


def test_a_pipe_and_a_file_that_cannot_be_read_are_refused_in_a_sentence(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ValueError, match=r"pipe\.txt': it is a pipe or a device"):
        list(Reader(tmp_path / "pipe.txt"))
    with pytest.raises(ValueError, match="/proc/self/mem cannot be read: Input/output error"):
        list(Reader("/proc/self/mem"))
