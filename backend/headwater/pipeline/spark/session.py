"""Starts Spark, once per process, in the background, and keeps it running.

Most jobs need only a SparkContext, which starts twice as fast as a session for DataFrames. The session is made when it
is first needed. What the JVM writes to its standard error is logged in our own format: `log4j2.properties` makes Spark
mark each log line with its level and logger; all other lines come from the JVM itself, from Spark's launcher or from a
worker's traceback, and are logged as debug output. On a cluster, executors have to reach the driver, and need a Python
that has Headwater.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import pwd
import re
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from importlib import resources

from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from headwater.bulk.contract import EngineError, EngineLostError
from headwater.embedded.java import java_home
from headwater.errors import HeadwaterError
from headwater.pipeline.settings import SparkSettings

_MARKED = re.compile(r"\x1e(\w+) (\S+) (.*)")
_LEVELS = {
    "FATAL": logging.CRITICAL, "ERROR": logging.ERROR, "WARN": logging.WARNING, "INFO": logging.INFO,
    "DEBUG": logging.DEBUG, "TRACE": logging.DEBUG,
}  # fmt: skip

_LAST_LINES = 10

_spark_log = logging.getLogger("spark")


def launch_jvm(conf: SparkConf) -> JavaGateway:
    """Start the JVM of a driver, with its standard error in our log. When it ends at once, logs its last lines and
    raises PySparkException."""
    read, write = os.pipe()
    said: deque[str] = deque(maxlen=_LAST_LINES)
    thread = threading.Thread(target=_relay_pipe, args=(read, said), name="spark log", daemon=True)
    thread.start()
    try:
        with ThreadPoolExecutor(1) as pool:  # a thread of Linux has a priority of its own, which its children inherit
            return pool.submit(_launch_gateway, conf, write).result()
    except PySparkException:
        for line in tuple(said):
            _spark_log.error("%s", line)
        raise
    finally:
        os.close(write)


_NICE = 10
"""How much lower the priority of a local Spark is: changes of rows go before bulk work, which takes all cores."""


def _launch_gateway(conf: SparkConf, errors: int) -> JavaGateway:
    if sys.platform == "linux" and conf.get("spark.master", "").startswith("local"):
        os.nice(_NICE)
    return launch_gateway(conf, popen_kwargs={"stderr": errors})  # type: ignore[no-untyped-call]


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
            _spark_log.debug("%s", line)


_PYTHON = "spark.pyspark.python"
_STANDALONE = "spark://"


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
    except OSError:  # Spark reports why the master can't be reached
        return None


def check_executors(context: SparkContext) -> None:
    """Run a trivial task on executors. Waits until there are some. Raises EngineError when they have no Headwater, or
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


def _unfit(why: str) -> EngineError:
    return EngineError(
        f"the executors can't run tasks: {why}",
        code="HW_5107",
        fix="give the machines of the cluster the Python and the Headwater of this one (docs/scaling.md)",
    )


def reason(text: str) -> str:
    """The line of Spark's report on a failed job that has the reason."""
    _, traceback, rest = text.partition("Traceback (most recent call last):\n")
    lines = [line for line in (rest if traceback else text).splitlines() if line.strip()]
    # the frames of a traceback are indented
    return next((line for line in lines if not (traceback and line[0].isspace())), "no reason given")


_log = logging.getLogger(__name__)


_DEFAULTS = {
    "spark.app.name": "headwater",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
}

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_SMALL_JVM = "-XX:TieredStopAtLevel=1 -Xms64m"
"""The work is done in Python, and rows pass the JVM as bytes: what it does is over before its second compiler pays."""
_PLAIN_COLLECTOR = " -XX:+UseSerialGC"
"""A heap that starts small, collected in the plain way, takes a third less memory and no more time."""

_A_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_JVM_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_SHUFFLES = "spark.sql.shuffle.partitions"
_SHUFFLES_A_CORE = 2


_ALONE_SECONDS = 300.0  # longer than a cluster needs to add machines
_DEATH_SECONDS = 5.0
_END_SECONDS = 20.0
_LOOK_SECONDS = 1.0
_START_TIMES = {True: "5 to 15 seconds, longer on a busy machine", False: "as long as the cluster needs"}


