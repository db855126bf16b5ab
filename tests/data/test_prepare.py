"""Preparing: layouts, splits, bounded memory, and nothing half-written or overwritten."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.data.prepare import prepare
from unmask.data.tokens import TokenFile
from unmask.tokenizers import vocabularies as make
from unmask.tokenizers.tokenizer import Tokenizer

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "cow", "jumped", "moon", "café"]


def sentences(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(3, 12))) + "." for _ in range(count)]


def everything(file: TokenFile) -> torch.Tensor:
    return file.sequences(range(len(file)))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("chunk", [16, 64, 1 << 20])
@pytest.mark.parametrize("kind", ["characters", "bytes", "bpe"])
def test_wrapped_as_the_paper_says(tmp_path, kind: str, chunk: int) -> None:
    """Against the plain way of doing it: all documents in one list, eos between, cut, eos first and last."""
    texts, held_out = sentences(60), sentences(20, seed=1)
    train, valid = prepare(texts, tmp_path / "out", valid=held_out, tokenizer=kind, vocab=300, length=16, chunk=chunk)
    tokenizer = Tokenizer.load(tmp_path / "out" / "tokenizer.json")
    eos = tokenizer.eos_id
    for file, documents in ((train, texts), (valid, held_out)):
        file.verify()
        stream = [i for text in documents for i in [*tokenizer.encode(text), eos]][:-1]
        whole = len(stream) // 14 * 14
        expected = [[eos, *stream[i : i + 14], eos] for i in range(0, whole, 14)]
        assert everything(file).tolist() == expected
        assert file.tokenizer == tokenizer
        kept = sum(map(len, documents)) - len(tokenizer.decode(stream[whole:]))
        assert file.header.characters == kept and file.characters_per_token == kept / (16 * len(expected))
    assert names(tmp_path / "out") == ["tokenizer.json", "train.tokens", "valid.tokens"]


def test_without_eos_a_text_is_cut_and_nothing_else(tmp_path) -> None:
    text = " ".join(sentences(100))
    train, valid = prepare([text], tmp_path / "out", tokenizer="characters", eos=False, length=10, holdout=0.2)
    assert train.tokenizer.eos_id is None
    first, second = (train.tokenizer.decode(everything(file).reshape(-1)) for file in (train, valid))
    assert text.startswith(first)
    at = text.index(second[:50])
    assert 0 <= at - len(first) < 10 and text[at] == " "
    assert len(text) - at - len(second) < 10
    assert abs((len(text) - at) / len(text) - 0.2) < 0.01
    assert train.characters_per_token == valid.characters_per_token == 1


def test_rows_are_kept_apart_and_padded(tmp_path) -> None:
    molecules = ["CC", "c1ccccc1Br", "N", "CC(=O)O", "[nH]1cccc1", "CCl"]
    path = tmp_path / "m.csv"
    path.write_text("SMILES,n\n" + "".join(f"{m},1\n" for m in molecules))
    train, valid = prepare(path, tmp_path / "out", tokenizer="smiles", column="SMILES", holdout=0.3, held_out="end")
    assert (len(train), len(valid)) == (4, 2)
    assert train.header.layout == "rows"
    assert train.length == valid.length == 10, "the nine tokens of bromobenzene, and eos"
    found = [train.tokenizer.decode(row) for file in (train, valid) for row in everything(file)]
    assert found == molecules
    assert everything(train)[2].tolist() == [*train.tokenizer.encode("N"), *[train.tokenizer.eos_id] * 9]


def test_images_are_rows_of_levels(tmp_path) -> None:
    images = [" ".join(map(str, row)) for row in np.random.default_rng(0).integers(0, 17, (40, 64))]
    train, valid = prepare(images, tmp_path / "out", tokenizer="levels")
    assert (len(train), len(valid), train.length, train.vocab_size) == (38, 2, 64, 17)
    assert train.header.dtype == "uint8"
    assert [train.tokenizer.decode(row) for row in everything(valid)] == images[-2:]


def test_lines_of_a_text_file_are_rows_when_asked(tmp_path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    train, valid = prepare(tmp_path / "a.txt", tmp_path / "out", tokenizer="characters", layout="rows", length=8)
    assert [train.tokenizer.decode(row) for row in everything(train)] == ["one", "two"]
    assert [train.tokenizer.decode(row) for row in everything(valid)] == ["three"]


def test_a_generator_a_list_and_a_file_give_the_same(tmp_path) -> None:
    texts = sentences(50)
    lines = tmp_path / "x.jsonl"
    lines.write_text("".join(json.dumps({"text": t, "n": 0}) + "\n" for t in texts))
    sources = (texts, (text for text in texts), lines, iter([{"text": t, "n": 0} for t in texts]))
    sums = set()
    for i, source in enumerate(sources):
        train, valid = prepare(source, tmp_path / str(i), vocab=280, length=8)
        sums.add((train.header.sha256, valid.header.sha256, train.tokenizer.hash))
        assert names(tmp_path / str(i)) == ["tokenizer.json", "train.tokens", "valid.tokens"]
    assert len(sums) == 1


def test_a_dataset_by_name(tmp_path, monkeypatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "mine").mkdir()
    texts = sentences(50)
    (tmp_path / "mine" / "train.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    one = prepare(f"datasets:{tmp_path / 'mine'}", tmp_path / "one", vocab=280, length=8)
    two = prepare(texts, tmp_path / "two", vocab=280, length=8)
    assert [file.header.sha256 for file in one] == [file.header.sha256 for file in two]


def test_a_bpe_is_not_trained_on_what_is_held_out(tmp_path) -> None:
    train, _ = prepare(["abab " * 50], tmp_path / "a", valid=["xyxy " * 50], vocab=300, length=8)
    assert "ab" in train.tokenizer.vocab and "xy" not in train.tokenizer.vocab


def test_a_given_or_saved_tokenizer_is_used(tmp_path) -> None:
    tokenizer = make.characters(["abc "])
    tokenizer.save(tmp_path / "t.json")
    for i, given in enumerate((tokenizer, str(tmp_path / "t.json"))):
        train, _ = prepare(["a cab " * 100], tmp_path / str(i), tokenizer=given, length=8)
        assert train.tokenizer == tokenizer
    with pytest.raises(ValueError, match=r"train part of list: the character 'd' at 0 is not among"):
        prepare(["d" * 100], tmp_path / "out", tokenizer=tokenizer, length=8)
    assert not (tmp_path / "out").exists()


def test_progress_ends_at_its_total(tmp_path) -> None:
    seen: dict[str, tuple[int, int | None]] = {}
    texts = sentences(200)
    prepare(
        iter(texts),
        tmp_path / "out",
        vocab=280,
        length=8,
        chunk=100,
        progress=lambda stage, done, total: seen.__setitem__(stage, (done, total)),
    )
    assert list(seen) == ["copy", "count", "tokenizer", "train", "valid"]
    assert seen["copy"] == seen["count"] == (sum(map(len, texts)), None)
    for stage in ("tokenizer", "train", "valid"):
        done, total = seen[stage]
        # The boundary moves back to a space, from the training part to the held-out one.
        assert total is not None and abs(done - total) < 10
    assert seen["train"][0] + seen["valid"][0] == sum(map(len, texts))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tokenizer": "words"}, "tokenizer='words'"),
        ({"layout": "square"}, "layout='square'"),
        ({"length": 0}, "length=0"),
        ({"length": 2}, "length=2: a wrapped sequence needs room"),
        ({"holdout": 0.0}, "holdout=0.0"),
        ({"holdout": 1}, "holdout=1"),
        ({"chunk": 0}, "chunk=0"),
        ({"vocab": 100}, "vocab=100"),
        ({"dtype": "uint8"}, "'uint8' holds 256 ids and the vocabulary has 280"),
        ({"dtype": "float"}, "dtype='float'"),
        ({"length": 100_000}, "train part of list: .* too few for one sequence of length=100000"),
        ({"length": 200, "holdout": 0.001}, "valid part of list: .* too few"),
        ({"layout": "rows", "length": 3}, "row 0 has [0-9]+ tokens with its eos: length=3 is too short"),
        ({"tokenizer": "levels"}, "is not a grey level"),
    ],
)
def test_wrong_options_are_named_and_leave_nothing(tmp_path, options, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        prepare(sentences(200), tmp_path / "out", **{"vocab": 280, "length": 8, **options})
    assert names(tmp_path) == []


def test_rows_that_need_padding_and_have_none_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"row 1 has 2 tokens .* length=3 needs padding"):
        prepare(["0 1 1", "1 0", "0 0 0"], tmp_path / "out", tokenizer="levels")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "there is no text in it"),
        (b"abc\xff", "not UTF-8 text: byte 0xff at 3"),
        (b"a", "1 character cannot be split"),
    ],
)
def test_bad_files_give_one_error_and_nothing_else(tmp_path, content: bytes, says: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=says) as error:
        prepare(path, tmp_path / "out")
    assert "a.txt" in str(error.value)
    assert names(tmp_path) == ["a.txt"]


def test_a_lone_surrogate_is_refused(tmp_path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "ok"}\n{"text": "\\ud800"}\n')
    with pytest.raises(ValueError, match=r"a.jsonl: document 1 holds '\\ud800'"):
        prepare(tmp_path / "a.jsonl", tmp_path / "out", layout="wrapped")
    assert names(tmp_path) == ["a.jsonl"]


def test_what_is_there_is_not_overwritten(tmp_path) -> None:
    prepare(sentences(50), tmp_path / "out", vocab=280, length=8)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(ValueError, match="already exists and is not overwritten"):
        prepare(sentences(50, seed=1), tmp_path / "out", vocab=280, length=8)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert names(tmp_path) == ["out"]


def test_a_source_that_fails_midway_leaves_nothing(tmp_path) -> None:
    def texts():
        yield from sentences(50)
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        prepare(texts(), tmp_path / "out")
    assert names(tmp_path) == []


KILLED = """
import sys
from unmask.data.prepare import prepare

