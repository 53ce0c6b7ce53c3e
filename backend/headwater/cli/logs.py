"""Logging of one process to stderr, as text for people or as one JSON object per line for machines."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import orjson

_CHATTY = ("asyncio", "httpx", "httpcore")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """Time (UTC), level, logger and message of a record; the trace of an exception under `trace`."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(entry).decode()


def set_up_logging(level: str = "INFO", form: str = "text") -> None:
    """Set up logging, replacing what an earlier call set up. `level` is one of Python's level names, `form` text or
    json."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(_TEXT))
    # py4j also logs a traceback on the root logger when its JVM has ended; its caller reports that
    handler.addFilter(lambda record: "py4j" not in record.pathname)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
