"""Searches the docs: the pages of a clone, or those in the wheel."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_HEADING = re.compile(r"^(#{1,4}) +(.+)$")
_WORD = re.compile(r"[a-z0-9_]{2,}")
_TITLE = 8  # so often counts a word in a heading
_NAMED = 4  # and this often one in the name of the page
MOST_SHOWN = 6_000
"""Characters of a section that are shown."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, below a heading."""

    page: str
    title: str
    text: str


def pages() -> Sequence[Path]:
    """The pages of the docs; none where the package has none."""
    package = Path(__file__).parents[2]
    for folder in (package.parents[1] / "docs", package / "docs"):
        if (folder / "sync-config.md").is_file():
            return sorted(folder.glob("**/*.md"))
    return ()


def sections(paths: Sequence[Path]) -> Iterator[Section]:
    """The sections of pages, code included. What looks like a heading in code is none."""
    for path in paths:
        title, lines, in_code = path.stem, list[str](), False
        for line in path.read_text(encoding="utf-8").splitlines():
            in_code ^= line.lstrip().startswith("```")
            heading = None if in_code else _HEADING.match(line)
            if heading is not None:
                if any(map(str.strip, lines)):
                    yield Section(path.name, title, "\n".join(lines).strip())
                title, lines = heading[2], []
            else:
                lines.append(line)
        if any(map(str.strip, lines)):
            yield Section(path.name, title, "\n".join(lines).strip())


class Manual:
    """The docs, read once."""

    def __init__(self, paths: Sequence[Path] | None = None) -> None:
        self._sections = list(sections(pages() if paths is None else paths))
        self._words = [_counted(each) for each in self._sections]
        self._seen_in = Counter(word for words in self._words for word in words)

    def search(self, query: str, most: int) -> list[Section]:
        """The sections that fit best, best first."""
        asked = {_stem(word) for word in _WORD.findall(query.lower())}
        scores = [(self._score(asked, words), -number) for number, words in enumerate(self._words)]
        best = sorted((each for each in scores if each[0] > 0), reverse=True)[:most]
        return [self._sections[-number] for _, number in best]

    def _score(self, asked: set[str], words: Counter[str]) -> float:
        length = 1 + math.log(1 + words.total() / 200)
        return sum(
            math.log(1 + len(self._sections) / self._seen_in[word]) * (1 + math.log(words[word])) / length
            for word in asked
            if words[word]
        )


def _counted(section: Section) -> Counter[str]:
    words = Counter(map(_stem, _WORD.findall(section.text.lower())))
    for text, weight in ((section.title, _TITLE), (section.page, _NAMED)):
        for word in _WORD.findall(text.lower()):
            words[_stem(word)] += weight
    return words


def _stem(word: str) -> str:
    """The word without an ending of the plural or of a verb, so that `revoking tokens` finds `revoke a token`."""
    for ending in ("ing", "ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            return word[: -len(ending)]
    return word
