"""The first sync of a large bucket by the Python client, beside the stock Node SDK on the same server."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.bench import data, report
from tests.bench.service import BenchService, Meter, bench_service
from tests.support.fix_devices import DeviceFactory, Sdk
from tests.support.fix_service import token_for

_SCHEMA = {"items": {"owner": "text", "title": "text", "done": "integer", "n": "integer", "created_at": "text"}}
_SECONDS = 1800.0


def run(rows: int) -> None:
    with bench_service(fsync="off") as service, tempfile.TemporaryDirectory() as folder:
        service.serve_ready(
            data.STREAMS, data.TABLE, data.insert(rows, owners=1), "create publication headwater for table items"
        )
        report.heading(f"first sync of one device, {rows:,} rows of one bucket")
        _measure(service, Path(folder), "python", rows)  # so that the service has its caches filled for both
        node = _measure(service, Path(folder), "node", rows)
        python = _measure(service, Path(folder), "python", rows, yardstick=node)
        report.line("python: rows per second", python, "rows/s", "node", node)


def _measure(service: BenchService, folder: Path, sdk: Sdk, rows: int, yardstick: float | None = None) -> float:
    """Sync once, on a new file; rows per second."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir=folder) as own:
        device = DeviceFactory(Path(own), stack)(f"http://127.0.0.1:{service.port}", token_for("u0"), _SCHEMA, sdk=sdk)
        with Meter(device.process.pid).measure() as usage:
            device.connect()
            device.wait_synced(deadline=_SECONDS)
        assert device.query("select count(*) as n from items") == [{"n": rows}]
    print(f"  {sdk}: {usage.seconds:.1f} s, {usage.cpu:.1f} s of CPU, {usage.peak / 1e6:.0f} MB at most")
    return rows / usage.seconds
