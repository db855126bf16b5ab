"""text8's cleaning, rule by rule, on made-up pages."""

import hashlib
import io
import sys
from pathlib import Path

import pytest

from unmask.cli import main
from unmask.data import text8
from unmask.data.prepare import prepare
from unmask.data.text8 import clean
from unmask.data.tokens import TokenFile
from unmask.fetch import cache_folder


def cleaned(wiki: str, block: int = 1 << 20) -> str:
    dump = f'<page>\n<title>Not this</title>\n<text xml:space="preserve">{wiki}</text>\n<id>77</id>\n</page>'
    return "".join(clean(io.BytesIO(dump.encode()), block)).strip()


@pytest.mark.parametrize(
    ("wiki", "text"),
    [
        ("Two  Words, here!", "two words here"),
        ("In 1984", "in one nine eight four"),
        ("[[Cat|cats]] and [[dog]]s", "cats and dogs"),
        ("a [http://x.y/z shown] b", "a shown b"),
        ("[[Image:x.jpg|thumb|right|200px|A caption]]", "a caption"),
        ("[[Category:Old things|sort]]", "old things"),
        ("end [[de:Ende]] [[fr:Fin]]", "end"),
        ("{{stub}} kept {| table |}", "kept"),
        ("a&lt;ref&gt;gone&lt;/ref&gt;b &lt;br /&gt; c", "ab c"),
        ("caf\u00e9 &amp;nbsp; &amp;eacute; z", "caf z"),
        ("#REDIRECT [[Elsewhere]]", ""),
    ],
)
def test_rules(wiki: str, text: str) -> None:
    assert cleaned(wiki) == text


def test_blocks_do_not_matter() -> None:
    wiki = "One [[two|three]] <b>four</b> &lt;i&gt;five " * 5
    assert len({cleaned(wiki, block) for block in (1, 2, 7, 1000)}) == 1


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A file that plays text8: a thousand letters, of which the first hundred are known."""
    words = "anarchism originated as a term of abuse first used against early working class radicals "
    text = (words * 12)[:1000]
    known = text8.Official(1000, (900, 950, 1000), 100, hashlib.sha256(text[:100].encode()).hexdigest())
    for module in ("unmask.data.text8", "unmask.data.formats", "unmask.data.prepare"):
        monkeypatch.setattr(sys.modules[module], "OFFICIAL", known)
    (tmp_path / "text8").write_text(text)
    return tmp_path / "text8", text


def test_the_whole_file_has_the_parts_of_the_field(small: tuple[Path, str], tmp_path: Path) -> None:
    path, text = small
    prepare(path, tmp_path / "data", length=10)
    found = [TokenFile.open(tmp_path / "data" / f"{part}.tokens") for part in ("train", "valid", "test")]
    parts = [tokens.tokenizer.decode(tokens.sequences(range(len(tokens))).flatten().tolist()) for tokens in found]
    assert parts == [text[:900], text[900:950], text[950:]]
    assert {tokens.header.source for tokens in found} == {"text8, 90M/5M/5M"}
    assert all(tokens.characters_per_token == 1 and not tokens.units_note for tokens in found)


@pytest.mark.parametrize("change", ["shorter", "other"])
def test_another_file_is_any_text(small: tuple[Path, str], tmp_path: Path, change: str) -> None:
    path, text = small
    path.write_text(text[:-1] if change == "shorter" else "b" + text[1:])
    prepare(path, tmp_path / "data", length=10)
    assert not (tmp_path / "data" / "test.tokens").exists()
    assert TokenFile.open(tmp_path / "data" / "train.tokens").header.source == str(path)


def test_published_numbers_stand_beside_those_of_the_same_parts_alone() -> None:
    beside = text8.compared("text8, 90M/5M/5M", 1.5)
    assert beside.startswith("1.500 bits per character") and "MD4 1.37" in beside and "D3PM 1.45" in beside
    assert "do not compare" in text8.compared("text8", 1.5) and "1.37" not in text8.compared("text8", 1.5)
    assert text8.compared("kjv", 1.5) == ""


def test_a_run_and_its_evaluation_say_so(
    small: tuple[Path, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = small
    tiny = ["--preset", "tiny", "--steps", "2", "--batch", "2", "--length", "10", "--no-tensorboard", "--device", "cpu"]
    assert main(["train", str(path), "--out", str(tmp_path / "run"), *tiny]) == 0
    assert "published, on the test part: MD4 1.37" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--split", "test", "--passes", "2"]) == 0
    shown = capsys.readouterr()
    assert "published, on the test part: MD4 1.37" in shown.out and "its own test part" in shown.out


def test_the_corpus_begins_as_the_known_opening_does() -> None:
    """Where the corpus is in the cache: the checksum of the opening is that of what cleaning gives."""
    path = cache_folder() / "corpora" / "text8" / "text8.txt"
    if not path.is_file():
        pytest.skip("the corpus is not in the cache")
    with path.open("rb") as file:
        assert hashlib.sha256(file.read(text8.OFFICIAL.opening)).hexdigest() == text8.OFFICIAL.sha256
