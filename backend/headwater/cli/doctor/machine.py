"""Checks this machine: Java and Spark, the ports, the limit of open files."""

from __future__ import annotations

import http.client
import importlib.util
import json
import resource
import socket
from collections.abc import Iterator
from contextlib import closing

from headwater.api.http.server import AddressInUseError, bind, reachable_host
from headwater.cli.doctor.result import Level, Result, of_error, ok
from headwater.cli.workers import listening_at
from headwater.config.model import ServiceConfig
from headwater.embedded.extras import how_to_add
from headwater.embedded.java import NoJava, java_home
from headwater.pipeline.settings import SparkSettings

_ANSWER_SECONDS = 3.0
_PROBE = {"ready", "started", "touched_at"}
_CODES = ("PSYNC_", "HW_")
_OTHER_FILES = 256


def check_spark(settings: SparkSettings) -> Iterator[Result]:
    """Whether bulk work can run from here. An endpoint alone needs none of it."""
    if importlib.util.find_spec("pyspark") is None:
        what = "Spark is not installed: enough for `headwater api`, not for `serve` and `replicate`"
        yield Result("spark", Level.WARN, what, how_to_add("spark"))
        return
    try:
        yield ok("spark", f"Java in {java_home()}")
    except NoJava as error:
        yield of_error("spark", error)
    if settings.master.startswith("spark://"):
        yield from map(_spark_master, settings.master.removeprefix("spark://").split(","))


def _spark_master(address: str) -> Result:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        fix = "start it, or correct spark.master"
        return Result("spark", Level.FAIL, f"the Spark master at {address} does not answer: {error}", fix)
    return ok("spark", f"the Spark master at {address} answers")


def check_ports(config: ServiceConfig, *, running: bool) -> Iterator[Result]:
    """Whether each port is free, or a Headwater answers there: this one, if its store has a replicator that is
    `running`."""
    for host, port, setting in listening_at(config):
        yield _port(host, port, setting, running=running)


def _port(host: str, port: int, setting: str, *, running: bool) -> Result:
    try:
        bind(host, port, setting).close()
    except AddressInUseError as error:
        if _is_ours(reachable_host(host), port):
            if running:
                return ok("ports", f"{port}: a Headwater answers there")
            fix = f"stop it if it serves something else, or set another {setting}"
            return Result("ports", Level.WARN, f"{port}: a Headwater already answers there", fix)
        return of_error("ports", error)
    return ok("ports", f"{port} is free")


def _is_ours(host: str, port: int) -> bool:
    """Whether probes or metrics of a Headwater are answered there."""
    probe = _get(host, port, "/probes/startup")
    if not probe:
        return False
    try:
        answer = json.loads(probe)
        if {*answer} >= _PROBE:
            return True
        return str(answer["error"]["code"]).startswith(_CODES)  # where no probes are served
    except (ValueError, TypeError, KeyError):
        return b"\nheadwater_" in _get(host, port, "/metrics")


def _get(host: str, port: int, path: str) -> bytes:
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=_ANSWER_SECONDS)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read(1 << 20)
    except (OSError, http.client.HTTPException):
        return b""


def check_files(config: ServiceConfig) -> Iterator[Result]:
    """Each connection of a device is an open file."""
    wanted = config.api.http.max_connections + _OTHER_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        what = f"a process may open {hard:,} files, and the configured connections need {wanted:,}"
        yield Result("machine", Level.WARN, what, "raise it (ulimit -Hn), or set api.http.max_connections lower")
    else:
        yield ok("machine", "a process may open as many files as the configured connections need")
