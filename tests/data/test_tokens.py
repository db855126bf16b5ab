"""The token file: what is written is read, and nothing else is taken for one."""

import hashlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from unmask.data import tokens
from unmask.data.prepare import prepare
from unmask.data.tokens import PREFIX, TokenFile
from unmask.data.tokenwriter import TokenWriter
from unmask.tokenizers import vocabularies as make

TOKENIZER = make.characters(["abcdefgh"])
BLOCK = np.arange(60).reshape(10, 6) % 9


def write(path: Path, block: np.ndarray = BLOCK, **options) -> TokenFile:
    with TokenWriter(path, TOKENIZER, block.shape[1], "wrapped", source="made up", **options) as writer:
        for part in np.array_split(block, 3):
            writer.write(part)
        return writer.finish(characters=48, bytes=50)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_tokens_are_read_as_written(tmp_path, dtype: str) -> None:
    file = write(tmp_path / "x.tokens", dtype=dtype)
    file.verify()
    assert (len(file), file.length, file.vocab_size, file.header.dtype) == (10, 6, 9, dtype)
    assert (file.header.layout, file.header.source) == ("wrapped", "made up")
    assert file.tokenizer == TOKENIZER and file.header.tokenizer_hash == TOKENIZER.hash
    assert file.characters_per_token == 48 / 60
    rows = file.sequences(torch.tensor([7, 0, 7]))
    assert rows.dtype == torch.int64
    assert torch.equal(rows, torch.from_numpy(BLOCK[[7, 0, 7]]))
    assert file.sequences([]).shape == (0, 6)
    assert [p.name for p in tmp_path.iterdir()] == ["x.tokens"]


def test_the_file_is_little_endian_and_ends_with_its_tokens(tmp_path) -> None:
    path = tmp_path / "x.tokens"
    write(path, dtype="uint16")
    assert path.read_bytes().endswith(BLOCK.astype("<u2").tobytes())


@pytest.mark.parametrize("index", [-1, 10])
def test_a_sequence_that_is_not_there_is_refused(tmp_path, index: int) -> None:
    with pytest.raises(ValueError, match=f"{index}.*sequences 0..9"):
        write(tmp_path / "x.tokens").sequences([0, index])


def test_a_cut_or_longer_file_is_refused(tmp_path) -> None:
    whole = tmp_path / "whole.tokens"
    write(whole)
    raw = whole.read_bytes()
    other = tmp_path / "other.tokens"
    for length in [0, 1, 8, PREFIX.size, PREFIX.size + 10, len(raw) // 2, len(raw) - 60, len(raw) - 1]:
        other.write_bytes(raw[:length])
        with pytest.raises(ValueError, match=r"other.tokens is not a whole token file"):
            TokenFile.open(other)
    other.write_bytes(raw + b"\0")
    with pytest.raises(ValueError, match="its header promises"):
        TokenFile.open(other)


def test_every_changed_byte_is_noticed(tmp_path) -> None:
    whole = tmp_path / "whole.tokens"
    write(whole)
    raw = whole.read_bytes()
    other = tmp_path / "other.tokens"
    for at in [*range(PREFIX.size), *range(PREFIX.size, len(raw), 7), len(raw) - 1]:
        other.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        with pytest.raises(ValueError, match=r"other.tokens is (not a whole token file|damaged)"):
            TokenFile.open(other).verify()


def test_a_sound_file_is_read_once_and_a_changed_one_again(tmp_path, monkeypatch) -> None:
    path = tmp_path / "x.tokens"
    file = write(path)
    calls = []
    monkeypatch.setattr(TokenFile, "verify", lambda self, verify=TokenFile.verify: (calls.append(1), verify(self)))
    assert file.verified() is file and file.verified() is file and len(calls) == 1
    raw = path.read_bytes()
    path.write_bytes(raw[:-6] + b"\0" * 6)
    with pytest.raises(ValueError, match=r"x\.tokens is damaged: its tokens do not have the checksum"):
        TokenFile.open(path).verified()
    with pytest.raises(ValueError, match="is damaged"):
        TokenFile.open(path).verified()
    assert len(calls) == 3, "a damaged file has no stamp"


def test_an_id_out_of_range_is_named_and_never_an_index_error(tmp_path) -> None:
    path = tmp_path / "x.tokens"
    write(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(ValueError, match=r"x.tokens is damaged: it holds the id 255, its ids are 0..8"):
        TokenFile.open(path).sequences([9])


def test_a_pickle_is_refused_and_not_run(tmp_path) -> None:
    proof = tmp_path / "proof"

    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(proof),)

    path = tmp_path / "x.tokens"
    path.write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match="not a whole token file"):
        TokenFile.open(path)
    assert not proof.exists()
    pickle.loads(path.read_bytes())
    assert proof.exists(), "the payload was live"


