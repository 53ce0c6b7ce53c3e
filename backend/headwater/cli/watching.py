"""Sets up the log and the traces of a process."""

from __future__ import annotations

import json
import logging
import sys
from contextlib import AbstractContextManager, closing, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headwater.telemetry.log_facts import facts_of, process_facts, source_name

if TYPE_CHECKING:
    from headwater.cli.config import ServiceConfig
    from headwater.telemetry.traces import Traces

# py4j logs where a thread has ended already, which Python 3.13 complains about when it ends itself
_CHATTY = ("asyncio", "httpx", "httpcore", "urllib3", "py4j")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class TextFormatter(logging.Formatter):
    """The message of a record, then its facts as JSON."""

    def __init__(self, form: str = _TEXT) -> None:
        super().__init__(form)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - as in logging
        words, facts = super().formatMessage(record), facts_of(record)
        if source := source_name.get():
            words = f"{words} (source {source})"
        return f"{words} {json.dumps(facts)}" if facts else words  # ASCII: untrusted values can't break the line


class JsonFormatter(logging.Formatter):
    """Time (UTC), level, logger and message of a record, then its facts, its source, and the facts of the process; the
    trace of an exception under `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        source = {"source": name} if (name := source_name.get()) else {}
        return json.dumps({**process_facts, **source, **facts_of(record), **entry}, default=str)


def set_up_logging(level: str = "INFO", form: str = "text") -> None:
    """Set up logging, replacing what an earlier call set up. `level` is one of Python's level names, `form` text or
    json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    # py4j also logs a traceback on the root logger when its JVM has ended; its caller reports that
    handler.addFilter(lambda record: "py4j" not in record.pathname)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


def traces_of(config: ServiceConfig) -> AbstractContextManager[Traces | None]:
    """The traces, closed at the end of the context; None when they are off. Raises ModuleNotFoundError when they are on
    and OpenTelemetry is not installed."""
    if config.traces is None:
        return nullcontext()
    from headwater.telemetry.traces import Traces

    return closing(Traces(config.traces))
