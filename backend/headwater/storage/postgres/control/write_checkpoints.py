"""Write checkpoints of clients. They have locks of their own: the endpoint writes them, and must never wait for a
flush."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import orjson
import psycopg

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.store import WriteCheckpoint
from headwater.storage.shared.values import whole

_SELECT = "select key, id, lsns, seq from write_checkpoints"

_KNOWN = f"{_SELECT} where digest = any(%s)"

_UPSERT = """
insert into write_checkpoints (digest, key, id, lsns, seq)
select * from unnest(%s::bytea[], %s::text[], %s::bigint[], %s::text[], %s::bigint[])
on conflict (digest) do update set id = excluded.id, lsns = excluded.lsns, seq = excluded.seq
"""


def create(
    connection: psycopg.Connection, channel: str, keys: Sequence[str], lsns: Mapping[str, Lsn]
) -> dict[str, int]:
    """See the contract. Processes take turns, so that whoever reads up to a `seq` has seen all below it."""
    wanted = list(dict.fromkeys(keys))
    if not wanted:
        return {}
    digests = [key_digest(key) for key in wanted]
    with connection.transaction():
        first = connection.execute(
            "update write_state set seq = seq + %s returning seq - %s + 1", [len(wanted), len(wanted)]
        ).fetchall()[0][0]
        known = {row[0]: _checkpoint(row) for row in connection.execute(_KNOWN, [digests])}
        rows = [_next(key, known.get(key), lsns) for key in wanted]
        numbers = [first + n for n in range(len(rows))]
        connection.execute(_UPSERT, [digests, *map(list, zip(*rows, strict=True)), numbers])
        connection.execute("select pg_notify(%s, '')", [channel])
    return {key: write_id for key, write_id, _ in rows}


def _next(key: str, before: WriteCheckpoint | None, lsns: Mapping[str, Lsn]) -> tuple[str, int, str]:
    # Of two processes the later one may have asked the source earlier: a position never goes back
    merged = {tag: max(lsn, before.lsns.get(tag, lsn) if before else lsn) for tag, lsn in lsns.items()}
    return key, 1 if before is None else before.id + 1, orjson.dumps(merged).decode()


def cap(connection: psycopg.Connection, channel: str, tag: str, lsn: Lsn) -> None:
    """See `StoreWriter.cap_writes`."""
    with connection.transaction():
        first = connection.execute("select seq + 1 from write_state for update").fetchall()[0][0]
        beyond = [write for write in map(_checkpoint, connection.execute(_SELECT)) if write.lsns.get(tag, lsn) > lsn]
        if not beyond:
            return
        connection.execute("update write_state set seq = seq + %s", [len(beyond)])
        rows = [(write.key, write.id, orjson.dumps({**write.lsns, tag: lsn}).decode()) for write in beyond]
        numbers = [first + n for n in range(len(rows))]
        digests = [key_digest(write.key) for write in beyond]
        connection.execute(_UPSERT, [digests, *map(list, zip(*rows, strict=True)), numbers])
        connection.execute("select pg_notify(%s, '')", [channel])


def after(connection: psycopg.Connection, seq: int) -> list[WriteCheckpoint]:
    """Those created or replaced after `seq`, in order."""
    return [_checkpoint(row) for row in connection.execute(f"{_SELECT} where seq > %s order by seq", [seq])]


def get(connection: psycopg.Connection, key: str) -> WriteCheckpoint | None:
    """The newest of one client."""
    row = connection.execute(_KNOWN, [[key_digest(key)]]).fetchone()
    return None if row is None else _checkpoint(row)


def key_digest(key: str) -> bytes:
    """What a key is found by: users have ids of any length, and an index entry has not."""
    return hashlib.blake2b(key.encode(), digest_size=24).digest()


def _checkpoint(row: Sequence[object]) -> WriteCheckpoint:
    key, write_id, lsns, seq = row
    positions = {tag: Lsn(int(lsn)) for tag, lsn in orjson.loads(str(lsns)).items()}
    return WriteCheckpoint(str(key), whole(write_id), positions, whole(seq))
