"""A config's text as a tree whose nodes know their positions, with `!env` replaced, and the errors of a config.

YAML is composed, not constructed: nodes keep line and column, and tags can only produce plain values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from headwater.errors import HeadwaterError
from headwater_rules.text.document import TAG, NotYamlError, compose

_LOGIN = re.compile(r":/.*@", re.DOTALL)


def redacted(text: str) -> str:
    """Text of the config, or a file name, as a message may show it: without the login of a URI."""
    return _LOGIN.sub(":/…@", text)


@dataclass(frozen=True, slots=True)
class Mark:
    """Line and column, from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(frozen=True, slots=True)
class ConfigIssue:
    """An error in the service config, or without a code something that its author should know: key, place, and what to
    do. `key` is a path like `client_auth.audience`."""

    what: str
    key: str = ""
    mark: Mark | None = None
    fix: str = ""
    code: str = "HW_7001"

    def __str__(self) -> str:
        place = f"{self.mark}: " if self.mark else ""
        code = f"[{self.code}] " if self.code else ""
        key = f"{self.key}: " if self.key else ""
        remedy = f"; {self.fix}" if self.fix else ""
        return f"{place}{code}{key}{self.what}{remedy}"


class ConfigError(HeadwaterError):
    """A service config that can't be used, with all its errors. `origin` is the file, or another name for where it came
    from."""

    code = "HW_7001"

    def __init__(self, origin: str, issues: Sequence[ConfigIssue]) -> None:
        super().__init__("the service config can't be used", redacted(origin))
        self.args = (origin, tuple(issues))  # what pickle replays
        self.origin = redacted(origin)
        self.issues = tuple(issues)

    def __str__(self) -> str:
        if len(self.issues) == 1:
            return f"{self.origin}, {self.issues[0]}" if self.issues[0].mark else f"{self.issues[0]} ({self.origin})"
        return f"{self.origin} has {len(self.issues)} errors:" + "".join(f"\n  {issue}" for issue in self.issues)


Scalar = None | bool | int | float | str

_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class ConfigNode:
    """One value: a scalar, a mapping or a list. `mark` is None for JSON, which keeps no positions."""

    value: Scalar | dict[str, ConfigNode] | list[ConfigNode]
    mark: Mark | None

    @property
    def kind(self) -> str:
        """A description of its type."""
        match self.value:
            case None:
                return "nothing"
            case bool():
                return "true or false"
            case int() | float():
                return "a number"
            case str():
                return "text"
            case dict():
                return "a mapping"
            case list():
                return "a list"


def parse_yaml(text: str, origin: str, environment: Mapping[str, str]) -> ConfigNode:
    """The tree of a YAML text; an empty text is an empty mapping. Raises ConfigError with all errors."""
    try:
        node = compose(text)
    except NotYamlError as error:
        at = None if error.start is None else _mark_at(text, error.start)
        hint = f"; {error.hint}" if error.hint else ""
        raise ConfigError(origin, [ConfigIssue(f"not valid YAML: {error.problem}{hint}", mark=at)]) from None
    if node is None:
        return ConfigNode({}, Mark(1, 1))
    reader = _NodeReader(environment)
    item = reader.item(node)
    if reader.issues:
        raise ConfigError(origin, reader.issues)
    return item


def parse_json(text: str, origin: str) -> ConfigNode:
    """The tree of a JSON text, without `!env` and positions. Raises ConfigError."""
    try:
        return _plain(json.loads(text))
    except json.JSONDecodeError as error:
        issue = ConfigIssue(f"not valid JSON: {error.msg}", mark=Mark(error.lineno, error.colno))
        raise ConfigError(origin, [issue]) from error
    except RecursionError as error:
        raise ConfigError(origin, [ConfigIssue("not valid JSON: it is nested too deep")]) from error


def _plain(value: object) -> ConfigNode:
    match value:
        case dict():
            return ConfigNode({str(key): _plain(each) for key, each in value.items()}, None)
        case list():
            return ConfigNode([_plain(each) for each in value], None)
        case None | bool() | int() | float() | str():
            return ConfigNode(value, None)
        case _:
            raise TypeError(type(value))


