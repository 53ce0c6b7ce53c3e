"""Explains what a user's device is sent: its buckets, with rows and reasons; why other streams give nothing; and
whether it has one row, by which stream and from which commit, or which condition keeps it away.

Whether a device has a row is read from its buckets' ops, as the device does; the rules only explain why.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from itertools import islice

import orjson

from headwater.errors import HeadwaterError
from headwater.insight.rows import CurrentRows, table_name
from headwater.oplog.limits import is_stub
from headwater.oplog.lsn import format_lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import OVERSIZED
from headwater.replication.computed import refresh_states
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import Checkpoint, StoreReader
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store
from headwater.sync.request import RequestLimits
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.explain import Explanation, explain
from headwater_rules.describe.why import Why
from headwater_rules.plan import RowSource, Star, SyncPlan, shard_of, tag_of
from headwater_rules.results import ResolvedBucket, RowResult, SourceRow, SyncRequest

_PAGE = 50_000
_EPOCH_2000 = 946_684_800
_MOST_ROWS = 5
_IDS_OF_THEIR_OWN = frozenset({20, 21, 23, 25, 1043, 2950})
"""Types (int8, int2, int4, text, varchar, uuid) whose values have the same text in Postgres and on a device."""
MOST_COUNTED = 2_000_000
"""The most rows of one bucket that are counted, since counting keeps a hash of each in memory."""


class NothingServedYetError(HeadwaterError):
    """No version of the sync config is active yet, so no device gets anything."""

    code = "HW_8108"


@dataclass(frozen=True, slots=True)
class StandingRow:
    """A row in a bucket, with the op that put it there, and its JSON."""

    table: str
    id: str
    op_id: int
    data: str


@dataclass(frozen=True, slots=True)
class BucketReason:
    """A stream that gives a bucket, and whether it does by default or by a subscription."""

    stream: str
    by: str


@dataclass(frozen=True, slots=True)
class Served:
    """The answers to one request, all at one checkpoint."""

    reader: StoreReader
    checkpoint: Checkpoint
    config: int
    plan: SyncPlan
    words: Explanation
    why: Why
    check: Callable[[], None]

    def held(self, bucket: str) -> tuple[int | None, int, int]:
        """Read a bucket as a new device does: the rows that it then has, None when they are too many to count, and the
        ops and bytes that it downloads."""
        ops = size = 0
        standing: set[bytes] | None = set()
        for chunk in self._chunks(bucket):
            found = orjson.loads(b"[%b]" % chunk)
            ops, size = ops + len(found), size + len(chunk)
            if standing is not None:
                for op in found:
                    _count(op, standing)
                standing = standing if len(standing) <= MOST_COUNTED else None
        return None if standing is None else len(standing), ops, size

    def standing(self, bucket: str, ids: Collection[str]) -> list[StandingRow]:
        """The rows with these ids in a bucket, in the order of their ops."""
        needles = [b'"object_id":%b' % orjson.dumps(each) for each in ids]
        found: dict[tuple[str, str, str], StandingRow] = {}
        for chunk in self._chunks(bucket):
            if not any(needle in chunk for needle in needles):
                continue
            for op in orjson.loads(b"[%b]" % chunk):
                if op.get("object_id") in ids:
                    entry = (op["object_type"], op["object_id"], op["subkey"])
                    found.pop(entry, None)
                    if op["op"] == "PUT":
                        found[entry] = StandingRow(entry[0], entry[1], int(op["op_id"]), op["data"])
        return list(found.values())

    def reasons(self, bucket: ResolvedBucket) -> tuple[BucketReason, ...]:
        """Why the client gets a bucket."""
        streams, subscriptions = self.why.resolution.streams, self.why.request.subscriptions
        return tuple(
            BucketReason(streams[reason["default"]].name, "default")
            if "default" in reason
            else BucketReason(subscriptions[reason["sub"]].stream, "subscription")
            for reason in bucket.reasons
        )

    def values_of(self, bucket: ResolvedBucket) -> dict[str, object]:
        """The values that a bucket's rows have in common, by their expressions in the sync config."""
        name = self.plan.buckets[bucket.definition].name
        values = orjson.loads(bucket.name[len(name) :])
        rows = next(
            rows
            for stream in self.words.streams
            for way in stream.ways
            if name in way.buckets
            for rows in way.rows
            if len(rows.parameters) == len(values)
        )
        return dict(zip((words for words, _ in rows.parameters), values, strict=True))

    def _chunks(self, bucket: str) -> Iterator[bytes]:
        after, more = OpId(0), True
        while more:
            self.check()
            chunk = self.reader.chunk(bucket, after, self.checkpoint.op_id)
            after, more = chunk.next_after, chunk.more
            if chunk.size:
                yield chunk.ops