def progress(stage, done, total):
    print(stage, flush=True)

prepare(sys.argv[1], sys.argv[2], tokenizer="characters", length=32, chunk=2000, progress=progress)
print("done", flush=True)
"""


def test_kill_9_never_leaves_a_half_file_for_a_whole_one(tmp_path) -> None:
    """Killed in every stage: the folder is not there, or it is whole; the next run succeeds and tidies up."""
    source = tmp_path / "a.txt"
    source.write_text(" ".join(sentences(3000)))
    out = tmp_path / "out"
    half = 0
    for stage, times in (("train", 2), ("train", 40), ("valid", 2)):
        command = [sys.executable, "-c", KILLED, str(source), str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            while times:
                line = process.stdout.readline()
                assert line, "the stage was not reached"
                times -= line.strip() == stage
            os.kill(process.pid, signal.SIGKILL)
        if out.exists():
            for name in ("train", "valid"):
                TokenFile.open(out / f"{name}.tokens").verify()
            shutil.rmtree(out)
        for path in (path for path in tmp_path.rglob("*tokens*") if path.is_file()):
            try:
                TokenFile.open(path).verify()  # a finished file, perhaps killed before it had its name
            except ValueError as error:
                assert path.suffix != ".tokens" and "not a whole token file" in str(error)
                half += 1
    assert half, "at least one was killed while it wrote"
    train, valid = prepare(source, out, tokenizer="characters", length=32)
    train.verify()
    valid.verify()
    assert names(tmp_path) == ["a.txt", "out"]


def test_memory_is_bounded_by_the_chunk(tmp_path) -> None:
    """10 MB of text, one document, chunks of 16 kB: the peak of what Python allocates stays below a fifth of it."""
    source = tmp_path / "a.txt"
    line = " ".join(sentences(1000)) + "\n"
    with source.open("w") as file:
        while file.tell() < 10_000_000:
            file.write(line)
    tracemalloc.start()
    try:
        train, _ = prepare(source, tmp_path / "out", tokenizer="bytes", eos=False, length=64, chunk=1 << 14)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(train) * train.length > 9_000_000
    assert peak < 2_000_000
