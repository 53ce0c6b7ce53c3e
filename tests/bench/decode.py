"""The decoder alone, on one core: messages of a real stream, beside the time that it takes to drain them."""

from __future__ import annotations

import time

from headwater.decode.pgoutput import Decoder, Payload
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source.stream import ReplicationStream
from tests.bench import data, report
from tests.bench.service import BenchService, bench_service

BEST_OF = 3


def run(rows: int) -> None:
    """Inserts, then updates of the same rows."""
    with bench_service() as service:
        service.execute(data.TABLE, "create publication headwater for table items")
        service.execute("select pg_create_logical_replication_slot('bare', 'pgoutput')")
        _shape(service, f"decode {rows:,} inserted rows", rows, data.insert(rows))
        _shape(service, f"decode {rows:,} updated rows", rows, "update items set n = n + 1")


def _shape(service: BenchService, name: str, rows: int, write: str) -> None:
    report.heading(name)
    service.execute(write)
    payloads, drained = _drain(service)
    taken = []
    for _ in range(BEST_OF):
        started = time.process_time()
        messages = Decoder().decode(payloads)
        taken.append(time.process_time() - started)
        del messages
    report.line("decoded", rows / min(taken), "rows/s", "drained", rows / drained)


def _drain(service: BenchService) -> tuple[list[Payload], float]:
    end = parse_lsn(service.fetch("select pg_current_wal_lsn()::text"))
    payloads: list[Payload] = []
    started = time.perf_counter()
    with ReplicationStream(service.source, "bare", Lsn(0), ["headwater"]) as stream:
        position = Lsn(0)
        while position < end:
            received = stream.receive(1.0, more_expected=True)
            payloads += received.payloads
            position = received.position
        taken = time.perf_counter() - started
        stream.report(position, force=True)
    return payloads, taken
