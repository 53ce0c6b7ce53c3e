"""Compares a few rows with the source while the stream is followed.

Rows that the stream touches are recorded from before the source is asked until the stream has passed the answer's
position. All other rows must then be in the store as the source had them, or the store is damaged.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import orjson

from headwater.decode.copytext import split_line
from headwater.decode.wire import DecodeError
from headwater.oplog.lsn import ZERO
from headwater.oplog.row_id import IdentityKind
from headwater.replication.jobs.job import JobContext
from headwater.replication.sampling.checks import same_row
from headwater.replication.stream.change_log import ChangeLog
from headwater.replication.tables.live import LiveTable
from headwater.source.catalog.published import PublishedTable
from headwater.source.rows.probe import ProbeBusyError, ProbeFailedError, SourceProbe

_MISSING_AT_ONCE = 10  # their size is not known
_NO_KEY = "it has no key with an index, by which to look rows up"

Looking = Generator[int, None, list[str]]
"""Yields 0 while it waits for the stream; returns the ids of rows that are wrong."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Why a table was not compared. `failed`: the source refuses to read it so."""

    why: str
    failed: bool = False


class Probing:
    """Checks tables with a key. `left_out` says of all others, and of those that could not be read, why they were not
    compared, or not whole. What failed once is not tried again until `begin`."""

    def __init__(self, context: JobContext) -> None:
        self.left_out: dict[str, LeftOut] = {}
        self._context = context
        self._probe = SourceProbe(context.source)
        self._log: ChangeLog | None = None

    def begin(self) -> None:
        """Try all tables again."""
        self.left_out.clear()

    def close(self) -> None:
        """Release everything. It may be used again."""
        self._probe.close()
        self._forget()

    def _tries(self, live: LiveTable) -> bool:
        keyed = live.identity.kind is IdentityKind.KEY
        if not keyed:
            self.left_out[live.name] = LeftOut(_NO_KEY)
        known = self.left_out.get(live.name)
        return keyed and (known is None or not known.failed)

    @contextmanager
    def _trying(self, live: LiveTable) -> Iterator[None]:
        """Leaves the table out after an error that concerns only it."""
        try:
            yield
        except ProbeBusyError:
            self.left_out[live.name] = LeftOut("it was locked, or took too long to read")
        except (ProbeFailedError, DecodeError) as error:
            self.left_out[live.name] = LeftOut(str(error), failed=True)
        finally:
            self._forget()

    def other_rows(self, live: LiveTable, table: PublishedTable, row_ids: Sequence[str]) -> Looking:
        """Which of these rows are different in the source, or not there. Only rows that differ twice count."""
        if not self._tries(live):
            return []
        suspects: Sequence[str] = row_ids
        found: Sequence[str] = ()
        with self._trying(live):
            for _ in range(2):
                if suspects:
                    suspects = yield from self._different(live, table, suspects)
            found = suspects
        return list(found)

    def missing_rows(self, live: LiveTable, table: PublishedTable, limit: int) -> Generator[int, None, list[str]]:
        """Which keys of the source are not in the store. Also yields how many keys were checked."""
        found: list[str] = []
        if not self._tries(live):
            return found
        with self._trying(live):
            order = self._probe.key_order(table)
            if order is None:
                self.left_out[live.name] = LeftOut(_NO_KEY)
            last: tuple[str, ...] | None = None
            while order is not None and self._same(live):
                self._record(live)
                keys = self._probe.keys_after(table, order, last, limit)
                if not keys:
                    break
                last = tuple(keys[-1][i] or "" for i in order)
                lacking = yield from self._lacking(live, [live.identity.key(key) for key in keys])
                for start in range(0, len(lacking), _MISSING_AT_ONCE):
                    found += yield from self.other_rows(live, table, lacking[start : start + _MISSING_AT_ONCE])
                yield len(keys)
        return found

    def _different(self, live: LiveTable, table: PublishedTable, row_ids: Sequence[str]) -> Looking:
        self._record(live)
        lines = self._probe.rows(table, [_key_of(live, row_id) for row_id in row_ids])
        width = len(live.relation.columns)
        in_source = {live.identity.key(split_line(line, width)): line for line in lines}
        if not (yield from self._arrived(live)):
            return []
        wrong = set(in_source)  # rows that are missing or different
        for row in self._context.stream.stored_rows(live, row_ids):
            same = same_row(live, row, in_source.get(row.row_id))
            (wrong.discard if same else wrong.add)(row.row_id)
        return [row_id for row_id in self._untouched(live, row_ids) if row_id in wrong]

    def _lacking(self, live: LiveTable, row_ids: Sequence[str]) -> Looking:
        if not (yield from self._arrived(live)):
            return []
        there = {row.row_id for row in self._context.stream.stored_rows(live, row_ids)}
        return [row_id for row_id in self._untouched(live, row_ids) if row_id not in there]

    def _arrived(self, live: LiveTable) -> Generator[int, None, bool]:
        """Wait until the stream has passed the position of the answer. False when the table changed since."""
        position = self._probe.position()
        while self._context.stream.position < position:
            yield 0
        return self._same(live)

    def _same(self, live: LiveTable) -> bool:
        now = self._context.stream.table(live.relation.oid)
        return now is not None and now.id == live.id and now.layouts == live.layouts

    def _untouched(self, live: LiveTable, row_ids: Iterable[str]) -> list[str]:
        if self._log is None:
            return []
        touches = self._log.of(live.relation.oid)
        return [] if touches.truncated else [row_id for row_id in row_ids if row_id not in touches.rows]

    def _record(self, live: LiveTable) -> None:
        self._forget()
        self._log = ChangeLog(frozenset({live.relation.oid}), self._context.stream.fill)
        self._log.begin_at(ZERO)
        self._context.stream.recording.logs.append(self._log)

    def _forget(self) -> None:
        if self._log is not None:
            self._context.stream.recording.stop(self._log)
            self._log = None


def _key_of(live: LiveTable, row_id: str) -> list[str]:
    """The values of the key's columns."""
    if len(live.identity.columns) == 1:
        return [row_id]
    return [str(value) for value in orjson.loads(row_id)]
