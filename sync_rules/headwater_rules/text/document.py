"""The YAML text of a sync config as typed values with positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from headwater_rules.errors import Code, Place, Report, RuleError, did_you_mean, place_in
from headwater_rules.text.sqltext import SqlText
from headwater_rules.text.written import AS_BLOCK, read_written
from headwater_rules.text.yaml import TAG, NotYamlError, compose

_MAX_TEXT = 400_000
_LINES_BEFORE = 3
_SELECT = re.compile(r"(?i)(?:.*\b)?SELECT\b")
T = TypeVar("T")


@dataclass(frozen=True)
class Item:
    """A YAML node. The reading methods raise RuleError, which says what was expected, if the node is something else."""

    text: str
    node: Node

    @property
    def place(self) -> Place:
        end = self.node.end_mark.index if isinstance(self.node, ScalarNode) else self.node.start_mark.index
        return place_in(self.text, self.node.start_mark.index, max(end, self.node.start_mark.index))

    def fail(self, message: str, suggestion: str = "", code: Code = Code.STRUCTURE) -> RuleError:
        return RuleError(code, message, self.place, suggestion)

    def mapping(self, what: str) -> Mapping:
        if not isinstance(self.node, MappingNode):
            raise self.fail(f"{what} must be a mapping", "write `key: value` lines below it")
        return Mapping(self, what)

    def sequence(self, what: str) -> list[Item]:
        if not isinstance(self.node, SequenceNode):
            raise self.fail(f"{what} must be a list", "begin each entry with `- `")
        return [Item(self.text, node) for node in self.node.value]

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
            raise self.fail(f"{what} must be true or false")
        return written == "true"

    def integer(self, what: str, allowed: Iterable[int]) -> int:
        values = list(allowed)
        wanted = f"{what} must be one of {', '.join(map(str, values))}"
        if not isinstance(self.node, ScalarNode) or self.node.tag != TAG + "int":
            raise self.fail(wanted)
        try:
            value = int(str(self.node.value), 0)
        except ValueError:
            raise self.fail(wanted) from None
        if value not in values:
            raise self.fail(wanted)
        return value

    def sql(self, what: str) -> SqlText:
        if isinstance(self.node, MappingNode) and _SELECT.match(self.text, self.node.start_mark.index):
            raise self.fail(f"{what} must be a text, and YAML reads `: ` as the end of a key", AS_BLOCK, Code.CHANGED)
        self.string(what)
        assert isinstance(self.node, ScalarNode)  # it has been read as a text
        start, end = self.node.start_mark.index, self.node.end_mark.index
        return SqlText(self.text, start, end, read_written(self.text, self.node))


class Mapping:
    """A YAML mapping with unique text keys."""

    def __init__(self, item: Item, what: str) -> None:
        self.item = item
        self.what = what
        self._entries: dict[str, tuple[Item, Item]] = {}
        self._duplicates: list[RuleError] = []
        for key_node, value_node in item.node.value:
            if key_node.tag == TAG + "merge":
                raise Item(item.text, key_node).fail(
                    "`<<` is not supported", "write the keys here, or give an alias as a whole value: `query: *name`"
                )
            key, value = Item(item.text, key_node), Item(item.text, value_node)
            name = str(key_node.value) if isinstance(key_node, ScalarNode) else ""
            if not name:
                raise key.fail(f"a key of {what} must be a text")
            if name in self._entries:
                self._duplicates.append(key.fail(f"`{name}` is defined twice", "rename or remove one of them"))
                continue
            self._entries[name] = (key, value)

    def check(self, known: Iterable[str] | None, report: Report) -> None:
        """Report duplicate keys, and keys not in `known` if it is given."""
        for duplicate in self._duplicates:
            report.add(duplicate)
        allowed = None if known is None else set(known)
        for name, (key, _) in self._entries.items():
            if allowed is not None and name not in allowed:
                hint = did_you_mean(name, allowed) or f"the keys here are {', '.join(sorted(allowed))}"
                report.add(key.fail(f"unknown key `{name}` in {self.what}", hint))

    def get(self, name: str) -> Item | None:
        entry = self._entries.get(name)
        return entry[1] if entry else None

    def key(self, name: str) -> Item:
        return self._entries[name][0]

    def names(self) -> list[str]:
        return list(self._entries)

    def items(self) -> list[tuple[str, Item]]:
        return [(name, value) for name, (_, value) in self._entries.items()]

    def read(self, name: str, reader: Callable[[Item], T], default: T, report: Report) -> T:
        """The value of `name` read by `reader`, or `default` if it is absent or invalid (which is reported)."""
        item = self.get(name)
        if item is None:
            return default
        try:
            return reader(item)
        except RuleError as error:
            report.add(error)
            return default


def load(text: str) -> Item:
    """The root of the document. Raises RuleError if the text is not one YAML document."""
    if len(text) > _MAX_TEXT:
        message = f"the sync config is longer than {_MAX_TEXT:,} characters"
        raise RuleError(Code.YAML, message, place_in(text, _MAX_TEXT, _MAX_TEXT))
    try:
        node = compose(text)
    except NotYamlError as error:
        place = None if error.start is None or error.end is None else place_in(text, error.start, error.end)
        hint = error.hint or _hint_for_sql(text, place)
        raise RuleError(Code.YAML, f"not valid YAML: {error.problem}", place, hint) from None
    if node is None:
        raise RuleError(Code.YAML, "the sync config is empty", place_in(text, 0, 0), "define at least one stream")
    return Item(text, node)


def _hint_for_sql(text: str, place: Place | None) -> str:
    """A hint for a syntax error in a value that seems to be SQL."""
    if place is None:
        return ""
    before = text[: place.start - place.column + 1].splitlines()[-_LINES_BEFORE:]
    return f"if this is SQL, {AS_BLOCK}" if any(map(_SELECT.match, [*before, place.source_line])) else ""
