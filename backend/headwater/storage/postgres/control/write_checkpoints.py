"""Write checkpoints of clients. They have locks of their own: the endpoint writes them and must never wait for a
flush."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import orjson
import psycopg

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import WriteCheckpoint
from headwater.storage.shared.values import as_int
from headwater.storage.shared.writes import later_positions, next_id

_SELECT = "select key, id, lsns, seq from write_checkpoints"

_KNOWN = f"{_SELECT} where digest = any(%s)"

_UPSERT = """
insert into write_checkpoints (digest, key, id, lsns, seq, requested_at)
select new.*, case when %s then extract(epoch from clock_timestamp()) end
from unnest(%s::bytea[], %s::text[], %s::bigint[], %s::text[], %s::bigint[]) new
on conflict (digest) do update set
    id = excluded.id, lsns = excluded.lsns, seq = excluded.seq, requested_at = excluded.requested_at
"""

_CAP = """
update write_checkpoints set lsns = new.lsns, seq = new.seq
from unnest(%s::bytea[], %s::text[], %s::bigint[]) new (digest, lsns, seq) where write_checkpoints.digest = new.digest
"""

_REQUESTED_AGAIN = """
update write_checkpoints set requested_at = extract(epoch from clock_timestamp())
from unnest(%s::bytea[], %s::bigint[]) asked (digest, id)
where write_checkpoints.digest = asked.digest and write_checkpoints.id = asked.id and requested_at is not null
"""

_FORGET = "delete from write_checkpoints where requested_at < extract(epoch from clock_timestamp()) - %s"


def create(
    connection: psycopg.Connection, channel: str, keys: Sequence[str], lsns: Mapping[str, Lsn]
) -> dict[str, int]:
    """See the contract."""
    return _put(connection, channel, dict.fromkeys(keys), lsns)


def request(
    connection: psycopg.Connection, channel: str, requests: Mapping[str, int], lsns: Mapping[str, Lsn]
) -> dict[str, int]:
    """See the contract."""
    return _put(connection, channel, requests, lsns)


def forget_requests(connection: psycopg.Connection, seconds: float) -> int:
    """See `StoreReader.forget_write_requests`."""
    with connection.transaction():
        connection.execute("select seq from write_state for update")  # clients are told of rows that are there
        return connection.execute(_FORGET, [seconds]).rowcount


def _put(
    connection: psycopg.Connection, channel: str, wanted: Mapping[str, int | None], lsns: Mapping[str, Lsn]
) -> dict[str, int]:
    """Store write checkpoints by key, with the id that the client chose, or None for the next one. Processes run one
    after the other, so that a reader that has read up to a `seq` has seen all below it. Returns the ids stored
    afterwards."""
    if not wanted:
        return {}
    digests = {key: key_digest(key) for key in wanted}
    with connection.transaction():
        last = connection.execute("select seq from write_state for update").fetchall()[0][0]
        known = {row[0]: _checkpoint(row) for row in connection.execute(_KNOWN, [list(digests.values())])}
        ids = {key: next_id(known.get(key), chosen) for key, chosen in wanted.items()}
        moved = {key: write_id for key, write_id in ids.items() if write_id is not None}
        if len(moved) < len(ids):
            same = [key for key in ids if key not in moved]
            connection.execute(_REQUESTED_AGAIN, [[digests[key] for key in same], [wanted[key] for key in same]])
        if moved:
            texts = [orjson.dumps(later_positions(known.get(key), lsns)).decode() for key in moved]
            numbers = [last + 1 + n for n in range(len(moved))]
            chosen = any(number is not None for number in wanted.values())
            columns = [[digests[key] for key in moved], list(moved), list(moved.values()), texts, numbers]
            connection.execute(_UPSERT, [chosen, *columns])
            connection.execute("update write_state set seq = %s", [numbers[-1]])
            connection.execute("select pg_notify(%s, '')", [channel])
    return {key: moved[key] if key in moved else known[key].id for key in wanted}


def cap(connection: psycopg.Connection, channel: str, tag: str, lsn: Lsn) -> None:
    """See `StoreWriter.cap_writes`."""
    with connection.transaction():
        first = connection.execute("select seq + 1 from write_state for update").fetchall()[0][0]
        beyond = [write for write in map(_checkpoint, connection.execute(_SELECT)) if write.lsns.get(tag, lsn) > lsn]
        if not beyond:
            return
        connection.execute("update write_state set seq = seq + %s", [len(beyond)])
        capped = [orjson.dumps({**write.lsns, tag: lsn}).decode() for write in beyond]
        numbers = [first + n for n in range(len(beyond))]
        connection.execute(_CAP, [[key_digest(write.key) for write in beyond], capped, numbers])
        connection.execute("select pg_notify(%s, '')", [channel])


def after(connection: psycopg.Connection, seq: int) -> list[WriteCheckpoint]:
    """Write checkpoints created or replaced after `seq`, in order."""
    return [_checkpoint(row) for row in connection.execute(f"{_SELECT} where seq > %s order by seq", [seq])]


def get(connection: psycopg.Connection, key: str) -> WriteCheckpoint | None:
    """The newest write checkpoint of one client."""
    row = connection.execute(_KNOWN, [[key_digest(key)]]).fetchone()
    return None if row is None else _checkpoint(row)


def key_digest(key: str) -> bytes:
    """The indexed form of a key: user ids may be longer than an index entry can be."""
    return hashlib.blake2b(key.encode(), digest_size=24).digest()


def _checkpoint(row: Sequence[object]) -> WriteCheckpoint:
    key, write_id, lsns, seq = row
    positions = {tag: Lsn(int(lsn)) for tag, lsn in orjson.loads(str(lsns)).items()}
    return WriteCheckpoint(str(key), as_int(write_id), positions, as_int(seq))
