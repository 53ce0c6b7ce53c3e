"""Results of a query, again and again as they change."""

from __future__ import annotations

import asyncio
import sqlite3
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

from headwater_client.storage.connection import Committed
from headwater_client.timeouts import happens

Row = dict[str, Any]

_POLL: Final = 0.25
"""Seconds between looks at what other processes wrote."""


class QueryWatch:
    """The results of one query. It looks again after each commit of this process, and now and then at what others did.

    Commits within `throttle` seconds are looked at together.
    """

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], committed: Committed, sql: str, args: Sequence[Any],
        throttle: float,
    ) -> None:  # fmt: skip
        self._connect, self._committed, self._sql, self._args = connect, committed, sql, args
        self._throttle = throttle
        self._seen = -1
        self._versions: weakref.WeakKeyDictionary[sqlite3.Connection, int] = weakref.WeakKeyDictionary()
        self._last: list[Row] | None = None

    def results(self) -> Iterator[list[Row]]:
        """The result now, then each that differs from the one before, until the database is closed."""
        while not self._committed.is_closed():
            found = self.next(_POLL)
            if found is not None:
                yield found

    async def results_async(self) -> AsyncIterator[list[Row]]:
        """As `results`, for asyncio, whose threads are free while nothing changes."""
        changed = asyncio.Event()
        with self._committed.waking(asyncio.get_running_loop(), changed):
            while not self._committed.is_closed():
                changed.clear()
                found = await asyncio.to_thread(self.next, 0.0)
                if found is not None:
                    yield found
                await happens(changed, _POLL)

    def next(self, timeout: float) -> list[Row] | None:
        """Wait for a commit, at most `timeout` seconds; the result, if it differs from the last."""
        count = self._committed.wait(self._seen, timeout)
        if self._committed.is_closed():
            return None
        if self._throttle and self._last is not None and count != self._seen:
            time.sleep(self._throttle)
            count = self._committed.count
        try:
            return self._look(count)
        except Exception:  # of whichever driver the file needs
            if self._committed.is_closed():  # meanwhile
                return None
            raise

    def now(self) -> list[Row]:
        """The result as it is, which `next` then takes for the last: read in a transaction, it is what that saw."""
        self._last = rows(self._connect(), self._sql, self._args)
        return self._last

    def _look(self, count: int) -> list[Row] | None:
        connection = self._connect()
        (version,) = connection.execute("PRAGMA data_version").fetchone()
        if count == self._seen and version == self._versions.get(connection):
            return None
        self._seen, self._versions[connection] = count, version
        found = rows(connection, self._sql, self._args)
        if found == self._last:
            return None
        self._last = found
        return found


def rows(connection: sqlite3.Connection, sql: str, args: Sequence[Any]) -> list[Row]:
    """The rows of a query, each by its columns' names."""
    cursor = connection.execute(sql, args)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
