"""Draws docs/rooms.svg: the rooms of the service as the import contract in pyproject.toml has them, from the command
down to what everything rests on. What a room is for is the first sentence of its docstring.

`python -m docs.generate.rooms` writes the picture.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURE: Final = ROOT / "docs" / "rooms.svg"

_WIDTH, _MARGIN, _GAP = 1120, 20, 10
_NAME, _LINE = 24, 15
_CHARACTER = 6.3  # pixels of a character of the small text, on average
_STYLE = """
  text { font-family: system-ui, sans-serif; fill: #1c2b2a; }
  .name { font-size: 15px; font-weight: 600; }
  .what { font-size: 11.5px; fill: #4a5b59; }
  rect { fill: #eef4f2; stroke: #9db8b2; }
  .page { fill: #ffffff; stroke: none; }
"""


def rows() -> Iterator[list[str]]:
    """The floors from above, and the rooms on each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    (floors,) = (each for each in contracts if each["id"] == "floors")
    for layer in floors["layers"]:
        yield re.findall(r"\w+", layer)


def purpose(room: str) -> str:
    """The first sentence of the docstring of a package or module."""
    found = ROOT / "backend" / "headwater" / room
    file = found / "__init__.py" if found.is_dir() else found.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return re.split(r"(?<=\.) ", " ".join(text.split()))[0].rstrip(".").replace("`", "")


def _row(rooms: Sequence[str], top: int) -> tuple[list[str], int]:
    width = (_WIDTH - 2 * _MARGIN - _GAP * (len(rooms) - 1)) / len(rooms)
    told = [textwrap.wrap(purpose(room), int((width - 20) / _CHARACTER)) for room in rooms]
    height = _NAME + _LINE * max(map(len, told)) + 12
    drawn = []
    for number, (room, lines) in enumerate(zip(rooms, told, strict=True)):
        left = _MARGIN + number * (width + _GAP)
        drawn.append(f'<rect x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" rx="6"/>')
        drawn.append(f'<text class="name" x="{left + 10:.0f}" y="{top + 21}">{escape(room)}</text>')
        drawn += [
            f'<text class="what" x="{left + 10:.0f}" y="{top + 21 + _LINE * (line + 1)}">{escape(text)}</text>'
            for line, text in enumerate(lines)
        ]
    return drawn, height


def picture() -> str:
    """The whole picture, as SVG."""
    drawn: list[str] = []
    top = _MARGIN
    for rooms in rows():
        row, height = _row(rooms, top)
        drawn += row
        top += height + _GAP
    size = f'width="{_WIDTH}" height="{top + _MARGIN - _GAP}"'
    title = "<title>Rooms of headwater; imports go down only</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {top + _MARGIN - _GAP}">'
    page = '<rect class="page" width="100%" height="100%"/>'
    return "\n".join([head, title, f"<style>{_STYLE}</style>", page, *drawn, "</svg>"]) + "\n"


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
