"""Tokenizers: round trips, hashes, files, and what they refuse."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data.source import last_space
from unmask.tokenizers import vocabularies as make
from unmask.tokenizers.tokenizer import Tokenizer

TEXT = "In the beginning God created the heaven and the earth. Äpfel, 你好, 🙂!\n\n  Two  spaces\tand a tab.\r\n" * 20
BPE = make.bpe([TEXT], 300)
words = st.text(alphabet=st.characters(codec="utf-8"), max_size=60)
spaced = st.text(alphabet=st.sampled_from("ab'sé你1.! \n\t\u00a0"), max_size=60)


@settings(deadline=None)
@given(words)
def test_bytes_and_bpe_give_every_text_back(text: str) -> None:
    for tokenizer in (make.bytes_of_utf8(), BPE):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.eos_id not in ids
        assert b"".join(tokenizer.pieces(ids)) == text.encode()


@settings(deadline=None)
@given(words.filter(bool))
def test_characters_give_every_text_of_their_alphabet_back(text: str) -> None:
    tokenizer = make.characters([text])
    assert tokenizer.vocab_size == len(set(text)) + 1
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text[::-1])) == text[::-1]


@settings(deadline=None, max_examples=300)
@given(spaced)
def test_a_bpe_does_not_notice_a_cut_at_the_last_space(text: str) -> None:
    cut = last_space(text)
    assert BPE.encode(text[:cut]) + BPE.encode(text[cut:]) == BPE.encode(text)


def test_bpe_has_the_size_asked_for_and_shortens_text() -> None:
    assert BPE.vocab_size == 300
    assert BPE.eos_id == BPE.pad_id == 299
    assert len(BPE.encode(TEXT)) < len(TEXT.encode()) / 2
    assert make.bpe(["abc"], 4096).vocab_size < 260, "three letters have two pairs to merge"


def test_training_a_bpe_twice_gives_one_hash() -> None:
    assert make.bpe([TEXT], 300).hash == BPE.hash
    assert make.bpe([TEXT], 301).hash != BPE.hash


def test_smiles_tokens_are_atoms_and_bonds() -> None:
    molecules = ["CCCS(=O)c1ccc2[nH]c(=NC(=O)OC)[nH]c2c1", "BrC1CC%12Cl"]
    tokenizer = make.smiles(molecules)
    assert {"[nH]", "Br", "Cl", "%12", "C", "c", "="} <= set(tokenizer.vocab)
    assert not {"r", "l", "[", "H"} & set(tokenizer.vocab)
    for molecule in molecules:
        assert tokenizer.decode(tokenizer.encode(molecule)) == molecule
    with pytest.raises(ValueError, match=r"'\[O-\]' is not among the tokenizer's"):
        tokenizer.encode("C[O-]")


def test_levels_are_numbers_separated_by_spaces() -> None:
    tokenizer = make.levels(17)
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.pad_id) == (17, None, None)
    assert tokenizer.encode("0 16 3") == [0, 16, 3]
    assert tokenizer.decode([0, 16, 3]) == "0 16 3"
    for wrong, says in (("17", "not among"), ("1.5", "not a grey level"), ("-1", "not a grey level")):
        with pytest.raises(ValueError, match=says):
            tokenizer.encode(wrong)


def test_eos_is_left_out_or_shown_and_masks_are_marked() -> None:
    tokenizer = make.characters(["ab"])
    assert tokenizer.decode([0, 2, 1, 2]) == "ab"
    assert tokenizer.decode([0, 2, 1, 2], special=True) == "a<eos>b<eos>"
    assert tokenizer.decode([0, 3, 1], mask="_") == "a_b"
    for wrong in (3, -1):
        with pytest.raises(ValueError, match=f"id {wrong} is not a token"):
            tokenizer.decode([wrong])
    with pytest.raises(ValueError, match="id -1"):
        tokenizer.decode([-1], mask="_")


def test_half_a_character_is_replaced_and_completed_by_the_next_piece() -> None:
    tokenizer = make.bytes_of_utf8()
    ids = tokenizer.encode("é")
    assert tokenizer.decode(ids[:1]) == "\ufffd"
    assert b"".join(tokenizer.pieces(ids[:1]) + tokenizer.pieces(ids[1:])).decode() == "é"
    with pytest.raises(UnicodeDecodeError):
        tokenizer.decode(ids[:1], errors="strict")


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(ValueError, match="'c' at 2 is not among the tokenizer's 2"):
        make.characters(["ab"]).encode("abc")
    with pytest.raises(ValueError, match="'A' at 0"):
        make.characters(["ab"]).encode("A")


@pytest.mark.parametrize("tokenizer", [BPE, make.bytes_of_utf8(eos=False), make.levels(3), make.characters(["xé"])])
def test_a_saved_tokenizer_is_the_same(tokenizer: Tokenizer, tmp_path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    loaded = Tokenizer.load(path)
    assert loaded == tokenizer and loaded.hash == tokenizer.hash
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]


def test_what_is_not_a_tokenizer_is_refused(tmp_path) -> None:
    good = json.loads(make.levels(3).to_json())
    wrong = {
        "format is 99": {**good, "format": 99},
        "one of characters": {**good, "kind": "words"},
        "no entry may come twice": {**good, "vocab": ["0", "0"]},
        "eos_id=3": {**good, "eos_id": 3},
        "'vocab'": {k: v for k, v in good.items() if k != "vocab"},
        "not a tokenizer": [],
    }
    path = tmp_path / "tokenizer.json"
    for says, content in wrong.items():
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"tokenizer.json: not a tokenizer of unmask") as error:
            Tokenizer.load(path)
        assert says in str(error.value)
    for raw in (b"\xff\xfe", b"", b"{"):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=r"tokenizer.json: "):
            Tokenizer.load(path)


def test_a_bpe_smaller_than_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vocab=256.*at least 257"):
        make.bpe([TEXT], 256)
    assert make.bpe([TEXT], 256, eos=False).vocab_size == 256