class Spark:
    """Starts when first used, or earlier by `warm_up`; `starting` is true meanwhile. Ends when nobody used it for as
    long as the settings say, which gives its memory back, and starts again when it is used next. Ends also when
    nothing runs although it is used, since its cluster has had no executors for `alone_seconds`."""

    def __init__(self, settings: SparkSettings, alone_seconds: float = _ALONE_SECONDS) -> None:
        self._settings = settings
        self._alone_seconds = alone_seconds
        self._alone = False
        self._lock = threading.Lock()
        self._context: SparkContext | None = None
        self._session: SparkSession | None = None
        self._users = 0
        self._idle: threading.Timer | None = None
        self.starting = False

    @property
    def local(self) -> bool:
        return self._settings.local

    @property
    def runs_queries(self) -> bool:
        """Whether it may run queries of sync configs."""
        return self._settings.queries

    def warm_up(self) -> None:
        """Begin to start in the background. Raises what `java_home` raises; other errors are raised at the first
        use."""
        java_home()
        threading.Thread(target=self._start_quietly, name="spark", daemon=True).start()

    def _start_quietly(self) -> None:
        try:
            with self.used():
                return
        except HeadwaterError as error:
            _log.warning("Spark could not be started ahead of its use: %s", error)

    @contextmanager
    def used(self) -> Iterator[SparkContext]:
        """The context for some work, during which Spark does not count as idle. Raises what `context` raises;
        another EngineError where that was for want of executors."""
        with self._lock:
            self._users += 1
            self._wait_no_longer()
        over = threading.Event()
        if not self.local:
            threading.Thread(target=self._end_when_alone, args=(over,), name="executors", daemon=True).start()
        try:
            yield self.context()
        except EngineLostError as error:
            if self._alone:
                raise self._none_came() from error
            raise
        finally:
            over.set()
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._context is not None:
                    self._end_when_idle()

    def context(self) -> SparkContext:
        """The SparkContext; a new one if its JVM has ended. Raises EngineError, or what `java_home` raises, when Spark
        can't be started; EngineLostError when the JVM was killed during its start."""
        with self._lock:
            if _ended():  # perhaps before there was a context
                if self._context is not None:
                    _log.warning("Spark's JVM has ended; it is started again")
                self._context = self._session = None
                _forget()
            elif self._context is not None and _stopped(self._context):
                _log.warning("the cluster has ended Spark's application; it is started again")
                self._end_jvm()
            if self._context is None:
                self._context = self._started()
            return self._context

    def session(self) -> SparkSession:
        """The session for DataFrames, on the same context. Raises what `context` raises."""
        context = self.context()
        with self._lock, self._start_errors():
            self._session = SparkSession.builder.getOrCreate()
            if _SHUFFLES not in self._settings.conf:
                # Spark's 200 for any cluster take half a second each on a core, however few rows there are
                self._session.conf.set(_SHUFFLES, _SHUFFLES_A_CORE * context.defaultParallelism)
            return self._session

    def lost(self, context: SparkContext, *, wait: bool) -> bool:
        """Whether the JVM of a context has ended. With `wait`, gives it some seconds to end: a killed process closes
        its connections before its end can be seen."""
        process = _jvm()
        if wait and process is not None and self._context is context:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_DEATH_SECONDS)
        return self._context is not context or _ended() or _stopped(context)

    def cancel(self) -> None:
        """Kill the JVM, from another thread: a call into it that hangs (its start, a planning step) can't be cancelled
        otherwise. The thread that waits for it gets an error."""
        process = _jvm()
        if process is not None:
            process.kill()

    def stop(self) -> None:
        with self._lock:
            self._wait_no_longer()
            self._stop()

    def _stop(self) -> None:
        if self._context is None:
            return
        try:
            (self._session or self._context).stop()
        except (PySparkException, Py4JError, OSError) as error:
            _log.debug("Spark was gone already: %s", type(error).__name__)
        self._context = self._session = None

    def _end_when_alone(self, over: threading.Event) -> None:
        """Until `over` is set, watch whether there still are executors. For the first ones we wait as long as the
        cluster needs."""
        seen = time.monotonic()
        while not over.wait(_LOOK_SECONDS):
            if self.starting or not lacks_executors(SparkContext._active_spark_context):
                seen = time.monotonic()
            elif time.monotonic() - seen > self._alone_seconds:
                self._alone = True
                self.cancel()
                return

    def _none_came(self) -> EngineError:
        return EngineError(
            f"the cluster gave no executor for {self._alone_seconds:.0f} s",
            f"master {self._settings.master}",
            "check that workers run and have free cores and memory; the next attempt registers a new application",
            code="HW_5108",
        )

    def _end_when_idle(self) -> None:
        seconds = self._settings.idle_seconds
        if seconds is not None:
            self._idle = threading.Timer(seconds, self._end_if_idle)
            self._idle.daemon = True
            self._idle.start()

    def _wait_no_longer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _end_if_idle(self) -> None:
        """End Spark with its JVM, whose memory only its end gives back."""
        with self._lock:
            if self._users or self._context is None or self._idle is not threading.current_thread():
                return
            self._idle = None
            _log.info("Spark had nothing to do for %g minutes and is ended", self._settings.idle_minutes)
            self._end_jvm()

    def _end_jvm(self) -> None:
        process = _jvm()
        self._stop()
        _forget()
        if process is not None:
            _end(process)

    def _started(self) -> SparkContext:
        """Start a context, and log how long that takes."""
        began = time.monotonic()
        _log.info("starting Spark (%s), which takes %s", self._settings.master, _START_TIMES[self._settings.local])
        self.starting, self._alone = True, False
        try:
            context = self._start()
            if not self._settings.local:
                self._check(context)
        finally:
            self.starting = False
        _log.info("Spark is ready after %.1f s", time.monotonic() - began)
        return context

    def _check(self, context: SparkContext) -> None:
        """Raise EngineError when the cluster can't run our tasks, and end the application: that may be repaired."""
        try:
            with self._start_errors():
                check_executors(context)
        except HeadwaterError:
            self._context = context
            self._end_jvm()
            raise

    def _start(self) -> SparkContext:
        _check_user()
        os.environ["JAVA_HOME"] = str(java_home())
        if self._settings.local:
            os.environ["PYSPARK_PYTHON"] = sys.executable
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        else:
            os.environ["PYSPARK_PYTHON"] = python_of_executors(self._settings.conf)
            if (address := address_towards(self._settings.master)) is not None:
                os.environ.setdefault("SPARK_LOCAL_IP", address)
        log4j = resources.files(__package__).joinpath("log4j2.properties")
        options = f"-Dlog4j2.configurationFile=file:{log4j}"
        if self._settings.local:
            options += f" {_small_jvm(self._settings.conf)}"
        ours = {**_DEFAULTS, "spark.driver.extraJavaOptions": options, **(_LOCAL if self._settings.local else {})}
        conf = {**ours, **self._settings.conf}
        master = "local[*,4]" if self._settings.master == "local[*]" else self._settings.master  # retry failed tasks
        for server in (AccumulatorTCPServer, AccumulatorUnixServer):
            # Else Spark's thread would print a traceback when the JVM is killed
            setattr(server, "handle_error", lambda *_: None)  # noqa: B010 - mypy refuses the assignment
        with self._start_errors():
            if SparkContext._gateway is None:
                gateway = launch_jvm(SparkConf(loadDefaults=False).setAll([("spark.master", master), *conf.items()]))
                SparkContext._ensure_initialized(gateway=gateway)
            return SparkContext.getOrCreate(SparkConf().setMaster(master).setAll(list(conf.items())))

    @contextmanager
    def _start_errors(self) -> Iterator[None]:
        try:
            yield
        except HeadwaterError:
            raise
        except Exception as error:  # when the JVM is gone, PySpark raises any exception
            if _killed():
                raise EngineLostError("Spark's JVM was killed", fix="it is started again") from error
            raise EngineError(
                f"Spark does not start: {type(error).__name__}",
                f"master {self._settings.master}",
                "check spark.master and spark.conf, and that Java 17 to 25 runs here",
                code="HW_5102",
            ) from error