def _mark_at(text: str, index: int) -> Mark:
    before = text[:index]
    return Mark(before.count("\n") + 1, index - before.rfind("\n"))


class _NodeReader:
    """Converts composed nodes into items. An aliased node is read once, so that nested aliases stay cheap."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._seen: dict[int, ConfigNode] = {}
        self._open: set[int] = set()
        self.issues: list[ConfigIssue] = []

    def item(self, node: Node) -> ConfigNode:
        known = self._seen.get(id(node))
        if known is not None:
            return known
        if id(node) in self._open:
            self._issue("this alias contains itself", node, "write the value out")
            return ConfigNode(None, _mark(node))
        self._open.add(id(node))
        value: Scalar | dict[str, ConfigNode] | list[ConfigNode]
        if isinstance(node, MappingNode):
            value = self._mapping(node)
        elif isinstance(node, SequenceNode):
            value = [self.item(each) for each in node.value]
        else:
            value = self._scalar(node)
        self._open.remove(id(node))
        self._seen[id(node)] = item = ConfigNode(value, _mark(node))
        return item

    def _issue(self, what: str, node: Node, fix: str = "", key: str = "") -> None:
        self.issues.append(ConfigIssue(what, key, _mark(node), fix))

    def _mapping(self, node: MappingNode) -> dict[str, ConfigNode]:
        merged: dict[str, ConfigNode] = {}
        own: dict[str, ConfigNode] = {}
        for key, value in node.value:
            if _tag(key) == f"{TAG}merge":
                self._merge(value, merged)
            elif not isinstance(key, ScalarNode):
                self._issue("a key must be text", key)
            elif key.value in own:
                self._issue("this key is given twice", key, "remove one", redacted(key.value))
            else:
                own[key.value] = self.item(value)
        return {**merged, **own}

    def _merge(self, node: Node, into: dict[str, ConfigNode]) -> None:
        for each in node.value if isinstance(node, SequenceNode) else [node]:
            item = self.item(each)
            if isinstance(item.value, dict):
                into.update({key: value for key, value in item.value.items() if key not in into})
            else:
                self._issue("`<<` takes a mapping", each)

    def _scalar(self, node: Node) -> Scalar:
        text = str(node.value)
        match _tag(node).removeprefix(TAG):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" | "float":
                return _number(text)
            case "!env":
                return self._substituted(text, node)
            case tag if tag.startswith("!"):
                self._issue(f"unknown tag {redacted(tag)}", node, "use `!env NAME`, or put the value in quotes")
                return None
            case _:
                return text

    def _substituted(self, text: str, node: Node) -> Scalar:
        name, _, kind = text.strip().partition("::")
        value = self._environment.get(name)
        if value is None:
            # anything but a variable's name may be the secret value itself
            what = f"environment variable {name if _NAME.fullmatch(name) else '(no name)'} is not set"
            self._issue(what, node, "set it, or write the value here")
            return None
        match kind:
            case "" | "string":
                return value
            case "number":
                if not value.strip() or _NUMBER.fullmatch(value.strip()):
                    return _number(value.strip() or "0")
                self._issue(f"environment variable {name} is not a number", node, "give it digits only")
            case "boolean":
                if value.lower() in {"true", "false"}:
                    return value.lower() == "true"
                self._issue(f"environment variable {name} is neither true nor false", node, "set it to true or false")
            case _:
                self._issue(f"unknown type ::{kind} after {name}", node, "use ::string, ::number or ::boolean")
        return None


def _number(text: str) -> int | float | str:
    plain = text.replace("_", "").lower()
    try:
        return int(plain, 0) if plain[:2] in {"0x", "0o"} else int(plain)
    except ValueError:
        pass
    try:
        number = float(plain)
    except ValueError:
        return text
    return int(number) if math.isfinite(number) and number.is_integer() else number


def _tag(node: Node) -> str:
    return str(node.tag)


def _mark(node: Node) -> Mark:
    return Mark(node.start_mark.line + 1, node.start_mark.column + 1)
