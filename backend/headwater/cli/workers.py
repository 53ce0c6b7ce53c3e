"""Several processes of the endpoint on the same ports, among which the kernel divides connections.

Their parent keeps the ports, and a directory in which each has a Unix socket, where the others ask what only it knows.
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from headwater.api.http.server import Shared, bind
from headwater.cli.config import ServiceConfig
from headwater.cli.supervise import Child

WORKER = "HEADWATER_WORKER"
"""Set in the environment of a worker: its number, how many there are, the ports, and the directory."""

METRICS_PORT = "telemetry.prometheus_port"

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_MEMORY = Path("/sys/fs/cgroup/memory.max")
_LONGEST_PLACE = 60  # with the names of a directory and of a socket, less than the 104 that macOS allows
_MOST = 4  # unless configured: each takes memory, and connections to the source
_WORKER_BYTES = 256 * 1024 * 1024  # with its chunk cache and some thousands of devices

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Worker:
    """One of several processes of the endpoint, numbered from 1. `ports` are those of `listening_at`, of which 0 is now
    one that is free. `directory` is for their sockets."""

    number: int
    of: int
    directory: Path
    ports: tuple[int, ...]


def worker_count(config: ServiceConfig) -> int:
    """How many processes serve devices: as configured, or one for each core but one, as far as memory goes. By default
    one if other machines reach the store: more endpoints are started there instead."""
    if config.api.workers is not None:
        return config.api.workers
    # not on macOS, where the kernel gives all connections to one of them
    return most_workers() if sys.platform == "linux" and config.storage.one_machine else 1


def most_workers(quota: Path = _QUOTA, memory: Path = _MEMORY) -> int:
    """How many processes suit this machine. `quota` and `memory` are the files of the control group's
    limits."""
    return max(1, min(usable_cores(quota) - 1, _MOST, _room(memory)))


def _room(memory: Path) -> int:
    """How many processes the control group has memory for."""
    try:
        return int(memory.read_text(encoding="ascii")) // _WORKER_BYTES
    except (OSError, ValueError):  # no limit, which is written "max"
        return _MOST


def usable_cores(quota: Path = _QUOTA) -> int:
    """How many cores this process may use: fewer than the machine has where a container limits it. At least 1.
    `quota` is the file of the control group's limit, such as `200000 100000` for two cores."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        allowed = os.cpu_count() or 1
    try:
        most, period = quota.read_text(encoding="ascii").split()
        limited = allowed if most == "max" else int(most) // int(period)
    except (OSError, ValueError, ZeroDivisionError):
        limited = allowed
    return max(1, min(allowed, limited))


def this_worker() -> Worker | None:
    """Which worker this process is; None if it is the only process of its endpoint."""
    variable = os.environ.pop(WORKER, None)
    if variable is None:
        return None
    number, of, ports, directory = variable.split(":", 3)
    return Worker(int(number), int(of), Path(directory), tuple(map(int, ports.split(","))))


def listening_at(config: ServiceConfig) -> list[tuple[str, int, str]]:
    """Host, port and setting of all that an endpoint listens at: for devices, for operators and for metrics."""
    every = (
        (config.host, config.port, "port"),
        (config.api.admin_host or config.host, config.api.admin_port, "api.admin_port"),
        (config.metrics_host, config.prometheus_port, METRICS_PORT),
    )
    return [(host, port, setting) for host, port, setting in every if port is not None]


def answer_at(host: str, port: int, path: str, seconds: float) -> bytes | None:
    """The body that HTTP gets at a port; None where nobody answers in time."""
    try:
        with closing(http.client.HTTPConnection(host, port, timeout=seconds)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read(1 << 20)
    except (OSError, http.client.HTTPException):
        return None


def raise_if_in_use(config: ServiceConfig) -> None:
    """Raise AddressInUseError when the endpoint can't listen at all of its ports: before anything else is begun."""
    with ExitStack() as stack:
        for host, port, setting in listening_at(config):
            stack.enter_context(bind(host, port, setting))


@contextmanager
def endpoint_children(
    config: ServiceConfig, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[list[Child]]:
    """The processes of an endpoint, each with this command. Their ports are kept while the context is open. Raises
    AddressInUseError."""
    count = worker_count(config)
    if count == 1:
        yield [Child("endpoint", command, environment)]
        return
    with ExitStack() as stack:
        directory = _directory(stack)
        ports = ",".join(str(_keep(stack, *each)) for each in listening_at(config))
        yield [
            Child(
                f"endpoint {number} of {count}",
                command,
                {**environment, WORKER: f"{number}:{count}:{ports}:{directory}"},
            )
            for number in range(1, count + 1)
        ]


def _directory(stack: ExitStack) -> str:
    """A new directory, whose path is short enough for sockets in it. If none can be made, a place that takes none."""
    try:
        place = tempfile.gettempdir()
        short = place if len(os.fsencode(place)) <= _LONGEST_PLACE else "/tmp"  # noqa: S108 - only for us
        return stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-", dir=short))
    except OSError as error:
        _log.warning("the processes of the endpoint can't ask each other: %s", error)
        return os.devnull


def _keep(stack: ExitStack, host: str, port: int, setting: str) -> int:
    """Bind a port without listening, so that it stays ours while no worker listens. Returns which it is."""
    with bind(host, port, setting) as alone:  # fails if another service listens, which a shared socket would not
        free: int = alone.getsockname()[1]
    kept = stack.enter_context(bind(host, free, setting, shared=Shared.KEPT))
    taken: int = kept.getsockname()[1]
    return taken
