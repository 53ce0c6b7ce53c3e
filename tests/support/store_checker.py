"""Walks a whole store and says what in it contradicts itself. Reads the tables; shares no code with the service but
the formats."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import psycopg
import zstandard
from psycopg import sql

from headwater.storage.address import PostgresAddress, StoreAddress
from tests.support.store_file import store_file

Op = dict[str, Any]


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """What one consistent look at a store gave: `history` holds the ops of each bucket key in order, `retired` those
    buckets that are being forgotten bit by bit."""

    db: apsw.Connection
    retired: frozenset[int]
    history: dict[int, list[Op]]
    names: dict[int, str]
    restored: frozenset[str]


def problems(store: Path | StoreAddress, restored: Collection[str] = ()) -> list[str]:
    """Everything that is wrong with a store; empty for one that is whole. What an unfinished bulk job left invisible
    is not wrong, nor are records of a log that a source does not have any more since it was restored."""
    with _seen(store) as db:
        found = list(_broken_segments(db))
        if found:
            return found
        retired = frozenset(row[0] for row in _rows(db, "select id from retired_buckets"))
        names = dict(_rows(db, "select id, name from buckets"))
        copy = StoreCopy(db, retired, _history(db), names, frozenset(restored))
        for check in (_ids, _totals, _checkpoint, _generations, _staging, _lookups, _flips, _members):
            found += check(copy)
        integrity = [row[0] for row in _rows(db, "pragma integrity_check") if row[0] != "ok"]
        return found + integrity


@contextmanager
def _seen(store: Path | StoreAddress) -> Iterator[apsw.Connection]:
    """The store's tables as they are at one moment; those of a store that is no file as a copy."""
    if not isinstance(store, PostgresAddress):
        with store_file(store if isinstance(store, Path) else store.directory) as db:
            db.execute("begin")
            yield db
        return
    with closing(apsw.Connection(":memory:")) as db:
        _copy_tables(store, db)
        yield db


_TABLES = (
    "buckets", "flips", "flushes", "lookups", "ops", "retired_buckets", "segment_blobs", "segments", "sources",
    "staged_segments", "state", "tables",
)  # fmt: skip


# the columns have a digest of an id that is too long for an index
_LONG_IDS = """
update lookups set row_id = r.long_id from rows_{0:d} r
    where r.long_id is not null and lookups.table_id = {0:d} and lookups.row_id = r.row_id;
update rows_{0:d} set row_id = long_id where long_id is not null;
"""


def _copy_tables(address: PostgresAddress, db: apsw.Connection) -> None:
    with psycopg.connect(address.conninfo) as connection:
        connection.execute("set transaction isolation level repeatable read")
        for name in _TABLES:
            _copy_table(address, connection, db, name)
        # an old generation is swept away in its own time
        for (table,) in db.execute("select id from tables where state = 'dropped'").fetchall():
            db.execute("delete from lookups where table_id = ?", (table,))
            db.execute("delete from flips where table_id = ?", (table,))
        db.execute("delete from tables where state = 'dropped'")
        for (table,) in db.execute("select id from tables").fetchall():
            _copy_table(address, connection, db, f"rows_{int(str(table)):d}")
            db.execute(_LONG_IDS.format(int(str(table))))


def _copy_table(address: PostgresAddress, connection: psycopg.Connection, db: apsw.Connection, name: str) -> None:
    cursor = connection.execute(sql.SQL("select * from {}").format(sql.Identifier(address.schema, name)))
    columns = [column.name for column in cursor.description or ()]
    db.execute(f"create table {name} ({', '.join(columns)})")
    db.executemany(f"insert into {name} values ({', '.join('?' * len(columns))})", cursor)


def leftovers(directory: Path) -> dict[str, int]:
    """What unfinished bulk jobs left, by kind; empty when there is nothing."""
    with store_file(directory) as db:
        counts = {
            "staged tables": "select count(*) from tables where state = 'staged'",
            "staged segments": "select count(*) from staged_segments",
            "staged buckets": "select count(*) from staged_buckets",
            "blobs that no segment names": (
                "select count(*) from segment_blobs where id not in (select blob from segments)"
            ),
            "lookups of no active table": (
                "select count(*) from lookups where table_id not in (select id from tables where state = 'active')"
            ),
        }
        found = {kind: int(_rows(db, sql)[0][0]) for kind, sql in counts.items()}
    found["files"] = len(list((directory / "stage").glob("*"))) if (directory / "stage").exists() else 0
    return {kind: count for kind, count in found.items() if count}


