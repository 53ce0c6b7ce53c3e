"""Explains whether a user's device has a row: by which stream, with which values and from which commit, or which
condition keeps it away. Whether the device has it is read from the bucket's ops, as the device does; the rules only
explain why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson

from headwater.insight.explain_user import Reason
from headwater.insight.rows import CurrentRows, table_name
from headwater.insight.served import Limits, Served, StandingRow, open_served
from headwater.oplog.limits import is_stub
from headwater.oplog.lsn import format_lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import OVERSIZED
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store
from headwater_rules.plan import RowSource, Star
from headwater_rules.results import ResolvedBucket, RowResult, SourceRow, SyncRequest

_PAGE = 50_000
_EPOCH_2000 = 946_684_800
_MOST_ROWS = 5
_IDS_OF_THEIR_OWN = frozenset({20, 21, 23, 25, 1043, 2950})
"""Types (int8, int2, int4, text, varchar, uuid) whose values have the same text in Postgres and on a device."""


@dataclass(frozen=True, slots=True)
class RowPlace:
    """A bucket of the user that contains the row, which op `op_id` put there. `source`, `lsn` and `committed` (seconds
    since 1970) are the source's commit that wrote it, null when bulk work or compaction did or when it is no longer
    known."""

    bucket: str
    reasons: tuple[Reason, ...]
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
    """A row of the source that the request may mean, as the store has it now."""

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


@dataclass(frozen=True, slots=True)
class _Asked:
    """The row in question: names of its table on devices, and the stored tables that feed those. `on_device` says
    whether table and id are those of devices rather than the source."""

    names: frozenset[str]
    tables: tuple[StoredTable, ...]
    row_id: str
    on_device: bool = True

    def ids(self, rows: Iterable[SourceRow]) -> set[str]:
        """The ids that the row has on devices. `rows` are the rows of the source that may be meant."""
        if self.on_device:
            return {self.row_id}
        return {put.id for row in rows for put in row.result.puts if put.table in self.names}


def explain_row(
    reader: StoreReader,
    current: CurrentRows,
    request: SyncRequest,
    table: str,
    row_id: str,
    limits: Limits,
) -> RowExplained:
    """Explain whether the user of `request` is sent a row. `table` is its table on devices, or in the source, with or
    without schema; `row_id` is the row's id there. Raises NothingServedYetError."""
    with open_served(reader, request, limits, current.check) as served:
        asked = _asked(served, current, table, row_id)
        found = list(_rows(served, current, asked))
        places = tuple(_places(served, current, asked, asked.ids(row for _, row in found)))
        rows = tuple(_meant(served, stored, row) for stored, row in found)
        notes = [*current.notes, *_notes(served, current, asked)]
        included = bool(places)
        return RowExplained(
            str(request.claims["sub"]),
            table,
            row_id,
            included,
            _because(table, row_id, places, rows, known=bool(asked.tables)),
            served.config,
            served.checkpoint.op_id,
            places,
            rows,
            tuple(dict.fromkeys(notes)),
        )


def _asked(served: Served, current: CurrentRows, table: str, row_id: str) -> _Asked:
    stored = [each for each in current.tables(served.plan) if _sources(served, current, each)]
    as_device = [each for each in stored if table in _names(served, current, each)]
    if as_device:
        return _Asked(frozenset({table}), tuple(as_device), row_id)
    named = [each for each in stored if table in {table_name(each), each.relation.name}]
    names = {name for each in named for name in _names(served, current, each)}
    return _Asked(frozenset(names or {table}), tuple(named), row_id, on_device=not named)


def _sources(served: Served, current: CurrentRows, table: StoredTable) -> list[tuple[int, RowSource]]:
    """Position of the bucket definition and source of each query that reads a table."""
    relation, tag = table.relation, current.source.tag
    return [
        (position, source)
        for position, bucket in enumerate(served.plan.buckets)
        for source in bucket.sources
        if source.table.matches(tag, relation.schema, relation.name)
    ]


def _names(served: Served, current: CurrentRows, table: StoredTable) -> set[str]:
    """The names that a stored table has on devices."""
    return {source.output_table or table.relation.name for _, source in _sources(served, current, table)}


# rows of the source that may be meant


def _rows(served: Served, current: CurrentRows, asked: _Asked) -> Iterator[tuple[StoredTable, SourceRow]]:
    backend = open_store(current.store.address)
    for table in asked.tables:
        row = backend.find_row(table.id, asked.row_id)
        if row is not None:
            yield table, _source_row(served, current, table, row)
        if asked.on_device and not _ids_are_keys(served, current, table):
            yield from _by_object_id(served, current, asked, table)


