"""The first sync of a large bucket by the Python client, beside the stock Node SDK on the same server."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.bench import data, report
from tests.bench.world import Meter, World, world
from tests.support.fix_devices import DeviceFactory, Sdk

_SCHEMA = {"items": {"owner": "text", "title": "text", "done": "integer", "n": "integer", "created_at": "text"}}
_SECONDS = 1800.0


def run(rows: int) -> None:
    with world(fsync="off") as place, tempfile.TemporaryDirectory() as folder:
        place.execute(data.TABLE, data.insert(rows, owners=1), "create publication headwater for table items")
        place.serve(data.STREAMS)
        place.wait_ready()
        report.heading(f"first sync of one device, {rows:,} rows of one bucket")
        _measure(place, Path(folder), "python", rows)  # so that the service has its caches filled for both
        node = _measure(place, Path(folder), "node", rows)
        python = _measure(place, Path(folder), "python", rows, yardstick=node)
        report.line("python: rows per second", python, "rows/s", "node", node)


def _measure(place: World, folder: Path, sdk: Sdk, rows: int, yardstick: float | None = None) -> float:
    """Sync once, on a new file; rows per second."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(dir=folder) as own:
        device = DeviceFactory(Path(own), stack)(f"http://127.0.0.1:{place.port}", place.token("u0"), _SCHEMA, sdk=sdk)
        with Meter(device.process.pid).measure() as usage:
            device.connect()
            device.wait_synced(deadline=_SECONDS)
        assert device.query("select count(*) as n from items") == [{"n": rows}]
    print(f"  {sdk}: {usage.seconds:.1f} s, {usage.cpu:.1f} s of CPU, {usage.peak / 1e6:.0f} MB at most")
    return rows / usage.seconds