def histories(store: Path | StoreAddress) -> dict[str, list[Op]]:
    """All ops that the store has kept of each bucket, in order, whether or not a device would still be sent them."""
    with _seen(store) as db:
        names = dict(_rows(db, "select id, name from buckets"))
        return {names[bucket]: ops for bucket, ops in _history(db).items()}


def _rows(db: apsw.Connection, sql: str) -> list[tuple[Any, ...]]:
    return db.execute(sql).fetchall()


def _history(db: apsw.Connection) -> dict[int, list[Op]]:
    ops: dict[int, list[Op]] = defaultdict(list)
    for op_id, bucket, line in _rows(db, "select id, bucket, line from ops"):
        op = json.loads(line)
        ops[bucket].append({**op, "op_id": int(op["op_id"]), "row": op_id})
    for bucket, first, sealed, bodies in _rows(
        db, "select s.bucket, s.first_op, s.sealed, b.bodies from segments s join segment_blobs b on b.id = s.blob"
    ):
        ops[bucket] += [{**op, "row": op["op_id"]} for op in _segment_ops(first, sealed, bodies)]
    return {bucket: sorted(found, key=lambda op: int(op["op_id"])) for bucket, found in ops.items()}


def _segment_ops(first: int, sealed: int, bodies: bytes) -> list[Op]:
    texts = zstandard.decompress(bodies).decode().split("\n")
    if sealed:
        return [{**op, "op_id": int(op["op_id"])} for op in map(json.loads, texts)]
    return [{**json.loads("{" + body), "op_id": op_id} for op_id, body in enumerate(texts, first)]


def _broken_segments(db: apsw.Connection) -> Iterator[str]:
    sql = (
        "select s.bucket, s.first_op, s.last_op, s.blob, s.sealed, b.bucket, b.size, b.checksum, b.bodies"
        " from segments s left join segment_blobs b on b.id = s.blob order by s.bucket, s.first_op"
    )
    before = (0, 0)
    for bucket, first, last, blob, sealed, of, size, checksum, bodies in _rows(db, sql):
        if bodies is None:
            yield f"segment {first} of bucket {bucket} names blob {blob}, which is not there"
            continue
        ops = _segment_ops(first, sealed, bodies)
        ids = [op["op_id"] for op in ops]
        if of != bucket or len(ops) != size or (ids[0], ids[-1]) != (first, last) or ids != sorted(set(ids)):
            yield f"blob {blob} does not fit its segment {first}..{last}"
        if before >= (bucket, first):
            yield f"segment {first}..{last} of bucket {bucket} begins within the one before it"
        before = (bucket, last)
        if sealed and size > 1 and (size > 1000 or len(zstandard.decompress(bodies)) > 1 << 20):
            yield f"segment {first}..{last} of bucket {bucket} is too large for a chunk"
        if sum(op["checksum"] for op in ops) % 2**32 != checksum:
            yield f"blob {blob} has another checksum than its ops"


def _ids(copy: StoreCopy) -> Iterator[str]:
    counts = Counter(op["op_id"] for ops in copy.history.values() for op in ops)
    yield from (f"op id {op_id} was given out {count} times" for op_id, count in counts.items() if count > 1)
    for ops in copy.history.values():
        yield from (f"op {op['row']} calls itself {op['op_id']}" for op in ops if op["row"] != op["op_id"])


def _since_clear(ops: list[Op]) -> list[Op]:
    start = max((n for n, op in enumerate(ops) if op["op"] == "CLEAR"), default=0)
    return ops[start:]


def _totals(copy: StoreCopy) -> Iterator[str]:
    for bucket, name, checksum, count, clear_op, last_op, compacted_op in _rows(
        copy.db, "select id, name, checksum, count, clear_op, last_op, compacted_op from buckets"
    ):
        ops = copy.history.get(bucket, [])
        seen = _since_clear(ops)
        # of what lies before the last CLEAR, compaction takes away one piece after the other
        if not ops or seen[0]["op"] != "CLEAR" or (ops[0]["op"] != "CLEAR" and compacted_op < clear_op):
            yield f"{name} does not begin with a CLEAR"
            continue
        if compacted_op > last_op:
            yield f"{name} was compacted up to op {compacted_op}, after its last op {last_op}"
        told = (checksum, count, clear_op, last_op)
        real = (sum(op["checksum"] for op in seen) % 2**32, len(seen), seen[0]["op_id"], seen[-1]["op_id"])
        if told != real:
            yield f"{name}: checksum, count, last clear and last op are told as {told} and are {real}"
    nameless = copy.history.keys() - copy.names.keys() - copy.retired
    yield from (f"bucket {bucket} has ops and no name" for bucket in nameless)
    yield from (f"{copy.names[bucket]} is retired and there" for bucket in copy.retired & copy.names.keys())


