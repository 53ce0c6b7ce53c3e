"""A day of changes in minutes: what the store takes while rows change all the time, and once they rest."""

from __future__ import annotations

import time

from tests.bench import data, report
from tests.bench.storage import size_of
from tests.bench.world import World, world

HOURS = 24
_REPORTED = 6
_QUIET_SECONDS = 2 * (60 + 30) + 30  # compaction lets things settle, also rows that it puts again


def run(rows: int) -> None:
    """In each hour a quarter of `rows` change, a hundredth goes, and as many come."""
    report.heading(f"a day of changes, {rows:,} rows, {HOURS // 4 * rows:,} changes")
    with world() as place:
        place.execute(data.TABLE, "create publication headwater for table items", data.insert(rows))
        place.serve(data.STREAMS)
        place.wait_ready()
        _tell(place, "after the snapshot", rows)
        began = time.perf_counter()
        for hour in range(1, HOURS + 1):
            _change(place, rows, hour)
            place.caught_up()
            if hour % _REPORTED == 0:
                _tell(place, f"after {hour} hours", rows)
        report.line("changes a second", HOURS * rows / 4 / (time.perf_counter() - began), "rows/s")
        time.sleep(_QUIET_SECONDS)
        _tell(place, f"after {_QUIET_SECONDS} s of quiet", rows)
        _tell(place, "without free room", rows, pack=True)


def _change(place: World, rows: int, hour: int) -> None:
    place.execute(
        f"update items set title = title || '.', n = n + 1 where n % 4 = {hour % 4}",
        f"delete from items where id in (select id from items limit {rows // 100})",
        data.insert(rows // 100, hour * rows),
    )


def _tell(place: World, when: str, rows: int, *, pack: bool = False) -> None:
    text = float(place.fetch("select avg(length(i::text)) from items i"))
    report.line(f"store per live row {when}", size_of(place.address, pack=pack) / rows, "B", "row as text", text)
