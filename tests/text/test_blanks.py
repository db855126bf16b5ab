import pytest

from tests.small_models import TOKENIZERS
from unmask.text.blanks import Blanks, join, spaces, split


@pytest.mark.parametrize(
    ("text", "per_token", "pieces"),
    [
        ("In the ____ God", 4.0, ["In the ", 1, " God"]),
        ("____", 4.0, ["", 1, ""]),
        ("a_____b__________", 4.0, ["a", 1, "b", 2, ""]),  # 5/4 and 10/4, rounded
        ("a_b", 4.0, ["a", 1, "b"]),
        ("h_t ___", 1.0, ["h", 1, "t ", 3, ""]),
    ],
)
def test_a_run_of_underscores_is_as_many_tokens_as_its_length_stands_for(text, per_token, pieces):
    assert split(text, characters_per_token=per_token) == pieces


def test_each_mask_character_is_one_token_and_underscores_are_text():
    assert split("a ░░░ b_c ░", characters_per_token=4.0, mask_character="░") == ["a ", 3, " b_c ", 1, ""]
    assert split("a.b", characters_per_token=4.0, mask_character=".") == ["a", 1, "b"]  # not a pattern


def test_wrong_blanks_are_reported():
    with pytest.raises(ValueError, match="no blank: write one as ____"):
        split("nothing here", characters_per_token=4.0)
    with pytest.raises(ValueError, match="no blank: write one as #"):
        split("some ____ here", characters_per_token=4.0, mask_character="#")
    with pytest.raises(ValueError, match="mask_character must be one character, got '##'"):
        split("a", characters_per_token=4.0, mask_character="##")


def test_a_space_before_a_blank_goes_into_the_blank_of_a_bpe():
    bpe = TOKENIZERS["bpe"]
    blanks = join(["In the ", 2, " God ", 1, "."], bpe, 999, before=[7], after=[8, 8])
    first, second = bpe.encode("In the"), bpe.encode(" God")
    assert blanks.ids == (7, *first, 999, 999, *second, 999, *bpe.encode("."), 8, 8)
    assert blanks.visible == ("In the", " God", ".")
    start = 1 + len(first)
    assert blanks.holes == ((start, start + 2), (start + 2 + len(second), start + 3 + len(second)))
    assert blanks.spaced == (blanks.holes[0][0], blanks.holes[1][0])


@pytest.mark.parametrize("kind", ["characters", "bytes"])
def test_a_space_is_a_token_of_its_own_elsewhere(kind):
    tokenizer = TOKENIZERS[kind]
    blanks = join(["In ", 2, ""], tokenizer, 999)
    assert blanks.ids == (*tokenizer.encode("In "), 999, 999)
    assert blanks.visible == ("In ", "") and blanks.spaced == ()


def test_numbers_are_kept_apart():
    blanks = Blanks((), ("1 2", "3 ", ""), ((0, 2), (2, 3)), ())
    assert blanks.filled([5, 6, 7], lambda ids: " ".join(map(str, ids)), apart=True) == "1 2 5 6 3 7"


def test_the_ids_that_begin_with_a_space_are_known():
    tokenizer = TOKENIZERS["bpe"]
    begins = spaces(tokenizer, tokenizer.vocab_size + 2)
    assert int(begins.sum()) == sum(piece.startswith(b" ") for piece in tokenizer.pieces(range(tokenizer.vocab_size)))
    assert begins[-2:].tolist() == [False, False]  # ids of the network that have no text


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("x ____ y", ["x ", 1, " y"]),
        ("a _ b", ["a ", 1, " b"]),
        ("(__)", ["(", 1, ")"]),
        ("un________ed", ["un", 2, "ed"]),
    ],
)
def test_a_blank_of_words_stands_alone_or_is_long(text, pieces):
    assert split(text, characters_per_token=4.0, words=True) == pieces


def test_underscores_of_a_word_are_text_and_this_is_said():
    with pytest.warns(UserWarning, match="the underscores of __init__, snake_case are text; --mask-character #"):
        pieces = split("def __init__(snake_case, ____)", characters_per_token=4.0, words=True)
    assert pieces == ["def __init__(snake_case, ", 1, ")"]
    with pytest.raises(ValueError, match=r"no blank: write one as ____ \(the underscores of a_b are text"):
        split("a_b", characters_per_token=4.0, words=True)
    assert split("a_b", characters_per_token=1.0) == ["a", 1, "b"]  # tokens that are no words