@contextmanager
def open_served(
    reader: StoreReader, request: SyncRequest, limits: RequestLimits, check: Callable[[], None] = lambda: None
) -> Iterator[Served]:
    """Open the newest checkpoint for one request. `check` is called now and then and may raise. Raises
    NothingServedYetError."""
    with reader.snapshot() as snapshot:
        if snapshot is None:
            raise NothingServedYetError("no sync config is served yet", fix="see `headwater rules versions`")
        plan, words = _plan(snapshot.config.yaml)
        bounds: Mapping[str, int] = {"max_buckets": limits.max_buckets, "max_results": limits.max_results}
        why = Why(plan, request, snapshot.lookups, **bounds)
        yield Served(reader, snapshot.checkpoint, snapshot.config.id, plan, words, why, check)


@lru_cache(maxsize=2)
def _plan(yaml: str) -> tuple[SyncPlan, Explanation]:
    plan = compile_config(yaml).plan
    return plan, explain(plan)


def _count(op: Mapping[str, str], standing: set[bytes]) -> None:
    kind = op["op"]
    if kind == "CLEAR":
        standing.clear()
    elif kind in {"PUT", "REMOVE"}:
        entry = blake2b(orjson.dumps((op["object_type"], op["object_id"], op["subkey"])), digest_size=16).digest()
        if kind == "PUT":
            standing.add(entry)
        else:
            standing.discard(entry)


# a user


@dataclass(frozen=True, slots=True)
class UsersBucket:
    """One bucket. `values` are those that all its rows have in common. A new device downloads `ops` of `size` bytes (of
    JSON, before compression) and then has `rows` rows, null when they are too many to count."""

    name: str
    definition: str
    priority: int
    reasons: tuple[BucketReason, ...]
    values: Mapping[str, object]
    rows: int | None
    ops: int
    size: int


@dataclass(frozen=True, slots=True)
class UsersStream:
    """A stream. `errors` are those that the device gets. `empty_because` explains why a stream gives no bucket."""

    name: str
    default: bool
    subscribed: bool
    buckets: int
    errors: tuple[str, ...]
    empty_because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UserExplained:
    """Everything that a user is sent at a checkpoint, under a version of the sync config. `lookups` are the keys that
    were looked up, with their results."""

    user: str
    version: int
    checkpoint: int
    rows: int | None
    ops: int
    size: int
    buckets: tuple[UsersBucket, ...]
    streams: tuple[UsersStream, ...]
    lookups: Mapping[str, tuple[str, ...]]


def explain_user(
    reader: StoreReader, request: SyncRequest, limits: RequestLimits, check: Callable[[], None] = lambda: None
) -> UserExplained:
    """Explain what the user of `request` is sent now. Reads all buckets whole. Raises NothingServedYetError."""
    with open_served(reader, request, limits, check) as served:
        buckets = tuple(_bucket(served, bucket) for bucket in served.why.resolution.buckets)
        rows = [bucket.rows for bucket in buckets]
        return UserExplained(
            str(request.claims["sub"]),
            served.config,
            served.checkpoint.op_id,
            None if None in rows else sum(number or 0 for number in rows),
            sum(bucket.ops for bucket in buckets),
            sum(bucket.size for bucket in buckets),
            buckets,
            _streams(served, buckets),
            {key: tuple(found) for key, found in served.why.answers.items()},
        )


