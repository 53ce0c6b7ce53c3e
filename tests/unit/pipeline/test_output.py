"""What Spark's JVM says is in our log, in our form, and no trace of it at the usual level."""

from __future__ import annotations

import io
import logging
import sys
from collections import deque

import orjson
import pytest

from headwater.cli.watching import set_up_logging
from headwater.pipeline.spark.session import relay

SAID = """\
WARNING: Using incubator modules: jdk.incubator.vector
\x1eWARN Utils Your hostname resolves to a loopback address
\x1eERROR TaskSetManager Task 0 in stage 0.0 failed 4 times\\nTraceback (most recent call last):
Traceback (most recent call last):
  File "worker.py", line 1, in main
\x1eFATAL SparkContext no memory

"""


def logged(monkeypatch: pytest.MonkeyPatch, level: str, form: str) -> list[str]:
    stream = io.StringIO()
    root = logging.getLogger()
    before, was = root.handlers[:], root.level
    for handler in before:
        root.removeHandler(handler)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", stream)
            set_up_logging(level, form)
            relay(io.StringIO(SAID), deque())
    finally:
        root.handlers[:] = before
        root.setLevel(was)
    return stream.getvalue().splitlines()


def test_py4j_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would where a thread has ended: Python 3.13 then ends with a traceback."""
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.NOTSET)
    logged(monkeypatch, "DEBUG", "text")
    assert logging.getLogger("py4j").level == logging.WARNING


def test_text_form(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [line.split(" ", 2)[2] for line in logged(monkeypatch, "INFO", "text")]
    assert told == [
        "WARNING spark.Utils: Your hostname resolves to a loopback address",
        "ERROR spark.TaskSetManager: Task 0 in stage 0.0 failed 4 times\\nTraceback (most recent call last):",
        "CRITICAL spark.SparkContext: no memory",
    ]


def test_json_form(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [orjson.loads(line) for line in logged(monkeypatch, "ERROR", "json")]
    assert [(entry["level"], entry["logger"]) for entry in entries] == [
        ("error", "spark.TaskSetManager"),
        ("critical", "spark.SparkContext"),
    ]


def test_debug_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(logged(monkeypatch, "DEBUG", "text")) == 6
