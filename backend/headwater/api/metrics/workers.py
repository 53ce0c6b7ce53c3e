"""The metrics of several processes of one endpoint on one page, with the label `worker`.

Prometheus reaches any of them, which asks all of them over Unix sockets.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

WAIT_SECONDS = 2.0
"""How long a process is waited for. The page lacks one that is not ready, or hangs."""

_log = logging.getLogger(__name__)


class _Teller(socketserver.ThreadingUnixStreamServer):
    """Tells everybody who connects the metrics of a registry, as text."""

    daemon_threads = True

    def __init__(self, path: Path, registry: CollectorRegistry) -> None:
        self.registry = registry
        path.unlink(missing_ok=True)  # of the process that had this number before
        super().__init__(str(path), _Telling)


class _Telling(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Teller)
        self.request.sendall(generate_latest(self.server.registry))


@contextmanager
def telling(directory: Path, number: int, *collectors: Collector) -> Iterator[None]:
    """Tell the other processes the metrics of this one, while the context is open."""
    registry = CollectorRegistry()
    for each in collectors:
        registry.register(each)
    with _Teller(_place(directory, number), registry) as server:
        thread = threading.Thread(target=server.serve_forever, name="headwater-figures", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True, eq=False)
class WorkersCollector(Collector):
    """Asks all processes from 1 to `count`, this one included, for their metrics."""

    directory: Path
    count: int

    def describe(self) -> list[Metric]:
        """Return nothing: registration would ask all processes."""
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for number in range(1, self.count + 1):
            for found in text_string_to_metric_families(_told(_place(self.directory, number))):
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                family.samples += [_labelled(sample, number) for sample in found.samples]
        yield from families.values()


def _labelled(sample: Sample, number: int) -> Sample:
    return Sample(sample.name, {**sample.labels, "worker": str(number)}, sample.value)


def _told(place: Path) -> str:
    received = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(WAIT_SECONDS)
            asked.connect(str(place))
            while part := asked.recv(1 << 16):
                received += part
    except OSError as error:  # also a time-out
        _log.warning("metrics lack a process of the endpoint: %s (%s)", place.stem, error)
        return ""
    return received.decode()


def _place(directory: Path, number: int) -> Path:
    return directory / f"worker-{number}.sock"
