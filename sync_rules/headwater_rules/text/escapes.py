"""Escapes in double-quoted YAML scalars. As in JSON, two of them can form one character."""

from __future__ import annotations

import re

_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)


def escape_at(document: str, position: int, end: int) -> tuple[str, int]:
    """The character that the escape at `position` means, and the end of the escape. Empty for an escape without digits;
    half of a surrogate pair if the other half does not follow."""
    character, after = _single(document, position, end)
    if _is_half(character, "\ud800", "\udbff"):
        low, behind = _single(document, after, end)
        if _is_half(low, "\udc00", "\udfff"):
            return joined(character + low) or "", behind
    return character, after


def joined(text: str) -> str | None:
    """The text with surrogate pairs as characters; None if half of one remains."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return None


def half_in(document: str, start: int, end: int) -> tuple[int, int]:
    """The position of half of a surrogate pair; the whole range if it is not written as an escape."""
    position = start
    while (position := document.find("\\", position, end)) >= 0:
        character, after = escape_at(document, position, end)
        if _is_half(character, "\ud800", "\udfff"):
            return position, after
        position = after
    return start, end


def _single(document: str, position: int, end: int) -> tuple[str, int]:
    found = _ESCAPE.match(document, position, end)
    if found is None:
        return "", position + 1
    digits = found[1] or found[2] or found[3]
    return chr(int(digits, 16)) if digits else "", found.end()


def _is_half(character: str, first: str, last: str) -> bool:
    return len(character) == 1 and first <= character <= last
