"""Refreshes a computed table: runs its query in the source, and merges the rows in which the result differs.

1. In one snapshot of the source, the query is described. The table is created, or gets another layout, if need be.
2. The result is compared with the current rows by key, in this process; what is too much for memory, on disk.
3. When the stream has passed the snapshot, what differs is written in one transaction of the store: a device never
   shows rows of two results, nor a result that is newer than the tables beside it.

Nothing else writes the rows of a computed table, so nothing has to be known of the time between. A crash leaves the
table as it was, or as it is to be; the next refresh then finds nothing to do. A fault of the query or its result is
noted, and leaves all rows as they were.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from headwater.bulk.contract import CompareJob, EngineError, JobKind
from headwater.decode.copytext import key_cells, split_line
from headwater.embedded.java import NoJavaError
from headwater.failpoints import failpoint
from headwater.oplog.change import Relation
from headwater.oplog.lsn import format_lsn
from headwater.oplog.row_id import RowIdentity
from headwater.pipeline.compare import StoreRows
from headwater.pipeline.keyed import DividedSides
from headwater.replication.computed import (
    CUT_SHORT,
    RefreshState,
    computed_tables,
    definition_of,
    note_states,
    refresh_states,
)
from headwater.replication.jobs.job import Background, Job, JobContext, JobOutcome, Steps, types_of
from headwater.replication.stream.commit_watch import Commits, last_commits
from headwater.replication.tables.changes import empty
from headwater.source.rows.copy import TableChangedError
from headwater.source.rows.query import ComputedResult, ComputedTableError, Described, ResultReader, fault
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable
from headwater_rules.plan import ComputedTable, SyncPlan

_log = logging.getLogger(__name__)

_MEMORIES = 4
"""How many times the source's memory, in characters, a comparison takes; with more rows, it goes on on disk."""
_AFTER_FAULT = 60.0  # seconds, if nothing happens before
_LONGEST_PAUSE = 3600.0


@dataclass(frozen=True, slots=True)
class Looked:
    """What a refresh of a table saw: of how many rows of the result, as of which LSN, how many differed from the rows
    that were there; or the `problem` for which it saw nothing."""

    table: str
    rows: int = 0
    differ: int = 0
    lsn: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Compared:
    rows: int
    both: DividedSides


