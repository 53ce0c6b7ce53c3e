"""The YAML text of a sync config as typed values with positions.

The text is composed to nodes, not constructed, so tags can only produce plain values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.scanner import Scanner, ScannerError

from headwater_rules.errors import Edit, Report, RuleCode, RuleError, Severity, Span, did_you_mean, span_in

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


_SWITCHES = {"yes": True, "on": True, "no": False, "off": False, "true": True, "false": False}
"""What people write for true and false, the latter two in quotes."""

TAG = "tag:yaml.org,2002:"
"""The prefix of the tags of YAML's own types."""


class NotYamlError(Exception):
    """A text is not a YAML document: the problem, its place (character offsets) if known, and what to do."""

    def __init__(self, problem: str, start: int | None = None, end: int | None = None, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.start = start
        self.end = end if end is not None or start is None else start + 1
        self.hint = hint


def compose(text: str) -> Node | None:
    """The root of the document; None for an empty one. Raises NotYamlError."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Scanner = _BlankLines
    try:
        yaml.composer.warn_double_anchors = False  # the later one applies from there on, as the standard says
        node: Node | None = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise NotYamlError(error.problem or error.context or "", mark.index if mark else None) from None
    except YAMLError as error:
        raise NotYamlError("a character that is not allowed", int(getattr(error, "position", 0))) from None
    except (RecursionError, ValueError, OverflowError):
        raise NotYamlError("nested too deeply, or a malformed value", 0, 0) from None
    if node is not None:
        _join_pairs(text, node)
    return node


class _BlankLines(Scanner):
    """Supports block scalars that begin with blank lines of fewer spaces than the first line of text."""

    def scan_block_scalar_indentation(self) -> tuple[list[str], int, StringMark]:
        chunks: list[str] = []
        blank, end = 0, self.reader.get_mark()
        while self.reader.peek() in " \r\n\x85\u2028\u2029":
            if self.reader.peek() == " ":
                self.reader.forward()
                continue
            blank = max(blank, self.reader.column)
            chunks.append(self.scan_line_break())
            end = self.reader.get_mark()
        if self.indent < self.reader.column < blank:
            raise ScannerError(problem="a blank line has more spaces than the text below it", problem_mark=end)
        return chunks, max(blank, self.reader.column), end


def _join_pairs(text: str, root: Node) -> None:
    """Replace surrogate pairs in all scalars by characters. Raises NotYamlError for half of one."""
    waiting, seen = [root], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            waiting += [each for pair in node.value for each in pair]
        elif isinstance(node, SequenceNode):
            waiting += node.value
        elif (text_value := joined(str(node.value))) is not None:
            node.value = text_value
        else:
            start, end = half_in(text, node.start_mark.index, node.end_mark.index)
            hint = "write both halves of the pair, or the character itself"
            raise NotYamlError("half of a surrogate pair is not a character", start, end, hint)


_MAX_TEXT = 400_000
_LINES_BEFORE = 3
AS_BLOCK = "write `query: |` (in a list, `- |`), and below it the SQL, indented: YAML changes nothing there"
SELECT = re.compile(r"(?i)(?:.*\b)?SELECT\b")
T = TypeVar("T")


@dataclass(frozen=True)
class YamlItem:
    """A YAML node of `text`. The reading methods raise RuleError, which says what was expected, if the node is another
    one. Findings that don't end the reading go to `report`."""

    text: str
    node: Node
    report: Report

    def span(self) -> Span:
        end = self.node.end_mark.index if isinstance(self.node, ScalarNode) else self.node.start_mark.index
        return span_in(self.text, self.node.start_mark.index, max(end, self.node.start_mark.index))

    def fail(self, message: str, suggestion: str = "", code: RuleCode = RuleCode.STRUCTURE) -> RuleError:
        return RuleError(code, message, self.span(), suggestion)

    def fail_with(self, message: str, suggestion: str, written: str) -> RuleError:
        """The error for an item that has to be `written` in another way."""
        return RuleError(RuleCode.STRUCTURE, message, self.span(), suggestion, edit=Edit(self.span(), written))

    def reject(self, message: str, suggestion: str = "", code: RuleCode = RuleCode.STRUCTURE) -> None:
        self.report.add(self.fail(message, suggestion, code))

    def warn(self, code: RuleCode, message: str, suggestion: str) -> None:
        self.report.add(RuleError(code, message, self.span(), suggestion, Severity.WARNING))

    def mapping(self, what: str) -> Mapping:
        if not isinstance(self.node, MappingNode):
            raise self.fail(f"{what} must be a mapping", "write `key: value` lines below it")
        return Mapping(self, what)

    def sequence(self, what: str) -> list[YamlItem]:
        if not isinstance(self.node, SequenceNode):
            raise self.fail(f"{what} must be a list", "begin each entry with `- `")
        return [YamlItem(self.text, node, self.report) for node in self.node.value]

    @property
    def is_text(self) -> bool:
        return isinstance(self.node, ScalarNode) and self.node.tag == TAG + "str"

    @property
    def is_sequence(self) -> bool:
        return isinstance(self.node, SequenceNode)

    def string(self, what: str) -> str:
        if not isinstance(self.node, ScalarNode) or self.node.tag != TAG + "str":
            raise self.fail(f"{what} must be a text")
        return str(self.node.value)

    def boolean(self, what: str) -> bool:
        written = str(self.node.value).lower() if isinstance(self.node, ScalarNode) else ""
        if self.node.tag != TAG + "bool" or written not in {"true", "false"}:  # YAML 1.1 has others, such as `yes`
            if written in _SWITCHES:
                meant = str(_SWITCHES[written]).lower()
                raise self.fail_with(f"{what} must be true or false", f"write `{meant}`", meant)
            raise self.fail(f"{what} must be true or false", "write `true` or `false`, without quotes")
        return written == "true"

    def integer(self, what: str, allowed: Iterable[int]) -> int:
        values = list(allowed)
        if isinstance(self.node, ScalarNode) and self.node.tag == TAG + "int":
            with suppress(ValueError):
                if (value := int(str(self.node.value), 0)) in values:
                    return value
        message = f"{what} must be one of {', '.join(map(str, values))}"
        quoted = str(self.node.value) if isinstance(self.node, ScalarNode) and self.node.style in {"'", '"'} else ""
        if quoted in map(str, values):
            raise self.fail_with(message, f"write `{quoted}` without quotes", quoted)
        raise self.fail(message)


class Mapping:
    """A YAML mapping with unique text keys."""

    def __init__(self, item: YamlItem, what: str) -> None:
        self.what = what
        self.report = item.report
        self._entries: dict[str, tuple[YamlItem, YamlItem]] = {}
        self._duplicates: list[RuleError] = []
        for nodes in item.node.value:
            key, value = (YamlItem(item.text, node, item.report) for node in nodes)
            if key.node.tag == TAG + "merge":
                hint = "write the keys here, or give an alias as a whole value: `query: *name`"
                raise key.fail("`<<` is not supported", hint)
            name = str(key.node.value) if isinstance(key.node, ScalarNode) else ""
            if not name:
                raise key.fail(f"a key of {what} must be a text")
            if name in self._entries:
                self._duplicates.append(key.fail(f"`{name}` is defined twice", "rename or remove one of them"))
                continue
            self._entries[name] = (key, value)

    def check(self, known: Iterable[str] | None = None) -> None:
        """Report duplicate keys, and keys not in `known` if it is given."""
        for duplicate in self._duplicates:
            self.report.add(duplicate)
        allowed = None if known is None else set(known)
        for name, (key, _) in self._entries.items():
            if allowed is not None and name not in allowed:
                hint = did_you_mean(name, allowed) or f"the keys here are {', '.join(sorted(allowed))}"
                self.report.add(key.fail(f"unknown key `{name}` in {self.what}", hint))

    def get(self, name: str) -> YamlItem | None:
        return self._entries[name][1] if name in self._entries else None

    def key(self, name: str) -> YamlItem:
        return self._entries[name][0]

    def names(self) -> list[str]:
        return list(self._entries)

    def items(self) -> list[tuple[str, YamlItem]]:
        return [(name, value) for name, (_, value) in self._entries.items()]

    def read(self, name: str, reader: Callable[[YamlItem], T], default: T) -> T:
        """The value of `name` read by `reader`, or `default` if it is absent or invalid (which is reported)."""
        item = self.get(name)
        if item is None:
            return default
        try:
            return reader(item)
        except RuleError as error:
            self.report.add(error)
            return default


def load(text: str, report: Report) -> YamlItem:
    """The root of the document. Raises RuleError if the text is not one YAML document; later findings go to
    `report`."""
    if len(text) > _MAX_TEXT:
        message = f"the sync config is longer than {_MAX_TEXT:,} characters"
        raise RuleError(RuleCode.YAML, message, span_in(text, _MAX_TEXT, _MAX_TEXT))
    try:
        node = compose(text)
    except NotYamlError as error:
        span = None if error.start is None or error.end is None else span_in(text, error.start, error.end)
        hint, problem, edit = error.hint or _hint_for_sql(text, span), error.problem, None
        if span is not None and text.startswith(": ", span.start) and hint.endswith(AS_BLOCK):
            problem, edit = "it reads `: ` as the end of a key", as_block(text, span.start)
        elif not hint and span is not None and text.startswith("\t", span.start):
            hint = "indent with spaces: YAML allows no tabs"
        raise RuleError(RuleCode.YAML, f"not valid YAML: {problem}", span, hint, edit=edit) from None
    if node is None:
        raise RuleError(RuleCode.YAML, "the sync config is empty", span_in(text, 0, 0), "define at least one stream")
    return YamlItem(text, node, report)


_ONE_LINE = re.compile(r"(?i)(?P<before>[ ]*(?:- )?(?:[\w-]+:[ ]+)?)(?P<sql>SELECT\b.*?)[ \t]*\r?")


def as_block(text: str, position: int) -> Edit | None:
    """The edit that writes the query on the line of `position` as a literal block, where it is on that line alone."""
    start = text.rfind("\n", 0, position) + 1
    end = text.find("\n", position)
    end = len(text) if end < 0 else end
    found = _ONE_LINE.fullmatch(text, start, end)
    if found is None:
        return None
    indent = len(found["before"]) - len(found["before"].lstrip(" -")) + 2
    following = text[end + 1 :].split("\n", 1)[0]
    if following.strip() and len(following) - len(following.lstrip(" ")) > indent - 2:
        return None  # the query goes on
    return Edit(span_in(text, *found.span("sql")), f"|\n{' ' * indent}{found['sql']}")


def _hint_for_sql(text: str, span: Span | None) -> str:
    """A hint for a syntax error in a value that seems to be SQL."""
    if span is None:
        return ""
    before = text[: span.start - span.column + 1].splitlines()[-_LINES_BEFORE:]
    return f"if this is SQL, {AS_BLOCK}" if any(map(SELECT.match, [*before, span.source_line])) else ""
