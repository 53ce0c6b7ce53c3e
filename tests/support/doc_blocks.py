"""The blocks of code in the docs, and which of them say that they are not run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docker" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
"""The pages whose blocks are run or say that they are not. first-hour.md is written by a script that runs its own."""

_FENCE = re.compile(r"( *)(```+|~~~+)(.*)")
_NOT_RUN = re.compile(r"\*Not run here\b.*\.\*")


@dataclass(frozen=True, slots=True)
class Block:
    """One block. `line` is that of its fence; `runs` is false where the line before it says that it is not run."""

    page: str
    line: int
    language: str
    code: str
    runs: bool

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    """The blocks of a page, in its order."""
    name = page.relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
    fence, start, language, code, before = "", 0, "", list[str](), ""
    indent, runs = "", True
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if fence and line.strip() == fence:
            yield Block(name, start, language, "\n".join(code) + "\n", runs)
            fence, before = "", ""
        elif fence:
            code.append(line.removeprefix(indent))
        elif opened := _FENCE.match(line):
            indent, fence, start, language, code = opened[1], opened[2], number, opened[3].strip(), []
            runs = _NOT_RUN.fullmatch(before) is None
        elif line.strip():
            before = line.strip()


def all_blocks(*languages: str) -> list[Block]:
    """The blocks in these languages that are to run, of all pages; in every language without any."""
    found = [block for page in PAGES if page.name != "first-hour.md" for block in blocks_of(page)]
    return [block for block in found if not languages or (block.language in languages and block.runs)]
