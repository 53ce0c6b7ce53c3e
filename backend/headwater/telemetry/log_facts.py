"""Facts of a log line: what stands beside its words, as fields for machines and as JSON for people."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from itertools import islice

_ATTRIBUTE = "facts"
_LONGEST = 300  # characters of a fact: paths, names of fields and user agents are chosen by strangers
_SHORTEST = 30  # where the line is too long nevertheless: what is not ASCII takes up to twelve
_MOST = 20  # entries of a fact that has some
_LINE = 8000

_of_process: dict[str, object] = {}


def told(facts: Mapping[str, object]) -> dict[str, object]:
    """Facts as `extra` of a logging call, without those that are None, and cut where they are long."""
    short = _short(facts, _LONGEST)
    return {_ATTRIBUTE: short if len(json.dumps(short)) <= _LINE else _short(facts, _SHORTEST)}


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    """What `told` gave to a line."""
    facts: dict[str, object] = getattr(record, _ATTRIBUTE, {})
    return facts


def one_line(facts: Mapping[str, object]) -> str:
    """Facts as JSON in ASCII: whatever a stranger sent, it stays on its line."""
    return json.dumps(facts)


def name_process(**facts: object) -> None:
    """Give all lines of this process these facts, too."""
    _of_process.update(facts)


def of_process() -> Mapping[str, object]:
    """What `name_process` was given."""
    return _of_process


def _short(value: object, longest: int) -> object:
    match value:
        case str():
            return value[:longest]
        case Mapping():
            known = ((key, each) for key, each in value.items() if each is not None)
            return {str(key)[:longest]: _short(each, longest) for key, each in islice(known, _MOST)}
        case list() | tuple():
            return [_short(each, longest) for each in value[:_MOST]]
        case _:
            return value
