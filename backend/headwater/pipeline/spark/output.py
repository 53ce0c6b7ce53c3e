"""Logs what Spark's JVM writes to its standard error, in our own format.

`log4j2.properties` makes Spark mark each log line with its level and logger. All other lines come from the JVM itself,
from Spark's launcher or from a worker's traceback; they are logged as debug output.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque
from collections.abc import Iterable

from py4j.java_gateway import JavaGateway
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

_MARKED = re.compile(r"\x1e(\w+) (\S+) (.*)")
_LEVELS = {
    "FATAL": logging.CRITICAL, "ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO,
    "DEBUG": logging.DEBUG, "TRACE": logging.DEBUG,
}  # fmt: skip

_LAST_LINES = 10

_log = logging.getLogger("spark")


def launch_jvm(conf: SparkConf) -> JavaGateway:
    """Start the JVM of a driver, with its standard error in our log. When it ends at once, logs its last lines and
    raises PySparkException."""
    read, write = os.pipe()
    said: deque[str] = deque(maxlen=_LAST_LINES)
    thread = threading.Thread(target=_relay_pipe, args=(read, said), name="spark log", daemon=True)
    thread.start()
    try:
        return launch_gateway(conf, popen_kwargs={"stderr": write})  # type: ignore[no-untyped-call]
    except PySparkException:
        for line in tuple(said):
            _log.error("%s", line)
        raise
    finally:
        os.close(write)


def _relay_pipe(descriptor: int, said: deque[str]) -> None:
    with open(descriptor, encoding="utf-8", errors="replace") as stream:
        relay(stream, said)


def relay(lines: Iterable[str], said: deque[str]) -> None:
    """Log lines as they come. Lines that Spark did not mark are also added to `said`."""
    for text in lines:
        line = text.rstrip("\n")
        marked = _MARKED.fullmatch(line)
        if marked is not None:
            logging.getLogger(f"spark.{marked[2]}").log(_LEVELS.get(marked[1], logging.WARNING), "%s", marked[3])
        elif line.strip():
            said.append(line)
            _log.debug("%s", line)
