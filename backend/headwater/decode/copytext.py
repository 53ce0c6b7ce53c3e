"""A row as one line of Postgres' COPY text format, in which current rows are also stored.

The line has no newline at its end. `join_cells` makes the same line that Postgres writes for the cells, so rows are
compared as whole lines.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import count

from headwater.decode.wire import DecodeError
from headwater.oplog.change import parts

_NULL = "\\N"
_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}
_TABLE = str.maketrans(_ESCAPES)
_PLAIN = {escape[1]: char for char, escape in _ESCAPES.items()}
_LARGE = 1 << 20  # characters of which copies count
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
escaped_byte = re.compile("[\udc80-\udcff]").search
"""Finds what the error handler `surrogateescape` made of a byte that is not UTF-8."""


def split_line(line: str, width: int) -> tuple[str | None, ...]:
    """The cells of a line of `width` columns; None for null. An empty line has one empty cell, or none without columns.
    Raises DecodeError when the line has another number of cells, or an escape that COPY never writes.
    """
    if width == 0 and not line:
        return ()
    cells: list[str] = line.split("\t")
    if len(cells) != width:
        raise _wrong_width(len(cells), width)
    if "\\" not in line:
        return tuple(cells)
    return tuple([_unescape(number, cell) if "\\" in cell else cell for number, cell in enumerate(cells, 1)])


def key_cells(line: str, width: int, columns: Collection[int]) -> Sequence[str | None]:
    """Like `split_line`, but of a large line only the cells at these positions are there: it is not copied."""
    if len(line) <= _LARGE:
        return split_line(line, width)
    cells: list[str | None] = [None] * width
    ends = [found.start() for found in re.finditer("\t", line)]
    if len(ends) + 1 != width:
        raise _wrong_width(len(ends) + 1, width)
    for number, start, end in zip(count(), [0, *(end + 1 for end in ends)], [*ends, len(line)], strict=False):
        if number in columns:
            (cells[number],) = split_line(line[start:end], 1)
    return cells


def _wrong_width(found: int, width: int) -> DecodeError:
    return DecodeError(f"row line has {found} cells, its table {width} columns")


def join_cells(cells: Sequence[str | None]) -> str:
    """The line that COPY writes for these cells."""
    if None in cells:
        return "\t".join([_NULL if cell is None else _escape(cell) for cell in cells])
    line = "\t".join(cells)  # type: ignore[arg-type]  # the line above excludes None
    if _has_special(line) or line.count("\t") >= max(len(cells), 1):
        return "\t".join([_escape(cell) for cell in cells if cell is not None])
    return line


def line_parts(cells: Sequence[str | None]) -> Iterator[bytes]:
    """What `join_cells` returns, in UTF-8 and in parts: for rows that are too large to be copied."""
    for number, cell in enumerate(cells):
        if number:
            yield b"\t"
        if cell is None:
            yield _NULL.encode()
        for part in parts(cell or ""):
            yield _escape(part).encode()


def readable_lines(text: bytes) -> list[str]:
    """The lines of COPY text without their ends, but those that are not UTF-8."""
    # Not splitlines: a value may hold other separators of Unicode
    try:
        return text.decode().split("\n")[:-1]
    except UnicodeDecodeError:
        lines = text.decode(errors="surrogateescape").split("\n")
        return [line for line in lines[:-1] if not escaped_byte(line)]


def _has_special(text: str) -> bool:
    """Whether anything but tabs needs an escape. Six short scans beat one regular expression."""
    return "\\" in text or "\n" in text or "\r" in text or "\b" in text or "\f" in text or "\v" in text


def _escape(cell: str) -> str:
    return cell.translate(_TABLE) if "\t" in cell or _has_special(cell) else cell


def _unescape(number: int, cell: str) -> str | None:
    if cell == _NULL:
        return None
    try:
        if len(cell) <= _LARGE:
            return _ESCAPE.sub(_unescaped, cell)
        return "".join([_ESCAPE.sub(_unescaped, part) for part in _whole_escapes(cell)])
    except KeyError:
        raise DecodeError("row line has an escape that COPY does not write", f"cell {number}") from None


def _unescaped(escape: re.Match[str]) -> str:
    return _PLAIN[escape[1]]


def _whole_escapes(cell: str) -> Iterator[str]:
    """The cell in parts that end between escapes: to replace many at once takes many times its size."""
    start = 0
    while start < len(cell):
        end = min(start + _LARGE, len(cell))
        backslashes = end - start - len(cell[start:end].rstrip("\\"))
        end += backslashes % 2  # the last one begins an escape
        yield cell[start:end]
        start = end