def _bucket(served: Served, bucket: ResolvedBucket) -> UsersBucket:
    return UsersBucket(
        bucket.name,
        served.plan.buckets[bucket.definition].name,
        bucket.priority,
        served.reasons(bucket),
        served.values_of(bucket),
        *served.held(bucket.name),
    )


def _streams(served: Served, buckets: Sequence[UsersBucket]) -> tuple[UsersStream, ...]:
    statuses = {status.name: status for status in served.why.resolution.streams}
    found = []
    for stream in served.plan.streams:
        number = sum(any(reason.stream == stream.name for reason in bucket.reasons) for bucket in buckets)
        because = () if number else tuple(served.why.of_stream(stream))
        status = statuses.get(stream.name)
        errors = () if status is None else tuple(str(error["message"]) for error in status.errors)
        found.append(UsersStream(stream.name, stream.auto_subscribe, status is not None, number, errors, because))
    return tuple(found)


# a row


@dataclass(frozen=True, slots=True)
class RowPlace:
    """A bucket of the user that contains the row, which op `op_id` put there. `source`, `lsn` and `committed` (seconds
    since 1970) are the source's commit that wrote it, null when bulk work or compaction did or when it is no longer
    known."""

    bucket: str
    reasons: tuple[BucketReason, ...]
    values: Mapping[str, object]
    table: str
    id: str
    data: object
    op_id: int
    source: str | None
    lsn: str | None
    committed: float | None


@dataclass(frozen=True, slots=True)
class QueryVerdict:
    """Whether one query of a stream gives the row to this user. `because` is the condition that fails, empty when the
    row is given."""

    stream: str
    given: bool
    because: str


@dataclass(frozen=True, slots=True)
class MeantRow:
    """A row that the request may mean, as the store has it now, and the source that it is in."""

    source: str
    table: str
    id: str
    queries: tuple[QueryVerdict, ...]


@dataclass(frozen=True, slots=True)
class RowExplained:
    """The answer. `included` says whether the user's device has the row at the checkpoint, and `places` in which
    buckets. `rows` are the rows of the source that may be meant, each with a verdict by query. `because` explains it in
    a sentence."""

    user: str
    table: str
    id: str
    included: bool
    because: str
    version: int
    checkpoint: int
    places: tuple[RowPlace, ...]
    rows: tuple[MeantRow, ...]
    notes: tuple[str, ...]


def explain_row(
    reader: StoreReader,
    current: CurrentRows,
    request: SyncRequest,
    table: str,
    row_id: str,
    limits: RequestLimits,
) -> RowExplained:
    """Explain whether the user of `request` is sent a row. `table` is its table on devices, or in a source, with or
    without schema, or with tag and schema; `row_id` is the row's id there. Raises NothingServedYetError."""
    with open_served(reader, request, limits, current.check) as served:
        question = _question(served, current, table, row_id)
        found = list(question.rows())
        places = tuple(question.places(row for _, row in found))
        rows = tuple(_meant(served, stored, row) for stored, row in found)
        notes = [*current.notes, *question.notes(), *_computed_notes(current, question.tables)]
        return RowExplained(
            str(request.claims["sub"]),
            table,
            row_id,
            bool(places),
            _because(table, row_id, places, rows, known=bool(question.tables)),
            served.config,
            served.checkpoint.op_id,
            places,
            rows,
            tuple(dict.fromkeys(notes)),
        )


def _computed_notes(current: CurrentRows, tables: Sequence[StoredTable]) -> Iterator[str]:
    """Which state of the source the rows of computed tables are of."""
    computed = [table for table in tables if table.computed]
    states = {source: refresh_states(current.store, source) for source in {table.source for table in computed}}
    for table in computed:
        state = states[table.source].get(table.relation.name)
        if state is not None and state.lsn:
            read = f"{datetime.fromtimestamp(state.at, UTC):%Y-%m-%d %H:%M:%SZ}"
            yield f"{current.title(table)} is computed: its rows are as of {state.lsn} of the source, read at {read}"


