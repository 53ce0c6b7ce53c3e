"""Log lines as the service writes them: their words, then their facts."""

from __future__ import annotations

import logging

import pytest

from headwater.cli.watching import TextFormatter
from headwater.telemetry.log_facts import facts_of

_WHOLE = TextFormatter("%(levelname)-8s %(name)s:%(filename)s:%(lineno)d %(message)s")
_MESSAGE = TextFormatter("%(message)s")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """As ever, with the facts of lines in `text`."""
    caplog.handler.setFormatter(_WHOLE)
    return caplog


def line_of(record: logging.LogRecord) -> str:
    """The message and the facts of a record, as text."""
    return _MESSAGE.formatMessage(_with_message(record))


def facts_said(caplog: pytest.LogCaptureFixture, message: str) -> list[dict[str, object]]:
    """The facts of each line with this message."""
    return [facts_of(record) for record in caplog.records if record.getMessage() == message]


def _with_message(record: logging.LogRecord) -> logging.LogRecord:
    record.message = record.getMessage()
    return record
