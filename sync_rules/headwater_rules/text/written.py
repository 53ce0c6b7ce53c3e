"""A query in the YAML as its author wrote it: its text, and the place of each character in the file.

YAML joins the lines of a folded, plain or quoted scalar, and begins a comment at ` #`. SQL ends a comment where the
line ends, so the value that YAML gives can mean something else than the text that the author sees. Therefore the lines
are kept, and a text that YAML cuts off is refused.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ruamel.yaml.nodes import MappingNode, ScalarNode
from sqlglot import exp

from headwater_rules.errors import Edit, RuleCode, RuleError, Span, span_in
from headwater_rules.text.document import AS_BLOCK, SELECT, YamlItem, as_block, escape_at

_PROPERTIES = re.compile(r"(?:[&!]\S*+(?:\s++(?:#.*+)?+)*+)*+")
_HEADER = re.compile(r"[|>][-+0-9]*+[ \t]*+(?:#.*+)?+\r?\n?")
_CUT = re.compile(r"[ \t]++(#[^\r\n]*+)")
_NOT_PLAIN = re.compile(r":(?:\s|$)|(?:^|\s)#")
_UNCLEAR = re.compile("\r(?!\n)|[\x85\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT_ESCAPES = {"n": "\n", "t": "\t", "\t": "\t", "r": "\r", '"': '"', "\\": "\\", "/": "/", " ": " "}


@dataclass(frozen=True, slots=True)
class ScalarText:
    """`text` has the line ends of the file. `offsets` are the positions of its characters in the document, and `joined`
    those line ends in `text` that YAML replaces by a space or removes."""

    text: str
    offsets: Sequence[int]
    joined: frozenset[int]


def read_written(document: str, node: ScalarNode) -> ScalarText:
    """The text of a scalar. Raises RuleError for one that YAML cuts off, or that an editor shows in another way."""
    start, end = node.start_mark.index, node.end_mark.index
    start = _end(_PROPERTIES, document, start, end)
    unclear = _UNCLEAR.search(document, start, end)
    if unclear:
        message = f"the character U+{ord(unclear[0]):04X} in a query makes editors show its lines in different ways"
        raise RuleError(RuleCode.CHANGED, message, span_in(document, *unclear.span()), "remove it")
    if node.style == "|":
        return _literal(document, _end(_HEADER, document, start, end), str(node.value))
    if node.style is None and (cut := _CUT.match(document, end)):
        message = "YAML reads ` #` and what follows as a comment, so it is no part of the query"
        hint = f"put the comment on a line of its own; if it belongs to the SQL, {AS_BLOCK}"
        of_text = document.count("'", start, end) % 2 == 1  # a text is cut off
        edit = as_block(document, end) if of_text else None
        raise RuleError(RuleCode.CHANGED, message, span_in(document, *cut.span(1)), hint, edit=edit)
    if node.style == ">":
        start = _end(_HEADER, document, start, end)
    elif node.style is not None:
        start, end = start + 1, end - 1
    written = _collected(_characters(document, start, end, node.style))
    if "".join(written.text.split()) != "".join(str(node.value).split()):
        raise RuleError(RuleCode.CHANGED, "YAML changes this query", span_in(document, start, end), AS_BLOCK)
    return written


def _end(pattern: re.Pattern[str], document: str, start: int, end: int) -> int:
    found = pattern.match(document, start, end)
    return start if found is None else found.end()


def _literal(document: str, position: int, value: str) -> ScalarText:
    """A literal block, which differs from its value in the indentation only."""
    offsets = array("l")
    for line in value.split("\n"):
        line_end = document.find("\n", position)
        line_end = len(document) if line_end < 0 else line_end
        shown = line_end - (document[line_end - 1 : line_end] == "\r")
        offsets.extend(range(shown - len(line), shown))
        offsets.append(line_end)
        position = line_end + 1
    return ScalarText(value, offsets[:-1], frozenset())


def _collected(characters: Iterator[tuple[str, int, bool]]) -> ScalarText:
    pieces: list[str] = []
    offsets = array("l")
    joined: list[int] = []
    for character, offset, is_joined in characters:
        if is_joined:
            joined.append(len(pieces))
        pieces.append(character)
        offsets.append(offset)
    return ScalarText("".join(pieces), offsets, frozenset(joined))


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
        raise RuleError(RuleCode.CHANGED, message, span_in(document, start, after), AS_BLOCK)
    return meant, after


_CLOSING = re.compile(r"\s*\)")
_WORD = re.compile(r"\w+|[^\w\s]")
_WORDS_PER_QUERY = 10  # what each costs besides its words


@dataclass(frozen=True, slots=True)
class SqlText:
    """An SQL string. `sql` has the lines of the file; `start` and `end` delimit the scalar in `document`."""

    document: str
    start: int
    end: int
    written: ScalarText

    @property
    def sql(self) -> str:
        return self.written.text

    def words(self) -> int:
        """Approximate number of words and signs, and so of the work that the text causes."""
        return sum(1 for _ in _WORD.finditer(self.sql)) + _WORDS_PER_QUERY

    def span(self, start: int = 0, end: int | None = None) -> Span:
        """The span of characters [start, end) of the SQL in the file."""
        if not self.sql:
            return span_in(self.document, self.start, self.end)
        last = max((len(self.sql) if end is None else end) - 1, start)
        return span_in(self.document, self._offset(start), self._behind(self._offset(last)))

    def span_of(self, node: exp.Expr) -> Span:
        """The span of a node, or of its nearest ancestor with a position."""
        found = self.position_of(node)
        while found is None and node.parent is not None:
            node = node.parent
            found = self.position_of(node)
        return self.span(*found) if found else self.span()

    def source_of(self, node: exp.Expr) -> str:
        """The SQL of a node, on one line."""
        found = self.position_of(node)
        return " ".join(self.sql[slice(*found)].split()) if found else ""

    def edit(self, start: int, end: int, replacement: str) -> Edit | None:
        """The edit that replaces characters [start, end) of the SQL in the file. None where YAML would read the
        replacement as something else."""
        style = self.document[self.start : self.start + 1]
        if style == "'":
            replacement = replacement.replace("'", "''")
        elif style == '"':
            replacement = replacement.replace("\\", "\\\\").replace('"', '\\"')
        elif style in {"&", "!"} or (style not in {"|", ">"} and _NOT_PLAIN.search(replacement)):
            return None
        return Edit(self.span(start, end), replacement)

    def position_of(self, node: exp.Expr) -> tuple[int, int] | None:
        """First and last character that the parser recorded for a node, including its closing brackets."""
        starts = [item.meta["start"] for item in node.walk() if "start" in item.meta]
        ends = [item.meta["end"] for item in node.walk() if "end" in item.meta]
        if not starts or not ends:
            return None
        start, end = min(starts), max(ends) + 1
        if self.sql.startswith("()", end):
            end += 2
        missing = self.sql.count("(", start, end) - self.sql.count(")", start, end)
        while missing > 0 and (bracket := _CLOSING.match(self.sql, end)):
            missing, end = missing - 1, bracket.end()
        return start, end

    def _behind(self, offset: int) -> int:
        """Where a character ends that may be escaped in the file."""
        style, character = self.document[self.start : self.start + 1], self.document[offset : offset + 1]
        if style == '"' and character == "\\":
            return escape_at(self.document, offset, self.end)[1]
        return offset + (2 if style == character == "'" else 1)

    def _offset(self, position: int) -> int:
        offsets = self.written.offsets
        return offsets[min(max(position, 0), len(offsets) - 1)]


def read_sql(item: YamlItem, what: str) -> SqlText:
    """The SQL that a YAML node holds. Raises RuleError for a node that is no text."""
    node = item.node
    if isinstance(node, MappingNode) and SELECT.match(item.text, node.start_mark.index):
        raise item.fail(f"{what} must be a text, and YAML reads `: ` as the end of a key", AS_BLOCK, RuleCode.CHANGED)
    item.string(what)
    assert isinstance(node, ScalarNode)  # it has been read as a text
    return SqlText(item.text, node.start_mark.index, node.end_mark.index, read_written(item.text, node))
