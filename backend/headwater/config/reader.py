"""Reads the settings of a config into the dataclasses that declare them. Errors are collected, so that one run reports
all of them.

A setting is a field whose annotation has a `msgspec.Meta`: its bounds, and its `extra` where the config calls it
otherwise (`key`) or has it in another unit (`unit`, by which the number in the config is multiplied).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from headwater.config.document import ConfigIssue, ConfigNode, Mark, redacted

Settings = TypeVar("Settings")
Default = TypeVar("Default", bound=int | None)
Value = TypeVar("Value")

MOST = 2**31 - 1
"""The largest number that a setting without a bound may be."""

KNOWN_TO_ALL = "HW_7010"
"""A secret in the service config is one that an example has, or an admin token is too short: anybody can know it."""

MAKE_ONE = "make one with: openssl rand -hex 32"
GIVE_ANOTHER = f"give the role another, here and in the database; {MAKE_ONE}"

_OF_EXAMPLES = ("changeme", "abettertokeninproduction")
"""What the secrets of examples say, in small letters and without all else."""


@dataclass(slots=True)
class ConfigFindings:
    """Errors and warnings found so far."""

    errors: list[ConfigIssue] = field(default_factory=list)
    warnings: list[ConfigIssue] = field(default_factory=list)


class Section:
    """A mapping at `path`. A null value counts as not given. After an error, a reader returns the default, so that
    reading goes on."""

    def __init__(self, values: dict[str, ConfigNode], path: str, mark: Mark | None, findings: ConfigFindings) -> None:
        self._values = values
        self._known: set[str] = set()
        self.path = path
        self.mark = mark
        self.findings = findings

    def __contains__(self, key: str) -> bool:
        self._known.add(key)
        return key in self._values and self._values[key].value is not None

    def __enter__(self) -> Section:
        """Read the section within the context, after which what was not read is unknown."""
        return self

    def __exit__(self, *_: object) -> None:
        self.warn_unknown()

    @property
    def values(self) -> Mapping[str, ConfigNode]:
        """What it gives, as it stands there."""
        return self._values

    def at(self, key: str) -> str:
        """The path of `key`, for messages."""
        return f"{self.path}.{redacted(key)}" if self.path else redacted(key)

    def error(self, what: str, key: str = "", *, fix: str = "", code: str = "HW_7001") -> None:
        """Add an error at `key`, or at the section itself."""
        item = self._values.get(key)
        mark = item.mark if item is not None and item.mark is not None else self.mark
        self.findings.errors.append(ConfigIssue(what, self.at(key) if key else self.path, mark, fix, code))

    def warn(self, what: str, key: str = "") -> None:
        """Add a warning at `key`, or at the section itself."""
        item = self._values.get(key)
        mark = item.mark if item is not None else None if key else self.mark
        self.findings.warnings.append(ConfigIssue(what, self.at(key) if key else self.path, mark, code=""))

    def text(self, key: str) -> str | None:
        return self._of(key, str, "text", "put it in quotes" if isinstance(self._value(key), int | float) else "")

    def integer(
        self, key: str, default: Default, low: int = 1, high: int = MOST, *, code: str = "HW_7001"
    ) -> int | Default:
        """A whole number in [low, high]; text is accepted too, as in the PowerSync service for ports."""
        match self._value(key):
            case None:
                return default
            case bool():
                self._mismatch(key, "a whole number")
                return default
            case int(value):
                number = value
            case str(value) if value.strip().isdecimal() and len(value) < 20:
                number = int(value)
            case _:
                self._mismatch(key, "a whole number")
                return default
        if not low <= number <= high:
            self.error(f"must be a number from {low} to {high}", key, code=code)
            return default
        return number

    def boolean(self, key: str, *, default: bool) -> bool:
        value = self._of(key, bool, "true or false")
        return default if value is None else value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts; a single text counts as a list of one."""
        match self._value(key):
            case None:
                return ()
            case str(value):
                return (value,)
            case list(items) if all(isinstance(item.value, str) for item in items):
                return tuple(str(item.value) for item in items)
            case _:
                self._mismatch(key, "a list of texts")
                return ()

    def choice(self, key: str, default: str, allowed: Collection[str]) -> str:
        value = self.text(key)
        if value is None:
            return default
        if value not in allowed:
            self.error(f"must be one of {', '.join(allowed)}", key, fix=suggestion(value, allowed))
            return default
        return value

    def section(self, key: str) -> Section:
        """A mapping; empty if not given."""
        item = self._values.get(key)
        mark = item.mark if item is not None else self.mark
        return Section(self._of(key, dict, "a mapping") or {}, self.at(key), mark, self.findings)

    def is_mapping(self, key: str) -> bool:
        """Whether the key's value is a mapping, for keys that also take other values."""
        return isinstance(self._value(key), dict)

    def sections(self, key: str) -> list[Section]:
        """A list of mappings."""
        items = self._of(key, list, "a list of mappings") or []
        found = [
            Section(item.value, f"{self.at(key)}[{number}]", item.mark, self.findings)
            for number, item in enumerate(items)
            if isinstance(item.value, dict)
        ]
        if len(found) < len(items):
            self._mismatch(key, "a list of mappings")
            return []
        return found

    def texts_or_sections(self, key: str, text: str) -> list[Section]:
        """A list of mappings and texts; a single text counts as a list of one. A text is read as a mapping that has it
        as `text` alone, and whose errors are at the list."""
        match self._value(key):
            case None:
                return []
            case str():
                items = [self._values[key]]
            case list(found) if all(isinstance(item.value, str | dict) for item in found):
                items = found
            case _:
                self._mismatch(key, "a list of texts or mappings")
                return []
        return [
            Section(item.value, f"{self.at(key)}[{number}]", item.mark, self.findings)
            if isinstance(item.value, dict)
            else Section({text: item}, self.at(key), item.mark, self.findings)
            for number, item in enumerate(items)
        ]

    def named(self, key: str) -> dict[str, Section]:
        """A mapping of names to mappings; a name without a value gets an empty one."""
        section = self.section(key)
        return {name: section.section(name) for name in section._values}

    def pairs(self, key: str) -> dict[str, str]:
        """A mapping of names to scalars, each as text."""
        section = self.section(key)
        found = {}
        for name, item in section._values.items():
            match item.value:
                case bool(value):
                    found[name] = str(value).lower()
                case str() | int() | float():
                    found[name] = str(item.value)
                case _:
                    section.error(f"must be text or a number, not {item.kind}", name)
        return found

    def plain(self) -> dict[str, object]:
        """The scalars of this mapping, by name."""
        return {name: item.value for name, item in self._values.items() if not isinstance(item.value, dict | list)}

    def read(self, defaults: Settings, *, code: str = "HW_7001") -> Settings:
        """These settings, with what the config gives in place of the defaults. A setting that is itself a dataclass is
        a section below this one; with an empty key, its settings stand in this one. `code` is that of numbers out of
        bounds."""
        assert is_dataclass(defaults)
        assert not isinstance(defaults, type)
        hints = get_type_hints(type(defaults), include_extras=True)
        given = {}
        for each in fields(defaults):
            kind, *about = get_args(hints[each.name]) if get_origin(hints[each.name]) is Annotated else (None,)
            meta = next((one for one in about if isinstance(one, Meta)), None)
            if meta is not None:
                extra = meta.extra or {}
                value = self._setting(extra.get("key", each.name), kind, meta, getattr(defaults, each.name), code)
                given[each.name] = value
        found: Settings = replace(defaults, **given)
        return found

    def _setting(self, key: str, kind: Any, meta: Meta, default: Any, code: str) -> object:
        if get_origin(kind) in {Union, UnionType}:
            (kind,) = (each for each in get_args(kind) if each is not NoneType)
        origin = get_origin(kind) or kind
        if is_dataclass(origin):
            if not key:
                return self.read(default)
            with self.section(key) as section:
                return section.read(default)
        if origin is Literal:
            return self.choice(key, default, get_args(kind))
        if origin in {int, float}:
            unit = (meta.extra or {}).get("unit", 1)
            known = None if default is None else int(default) // unit
            number = self.integer(key, known, int(meta.ge or 0), int(MOST if meta.le is None else meta.le), code=code)
            return default if number == known else number * unit
        if origin is bool:
            return self.boolean(key, default=default)
        if origin is str:
            return self.text(key) or default
        if issubclass(origin, Mapping):
            return self.pairs(key) or default
        assert origin in {tuple, frozenset}, f"a setting can't be of type {kind}"
        return origin(self.texts(key)) if key in self else default

    def no_effect(self, instead: str, *keys: str) -> None:
        """Warn about keys of PowerSync's config that have no effect here. `instead` says what applies."""
        for key in keys:
            if key in self:
                self.warn(f"has no effect here: {instead}", key)

    def refuse_example(self, key: str, *secrets: str, fix: str = MAKE_ONE) -> None:
        """Add an error at `key` when one of the secrets says that it is an example's."""
        letters = [re.sub(r"[^a-z]", "", secret.lower()) for secret in secrets]
        if any(each in said for each in _OF_EXAMPLES for said in letters):
            self.error("is the secret of an example, which everybody knows", key, fix=fix, code=KNOWN_TO_ALL)

    def warn_unknown(self) -> None:
        """Warn about keys that were never read. Call it after reading everything else."""
        for name in self._values:
            if name not in self._known:
                guess = suggestion(name, self._known)
                self.warn(f"unknown key, ignored{f'; {guess}' if guess else ''}", name)

    def refuse_unknown(self) -> None:
        """Add an error for each key that was never read, in sections where a misspelt key would be a security hole.
        Call it after reading everything else."""
        for name in self._values:
            if name not in self._known:
                self.error("unknown key", name, fix=suggestion(name, self._known))

    def _value(self, key: str) -> object:
        self._known.add(key)
        item = self._values.get(key)
        return None if item is None else item.value

    def _of(self, key: str, kind: type[Value], wanted: str, fix: str = "") -> Value | None:
        """The value if it is of this kind. None if it is not given, or of another kind, which is reported."""
        value = self._value(key)
        if value is None or isinstance(value, kind):
            return value
        self._mismatch(key, wanted, fix)
        return None

    def _mismatch(self, key: str, wanted: str, fix: str = "") -> None:
        self.error(f"must be {wanted}, not {self._values[key].kind}", key, fix=fix)


_DIRECTIONS = frozenset({
    "accept", "allow", "block", "deny", "disable", "drop", "enable", "exclude", "ignore", "include", "insecure", "keep",
    "max", "min", "no", "not", "off", "on", "only", "refuse", "reject", "require", "secure", "skip", "trust", "use",
    "verify", "without",
})  # fmt: skip
"""Words that turn the meaning of a key."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean …?` with the closest of the known names, or nothing. Never advises a key that may do the opposite:
    `block_x` is no misspelling of `allow_x`, nor of `x`."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close and not _turned(name, close[0]) else ""


def _turned(name: str, other: str) -> bool:
    """Whether one name has a word for a direction that the other does not even misspell."""
    left, right = ({*re.split(r"[^a-z0-9]+", each.lower())} for each in (name, other))
    return any(
        not difflib.get_close_matches(word, [each for each in others if not _directs(each)], cutoff=0.75)
        for words, others in ((left - right, right - left), (right - left, left - right))
        for word in words
        if _directs(word)
    )


def _directs(word: str) -> bool:
    return re.sub("^(?:de|dis|non?|un)(?=...)", "", word) in _DIRECTIONS or word in _DIRECTIONS
