"""The start: from the command to the first row on a device, beside Spark's own first result; and the memory that Spark
takes while it is warm and once it was idle."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil

from tests.bench import data, report
from tests.bench.latency import read_until
from tests.bench.service import BenchService, bench_service
from tests.support.waiting import wait_until

TABLES = 13
_SPARK = """
import time
began = time.perf_counter()
from headwater.pipeline.settings import SparkSettings
from headwater.pipeline.spark.session import Spark
spark = Spark(SparkSettings())
with spark.used() as context:
    assert context.parallelize(range(2), 2).map(lambda n: n + 1).sum() == 3
    print(time.perf_counter() - began, flush=True)
spark.stop()
"""
_IDLE_MINUTES = 1


def run(rows: int) -> None:
    """`rows` in all, in TABLES tables."""
    bare = min(_first_result() for _ in range(2))
    report.heading(f"start with {rows:,} rows in {TABLES} tables")
    with bench_service() as service:
        service.execute(*data.small_tables(TABLES, rows // TABLES))
        began = time.perf_counter()
        service.serve(data.small_streams(TABLES), spark={"idle_minutes": _IDLE_MINUTES})
        service.wait_ready()
        stored = time.perf_counter() - began
        stream = service.stream("u1")
        read_until(stream, b"checkpoint_complete")
        report.line("from the command to the device", time.perf_counter() - began, "s", "Spark's first result", bare)
        report.line("from the command to the store", stored, "s", "Spark's first result", bare)
        warm = memory(service)
        idle = memory_when_idle(service)
        report.line("memory of the service, Spark warm", warm / 1e6, "MB", "once Spark was idle", idle / 1e6)
        stream.close()


def _first_result() -> float:
    ended = subprocess.run([sys.executable, "-c", _SPARK], capture_output=True, text=True, check=True)
    return float(ended.stdout)


def memory(service: BenchService) -> int:
    """Of all processes of the service, in bytes; pages that several share count once where the system tells them."""
    root = psutil.Process(service.pid)
    found = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            info = process.memory_full_info()
            found += getattr(info, "pss", info.rss)
        except psutil.Error:
            continue
    return found


def memory_when_idle(service: BenchService) -> int:
    root = psutil.Process(service.pid)

    def is_idle() -> bool:
        return all(process.name() != "java" for process in root.children(recursive=True))

    wait_until(is_idle, "Spark to end", 60 * _IDLE_MINUTES + 60)
    return memory(service)
