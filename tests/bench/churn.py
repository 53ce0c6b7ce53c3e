"""A day of changes in minutes: what the store takes while rows change all the time, and once they rest."""

from __future__ import annotations

import time

from tests.bench import data, report
from tests.bench.service import BenchService, bench_service
from tests.bench.storage import size_of

HOURS = 24
_REPORTED = 6
_QUIET_SECONDS = 2 * (60 + 30) + 30  # compaction lets things settle, also rows that it puts again


def run(rows: int) -> None:
    """In each hour a quarter of `rows` change, a hundredth goes, and as many come."""
    report.heading(f"a day of changes, {rows:,} rows, {HOURS // 4 * rows:,} changes")
    with bench_service() as service:
        service.serve_ready(data.STREAMS, data.TABLE, "create publication headwater for table items", data.insert(rows))
        _tell(service, "after the snapshot", rows)
        began = time.perf_counter()
        for hour in range(1, HOURS + 1):
            _change(service, rows, hour)
            service.caught_up()
            if hour % _REPORTED == 0:
                _tell(service, f"after {hour} hours", rows)
        report.line("changes a second", HOURS * rows / 4 / (time.perf_counter() - began), "rows/s")
        time.sleep(_QUIET_SECONDS)
        _tell(service, f"after {_QUIET_SECONDS} s of quiet", rows)
        _tell(service, "without free room", rows, pack=True)


def _change(service: BenchService, rows: int, hour: int) -> None:
    service.execute(
        f"update items set title = title || '.', n = n + 1 where n % 4 = {hour % 4}",
        f"delete from items where id in (select id from items limit {rows // 100})",
        data.insert(rows // 100, hour * rows),
    )


def _tell(service: BenchService, when: str, rows: int, *, pack: bool = False) -> None:
    text = float(service.fetch("select avg(length(i::text)) from items i"))
    report.line(f"store per live row {when}", size_of(service.address, pack=pack) / rows, "B", "row as text", text)
