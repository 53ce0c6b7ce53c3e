"""The audit: checks that source, current rows, buckets and lookups agree, and with repair makes them agree.

Rows are first compared with the source and the rules (see `resync`), and computed tables with their queries. Then
histories and lookups are compared with the rows.

A broken bucket is rebuilt: a CLEAR, then PUTs of all rows that belong in it by the rules, so devices download only this
bucket again. Spark finds the rows that are in it, beside the stream; rows that the stream writes meanwhile are noted.
The rows are then read in the one flush that writes the buckets, so clients see each bucket before or after, never in
between.

Rows of other sources in the bucket stay as its history has them: only their source can evaluate them. Where the history
has lost one, that source is asked for an audit of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from typing import Final

import orjson

from headwater.bulk.contract import BrokenLookups, BulkProgress, JobKind, VerifyJob, VerifyOutcome, VerifyTable
from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import put_checksum
from headwater.oplog.row_id import row_subkey
from headwater.oplog.transform import Bucket, Buckets, DraftOp, decode_memberships, replace_memberships
from headwater.replication.errors import BROKEN_BUCKET, BROKEN_LOOKUPS
from headwater.replication.jobs.asked import compare_computed
from headwater.replication.jobs.job import Background, Job, JobContext, JobOutcome, Steps, types_of
from headwater.replication.jobs.resync import Resync, ResyncRequest
from headwater.replication.requests import RequestKind
from headwater.replication.tables.live import LiveTable
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.open import open_store
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.verify import (
    BucketHead,
    DamageError,
    ReadOp,
    VerifyReader,
    history_lines,
    read_op,
    row_in_memory,
)
from headwater_rules.plan import SyncPlan

_log = logging.getLogger(__name__)

_NAMED_BUCKETS = 100
_ROWS_AT_ONCE = 5_000
_ATTEMPTS = 3
NO_END: Final = 1 << 62


class Audit(Job):
    """Audits the tables of the request: their rows and lookups. Buckets are checked only when the request has all
    tables."""

    kind = JobKind.AUDIT

    def __init__(self, context: JobContext, request: ResyncRequest) -> None:
        super().__init__(context)
        self._request = request
        self._part: Job | None = None

    def describe(self) -> str:
        if self._part is not None:
            return self._part.describe()
        return f"checked {self._progress.rows:,} ops and rows of the store"

    def _run(self) -> Steps[JobOutcome]:
        context, request = self._context, self._request
        while context.stream.joined.is_busy:
            yield  # rows that wait to be evaluated are no difference
        self._part = resync = Resync(context, request)
        compared = yield from resync.steps
        self._part = None
        computed = yield from compare_computed(context, request)
        started = time.time()
        job = verify_job(context, request.plans, request.oids)
        verify = partial(context.bulk.verify, job, self._report, self._closed)
        outcome = yield from Background(verify, JobKind.VERIFICATION).steps()
        for bucket in outcome.buckets[:_NAMED_BUCKETS]:
            _log.warning("[%s] bucket %s: %s", BROKEN_BUCKET, bucket.name or bucket.key, bucket.problem)
        if outcome.lookups:
            _log.warning(
                "[%s] %d rows have other lookups than the rules give them", BROKEN_LOOKUPS, len(outcome.lookups)
            )
        ops = resync.findings.ops
        if request.repair:
            repair_lookups(context, outcome.lookups)
            if outcome.buckets:
                self._part = rebuild = Rebuild(context, request.plans, [bucket.key for bucket in outcome.buckets])
                yield from rebuild.steps
                ops += rebuild.ops
        context.record(
            JobKind.VERIFICATION,
            started,
            outcome.application,
            tasks=outcome.tasks,
            rows=outcome.rows,
            ops=outcome.ops,
        )
        if compared.result is None:
            return JobOutcome()
        return JobOutcome(result=_result({**compared.result, "computed": computed}, outcome, ops))


def _result(compared: Mapping[str, object], outcome: VerifyOutcome, ops: int) -> dict[str, object]:
    return {
        **compared,
        "ops_checked": outcome.ops,
        "buckets": [
            {"bucket": bucket.name or f"key {bucket.key}", "problem": bucket.problem}
            for bucket in outcome.buckets[:_NAMED_BUCKETS]
        ],
        "broken_buckets": len(outcome.buckets),
        "lookups": len(outcome.lookups),
        "ops": ops,
    }


def verify_job(
    context: JobContext, plans: Sequence[SyncPlan], oids: frozenset[int] | None = None, *, lookups: bool = True
) -> VerifyJob:
    """A verification of all that the store has of the source, or with `oids` of the lookups of some tables only."""
    stored = {table.id: table for oid, table in context.all_stored().items() if oids is None or oid in oids}
    with open_store(context.store.address).open_verify() as reader:
        ids = list(stored) if oids is not None else reader.tables(reader.definitions(context.name).sources)
    return VerifyJob(
        source_name=context.name,
        tables=tuple(VerifyTable(table, stored.get(table), _ranges(context, table)) for table in ids),
        plans=tuple(plans) if lookups else (),
        types=types_of(context.connection, list(stored.values())),
        keys=context.store.keys(),
        store=context.store.address,
        directory=context.store.staging_directory(context.lease),
        buckets=oids is None,
        joined=context.stream.joined.lookups,
    )


def _ranges(context: JobContext, table: int) -> tuple[tuple[int, int], ...]:
    """Ranges of all rows. The last is open, since new rows are placed after all others."""
    ranges = context.places(table).ranges or [(0, NO_END)]
    return (*ranges[:-1], (ranges[-1][0], NO_END))


class Rebuild(Job):
    kind = JobKind.REBUILD

    def __init__(self, context: JobContext, plans: Sequence[SyncPlan], keys: Iterable[int]) -> None:
        super().__init__(context)
        self._plans = plans
        self._keys = frozenset(keys)
        self.ops = 0

    def describe(self) -> str:
        return f"looking for the rows of {len(self._keys):,} broken buckets: {self._progress.rows:,} rows seen"

    def _run(self) -> Steps[JobOutcome]:
        context, started, tasks, rows = self._context, time.time(), 0, 0
        try:
            for _ in range(_ATTEMPTS):
                job = verify_job(context, self._plans, lookups=False)
                written = context.stream.recording.watch([table.id for table in job.tables])
                with open_store(context.store.address).open_verify() as reader:
                    heads = [head for key in self._keys if (head := reader.head(key)) is not None]
                tasks += sum(len(table.ranges) for table in job.tables)
                search = partial(context.bulk.rows_in_buckets, job, self._keys, self._report, self._closed)
                found = yield from Background(search, JobKind.SEARCH).steps()
                with open_store(context.store.address).open_verify() as reader:
                    if set(reader.tables(reader.definitions(context.name).sources)) != found.keys():
                        continue  # a table was truncated meanwhile: its new generation was not searched
                named = {table: [*found[table], *written.get(table, ())] for table in found}
                rows = self._write(named, {head.key: head.last_op for head in heads})
                break
            else:
                _log.warning("%d buckets can't be rebuilt now, since tables are truncated too often", len(self._keys))
        finally:
            context.stream.recording.watch(())
            context.progress(BulkProgress(rows, 0, 0, 0, JobKind.REWRITE, over=True))
        context.record(self.kind, started, tasks=tasks, rows=rows, ops=self.ops)
        return JobOutcome()

    def _write(self, rows: Mapping[int, Sequence[str]], searched: Mapping[int, int]) -> int:
        """Write the buckets from these rows, by table id; `searched` are the last ops of the buckets from before they
        were looked for. Returns how many rows are in the buckets."""
        context, keys = self._context, self._keys
        live = {table.id: context.stream.table(oid) for oid, table in context.all_stored().items()}
        foreign = {table: ids for table, ids in rows.items() if table not in live}
        with ExitStack() as stack:
            flush = stack.enter_context(context.flushed())
            others = None
            if foreign:
                flush.lock()  # what other sources have in the buckets stays as it is until the commit
                reader = stack.enter_context(open_store(context.store.address).open_verify())
                others = _OtherRows(flush, reader, context.store.keys(), keys, context.source.batch_bytes)
                others.find({table: rows[table] for table in live if table in rows}, foreign, searched)
            writing = _BucketWriter(flush, keys, context.source.batch_bytes, self._report)
            for table, ids in rows.items():
                if table in live:
                    writing.put_again(live[table], table, dict.fromkeys(ids))
            writing.finish()
            if others is not None:
                others.put_again()
        self.ops = writing.ops + (others.ops if others is not None else 0)
        _log.info("rebuilt %d buckets: %d rows, %d ops", len(keys), writing.rows, self.ops)
        if others is not None and others.lost:
            self._ask_for_audits(others.lost)
        return writing.rows

    def _ask_for_audits(self, tables: Collection[int]) -> None:
        """Have the sources of these tables put their rows into the buckets."""
        with open_store(self._context.store.address).open_verify() as reader:
            owners = reader.owners()
        for source in sorted({owners[table] for table in tables if table in owners}):
            _log.error("[HW_5303] broken buckets have lost rows of source %s too: it is audited now", source)
            self._context.store.submit(RequestKind.AUDIT, source, orjson.dumps({"repair": True}).decode())


class _OtherRows:
    """The rows of other sources in some buckets, as their histories have them. Used under the store's lock."""

    def __init__(
        self, flush: Flush, reader: VerifyReader, keys: StoreKeys, buckets: frozenset[int], batch_bytes: int
    ) -> None:
        self._flush = flush
        self._reader = reader
        self._keys = keys
        self._buckets = buckets
        self._batch_bytes = batch_bytes
        self._kept: list[tuple[BucketHead, frozenset[int]]] = []
        self.lost: set[int] = set()  # tables with rows that no history has
        self.ops = 0

    def find(
        self, own: Mapping[int, Sequence[str]], foreign: Mapping[int, Sequence[str]], searched: Mapping[int, int]
    ) -> None:
        """Find the PUTs of `foreign` rows, by table id, and of others that came since the buckets were `searched`. The
        rows of our `own` are all known."""
        ours = {place for table, ids in own.items() for place, _ in self._places(table, ids)}
        theirs = {place: (table, put) for table, ids in foreign.items() for place, put in self._places(table, ids)}
        for key in sorted(self._buckets):
            head = self._reader.head(key)
            if head is None:
                continue
            puts: dict[int, tuple[int, int]] = {}
            for op_id, op, _ in self._ops(head):
                puts.pop(op.row or 0, None)
                if op.kind == "PUT" and op.row is not None:
                    puts[op.row] = op_id, op.checksum
            kept = set[int]()
            for row, (op_id, checksum) in puts.items():
                place = key, row
                if theirs.get(place, (0, -1))[1] == checksum:
                    del theirs[place]
                    kept.add(op_id)
                elif op_id > searched.get(key, 0) and place not in ours:
                    theirs.pop(place, None)
                    kept.add(op_id)
            self._kept.append((head, frozenset(kept)))
        self.lost = {table for table, _ in theirs.values()}

    def put_again(self) -> None:
        """Append the PUTs that were found to the buckets, which begin anew."""
        for head, kept in self._kept:
            ops = (
                DraftOp(head.key, op.checksum, line.partition(b",")[2].decode())
                for op_id, op, line in self._ops(head)
                if op_id in kept
            )
            while some := list(islice(ops, _ROWS_AT_ONCE)):
                self._flush.append(some, {})
                self.ops += len(some)

    def _places(self, table: int, row_ids: Sequence[str]) -> Iterator[tuple[tuple[int, int], int]]:
        """Where these rows are now, as bucket and row in memory, and the checksums of their PUTs there."""
        for row in self._flush.load_all(table, row_ids, self._batch_bytes):
            for bucket, digest, kind, object_id in decode_memberships(row.members, row.row_id):
                if bucket in self._buckets:
                    subkey = row_subkey(row.subkey, table, row.row_id, object_id, self._keys)
                    yield (bucket, row_in_memory(kind, object_id, subkey)), put_checksum(digest)

    def _ops(self, head: BucketHead) -> Iterator[tuple[int, ReadOp, bytes]]:
        """The ops of a bucket that can be read."""
        with suppress(DamageError):
            for op_id, line in history_lines(head, self._reader):
                with suppress(DamageError):
                    yield op_id, read_op(op_id, line, self._keys), line


