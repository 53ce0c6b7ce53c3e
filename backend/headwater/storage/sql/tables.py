"""Generations of source tables: their descriptions, and the tables that hold their current rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import orjson

from headwater.oplog.change import Column, Generated, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason, reason_columns, stored_reason
from headwater.storage.contract.store import SourceState, StoredTable
from headwater.storage.sql.cursor import Cursor, Row, Value


def create_generation(
    db: Cursor,
    source: str,
    layouts: Sequence[Relation],
    fingerprint: str,
    state: str,
    resync: ResyncReason | None = None,
) -> int:
    """Add a generation and create the table of its rows, without an index: bulk work adds that after filling it."""
    insert = (
        "insert into tables (source, layouts, fingerprint, state, resync, resync_detail)"
        " values (?, ?, ?, ?, ?, ?) returning id"
    )
    values = (source, encode_layouts(layouts), fingerprint, state, *reason_columns(resync))
    table = int(db.rows(insert, *values)[0][0])
    db.execute(db.dialect.create_rows.format(table=table))
    return table


def index_rows(db: Cursor, table: int) -> None:
    """Create the indexes that live replication and bulk reading need."""
    for statement in db.dialect.index_rows:
        db.execute(statement.format(table=table))


def create_active(
    db: Cursor, source: str, layouts: Sequence[Relation], fingerprint: str, resync: ResyncReason | None
) -> int:
    """Create a generation that live replication may write to at once; returns its id."""
    table = create_generation(db, source, layouts, fingerprint, "active", resync)
    index_rows(db, table)
    return table


def drop_generation(db: Cursor, table: int) -> None:
    """Delete a generation with its rows and lookups, or have that done later in steps that hold nobody up."""
    for statement in db.dialect.drop_generation:
        db.execute(statement.format(table=table))


def renew_generation(db: Cursor, table: int) -> int:
    """Replace a generation by an empty one; returns its id."""
    (known,) = _load(db, "id = ?", table)
    drop_generation(db, table)
    return create_active(db, known.source, known.layouts, known.fingerprint, known.resync)


def replace_active(db: Cursor, table: int, staged: int, resync: ResyncReason | None) -> bool:
    """Within a write transaction: replace an active generation by a staged one. Returns False if there is no such
    active one."""
    found = db.one("select layouts, fingerprint from tables where id = ? and state = 'active'", table)
    if found is None:
        return False
    drop_generation(db, table)
    db.execute(
        "update tables set state = 'active', layouts = ?, fingerprint = ?, resync = ?, resync_detail = ? where id = ?",
        *found,
        *reason_columns(resync),
        staged,
    )
    return True


def mark_resync(db: Cursor, tables: Sequence[int], reason: ResyncReason | None) -> None:
    """Within a write transaction: set the reason why tables are being compared with the source."""
    mark = f"update tables set resync = ?, resync_detail = ? where id {db.dialect.among}"
    db.execute(mark, *reason_columns(reason), list(tables))


def add_layout(db: Cursor, table: int, relation: Relation, fingerprint: str) -> StoredTable:
    """Within a write transaction: write rows in the form of `relation` from now on."""
    (known,) = _load(db, "id = ?", table)
    layouts = known.layouts if known.relation == relation else (*known.layouts, relation)
    change = "update tables set layouts = ?, fingerprint = ? where id = ?"
    db.execute(change, encode_layouts(layouts), fingerprint, table)
    return StoredTable(table, known.source, layouts, fingerprint, known.resync)


def replace_layouts(db: Cursor, table: int, layouts: Sequence[Relation], fingerprint: str) -> None:
    """Within a write transaction: describe the same rows by other oids."""
    change = "update tables set layouts = ?, fingerprint = ? where id = ?"
    db.execute(change, encode_layouts(layouts), fingerprint, table)


def active(db: Cursor, source: str) -> list[StoredTable]:
    """The active generations of a source."""
    return _load(db, "source = ? and state = 'active'", source)


def all_active(db: Cursor) -> list[StoredTable]:
    """The active generations of all sources."""
    return _load(db, "state = 'active'")


def _load(db: Cursor, condition: str, *values: Value) -> list[StoredTable]:
    """Generations that satisfy `condition`, by id."""
    query = f"select id, source, layouts, fingerprint, resync, resync_detail from tables where {condition} order by id"
    return [
        StoredTable(table, source, decode_layouts(layouts), fingerprint, stored_reason(cause, detail))
        for table, source, layouts, fingerprint, cause, detail in db.rows(query, *values)
    ]


# the sources that they are of


def source_state(db: Cursor, tag: str) -> SourceState | None:
    """See `StoreWriter.source_state`."""
    row = db.one("select lsn, slot, system_id, timeline from sources where tag = ?", tag)
    return None if row is None else SourceState(tag, *row)


def set_source(db: Cursor, state: SourceState) -> None:
    """Within a write transaction: set the position that the source is followed from."""
    db.execute(
        "insert into sources (tag, lsn, slot, system_id, timeline) values (?, ?, ?, ?, ?)"
        " on conflict (tag) do update set lsn = excluded.lsn, slot = excluded.slot, system_id = excluded.system_id,"
        " timeline = excluded.timeline",
        *(state.source, state.lsn, state.slot, state.system_id, state.timeline),
    )


CHECKPOINT = "select coalesce(s.checkpoint, 0), t.tag, t.lsn from state s left join sources t on true"


def checkpoint(db: Cursor) -> Checkpoint:
    """The visible checkpoint; op id 0 while there is none."""
    return as_checkpoint(db.rows(CHECKPOINT))


def as_checkpoint(rows: Sequence[Row]) -> Checkpoint:
    """The rows of CHECKPOINT as a checkpoint."""
    return Checkpoint(OpId(rows[0][0]), {tag: Lsn(lsn) for _, tag, lsn in rows if tag is not None})


# when rows have to be evaluated again whose buckets depend on the time, in microseconds since 1970 UTC

_PUT_FLIP = """
insert into flips (table_id, row_id, at) values (?, ?, ?)
on conflict (table_id, row_id) do update set at = excluded.at
"""
_DUE_FLIPS = """
select coalesce({row_id}, f.row_id) from flips f left join rows_{table:d} r on r.row_id = f.row_id
where f.table_id = ? and f.at <= ? order by f.at, f.row_id limit ?
"""
_SET_TICK = """
insert into ticks (source, at) values (?, ?)
on conflict (source) do update set at = excluded.at where ticks.at < excluded.at
"""


def put_flips(db: Cursor, table: int, flips: Mapping[str, int | None]) -> None:
    """Within a write transaction: set when rows, by id, have to be evaluated again; None: not at all."""
    stored = {db.dialect.stored_row_id(row_id): at for row_id, at in flips.items()}
    db.execute_many(_PUT_FLIP, [(table, row_id, at) for row_id, at in stored.items() if at is not None])
    gone = [row_id for row_id, at in stored.items() if at is None]
    if gone:
        db.execute(f"delete from flips where table_id = ? and row_id {db.dialect.among}", table, gone)


def due(db: Cursor, table: int, now: int, most: int) -> list[str]:
    """The ids of rows that have to be evaluated again by `now`, the earliest first. Some may be gone."""
    query = _DUE_FLIPS.format(table=table, row_id=db.dialect.whole_row_id.format("r"))
    return [row_id for (row_id,) in db.rows(query, table, now, most)]


def next_flip(db: Cursor, tables: Iterable[int]) -> int | None:
    """When the next row of these tables is due."""
    found = [db.rows("select min(at) from flips where table_id = ?", table)[0][0] for table in tables]
    return min((at for at in found if at is not None), default=None)


def tables_with_flips(db: Cursor, source: str) -> set[int]:
    """The tables of a source that have any."""
    query = "select id from tables where source = ? and exists (select 1 from flips where table_id = tables.id)"
    return {table for (table,) in db.rows(query, source)}


def flips(db: Cursor, table: int, row_ids: Iterable[str]) -> dict[str, int]:
    """When those of the rows have to be evaluated again that have to be, by id."""
    by_stored = {db.dialect.stored_row_id(row_id): row_id for row_id in row_ids}
    query = f"select row_id, at from flips where table_id = ? and row_id {db.dialect.among}"
    return {by_stored[row_id]: at for row_id, at in db.rows(query, table, list(by_stored))}


def tick(db: Cursor, source: str) -> int:
    """The time at which rows of a source were evaluated last; 0 before."""
    found = db.one("select at from ticks where source = ?", source)
    return 0 if found is None else int(found[0])


def set_tick(db: Cursor, source: str, now: int) -> None:
    """Within a write transaction: move the time of a source on. An earlier one changes nothing."""
    db.execute(_SET_TICK, source, now)


# what bulk jobs did to them

_JOB = "kind, source, application, tasks, rows, ops, started, finished"


def bulk_records(db: Cursor, ending: str = "order by id") -> list[BulkRecord]:
    """What bulk jobs did, oldest first unless the query ends otherwise."""
    return [BulkRecord(*row) for row in db.rows(f"select {_JOB} from bulk_jobs {ending}")]


def record_job(db: Cursor, record: BulkRecord) -> None:
    """Within a write transaction: record what a job did."""
    insert = f"insert into bulk_jobs ({_JOB}) values (?, ?, ?, ?, ?, ?, ?, ?)"
    counts = record.tasks, record.rows, record.ops
    db.execute(insert, record.kind, record.source, record.application, *counts, record.started, record.finished)


# layouts as text


def encode_layouts(layouts: Sequence[Relation]) -> str:
    """Relations as JSON."""
    return orjson.dumps(
        [
            [
                r.oid,
                r.schema,
                r.name,
                r.identity.value,
                [_encoded(column) for column in r.columns],
                *([True] if r.by_leaf else []),
            ]
            for r in layouts
        ]
    ).decode()


def decode_layouts(text: str) -> tuple[Relation, ...]:
    """The inverse of `encode_layouts`."""
    return tuple(
        Relation(oid, schema, name, ReplicaIdentity(identity), tuple(_decoded(*column) for column in columns), *by_leaf)
        for oid, schema, name, identity, columns, *by_leaf in orjson.loads(text)
    )


def _encoded(column: Column) -> list[object]:
    plain = [column.name, column.type_oid, column.type_modifier, column.key]
    return plain if column.generated is None else [*plain, column.generated.expression, column.generated.inputs]


def _decoded(
    name: str, type_oid: int, type_modifier: int, key: bool, expression: str | None = None, inputs: Sequence[str] = ()
) -> Column:
    generated = None if expression is None else Generated(expression, tuple(inputs))
    return Column(name, type_oid, type_modifier, key, generated)
