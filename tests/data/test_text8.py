"""text8's cleaning, rule by rule, on made-up pages."""

import io

import pytest

from unmask.data.text8 import clean


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