def _source_row(served: Served, current: CurrentRows, table: StoredTable, row: CurrentRow) -> SourceRow:
    if is_stub(row.line):
        current.notes.append(f"row {row.row_id} of {table_name(table)} is too large: it is in no bucket")
        return SourceRow(table.relation.schema, table.relation.name, {}, row.row_id, RowResult([], [], []))
    if OVERSIZED in row.members:
        current.notes.append(f"row {row.row_id} of {table_name(table)} is too large for some of its buckets")
    return current.source_row(served.plan, table, row)


def _ids_are_keys(served: Served, current: CurrentRows, table: StoredTable) -> bool:
    """Whether every query gives its rows the id that they have in the store, so that a row can be found by it."""
    keys = [column for column in table.relation.columns if column.key]
    for _, source in _sources(served, current, table):
        chosen = _id_column(source)
        if chosen == "*":
            chosen = "id" if any(column.name == "id" for column in table.relation.columns) else ""
        if chosen == "":
            continue  # a query without an id column gives rows the id that they have in the store
        if len(keys) != 1 or keys[0].name != chosen or keys[0].type_oid not in _IDS_OF_THEIR_OWN:
            return False
    return True


def _id_column(source: RowSource) -> str:
    """The column that a query gives as id: `*` if it selects all columns, empty if none, a NUL if it is computed."""
    chosen = ""
    for item in source.projection:
        if isinstance(item, Star):
            chosen = chosen or "*"
        elif item.name == "id":
            chosen = item.expr.inputs[0] if item.expr.sql == "?1" and item.expr.inputs else "\0"
    return chosen


def _by_object_id(
    served: Served, current: CurrentRows, asked: _Asked, table: StoredTable
) -> Iterator[tuple[StoredTable, SourceRow]]:
    """Find the rows to which some query gives this id on devices, at most _MOST_ROWS. Evaluates all rows of the
    table."""
    number = 0
    backend = open_store(current.store.address)
    for row_id, result in current.results(served.plan, current.pages(table, _PAGE), lambda: None):
        if row_id != asked.row_id and any(put.id == asked.row_id and put.table in asked.names for put in result.puts):
            row = backend.find_row(table.id, row_id)
            if row is not None:
                yield table, current.source_row(served.plan, table, row)
            number += 1
            if number >= _MOST_ROWS:
                return


# the buckets that contain the row


def _places(served: Served, current: CurrentRows, asked: _Asked, ids: set[str]) -> Iterator[RowPlace]:
    feeding = {position for table in asked.tables for position, _ in _sources(served, current, table)}
    for bucket in served.why.resolution.buckets:
        if not asked.tables or bucket.definition in feeding:
            for row in served.standing(bucket.name, ids):
                if row.table in asked.names:
                    yield _place(served, current, bucket, row)


def _place(served: Served, current: CurrentRows, bucket: ResolvedBucket, row: StandingRow) -> RowPlace:
    flushes = open_store(current.store.address).read_flushes(OpId(row.op_id - 1), OpId(row.op_id))
    flush = flushes[0] if flushes else None
    known = flush is not None and bool(flush.source)
    return RowPlace(
        bucket.name,
        tuple(Reason(stream, by) for stream, by in served.streams_of(bucket)),
        served.values_of(bucket),
        row.table,
        row.id,
        orjson.loads(row.data),
        row.op_id,
        flush.source if flush is not None and known else None,
        format_lsn(flush.lsn) if flush is not None and known else None,
        _EPOCH_2000 + flush.committed_us / 1e6 if flush is not None and flush.committed_us else None,
    )


# the reasons


def _meant(served: Served, table: StoredTable, row: SourceRow) -> MeantRow:
    queries = []
    if not row.columns:  # it is too large, so the store does not keep it
        return MeantRow(table_name(table), row.row_id, ())
    for position, bucket in enumerate(served.plan.buckets):
        for source in bucket.sources:
            if source.table.matches(source.table.tag, row.schema, row.table):
                because = served.why.of_row(row, position, source)
                queries.append(QueryVerdict(served.why.stream_of(position).name, not because, because))
    return MeantRow(table_name(table), row.row_id, tuple(queries))


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


def _notes(served: Served, current: CurrentRows, asked: _Asked) -> Iterator[str]:
    for table in asked.tables:
        if table.resync is not None:
            yield f"{table_name(table)} is being compared with the source: {table.resync}"
    for status in served.why.resolution.streams:
        for error in status.errors:
            yield f"stream {status.name}: {error['message']}"