def _checkpoint(copy: StoreCopy) -> Iterator[str]:
    ((next_op, checkpoint),) = _rows(copy.db, "select next_op, checkpoint from state")
    newest = max((ops[-1]["op_id"] for ops in copy.history.values()), default=0)
    if newest > (checkpoint or 0):
        yield f"op {newest} is above the checkpoint {checkpoint}"
    if next_op <= max(newest, checkpoint or 0):
        yield f"the next op is to be {next_op}, and {newest} exists"
    for last_op, source, lsn, source_lsn in _rows(
        copy.db, "select f.last_op, f.source, f.lsn, s.lsn from flushes f left join sources s on s.tag = f.source"
    ):
        # what compaction appends belongs to no source
        judged = source and source not in copy.restored
        if last_op > (checkpoint or 0) or (judged and (source_lsn is None or lsn > source_lsn)):
            yield f"the flush up to op {last_op} at {lsn} is ahead of the store"


def _generations(copy: StoreCopy) -> Iterator[str]:
    described = {f"rows_{table}" for (table,) in _rows(copy.db, "select id from tables")}
    there = {
        name
        for (name,) in _rows(
            copy.db, r"select name from sqlite_master where type = 'table' and name like 'rows\_%' escape '\'"
        )
    }
    yield from (f"{name} belongs to no table" for name in there - described)
    yield from (f"{name} is missing" for name in described - there)


def _staging(copy: StoreCopy) -> Iterator[str]:
    visible = {blob for (blob,) in _rows(copy.db, "select blob from segments")}
    staged = {blob for (blob,) in _rows(copy.db, "select blob from staged_segments")}
    blobs = {blob for (blob,) in _rows(copy.db, "select id from segment_blobs")}
    yield from (f"blob {blob} is staged and visible" for blob in visible & staged)
    yield from (f"blob {blob} belongs to nothing" for blob in blobs - visible - staged)


def _lookups(copy: StoreCopy) -> Iterator[str]:
    tables = [table for (table,) in _rows(copy.db, "select id from tables")]
    for table, row_id in _rows(copy.db, "select distinct table_id, row_id from lookups"):
        if table not in tables:
            yield f"a lookup belongs to table {table}, which is not there"
        elif not copy.db.execute(f"select 1 from rows_{table:d} where row_id = ?", (row_id,)).fetchall():
            yield f"a lookup belongs to row {row_id} of table {table}, which is not there"


def _flips(copy: StoreCopy) -> Iterator[str]:
    tables = [table for (table,) in _rows(copy.db, "select id from tables")]
    for (table,) in _rows(copy.db, "select distinct table_id from flips"):
        if table not in tables:
            yield f"rows of table {table} have to be evaluated again, which is not there"


def _members(copy: StoreCopy) -> Iterator[str]:
    """What current rows say they have in buckets is what stands there."""
    said: Counter[tuple[int, str, str, int]] = Counter()
    for (table,) in _rows(copy.db, "select id from tables where state = 'active'"):
        for row_id, members in _rows(copy.db, f"select row_id, members from rows_{table:d} where members <> ''"):
            for bucket, digest, kind, *object_id in json.loads(members):
                if len(object_id) > 1:
                    continue  # what was too large to stand there
                if bucket in copy.retired:
                    continue
                said[bucket, kind, object_id[0] if object_id else row_id, digest % 2**32] += 1
    stands: Counter[tuple[int, str, str, int]] = Counter()
    for bucket in copy.history.keys() - copy.retired:
        live = _live(copy.history[bucket])
        stands.update((bucket, kind, object_id, checksum) for (kind, object_id, _), checksum in live.items())
    for where, things in (("a row and not in its bucket", said - stands), ("a bucket and not of a row", stands - said)):
        for bucket, kind, object_id, _ in things:
            yield f"{kind} {object_id} is in {where} ({copy.names.get(bucket, bucket)})"


def _live(ops: list[Op]) -> dict[tuple[str, str, str], int]:
    """Checksums of the rows that stand after these ops, by type, id and subkey."""
    live: dict[tuple[str, str, str], int] = {}
    for op in _since_clear(ops)[1:]:
        if op["op"] == "MOVE":
            continue
        live.pop((op["object_type"], op["object_id"], op["subkey"]), None)
        if op["op"] == "PUT":
            live[op["object_type"], op["object_id"], op["subkey"]] = op["checksum"]
    return live
