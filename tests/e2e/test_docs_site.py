"""`make docs` builds a site that fetches nothing from elsewhere, that everybody can read, and whose search finds."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler
from pathlib import Path

import pytest

from tests.support.fix_browser import Browser
from tests.support.one_at_a_time import alone
from tests.support.quiet_http import http_server

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
_FETCHED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("link", "href"), ("use", "href")}
_OUTSIDE = re.compile(r"(?:[a-z]+:)?//", re.IGNORECASE)


class _Assets(HTMLParser):
    """What a browser fetches by itself for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if value and (tag, name) in _FETCHED]
        self.links += [value for name, value in attrs if value and (tag, name) == ("a", "href")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    with alone(ROOT / ".ci" / "docs"):  # the first makes an environment
        subprocess.run([ROOT / ".ci" / "docs", folder], check=True, timeout=170)  # a link that leads nowhere fails it
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    with http_server(SimpleHTTPRequestHandler, directory=str(site)) as port:
        yield f"http://127.0.0.1:{port}"


def pages_of(site: Path) -> list[str]:
    return [page.name for page in sorted(site.glob("*.html"))]


def test_site_is_complete_and_self_contained(site: Path) -> None:
    names = {"index" if page.stem == "README" else page.stem for page in (ROOT / "docs").glob("*.md")}
    pages = sorted(site.glob("*.html"))
    assert {page.stem for page in pages} == names | {"404", "changelog", "containers"}
    for page in pages:
        read = _Assets()
        text = page.read_text(encoding="utf-8")
        read.feed(text)
        assert [each for each in read.found if _OUTSIDE.match(each)] == [], page.name
        assert 'class="mermaid"' not in text, "its script would be fetched from elsewhere"
        fetched = [each for each in read.found if not each.startswith(("#", "data:"))]
        assert [each for each in fetched if not (site / each.lstrip("/").split("?")[0]).exists()] == [], page.name
        assert [each for each in read.links if each.startswith("../")] == [], page.name
    for style in site.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        fetched = re.findall(r"@import\s+[\"']([^\"']+)|url\(\s*[\"']?([^\"')]+)", text)
        assert [each for pair in fetched for each in pair if _OUTSIDE.match(each)] == [], style.name
    short = (site / "llms.txt").read_text(encoding="utf-8")
    assert [link for link in re.findall(r"\]\((.+?)\)", short) if not (site / link).is_file()] == []
    assert (site / "llms-full.txt").stat().st_size > 100_000


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_on_pages(site: Path, address: str, browser: Browser, dark: bool) -> None:
    browser.dark(dark)
    found = {}
    for page in pages_of(site):
        browser.goto(f"{address}/{page}")
        found[page] = browser.findings()
    assert {page: findings for page, findings in found.items() if findings} == {}


def test_phone_does_not_scroll_sideways(site: Path, address: str, browser: Browser) -> None:
    browser.resize(360, 740)
    wide = {}
    for page in pages_of(site):
        browser.goto(f"{address}/{page}")
        wide[page] = browser.overflow()
    assert {page: pixels for page, pixels in wide.items() if pixels > 0} == {}


@pytest.mark.parametrize(
    ("words", "page"), [("slot lost", "Operating"), ("django", "Tables that Django made"), ("HW_2021", "HW_2021")]
)
def test_search_finds(address: str, browser: Browser, words: str, page: str) -> None:
    browser.goto(f"{address}/index.html")
    browser.type(".md-search__input", words)
    browser.wait_for(".md-search-result__item")
    titles = browser.texts(".md-search-result__item :is(h1, h2)")
    assert page in titles[:8]


def test_first_page(address: str, browser: Browser) -> None:
    browser.goto(f"{address}/index.html")
    assert len(browser.attributes(".md-content img", "src")) == 1
    assert [text.split("\n") for text in browser.texts(".md-content pre code")] == [
        ["git clone <this repository> headwater && cd headwater", "make demo"]
    ]
    assert len(browser.texts(".md-content ol li a")) == 5
