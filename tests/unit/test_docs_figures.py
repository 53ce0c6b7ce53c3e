"""Measured figures have one home, docs/benchmarks.md: no other page states one that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOME = ROOT / "docs" / "benchmarks.md"
PRINTED = {"benchmarks.md", "first-hour.md", "errors.md", "licences.md"}
"""The home itself, and pages that a program wrote."""
PAGES = [
    ROOT / "README.md",
    ROOT / "docker" / "README.md",
    *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name not in PRINTED),
]
_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_FIGURE = re.compile(rf"({_NUMBER}) ?(k|million)? ?((?:rows|ops|commits)/s|CPU-s|µs)")
_SIZE = re.compile(rf"({_NUMBER}) (KB|MB)\b")
_ROOM = re.compile(rf"({_NUMBER}) (B|bytes) (?:a|per) row")
_PART = r"\b(?:idle|each|every|a|the) [^.|]*\b(?:stream|device|process|service|replicator|endpoint)s?\b"
_MEMORY = re.compile(rf"{_PART}[^.|]*\btakes?\b", re.IGNORECASE)
_CODE = re.compile(r"^ *(```|~~~).*?^ *\1", re.MULTILINE | re.DOTALL)
_SCALES = {"": 1, "k": 1_000, "million": 1_000_000}


def figures(text: str) -> Iterator[tuple[float, str]]:
    """Speeds and costs with their units, and the memory that parts of the service take."""
    text = " ".join(_CODE.sub("", text).replace(" and ", ", ").split())
    for number, scale, unit in _FIGURE.findall(_spread(text)):
        yield float(number.replace(",", "")) * _SCALES[scale], unit
    yield from ((float(number.replace(",", "")), "B") for number, _ in _ROOM.findall(_spread(text)))
    for sentence in re.split(r"(?<=[.|;:])\s", text):
        if _MEMORY.search(sentence):
            yield from ((float(number.replace(",", "")), unit) for number, unit in _SIZE.findall(sentence))


def _spread(text: str) -> str:
    """`13 to 17 µs` and `13, 17 µs` as `13 µs 17 µs`."""
    pattern = re.compile(rf"({_NUMBER})((?: ?k| million)?)(?:, | to |; )({_NUMBER} ?(?:k|million)? ?([^\s\d,;.|]+))")
    while (spread := pattern.sub(r"\1\2 \4 \3", text)) != text:
        text = spread
    return text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures(page: Path) -> None:
    home = HOME.read_text("utf-8")
    known = set(figures(home))
    known |= {(float(number.replace(",", "")), unit) for number, unit in _SIZE.findall(_spread(home))}
    assert sorted(set(figures(page.read_text("utf-8"))) - known) == [], "state it in docs/benchmarks.md, and link to it"


def test_figures_are_found_in_every_form() -> None:
    text = "It stores 46,500 rows/s, 450k to 600k ops/s and 1.1 million ops/s; a row takes 2.3 µs and 13 CPU-s."
    assert set(figures(text)) == {
        (46_500, "rows/s"), (450_000, "ops/s"), (600_000, "ops/s"), (1_100_000, "ops/s"), (2.3, "µs"), (13, "CPU-s"),
    }  # fmt: skip
    assert set(figures("An idle stream takes 11 KB, or 19 KB over a websocket.")) == {(11, "KB"), (19, "KB")}
    assert list(figures("A body may have 8 MB.\n\n```\n9 rows/s\n```\n")) == []
