"""Joined rows: one row changes that many children are evaluated with. How long until a device has all of them, what a
child costs, and how long commits of another table take meanwhile."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass
from itertools import islice

from headwater.storage.sql.writer import StoreWriter
from tests.bench import report
from tests.bench.latency import commits, read_until
from tests.bench.service import BenchService, Meter, bench_service
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

_STREAMS = auto_streams(
    named="SELECT c.id, c.owner, c.title, p.name FROM children c LEFT JOIN parents p ON p.id = c.parent_id"
    " WHERE c.owner = auth.user_id()",
    open="SELECT id, owner, title AS open_title FROM children c"
    " WHERE owner = auth.user_id() AND NOT EXISTS (SELECT 1 FROM closed WHERE closed.parent_id = c.parent_id)",
    others="SELECT id, title FROM others WHERE auth.user_id() = 'other'",
)
_INSERT = "insert into others select mark, mark from (values (%s)) as marks (mark)"
_SAMPLES = 300


@dataclass(frozen=True, slots=True)
class _Change:
    """A change of one row, and what a device finds once in each op of a child. `before` is another change, by which
    rows go that come again."""

    statement: str
    mark: bytes
    before: str = ""


_KINDS = {
    "a joined column": (
        _Change("update parents set name = 'name-1'", b"name-1"),
        _Change("update parents set name = 'name-2'", b"name-2"),
    ),
    "a row that must not be there": (
        _Change("delete from closed", b"open_title", "insert into closed values (1, 1)"),
        _Change("delete from closed", b"open_title", "insert into closed values (1, 1)"),
    ),
}
"""Two changes of each kind: one by itself, and one beside other commits."""


class _Device:
    """Receives and counts, without keeping what it receives."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def receive(self, mark: bytes, count: int) -> None:
        """Read until the mark has come so many times."""
        rest = b""
        while count > 0:
            read = self._stream.recv(1 << 18)
            assert read, f"the stream ended {count:,} times before {mark!r}"
            text = rest + read
            count -= text.count(mark)
            rest = text.rpartition(mark)[2][1 - len(mark) :]


def run(children: int) -> None:
    """One row with `children` rows that are joined to it."""
    with bench_service() as service:
        service.execute(
            "create table parents (id bigint primary key, name text)",
            "create table closed (id bigint primary key, parent_id bigint)",
            "create table children (id bigint primary key, parent_id bigint, owner text, title text)",
            "create table others (id text primary key, title text)",
            "insert into parents values (1, 'name-0')",
            "insert into children select i, 1, 'reader', 'title ' || md5(i::text)"
            f" from generate_series(1, {children}) i",
            "create publication headwater for all tables",
        )
        service.serve_ready(_STREAMS)
        with service.stream("reader") as reading, service.stream("other") as stream:
            device = _Device(reading)
            report.heading(f"a row with {children:,} joined rows changes")
            started = time.perf_counter()
            device.receive(b"name-0", children)
            report.line("first sync, from the first checkpoint", time.perf_counter() - started, "s")
            read_until(stream, b"checkpoint_complete")
            list(islice(commits(service, stream, _INSERT), _SAMPLES))  # the first commits since the start
            alone = list(islice(commits(service, stream, _INSERT), _SAMPLES))
            for kind, (first, second) in _KINDS.items():
                _by_itself(service, device, f"{kind}: ", first, children)
                _beside(service, stream, device, f"{kind}, beside commits: ", second, children, alone)


def _by_itself(service: BenchService, device: _Device, name: str, change: _Change, children: int) -> None:
    _prepare(service, change)
    with Meter(service.pid).measure() as used:
        service.execute(change.statement)
        device.receive(change.mark, children)
    report.line(f"{name}all sent", used.seconds, "s")
    report.line(f"{name}CPU of the service a child", used.cpu * 1e6 / children, "µs")


def _beside(
    service: BenchService,
    stream: socket.socket,
    device: _Device,
    name: str,
    change: _Change,
    children: int,
    alone: list[float],
) -> None:
    _prepare(service, change)
    service.execute(change.statement)
    started = time.perf_counter()
    receiving = threading.Thread(target=device.receive, args=(change.mark, children), daemon=True)
    receiving.start()
    taken = []
    for each in commits(service, stream, _INSERT):
        taken.append(each)
        if not receiving.is_alive():
            break
    report.line(f"{name}all sent", time.perf_counter() - started, "s")
    report.percentiles(taken, "alone", alone, f"{name}commit to line, ")


def _prepare(service: BenchService, change: _Change) -> None:
    """Removals are not counted: compaction puts one op in place of those of a whole bucket."""
    if change.before:
        service.execute(change.before)
        service.caught_up()
        with service.store() as store:
            wait_until(lambda: not _rows_wait(store), "all rows to be evaluated", 600)


def _rows_wait(store: StoreWriter) -> bool:
    return bool(json.loads(store.get_meta("rows to evaluate again of source default") or "{}").get("keys"))
