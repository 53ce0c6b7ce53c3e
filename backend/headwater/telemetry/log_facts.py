"""Facts of a log line: fields beside its message, as JSON fields for machines and as JSON text for people."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from itertools import islice

_ATTRIBUTE = "facts"
_LONGEST = 300  # characters of a fact: untrusted clients choose paths, names of fields and user agents
_SHORTEST = 30  # characters of a fact if the line is too long nevertheless: escaped, a character takes up to 12 bytes
_MOST = 20  # entries of a fact that is a list or a mapping
_LINE = 8000

process_facts: dict[str, object] = {}
"""Fields of all log lines of the process."""

source_name: ContextVar[str] = ContextVar("source_name", default="")
"""The source that a line is about, where a process follows several."""


def thread_beside(run: Callable[[], None], name: str) -> threading.Thread:
    """A thread, not started yet, whose log lines name the same source as those of the thread that makes it."""
    return threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True)


def log_extra(facts: Mapping[str, object]) -> dict[str, object]:
    """The facts as `extra` of a logging call. Leaves out None, and cuts long values."""
    short = _short(facts, _LONGEST)
    return {_ATTRIBUTE: short if len(json.dumps(short)) <= _LINE else _short(facts, _SHORTEST)}


def facts_of(record: logging.LogRecord) -> dict[str, object]:
    facts: dict[str, object] = getattr(record, _ATTRIBUTE, {})
    return facts


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
