"""Links within the documentation lead somewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pages() -> Iterator[Path]:
    for folder, folders, files in os.walk(ROOT):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in {"node_modules", "dist"}]
        yield from (Path(folder, name) for name in files if name.endswith(".md"))


PAGES = sorted(pages())
_CODE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\)")
_OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:")


def text_of(page: Path) -> str:
    """A page without its blocks of code."""
    return _CODE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """What its headings are called in links, as hosts of Markdown make it of their words."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text_of(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while (anchor := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(anchor)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(text_of(page)):
        if _OUTSIDE.match(link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = {
        (ROOT / "docs" / link.partition("#")[0]).resolve() for link in _LINK.findall(text_of(ROOT / "docs/README.md"))
    }
    assert [page.name for page in PAGES if page.parent == ROOT / "docs" and page.name != "README.md"] == [
        page.name for page in PAGES if page.parent == ROOT / "docs" and page.resolve() in index
    ]