class Refresh(Job):
    """Refreshes one table that `plans` read. The result shows the transactions `after` (by xid). A fault is noted, and
    raised as well where the result is `demanded`. With `look_only`, rows are compared, and nothing is changed."""

    kind = JobKind.REFRESH

    def __init__(
        self,
        context: JobContext,
        plans: Sequence[SyncPlan],
        table: ComputedTable,
        after: Collection[int] = (),
        *,
        demanded: bool = False,
        look_only: bool = False,
    ) -> None:
        super().__init__(context)
        self.table = table
        self.after = frozenset(after)
        self.done = False
        self.looked = Looked(table.name)
        self._demanded = demanded
        self._look_only = look_only
        self._plans = plans
        self._doing = "waiting for the source"
        self._reader: ComputedResult = (
            context.bulk.result(table, self._closed)
            if table.spark
            else ResultReader(context.source, table, self._closed)
        )

    @property
    def over(self) -> bool:
        """Whether it has ended: `done`, or cut short."""
        return self._closed.is_set()

    def describe(self) -> str:
        return f"computed table {self.table.name}: {self._doing}"

    def tables_changed(self, oids: frozenset[int]) -> bool:
        return True  # those are streamed ones

    def _run(self) -> Steps[JobOutcome]:
        started = time.time()
        try:
            yield from self._refresh(started)
        except (ComputedTableError, EngineError, NoJavaError) as error:
            _log.warning("%s", error)
            self.looked = replace(self.looked, problem=error.what)
            if not self._look_only:
                self._note(
                    replace(
                        self._state(),
                        tried=definition_of(self.table),
                        code=error.code,
                        what=error.what,
                        fix=error.fix,
                        failed_at=time.time(),
                        unfinished=0,
                    )
                )
            if self._demanded:
                raise
        self.done = True
        return JobOutcome()

    def _refresh(self, started: float) -> Steps[None]:
        context, reader, before = self._context, self._reader, self._state()
        opening = Background(partial(reader.open, self.after), JobKind.REFRESH)
        try:
            described = yield from opening.steps()
            if self._look_only:
                self._check_unchanged(described)
            rekeyed = self._of_other_key(described)
            stored = None if rekeyed is not None else self._fitted(described)
            if stored is None and rekeyed is None:
                reader.close()
                return
            if stored is not None and not self._look_only and self._is_of(before, reader.version, stored):
                reader.close()
                self._note_same(before, started)
                return
            if not self._look_only:
                self._note_begun()
            relation = described.relation if stored is None else stored.relation
            ranges = () if stored is None else context.places(stored.id).ranges
            compare = partial(self._compare, relation, stored, self._job(stored), ranges)
            comparing = Background(compare, JobKind.REFRESH)
        except BaseException:
            reader.cancel()
            opening.discard(lambda _: reader.close())
            raise
        try:
            self._doing = "comparing its result"
            compared = yield from comparing.steps()
        except TableChangedError:  # it came to an end
            self._note(replace(self._state(), unfinished=0))
            raise
        except BaseException:
            reader.cancel()
            raise
        seen = format_lsn(reader.seen or context.stream.position)
        self.looked = Looked(self.table.name, compared.rows, compared.both.count, seen)
        with closing(compared.both):
            if not self._look_only:
                yield from self._take_over(described, stored, compared, started)

    def _take_over(
        self, described: Described, stored: StoredTable | None, compared: _Compared, started: float
    ) -> Steps[None]:
        """Write what differs once the stream has come to the result; without `stored`, into a table made anew."""
        context, reader = self._context, self._reader
        self._doing = "waiting for the stream"
        while context.stream.position < reader.seen:
            yield
        failpoint("refresh.before_merge")
        state, definition = self._state(), definition_of(self.table)
        if state.of != definition:
            self._note(replace(state, of=""))
        stored = stored or self._made_anew(described)
        if stored is None:
            return
        ops = self._merge(stored, compared.both)
        yield  # the flush may be open until the stream has passed values that it read
        failpoint("refresh.after_merge")
        if stored.resync is not None:
            context.store.mark_resync(context.lease, [stored.id], None)
            context.stream.mark_clean([stored.id])
        seen = format_lsn(reader.seen or context.stream.position)
        self._note(
            RefreshState(
                self.table.name,
                definition,
                seen,
                time.time(),
                time.time() - started,
                compared.rows,
                compared.both.count,
                reads=tuple(sorted(described.reads)),
                unseen=described.unseen,
                version=reader.version,
                of=definition,
            )
        )
        level = logging.INFO if compared.both.count else logging.DEBUG
        _log.log(
            level,
            "computed table %s as of %s: %d rows, %d differ, %d ops",
            *(self.table.name, seen, compared.rows, compared.both.count, ops),
        )

    def _is_of(self, state: RefreshState, version: str, stored: StoredTable) -> bool:
        """Whether the rows are those of this version of what is read."""
        same = bool(version) and state.version == version and state.of == definition_of(self.table)
        return same and not state.code and stored.resync is None

    # the table in the store

    def _check_unchanged(self, described: Described) -> None:
        """Raises ComputedTableError where rows can't be compared, since those of the result have other columns."""
        stored = self._stored()
        if stored is None or stored.relation != replace(described.relation, oid=stored.relation.oid):
            what = "its rows are not compared: the result has other columns than these, until the next refresh"
            raise fault(self.table, what, "wait for the next refresh", "HW_2705")

    def _of_other_key(self, described: Described) -> StoredTable | None:
        """The stored table, if its rows have other ids than those of the result."""
        stored = self._stored()
        return stored if stored is not None and _key(stored.relation) != _key(described.relation) else None

    def _made_anew(self, described: Described) -> StoredTable | None:
        """Replace a table of another key by one without rows; not before the result is known to be without fault."""
        former = self._of_other_key(described)
        if former is not None:
            _log.info("computed table %s has another key: its rows are removed first", self.table.name)
            remove_computed(self._context, former, self._plans)
        return self._fitted(described)

    def _stored(self) -> StoredTable | None:
        there = self._context.all_stored().values()
        return next((each for each in there if each.computed and each.relation.name == self.table.name), None)

    def _fitted(self, described: Described) -> StoredTable | None:
        """The stored table, made what the result needs, and followed. None when no plan reads it."""
        context, definition, stored = self._context, definition_of(self.table), self._stored()
        if stored is None:
            relation = replace(described.relation, oid=min([0, *context.all_stored()]) - 1)
            (stored,) = context.store.create_tables(
                context.lease, context.name, [(relation, definition)], ResyncReason(Cause.NEW)
            )
            context.follow(self._plans)
        else:
            stored = self._refitted(stored, replace(described.relation, oid=stored.relation.oid), definition)
        return None if context.stream.table(stored.relation.oid) is None else stored

    def _refitted(self, stored: StoredTable, relation: Relation, definition: str) -> StoredTable:
        context = self._context
        if stored.relation == relation and stored.fingerprint == definition:
            if context.stream.table(relation.oid) is None:
                context.follow(self._plans)
            return stored
        now = {column.name for column in relation.columns}
        gone = [column.name for column in stored.relation.columns if column.name not in now]
        if gone and stored.fingerprint == definition:
            what = f"the result has no column {', '.join(gone)} any more, though the query is the same"
            fix = "name the columns in the query; an edited query may drop them"
            raise fault(self.table, what, fix, "HW_2705")
        if stored.relation != relation:
            mark = stored.resync or ResyncReason(Cause.REDEFINED)
            context.store.mark_resync(context.lease, [stored.id], mark)
            failpoint("refresh.marked")
        context.store.add_layout(context.lease, stored.id, relation, definition)
        context.follow(self._plans)
        return context.all_stored()[relation.oid]

    # its rows

    def _job(self, stored: StoredTable | None) -> CompareJob:
        """What reading the store's rows takes. Rows are evaluated only after the columns changed."""
        context = self._context
        plans = tuple(self._plans) if stored is not None and stored.has(Cause.REDEFINED) else ()
        return CompareJob(
            source=context.source,
            snapshot="",
            tables=(),
            plans=plans,
            types=types_of(context.connection, [] if stored is None else [stored]),
            keys=context.store.keys(),
            store=context.store.address,
            directory=context.store.staging_directory(context.lease),
            now=context.stream.job_time(plans),
            joined=context.stream.joined.lookups,
        )

    def _compare(
        self, relation: Relation, stored: StoredTable | None, job: CompareJob, ranges: Sequence[tuple[int, int]]
    ) -> _Compared:
        """In a thread: read the result, whose rows are of `relation`, and the stored rows at places within `ranges`.
        Closes the reader. Raises ComputedTableError."""
        both, rows = DividedSides(_MEMORIES * job.source.memory_bytes, job.directory), 0
        identity, width = RowIdentity.of(relation), len(relation.columns)
        with ExitStack() as failing:
            failing.callback(both.close)
            try:
                for lines in self._reader.lines(relation, job.source.batch_bytes):
                    keys = [key_cells(line, width, identity.columns) for line in lines]
                    self._check_nulls(relation, keys, identity)
                    both.of_source([identity.key(key) for key in keys], lines)
                    rows += len(lines)
                self._reader.finish()
                if stored is not None:
                    for first, end in ranges:
                        for batch in StoreRows(stored, first, end).lines(job):
                            both.of_store(batch)
                both.compare(0 if stored is None else stored.id)
            except OSError as error:
                what = f"the result can't be compared on disk: {error.strerror}"
                fix = f"make room in {job.directory}, select fewer rows or columns, or raise the source's memory"
                raise fault(self.table, what, fix, "HW_2706") from error
            finally:
                self._reader.close()
            if both.twice:
                what = f"{len(both.twice):,} keys ({', '.join(self.table.key)}) are in several rows of the result"
                raise fault(self.table, what, "group by the key, or add to `key` what tells the rows apart", "HW_2703")
            failing.pop_all()
        return _Compared(rows, both)

    def _check_nulls(self, relation: Relation, keys: Sequence[Sequence[str | None]], identity: RowIdentity) -> None:
        for place in identity.columns:
            if any(cells[place] is None for cells in keys):
                what = f"a row of the result has no value in {relation.columns[place].name}, which is of the key"
                raise fault(self.table, what, "leave such rows out, or `coalesce` the value", "HW_2704")

    def _merge(self, stored: StoredTable, both: DividedSides) -> int:
        """Write what differs in one transaction. Returns the number of ops."""
        live = self._context.stream.table(stored.relation.oid)
        if live is None or not both.count:
            return 0
        width = len(stored.relation.columns)
        parts = (
            {key: split_line(line, width) if copies else None for _, key, line, copies in differences}
            for differences in both.differences()
        )
        return self._context.stream.merge_parts(live, parts, reevaluate=stored.has(Cause.REDEFINED))

    # what is kept of it

    def _state(self) -> RefreshState:
        known = refresh_states(self._context.store, self._context.name)
        return known.get(self.table.name, RefreshState(self.table.name))

    def _note_same(self, before: RefreshState, started: float) -> None:
        """What was read is of the same version as before."""
        position, now = format_lsn(self._context.stream.position), time.time()
        self._note(replace(before, lsn=position, at=now, seconds=now - started, changed=0, unfinished=0))

    def _note_begun(self) -> None:
        """Before the query runs: where that ends the server, or this process, nothing can be noted any more."""
        state, tried = self._state(), definition_of(self.table)
        before = state.unfinished if state.tried == tried else 0
        self._note(replace(state, tried=tried, unfinished=before + 1, begun_at=time.time()))

    def _note(self, state: RefreshState) -> None:
        states = refresh_states(self._context.store, self._context.name) | {state.name: state}
        note_states(self._context.store, self._context.lease, states)


