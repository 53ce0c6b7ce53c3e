"""A log line in its two forms: fields for machines, words and JSON for people."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from headwater.cli.watching import JsonFormatter, TextFormatter
from headwater.telemetry.log_facts import log_extra, process_facts

STRANGE = 'a"\n\u2028\x1b[2J\ud800 é 😀'


def record(facts: dict[str, object], message: str = "sync stream closed") -> logging.LogRecord:
    made = logging.LogRecord("headwater.api", logging.INFO, __file__, 1, message, (), None)
    made.__dict__.update(log_extra(facts))
    return made


def as_json(made: logging.LogRecord) -> dict[str, object]:
    line = JsonFormatter().format(made)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    found: dict[str, object] = json.loads(line)
    return found


def test_facts_are_fields() -> None:
    entry = as_json(record({"user_id": "u1", "bytes": 7, "client_id": None, "user_agent": STRANGE}))
    assert entry.pop("time")
    assert entry == {
        "level": "info",
        "logger": "headwater.api",
        "message": "sync stream closed",
        "user_id": "u1",
        "bytes": 7,
        "user_agent": STRANGE,
    }


def test_facts_replace_no_field() -> None:
    entry = as_json(record({"message": "forged", "level": "debug"}, "refused"))
    assert (entry["message"], entry["level"]) == ("refused", "info")


def test_stream_of_a_replicator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(process_facts, "stream", "headwater_default_app_ee1c344f")
    assert as_json(record({}))["stream"] == "headwater_default_app_ee1c344f"


def test_trace_field() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        made = record({"request_id": "7"})
        made.exc_info = sys.exc_info()
    entry = as_json(made)
    assert entry["request_id"] == "7"
    assert "ValueError: broken" in str(entry["trace"])


def test_facts_in_text() -> None:
    line = TextFormatter("%(levelname)s %(message)s").format(record({"user_agent": STRANGE}))
    assert line.isascii()
    assert len(line.splitlines()) == 1
    words, _, facts = line.partition("{")
    assert words == "INFO sync stream closed "
    assert json.loads("{" + facts) == {"user_agent": STRANGE}
    assert TextFormatter("%(message)s").format(record({}, "ready")) == "ready"
