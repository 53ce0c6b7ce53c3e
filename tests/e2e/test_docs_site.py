"""`make docs` builds a site that fetches nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

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


@pytest.mark.long
def test_the_site_has_all_pages_and_fetches_nothing_from_elsewhere(tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run([ROOT / ".ci" / "docs", site], check=True, timeout=170)  # a link that leads nowhere fails it
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
