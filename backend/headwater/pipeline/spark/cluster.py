"""What tasks need on a cluster: a driver that executors reach, and a Python on their machines that has Headwater."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import sys
from collections.abc import Mapping

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from headwater.bulk.contract import EngineError

_PYTHON = "spark.pyspark.python"
_STANDALONE = "spark://"


class ExecutorError(EngineError):
    """The executors of a cluster can't run our tasks."""

    code = "HW_5107"


class NoExecutorsError(EngineError):
    """A cluster took all executors from our application, and gave it none for minutes: it has lost them, or a master
    that was started anew does not know the application. Another one is begun with the next attempt."""

    code = "HW_5108"


def lacks_executors(context: SparkContext | None) -> bool:
    """Whether an application runs that has none. False while it starts, which Spark itself gives up."""
    started = getattr(context, "_jsc", None)  # there is none at first
    if started is None:
        return False
    try:
        return len(started.sc().statusTracker().getExecutorInfos()) <= 1  # the driver counts as one
    except Exception:  # noqa: BLE001 - the JVM ends just now, where anything may be raised
        return False


def python_of_executors(conf: Mapping[str, str]) -> str:
    """The Python that executors start, by its path on their machines: as `conf` or PYSPARK_PYTHON says, else as the one
    that we run on."""
    return conf.get(_PYTHON) or os.environ.get("PYSPARK_PYTHON") or sys.executable


def address_towards(master: str) -> str | None:
    """The address of this machine on the way to a Spark master, where executors can reach us. None if the master does
    not say where it is. Spark itself would look the host name up, which in containers often leads nowhere."""
    if not master.startswith(_STANDALONE):
        return None
    host, _, port = master.removeprefix(_STANDALONE).split(",")[0].rpartition(":")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as way:
            way.connect(address)  # sends nothing
            return str(way.getsockname()[0])
    except OSError:  # Spark tells why the master can't be reached
        return None


def check_executors(context: SparkContext) -> None:
    """Run a trivial task on executors. Waits until there are some. Raises ExecutorError when they have no Headwater, or
    another one."""
    ours = importlib.metadata.version("headwater")
    tasks = context.defaultParallelism
    try:
        found = set(context.parallelize(range(tasks), tasks).map(_version).collect())
    except Py4JJavaError as error:
        raise _unfit(reason(str(error.java_exception.getMessage()))) from error
    if found != {ours}:
        raise _unfit(f"they have Headwater {', '.join(sorted(found))}, and this is {ours}")


def _version(_: int) -> str:
    return importlib.metadata.version("headwater")


def _unfit(why: str) -> ExecutorError:
    return ExecutorError(
        f"the executors can't run tasks: {why}",
        fix="give the machines of the cluster the Python and the Headwater of this one (docs/scaling.md)",
    )


def reason(text: str) -> str:
    """The line that says why, of what Spark says of a failed job."""
    _, traceback, told = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in (told if traceback else text).splitlines() if line.strip()]
    # the frames of a traceback are indented
    return next((line for line in lines if not (traceback and line[0].isspace())), "no reason given")