def _question(served: Served, current: CurrentRows, table: str, row_id: str) -> _Question:
    stored = [each for each in current.tables(served.plan) if _sources(served, each)]
    as_device = [each for each in stored if table in _names(served, each)]
    if as_device:
        return _Question(served, current, frozenset({table}), tuple(as_device), row_id)
    named = [each for each in stored if table in _names_there(each)]
    names = {name for each in named for name in _names(served, each)}
    return _Question(served, current, frozenset(names or {table}), tuple(named), row_id, on_device=not named)


def _names_there(table: StoredTable) -> set[str]:
    """What a stored table may be called as one of its source."""
    name = table_name(table)
    return {table.relation.name, name, f"{tag_of(table.source)}.{name}", f"{table.source}.{name}"}


def _sources(served: Served, table: StoredTable) -> list[tuple[int, RowSource]]:
    """Position of the bucket definition and source of each query that reads a table."""
    relation, tag = table.relation, tag_of(table.source)
    return [
        (position, source)
        for position, bucket in enumerate(served.plan.buckets)
        for source in bucket.sources
        if source.table.matches(tag, relation.schema, relation.name)
    ]


def _names(served: Served, table: StoredTable) -> set[str]:
    """The names that a stored table has on devices."""
    return {source.output_table or table.relation.name for _, source in _sources(served, table)}


@dataclass(frozen=True, slots=True)
class _Question:
    """The row in question: names of its table on devices, and the stored tables that feed those. `on_device` says
    whether table and id are those of devices rather than the source."""

    served: Served
    current: CurrentRows
    names: frozenset[str]
    tables: tuple[StoredTable, ...]
    row_id: str
    on_device: bool = True

    # rows of the source that may be meant

    def rows(self) -> Iterator[tuple[StoredTable, SourceRow]]:
        store = open_store(self.current.store.address)
        for table in self.tables:
            for row_id in self._stored_ids(table):
                row = store.find_row(table.id, row_id)
                if row is not None:
                    yield table, self._source_row(table, row)
            if self.on_device and not self._ids_are_keys(table):
                yield from self._by_object_id(table)

    def _stored_ids(self, table: StoredTable) -> list[str]:
        """The ids that the row may have in the store. On devices, `row_id()` begins with the shard, which is not part
        of it."""
        prefix = f"{shard_of(table.source)}/"
        if not self.on_device or prefix == "/":
            return [self.row_id]
        found = [self.row_id.removeprefix(prefix)] if self.row_id.startswith(prefix) else []
        without_id = all(_id_of_rows(table, source) == "" for _, source in _sources(self.served, table))
        return found if without_id else [self.row_id, *found]

    def _source_row(self, table: StoredTable, row: CurrentRow) -> SourceRow:
        relation, title = table.relation, self.current.title(table)
        if is_stub(row.line):
            self.current.notes.append(f"row {row.row_id} of {title} is too large: it is in no bucket")
            return SourceRow(relation.schema, relation.name, {}, row.row_id, RowResult([], [], []), table.source)
        if OVERSIZED in row.members:
            self.current.notes.append(f"row {row.row_id} of {title} is too large for some of its buckets")
        return self.current.source_row(self.served.plan, table, row)

    def _ids_are_keys(self, table: StoredTable) -> bool:
        """Whether every query gives its rows the id that they have in the store, so that a row can be found by it."""
        keys = [column for column in table.relation.columns if column.key]
        for _, source in _sources(self.served, table):
            chosen = _id_of_rows(table, source)
            if chosen == "":
                continue  # a query without an id column gives rows the id that they have in the store
            if len(keys) != 1 or keys[0].name != chosen or keys[0].type_oid not in _IDS_OF_THEIR_OWN:
                return False
        return True

    def _by_object_id(self, table: StoredTable) -> Iterator[tuple[StoredTable, SourceRow]]:
        """The rows to which some query gives this id on devices, at most _MOST_ROWS. Evaluates all rows of the
        table."""
        plan, store, known = self.served.plan, open_store(self.current.store.address), self._stored_ids(table)
        ids = (
            row_id
            for row_id, result in self.current.results(plan, self.current.pages(table, _PAGE), lambda: None)
            if row_id not in known and any(p.id == self.row_id and p.table in self.names for p in result.puts)
        )
        for row_id in islice(ids, _MOST_ROWS):
            row = store.find_row(table.id, row_id)
            if row is not None:
                yield table, self.current.source_row(plan, table, row)

    # the buckets that contain the row

    def places(self, rows: Iterable[SourceRow]) -> Iterator[RowPlace]:
        """`rows` are the rows of the source that may be meant."""
        ids = {self.row_id}
        if not self.on_device:
            ids = {put.id for row in rows for put in row.result.puts if put.table in self.names}
        feeding = {place for table in self.tables for place, _ in _sources(self.served, table)}
        for bucket in self.served.why.resolution.buckets:
            if not self.tables or bucket.definition in feeding:
                for row in self.served.standing(bucket.name, ids):
                    if row.table in self.names:
                        yield self._place(bucket, row)

    def _place(self, bucket: ResolvedBucket, row: StandingRow) -> RowPlace:
        flushes = open_store(self.current.store.address).read_flushes(OpId(row.op_id - 1), OpId(row.op_id))
        flush = flushes[0] if flushes else None
        known = flush if flush is not None and flush.source else None
        return RowPlace(
            bucket.name,
            self.served.reasons(bucket),
            self.served.values_of(bucket),
            row.table,
            row.id,
            orjson.loads(row.data),
            row.op_id,
            None if known is None else known.source,
            None if known is None else format_lsn(known.lsn),
            _EPOCH_2000 + flush.committed_us / 1e6 if flush is not None and flush.committed_us else None,
        )

    def notes(self) -> Iterator[str]:
        for table in self.tables:
            if table.resync is not None:
                yield f"{self.current.title(table)} is being compared with the source: {table.resync}"
        for status in self.served.why.resolution.streams:
            for error in status.errors:
                yield f"stream {status.name}: {error['message']}"


