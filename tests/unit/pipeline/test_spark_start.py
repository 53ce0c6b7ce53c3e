"""What Spark is started with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import pytest
from py4j.java_gateway import JavaGateway
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException

import headwater.pipeline.spark.session
from headwater.bulk.contract import EngineError
from headwater.embedded.java import java_home
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.session import Spark, reason

Started = Callable[..., dict[str, str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """`started(settings)` is the environment that Spark's JVM would get, and its own options as `of the driver`."""

    def start(settings: SparkSettings, **variables: str) -> dict[str, str]:
        seen: list[dict[str, str]] = []

        def launched(conf: SparkConf) -> JavaGateway:
            seen.append({**os.environ, "of the driver": conf.get("spark.driver.extraJavaOptions") or ""})
            raise PySparkException("not in this test")

        clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        monkeypatch.setattr(os, "environ", {**clean, **variables})
        monkeypatch.setattr(SparkContext, "_gateway", None)
        monkeypatch.setattr(headwater.pipeline.spark.session, "launch_jvm", launched)
        with pytest.raises(EngineError):
            Spark(settings).context()
        return seen[0]

    return start


@pytest.mark.parametrize("place", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "conf"])
def test_chosen_garbage_collector(started: Started, place: str) -> None:
    """A JVM does not start with two."""
    assert "GC" in started(SparkSettings("local[2]"), JDK_JAVA_OPTIONS="")["of the driver"]
    chosen = "-Xlog:gc -XX:+UseParallelGC"
    if place == "conf":
        conf = {"spark.driver.defaultJavaOptions": chosen}
        found = started(SparkSettings("local[2]", conf=conf), JDK_JAVA_OPTIONS="")
    else:
        found = started(SparkSettings("local[2]"), **{"JDK_JAVA_OPTIONS": "", place: chosen})
    assert "GC" not in found["of the driver"]


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("local[2]", "127.0.0.1"),
        ("spark://127.0.0.1:7077", "127.0.0.1"),
        ("spark://localhost:7077,elsewhere.invalid:7077", "127.0.0.1"),
        ("spark://elsewhere.invalid:7077", None),
        ("k8s://https://127.0.0.1:443", None),
    ],
)
def test_driver_address(started: Started, master: str, address: str | None) -> None:
    """On the way to the master; where that is not known, Spark finds out."""
    assert started(SparkSettings(master)).get("SPARK_LOCAL_IP") == address
    assert started(SparkSettings(master), SPARK_LOCAL_IP="192.0.2.1")["SPARK_LOCAL_IP"] == "192.0.2.1"


def test_python_of_executors(started: Started) -> None:
    conf, variable = {"spark.pyspark.python": "/opt/worker/python"}, {"PYSPARK_PYTHON": "/opt/other/python"}
    cluster = "spark://127.0.0.1:7077"
    assert started(SparkSettings(cluster))["PYSPARK_PYTHON"] == sys.executable
    assert started(SparkSettings(cluster), **variable)["PYSPARK_PYTHON"] == "/opt/other/python"
    assert started(SparkSettings(cluster, conf), **variable)["PYSPARK_PYTHON"] == "/opt/worker/python"
    assert started(SparkSettings(conf=conf), **variable)["PYSPARK_PYTHON"] == sys.executable, "they are ours here"


def test_java_of_the_driver(started: Started) -> None:
    assert started(SparkSettings("spark://127.0.0.1:7077"), JAVA_HOME="/nowhere")["JAVA_HOME"] == str(java_home())


_FAILED = """Job aborted due to stage failure: Task 0 failed 4 times: org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/opt/spark/worker.py", line 1, in main
    process()
ModuleNotFoundError: No module named 'headwater'

\tat org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (_FAILED.replace("\\\n", ""), "ModuleNotFoundError: No module named 'headwater'"),
        ("\nNo space left on device\n\tat java.io", "No space left on device"),
        ("Traceback (most recent call last):\n", "no reason given"),
        ("", "no reason given"),
    ],
)
def test_reason(text: str, why: str) -> None:
    assert reason(text) == why
