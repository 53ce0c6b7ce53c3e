"""The time, as rules see it: that of the source's server."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg

# The monotonic clock of Python stands still while the machine sleeps, on Linux and on macOS
_UNSTOPPED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_NOW = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"


def wall_clock() -> int:
    """This machine's time, in microseconds since 1970."""
    return time.time_ns() // 1_000


def source_clock(conn: psycopg.Connection) -> Callable[[], int]:
    """A clock that agrees with the server's as it is now, to half the time that asking it took, in microseconds since
    1970. From here on it runs by itself: whoever sets this machine's clock, or has it sleep, does not move it. Raises
    psycopg.Error."""
    before = time.clock_gettime_ns(_UNSTOPPED)
    row = conn.execute(_NOW).fetchone()
    assert row is not None
    ahead = int(row[0]) - (before + time.clock_gettime_ns(_UNSTOPPED)) // 2_000
    return lambda: time.clock_gettime_ns(_UNSTOPPED) // 1_000 + ahead
