"""Time windows: a million rows that leave a window within some seconds, what that costs, how late the last one is, and
how long other commits take meanwhile; and what rows cost that are not due."""

from __future__ import annotations

import threading
import time
from itertools import islice

from headwater.storage.address import SqliteAddress
from tests.bench import data, report
from tests.bench.latency import commits
from tests.bench.service import BenchService, Meter, bench_service
from tests.support.store_file import store_file
from tests.support.waiting import wait_until

_STREAMS = """
config: {edition: 3}
streams:
  recent:
    auto_subscribe: true
    query: SELECT id, owner, title FROM items WHERE owner = auth.user_id() AND created_at > now() - interval '1 hour'
"""
_INSERT = "insert into items (owner, title, n) values ('me', %s, 0)"
_SECONDS = 60
"""In which all rows leave, evenly."""
_LEAD = 240
"""Seconds until the first one does: by then, all rows have to be in."""
_QUIET = 20.0


def run(rows: int) -> None:
    """With `rows` rows, each of which leaves the window once."""
    report.heading(f"time windows: {rows:,} rows leave within {_SECONDS} s")
    with bench_service() as service:
        service.serve_ready(_STREAMS, data.TABLE, "create publication headwater for table items")
        service.execute(
            "insert into items (owner, title, n, created_at) select 'u' || i % 10, 'title ' || md5(i::text), i,"
            f" now() - interval '1 hour' + interval '{_LEAD} s' + i * interval '{_SECONDS} s' / {rows}"
            f" from generate_series(1, {rows}) i"
        )
        ends = float(service.fetch("select extract(epoch from max(created_at) + interval '1 hour') from items"))
        wait_until(lambda: _left(service, ends) == rows, "all rows to be in", _LEAD)
        stream = service.stream("me")
        alone = list(islice(commits(service, stream, _INSERT), 200))
        with Meter(service.pid).measure() as idle:
            time.sleep(_QUIET)
        report.line("CPU of the service while none is due", 100 * idle.cpu / _QUIET, "% of a core")
        time.sleep(max(0.0, ends - _SECONDS - time.time()))
        late: list[float] = []

        def watch() -> None:
            wait_until(lambda: _left(service, ends) == 0, "all rows to leave", 20 * _SECONDS)
            late.append(time.time() - ends)

        watching = threading.Thread(target=watch)
        with Meter(service.pid).measure() as used:
            watching.start()
            meanwhile = []
            for taken in commits(service, stream, _INSERT):
                meanwhile.append(taken)
                if not watching.is_alive():
                    break
        stream.close()
        report.percentiles(alone, "alone", alone, "commit to line, alone: ")
        report.percentiles(meanwhile, "alone", alone, "commit to line, while rows leave: ")
        report.line("the last row leaves late by", late[0], "s")
        report.line("CPU of the service per million rows", used.cpu * 1e6 / rows, "s")


def _left(service: BenchService, until: float) -> int:
    """How many rows are due by then, in seconds since 1970."""
    assert isinstance(service.address, SqliteAddress)
    with store_file(service.address.directory) as db:
        ((count,),) = db.execute("select count(*) from flips where at <= ?", (int(until * 1e6),)).fetchall()
    return int(str(count))