def test_a_file_of_another_tokenizer_is_refused(tmp_path) -> None:
    path = tmp_path / "x.tokens"
    write(path)
    assert len(TokenFile.open(path, tokenizer=TOKENIZER)) == 10
    with pytest.raises(ValueError, match=r"another tokenizer \(characters of 9 ids"):
        TokenFile.open(path, tokenizer=make.characters(["abcdefgi"]))


def test_a_missing_file_is_named(tmp_path) -> None:
    with pytest.raises(ValueError, match="no such token file"):
        TokenFile.open(tmp_path / "nothing.tokens")


def test_a_vocabulary_too_large_for_its_dtype_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="'uint8' holds 256 ids and the vocabulary has 257"):
        TokenWriter(tmp_path / "x.tokens", make.bytes_of_utf8(), 4, "wrapped", dtype="uint8")
    with pytest.raises(ValueError, match="dtype='int8'"):
        TokenWriter(tmp_path / "x.tokens", TOKENIZER, 4, "wrapped", dtype="int8")
    for tokenizer, dtype in ((make.bytes_of_utf8(eos=False), "uint8"), (make.bytes_of_utf8(), "uint16")):
        with TokenWriter(tmp_path / f"{dtype}.tokens", tokenizer, 1, "rows") as writer:
            writer.write(np.array([[tokenizer.vocab_size - 1]]))
            assert writer.finish(characters=1, bytes=1).header.dtype == dtype
    assert sorted(p.name for p in tmp_path.iterdir()) == ["uint16.tokens", "uint8.tokens"]


@pytest.mark.parametrize("wrong", [np.full((2, 6), 9), np.full((2, 6), -1), np.zeros((2, 5), int), np.zeros(6, int)])
def test_wrong_blocks_are_refused_and_leave_nothing(tmp_path, wrong: np.ndarray) -> None:
    with (
        pytest.raises(ValueError, match=r"vocabulary is 0..8|block of shape"),
        TokenWriter(tmp_path / "x.tokens", TOKENIZER, 6, "wrapped") as writer,
    ):
        writer.write(BLOCK)
        writer.write(wrong)
    assert not list(tmp_path.iterdir())


def test_an_unfinished_or_empty_file_leaves_nothing(tmp_path) -> None:
    with TokenWriter(tmp_path / "x.tokens", TOKENIZER, 6, "wrapped") as writer:
        writer.write(BLOCK)
    with (
        pytest.raises(ValueError, match="no sequence"),
        TokenWriter(tmp_path / "x.tokens", TOKENIZER, 6, "wrapped") as writer,
    ):
        writer.finish(characters=0, bytes=0)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_not_overwritten(tmp_path) -> None:
    path = tmp_path / "x.tokens"
    path.write_text("mine")
    with pytest.raises(ValueError, match="not overwritten"):
        write(path)
    assert path.read_text() == "mine"


def test_a_copy_in_another_process_maps_the_file_itself(tmp_path) -> None:
    file = write(tmp_path / "x.tokens")
    sent = pickle.dumps(file)
    assert len(sent) < 300
    assert torch.equal(pickle.loads(sent).sequences([3]), file.sequences([3]))


def test_a_full_disk_leaves_nothing(tmp_path) -> None:
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
import numpy as np
from unmask.tokenizers import vocabularies as make
from unmask.data.tokenwriter import TokenWriter
try:
    with TokenWriter({str(tmp_path / "x.tokens")!r}, make.levels(3), 64, "rows") as writer:
        for _ in range(100):
            writer.write(np.zeros((1000, 64), dtype=int))
        writer.finish(characters=1, bytes=1)
except OSError as error:
    print("OSError")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "OSError\n"
    assert not list(tmp_path.iterdir())


def test_the_checksum_is_that_of_the_tokens(tmp_path) -> None:
    file = write(tmp_path / "x.tokens")
    assert file.header.sha256 == hashlib.sha256(BLOCK.astype("u1").tobytes()).hexdigest()


def test_characters_of_a_text_token_count_no_padding(tmp_path: Path) -> None:
    """A short row is mostly padding, which would make a token look shorter than a character."""
    rows = ["San Francisco"] * 60 + ["Oslo", "San Francisco, San Jose, San Diego and Santa Cruz"] * 3
    train, _ = prepare(rows, tmp_path / "data", tokenizer="bpe", vocab=300, layout="rows", held_out="random")
    ids = [i for row in train.sequences(range(len(train))).tolist() for i in row]
    text = [i for i in ids if i not in (train.tokenizer.eos_id, train.tokenizer.pad_id)]
    assert train.characters_per_text_token == train.header.characters / len(text) > 1
    assert train.characters_per_token < 0.5 * train.characters_per_text_token


def test_text_tokens_are_counted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = prepare(["abc", "d", "ef"] * 9, tmp_path / "data", tokenizer="characters", layout="rows")
    monkeypatch.setattr(tokens, "COUNTED", 5)
    assert train.characters_per_text_token == 1.0