def _id_of_rows(table: StoredTable, source: RowSource) -> str:
    """The column of a table that a query gives as id: empty if none, a NUL if it is computed."""
    chosen = _id_column(source)
    if chosen == "*":
        return "id" if any(column.name == "id" for column in table.relation.columns) else ""
    return chosen


def _id_column(source: RowSource) -> str:
    """The column that a query gives as id: `*` if it selects all columns, empty if none, a NUL if it is computed."""
    chosen = ""
    for item in source.projection:
        if isinstance(item, Star):
            chosen = chosen or "*"
        elif item.name == "id":
            chosen = item.expr.inputs[0] if item.expr.sql == "?1" and item.expr.inputs else "\0"
    return chosen


def _meant(served: Served, table: StoredTable, row: SourceRow) -> MeantRow:
    queries = []
    if not row.columns:  # it is too large, so the store does not keep it
        return MeantRow(table.source, table_name(table), row.row_id, ())
    tag = tag_of(row.source)
    for position, bucket in enumerate(served.plan.buckets):
        for source in bucket.sources:
            if source.table.matches(tag, row.schema, row.table):
                because = served.why.of_row(row, position, source)
                queries.append(QueryVerdict(served.why.stream_of(position).name, not because, because))
    return MeantRow(table.source, table_name(table), row.row_id, tuple(queries))


def _because(table: str, row_id: str, places: Sequence[RowPlace], rows: Sequence[MeantRow], *, known: bool) -> str:
    if places:
        return f"stream {places[0].reasons[0].stream} gives it, in bucket {places[0].bucket}"
    if not known:
        return f"no stream gives rows of {table}, or the store has none of them"
    if not rows:
        return f"the store has no row {row_id} of {table}"
    given = [query for row in rows for query in row.queries if query.given]
    if given:
        return f"stream {given[0].stream} gives it, but its bucket does not have it at this checkpoint: see the notes"
    if not any(row.queries for row in rows):
        return "the row is too large"
    failing = dict.fromkeys(f"stream {query.stream}: {query.because}" for row in rows for query in row.queries)
    return "; ".join(failing)