def _check_user() -> None:
    """Raise EngineError where Java would not start Spark, and not say why: no environment variable stands in for the
    name of its user."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        what = "Spark does not start: the user that runs Headwater has no name"
        fix = "add it to /etc/passwd (hw:x:UID:0::/tmp:/sbin/nologin), or run Headwater as a user who has one"
        raise EngineError(what, f"uid {os.geteuid()}", fix, code="HW_5102") from None


def _jvm() -> subprocess.Popen[bytes] | None:
    """The JVM, if this process started one."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process if isinstance(process, subprocess.Popen) else None


def _ended() -> bool:
    process = _jvm()
    return process is not None and process.poll() is not None


def _stopped(context: SparkContext) -> bool:
    """Whether Spark has stopped it: the cluster ended the application, or its master stayed away."""
    try:
        return context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JError, OSError):  # the JVM ends just now
        return True


def _killed() -> bool:
    """Whether a signal ended the JVM. With wrong settings, it ends by itself."""
    process = _jvm()
    if process is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.5)
    return process.returncode is not None and process.returncode < 0


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a JVM whose input was closed, which makes it end, and kill it if it does not."""
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _forget() -> None:
    """Clear PySpark's state of a JVM that has ended. Spark's own `stop` would call the JVM, and keep its address."""
    process = _jvm()
    if process is not None and process.stdin is not None:
        process.stdin.close()
    context = SparkContext._active_spark_context
    if context is not None:
        context._accumulatorServer.shutdown()
        context._jsc = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


def _small_jvm(conf: Mapping[str, str]) -> str:
    """The options of a small JVM. It does not start with two collectors, of which the user may have named one."""
    others = (conf.get("spark.driver.defaultJavaOptions", ""), *(os.environ.get(name, "") for name in _JVM_OPTIONS))
    return _SMALL_JVM if any(map(_A_COLLECTOR.search, others)) else _SMALL_JVM + _PLAIN_COLLECTOR
