"""The SQL of a YAML scalar as its author wrote it.

YAML joins the lines of a folded, plain or quoted scalar, and begins a comment at ` #`. SQL ends a comment where the
line ends, so the value that YAML gives can mean something else than the text that the author sees. Therefore the lines
are kept, and a text that YAML cuts off is refused.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ruamel.yaml.nodes import ScalarNode

from headwater_rules.errors import Code, RuleError, place_in
from headwater_rules.text.escapes import escape_at

AS_BLOCK = "write `query: |` (in a list, `- |`), and below it the SQL, indented: YAML changes nothing there"

_PROPERTIES = re.compile(r"(?:[&!]\S*+(?:\s++(?:#.*+)?+)*+)*+")
_HEADER = re.compile(r"[|>][-+0-9]*+[ \t]*+(?:#.*+)?+\r?\n?")
_CUT = re.compile(r"[ \t]++(#[^\r\n]*+)")
_UNCLEAR = re.compile("\r(?!\n)|[\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT_ESCAPES = {"n": "\n", "t": "\t", "\t": "\t", "r": "\r", '"': '"', "\\": "\\", "/": "/", " ": " "}


@dataclass(frozen=True, slots=True)
class Written:
    """`text` has the line ends of the file. `offsets` are the places of its characters in the document, and `joined`
    those line ends in `text` that YAML replaces by a space or removes."""

    text: str
    offsets: Sequence[int]
    joined: frozenset[int]


def read_written(document: str, node: ScalarNode) -> Written:
    """The text of a scalar. Raises RuleError for one that YAML cuts off, or that an editor shows in another way."""
    start, end = node.start_mark.index, node.end_mark.index
    start = _end(_PROPERTIES, document, start, end)
    unclear = _UNCLEAR.search(document, start, end)
    if unclear:
        message = f"the character U+{ord(unclear[0]):04X} in a query makes editors show its lines in different ways"
        raise RuleError(Code.CHANGED, message, place_in(document, *unclear.span()), "remove it")
    if node.style == "|":
        return _literal(document, _end(_HEADER, document, start, end), str(node.value))
    if node.style is None and (cut := _CUT.match(document, end)):
        message = "YAML reads ` #` and what follows as a comment, so it is no part of the query"
        hint = f"put the comment on a line of its own; if it belongs to the SQL, {AS_BLOCK}"
        raise RuleError(Code.CHANGED, message, place_in(document, *cut.span(1)), hint)
    if node.style == ">":
        start = _end(_HEADER, document, start, end)
    elif node.style is not None:
        start, end = start + 1, end - 1
    written = _collected(_characters(document, start, end, node.style))
    if "".join(written.text.split()) != "".join(str(node.value).split()):
        raise RuleError(Code.CHANGED, "YAML changes this query", place_in(document, start, end), AS_BLOCK)
    return written


def _end(pattern: re.Pattern[str], document: str, start: int, end: int) -> int:
    found = pattern.match(document, start, end)
    return start if found is None else found.end()


def _literal(document: str, position: int, value: str) -> Written:
    """A literal block, which differs from its value in the indentation only."""
    offsets = array("l")
    for line in value.split("\n"):
        line_end = document.find("\n", position)
        line_end = len(document) if line_end < 0 else line_end
        shown = line_end - (document[line_end - 1 : line_end] == "\r")
        offsets.extend(range(shown - len(line), shown))
        offsets.append(line_end)
        position = line_end + 1
    return Written(value, offsets[:-1], frozenset())


def _collected(characters: Iterator[tuple[str, int, bool]]) -> Written:
    pieces: list[str] = []
    offsets = array("l")
    joined: list[int] = []
    for character, offset, is_joined in characters:
        if is_joined:
            joined.append(len(pieces))
        pieces.append(character)
        offsets.append(offset)
    return Written("".join(pieces), offsets, frozenset(joined))


def _characters(document: str, position: int, end: int, style: str | None) -> Iterator[tuple[str, int, bool]]:
    """The characters of a folded, plain or quoted scalar, their offsets, and whether they are line ends of the file."""
    while position < end:
        character, start = document[position], position
        position += 1
        if character == "\r":
            continue  # the line feed follows
        if character == "'" and style == "'":
            position += 1
        elif character == "\\" and style == '"':
            character, position = _escaped(document, start, end)
        yield character, start, character == "\n" and document[start] == "\n"


def _escaped(document: str, start: int, end: int) -> tuple[str, int]:
    meant, after = escape_at(document, start, end)
    if meant in {"'", '"'}:
        message, meant = "the quote of a text is hidden in an escape", ""
    else:
        message = f"the escape `{document[start:after].strip()}` is not supported in a query"
        meant = meant or _SHORT_ESCAPES.get(document[start + 1], "")
    if meant == "\r" and document.startswith("\\n", after):
        return "\n", after + 2
    if not meant or (meant < " " and meant not in "\t\n"):
        raise RuleError(Code.CHANGED, message, place_in(document, start, after), AS_BLOCK)
    return meant, after
