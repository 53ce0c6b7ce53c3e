"""Many devices of the Python client in one process: their first sync, what they take idle, and a commit for all."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Final, Literal

from tests.bench import data, report
from tests.bench.load import NOTICES, STREAMS
from tests.bench.service import BenchService, Meter, bench_service, resident
from tests.support.fix_service import token_for
from tests.support.many_devices import ManyDevices

DEVICES: Final = 50
COMMITS: Final = 10
_IDLE_SECONDS: Final = 10.0
_TRANSPORTS: Final[tuple[Literal["http", "websocket"], ...]] = ("http", "websocket")


def run(rows: int) -> None:
    """So many rows for each of the devices."""
    with bench_service(fsync="off") as service:
        publication = "create publication headwater for table items, notices"
        service.serve_ready(STREAMS, data.TABLE, NOTICES, data.insert(rows * DEVICES, owners=DEVICES), publication)
        for transport in _TRANSPORTS:
            report.heading(f"{DEVICES} devices in one process over {transport}, {rows:,} rows for each")
            with tempfile.TemporaryDirectory() as folder:
                _measure(service, Path(folder), transport, rows)


def _measure(service: BenchService, folder: Path, transport: Literal["http", "websocket"], rows: int) -> None:
    tokens = [token_for(f"u{number}") for number in range(DEVICES)]
    with ManyDevices(folder, f"http://127.0.0.1:{service.port}", tokens, transport) as devices:
        devices.open()
        meter, before = Meter(devices.pid), resident(devices.pid)
        with meter.measure() as usage:
            devices.connect()
            devices.wait_synced(seconds=600)
        report.line("first syncs, all at once", rows * DEVICES / usage.seconds, "rows/s")
        report.usage(usage, rows * DEVICES / 1e6)
        report.line("memory of a device, connected", (resident(devices.pid) - before) / DEVICES / 1e6, "MB")
        with meter.measure() as usage:
            time.sleep(_IDLE_SECONDS)
        report.line("CPU of a device that waits", usage.cpu / _IDLE_SECONDS / DEVICES * 1e6, "us/s")
        _commits(service, devices, meter)


def _commits(service: BenchService, devices: ManyDevices, meter: Meter) -> None:
    """One row for everybody, a few times."""
    first, last = [], []
    with meter.measure() as usage:
        for _ in range(COMMITS):
            service.execute("insert into notices (text) values ('a word to all')")
            committed = time.time()
            heard = devices.wait_synced(since=committed)
            first.append(min(heard) - committed)
            last.append(max(heard) - committed)
    report.line("commit to the first device", report.percentile(first, 0.5) * 1000, "ms")
    report.line("commit to the last", report.percentile(last, 0.5) * 1000, "ms")
    report.line("  CPU a device", usage.cpu / COMMITS / DEVICES * 1e6, "us")