class _BucketWriter:
    def __init__(
        self, flush: Flush, keys: frozenset[int], batch_bytes: int, report: Callable[[BulkProgress], None]
    ) -> None:
        self._flush = flush
        self._batch_bytes = batch_bytes
        self._report = report
        self._keys = keys
        self._started: set[int] = set()
        self.rows = self.ops = 0

    def put_again(self, table: LiveTable | None, table_id: int, row_ids: Iterable[str]) -> None:
        """Put those of a table's rows that belong in these buckets; `table` is None when no rule reads it."""
        ids, done = list(row_ids), 0
        while done < len(ids):
            ops: list[DraftOp] = []
            buckets: Buckets = {}
            changed: list[CurrentRow] = []
            rows, count = self._flush.load(table_id, ids[done : done + _ROWS_AT_ONCE], self._batch_bytes)
            done += count
            for row in rows.values():
                mine = "" if table is None else self._enter(table, row, ops, buckets)
                members = replace_memberships(row.members, self._keys, mine)
                if set(decode_memberships(members, row.row_id)) != set(decode_memberships(row.members, row.row_id)):
                    changed.append(row._replace(members=members))
                self.rows += bool(mine)
            for bucket in buckets.values():
                self._reset(bucket.key, bucket)
            self._flush.put_rows(table_id, changed)
            self._flush.append(ops, buckets)
            self.ops += len(ops)
            self._report(BulkProgress(self.rows, 0, 0, 0, JobKind.REWRITE))

    def _enter(self, table: LiveTable, row: CurrentRow, ops: list[DraftOp], buckets: Buckets) -> str:
        """Add a row's ops in these buckets; returns its memberships there."""
        cells = table.intact_cells(row)
        transform = table.bound.at(self._flush.now).transform
        puts = () if cells is None else transform.evaluate(cells, row.row_id).puts
        mine = [put for put in puts if transform.keys.bucket(put.bucket) in self._keys]
        return transform.move("", row.subkey, row.row_id, mine, ops, buckets)

    def _reset(self, key: int, bucket: Bucket | None) -> None:
        if key not in self._started:
            self._started.add(key)
            self._flush.reset_bucket(key, bucket)
            self.ops += 1

    def finish(self) -> None:
        """Clear the buckets that have no rows."""
        for key in sorted(self._keys - self._started):
            self._reset(key, None)


def repair_lookups(context: JobContext, broken: Sequence[BrokenLookups]) -> None:
    """Write the lookups that the rules give these rows, in a flush of its own. Between flushes only."""
    if not broken:
        return
    with context.flushed() as flush:
        for oid, stored in context.all_stored().items():
            ids = [place.row_id for place in broken if place.table == stored.id]
            table, gone = context.stream.table(oid), set(ids)
            if table is not None:
                for row in flush.load_all(stored.id, ids, context.source.batch_bytes):
                    gone.discard(row.row_id)
                    cells = table.intact_cells(row)
                    if cells is not None:
                        bound = table.bound.knowing(flush.joined, [(cells, row.row_id)])
                        lookups = bound.transform.evaluate(cells, row.row_id).lookups
                        flush.replace_lookups(stored.id, row.row_id, lookups)
            for row_id in gone:
                flush.replace_lookups(stored.id, row_id, ())
