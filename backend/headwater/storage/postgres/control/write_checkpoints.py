"""Write checkpoints of clients. They have locks of their own: the endpoint writes them and must never wait for a
flush."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count

import orjson
import psycopg

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import WriteCheckpoint
from headwater.storage.shared.values import as_int
from headwater.storage.shared.write_key import stand_in_key, user_of
from headwater.storage.shared.writes import (
    CLIENTS_KEPT,
    FORGOTTEN_AT_ONCE,
    following,
    next_stand_in,
    of_client,
)

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

# In the words of the index write_checkpoints_user
_CLIENTS_OF = "left(split_part(w.key, '/', 1), 500) = left(users.name, 500) and starts_with(w.key, users.name || '/')"

# Materialized, since the planner may otherwise look for the limit once per row
_FORGET_CLIENTS = f"""
with users as materialized (
    select name, seq from unnest(%s::text[]) users (name), lateral (
        select w.seq from write_checkpoints w where {_CLIENTS_OF} order by w.seq desc limit 1 offset %s
    ) newest
), surplus as materialized (
    select digest from users, lateral (
        select w.digest from write_checkpoints w where {_CLIENTS_OF} and w.seq <= users.seq order by w.seq limit %s
    ) oldest
)
delete from write_checkpoints w using surplus where w.digest = surplus.digest
returning w.requested_at is null, w.key, w.id, w.lsns, w.seq
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
    with connection.transaction():
        seqs = count(connection.execute("select seq + 1 from write_state for update").fetchall()[0][0])
        known = _known(connection, wanted)
        written = {key: following(key, known, chosen, lsns, lambda: next(seqs)) for key, chosen in wanted.items()}
        moved = [write for write in written.values() if write is not None]
        if same := [key for key, write in written.items() if write is None]:
            connection.execute(_REQUESTED_AGAIN, [list(map(key_digest, same)), [wanted[key] for key in same]])
        if moved:
            _store(connection, moved, chosen=any(number is not None for number in wanted.values()))
            _forget_clients(connection, {user_of(key) for key in wanted if key not in known}, lsns)
            connection.execute("select pg_notify(%s, '')", [channel])
    return {key: (write or known[key]).id for key, write in written.items()}


def _known(connection: psycopg.Connection, keys: Iterable[str]) -> dict[str, WriteCheckpoint]:
    """What is stored under these keys, and for the forgotten clients of their users."""
    digests = [key_digest(each) for key in keys for each in (key, stand_in_key(user_of(key)))]
    return {write.key: write for write in map(_checkpoint, connection.execute(_KNOWN, [digests]))}


def _store(connection: psycopg.Connection, writes: Sequence[WriteCheckpoint], *, chosen: bool) -> None:
    """Store write checkpoints, whose `seq` are the next ones."""
    texts = [orjson.dumps(write.lsns).decode() for write in writes]
    keys, ids, numbers = zip(*((write.key, write.id, write.seq) for write in writes), strict=True)
    connection.execute(_UPSERT, [chosen, list(map(key_digest, keys)), list(keys), list(ids), texts, list(numbers)])
    connection.execute("update write_state set seq = %s", [numbers[-1]])


def _forget_clients(connection: psycopg.Connection, users: Collection[str], lsns: Mapping[str, Lsn]) -> None:
    """Forget the clients of these users that are too many."""
    if not users:
        return
    forgotten: dict[str, list[WriteCheckpoint]] = {}
    for was_given, *row in connection.execute(_FORGET_CLIENTS, [list(users), CLIENTS_KEPT, FORGOTTEN_AT_ONCE]):
        if was_given:  # a client that chose its id asks again by itself
            forgotten.setdefault(user_of(str(row[0])), []).append(_checkpoint(row))
    if forgotten:
        first = connection.execute("select seq + 1 from write_state").fetchall()[0][0]
        known = _known(connection, map(stand_in_key, forgotten))
        stand_ins = [
            next_stand_in(user, known.get(stand_in_key(user)), forgotten[user], lsns, first + n)
            for n, user in enumerate(forgotten)
        ]
        _store(connection, stand_ins, chosen=False)


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


def newest(connection: psycopg.Connection) -> int:
    """See `StoreReader.newest_write`."""
    return as_int(connection.execute("select seq from write_state").fetchall()[0][0])


def get(connection: psycopg.Connection, key: str) -> WriteCheckpoint | None:
    """See `StoreReader.write_checkpoint`."""
    return of_client(key, _known(connection, [key]))


def key_digest(key: str) -> bytes:
    """The indexed form of a key: user ids may be longer than an index entry can be."""
    return hashlib.blake2b(key.encode(), digest_size=24).digest()


def _checkpoint(row: Sequence[object]) -> WriteCheckpoint:
    key, write_id, lsns, seq = row
    positions = {tag: Lsn(int(lsn)) for tag, lsn in orjson.loads(str(lsns)).items()}
    return WriteCheckpoint(str(key), as_int(write_id), positions, as_int(seq))
