"""Parses one YAML document to a tree of nodes with positions. It is composed, not constructed, so tags can only produce
plain values."""

from __future__ import annotations

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode
from ruamel.yaml.scanner import Scanner, ScannerError

from headwater_rules.text.escapes import half_in, joined

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