def _key(relation: Relation) -> list[str]:
    return [column.name for column in relation.columns if column.key]


def remove_computed(context: JobContext, table: StoredTable, plans: Sequence[SyncPlan]) -> None:
    """Remove a computed table and its rows, from devices too. Between flushes only."""
    with context.flushed() as flush:
        live = context.stream.table(table.relation.oid)
        emptied = flush.truncate(table.id, ()) if live is None else empty(flush, live, context.store.keys())
    context.store.drop_table(context.lease, emptied)
    context.follow(plans)


class RefreshSchedule:
    """Decides which computed table is refreshed next. All methods are called between flushes."""

    def __init__(self, context: JobContext) -> None:
        self._context = context
        self._tables: Mapping[str, ComputedTable] = {}
        self._states: dict[str, RefreshState] = {}
        self._there = frozenset[str]()  # the tables that are in the store
        self._ended: dict[str, float] = {}  # by the monotonic clock, in this run
        self._wanted = defaultdict[str, Commits](last_commits)
        self._begun: dict[str, float] = {}
        self._watched: dict[str, frozenset[tuple[str, str]]] = {}
        self._current: Refresh | None = None

    def due(self) -> bool:
        """Whether `next` would return a job, as far as is known."""
        self._take()
        return self._next() is not None

    def next(self, plans: Sequence[SyncPlan], coming: SyncPlan | None = None) -> Refresh | None:
        """The refresh to run now, of the tables that these plans read. Tables that none of them reads are removed. The
        queries of `coming` count first: it waits for other sources, and its tables have been refreshed."""
        self._take()
        self._follow(plans, computed_tables(plans if coming is None else [coming, *plans]))
        name = self._next()
        if name is None:
            return None
        self._begun[name] = time.monotonic()
        self._current = Refresh(self._context, plans, self._tables[name], self._wanted.get(name, ()))
        return self._current

    def _follow(self, plans: Sequence[SyncPlan], tables: Mapping[str, ComputedTable]) -> None:
        context = self._context
        there = {each.relation.name: each for each in context.store.all_tables(context.name) if each.computed}
        for name in there.keys() - tables.keys():
            _log.info("computed table %s is in no sync config any more: its rows are removed", name)
            remove_computed(context, there[name], plans)
        self._there = frozenset(there)
        self._states = refresh_states(context.store, context.name)
        if self._states.keys() - tables.keys():
            self._states = {name: state for name, state in self._states.items() if name in tables}
            note_states(context.store, context.lease, self._states)
        for name in self._tables.keys() & tables.keys():
            if tables[name].refresh.watched != self._tables[name].refresh.watched:
                self._ended.pop(name, None)  # what it reads may not be known, nor commits to that have been seen
        self._tables = tables
        self._watch()

    def _watch(self) -> None:
        """Watch the stream for the tables that are known to be read."""
        self._watched = {
            name: frozenset({*self._states.get(name, RefreshState(name)).reads, *table.refresh.after})
            for name, table in self._tables.items()
        }
        self._context.stream.commits.watch(self._watched)

    def _take(self) -> None:
        """Take over what the stream brought, and how the last refresh ended."""
        for name, xids in self._context.stream.commits.take().items():
            self._wanted[name].extend(xids)
        job = self._current
        if job is None or not job.over:
            return
        self._current = None
        if not job.done:
            self._states = refresh_states(self._context.store, self._context.name)
        else:
            self._ended[job.table.name] = time.monotonic()
            before = self._watched.get(job.table.name, frozenset())
            left = [xid for xid in self._wanted.pop(job.table.name, ()) if xid not in job.after]
            self._states = refresh_states(self._context.store, self._context.name)
            self._watch()
            unwatched = self._watched.get(job.table.name, before) - before
            if left or unwatched:  # a commit may have come before its table was watched
                self._wanted[job.table.name].extend(left)

    def _next(self) -> str | None:
        found = ((name, self._seconds_to(table)) for name, table in self._tables.items())
        ready = [name for name, seconds in found if seconds is not None and seconds <= 0]
        return min(ready, key=lambda name: self._begun.get(name, 0.0), default=None)  # they take turns

    def _seconds_to(self, table: ComputedTable) -> float | None:
        """In how many seconds a table is due; None for one that waits for a commit."""
        refresh, state = table.refresh, self._states.get(table.name, RefreshState(table.name))
        if state.unfinished >= CUT_SHORT:  # it may be the query that ends the server each time
            pause = min(_AFTER_FAULT * 2.0 ** min(state.unfinished - CUT_SHORT, 10), _LONGEST_PAUSE)
            if state.tried == definition_of(table) and time.time() < state.begun_at + pause:
                return state.begun_at + pause - time.time()
        ended = self._ended.get(table.name)
        if ended is None:
            new = state.code or state.of != definition_of(table) or state.unfinished or table.name not in self._there
            if new or refresh.every is None or any(refresh.watched):
                return 0.0  # commits from before the start may not have been taken into account
            return state.at + refresh.every - time.time()
        since = time.monotonic() - ended
        waits = [refresh.every] if refresh.every is not None else []
        if table.name in self._wanted or state.tried != definition_of(table) or state.unfinished:
            waits.append(0.0)
        if state.code:
            waits.append(_AFTER_FAULT)
        return max(min(waits), refresh.least) - since if waits else None
