"""The site builds without a warning, every link and anchor of it leads somewhere, and its navigation has every page."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
NEEDED = ("mkdocs.yml", "docs", "src", "recipes", "CONTRIBUTING.md", "CHANGELOG.md")


class Page(HTMLParser):
    """The ids of a page, and where its links and pictures lead."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loaded = set(), set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.update(found[name] for name in ("id", "name") if found.get(name))
        if tag in ("a", "img", "script") and (link := found.get("href") or found.get("src")):
            self.links.add(link)
        if tag in ("script", "img", "source", "iframe") or (tag == "link" and found.get("rel") != "canonical"):
            self.loaded.add(found.get("src") or found.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, place / name)
    environment = os.environ | {"PYTHONPATH": str(place / "src")}
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([zensical, "build", "--strict"], cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout + done.stderr
    return place / "site"


def broken(site):
    """Links of the built pages that lead nowhere, as (page, link)."""
    pages = {path: Page(path.read_text()) for path in site.resolve().rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute: it is shown at any address
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            inside = target.is_relative_to(site.resolve())
            if not (inside and target.is_file()) or (
                parts.fragment and target in pages and not anchored(pages[target], parts)
            ):
                yield str(path.relative_to(site.resolve())), link


def anchored(page, parts):
    return unquote(parts.fragment) in page.ids or parts.fragment.startswith("__")


def test_every_link_leads_somewhere(site):
    assert sorted(broken(site)) == []


def test_a_broken_link_is_seen(site):
    (site / "bad").mkdir()
    (site / "bad" / "index.html").write_text(
        '<a href="../nowhere/">x</a> <a href="../audit/#nothing">y</a> <a href="../audit/">z</a>'
    )
    found = [link for page, link in broken(site) if page.startswith("bad")]
    shutil.rmtree(site / "bad")
    assert sorted(found) == ["../audit/#nothing", "../nowhere/"]


def test_nothing_is_loaded_from_another_server(site):
    pages = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    elsewhere = {link for page in pages.values() for link in page.loaded if urlsplit(link).netloc}
    assert elsewhere == set()
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//", sheet.read_text()), sheet


def test_equations_are_marked_for_the_renderer_that_comes_with_the_site(site):
    page = (site / "paper" / "index.html").read_text()
    assert page.count('class="arithmatex"') > 10 and "assets/katex/katex.min.js" in page
    style = site / "assets" / "katex" / "katex.min.css"
    fonts = set(re.findall(r"url\((fonts/[^)]+)\)", style.read_text()))
    assert fonts and all((style.parent / font).is_file() for font in fonts)


def test_the_api_is_rendered(site):
    page = (site / "api" / "sampling" / "index.html").read_text()
    assert 'id="unmask.sample"' in page and "Fill the masked positions of a canvas" in page
    assert "def first_hitting" in (site / "paper" / "index.html").read_text().replace("</span>", "").replace(
        '<span class="k">', ""
    ).replace('<span class="nf">', "").replace('<span class="w">', "")


def test_every_page_is_in_the_navigation():
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    linked_only = {page for page in pages if page.startswith(("results/", "notes/"))} - {"results/CLAIMS.md"}
    assert sorted(page for page in pages - linked_only if f" {page}\n" not in listed) == []
