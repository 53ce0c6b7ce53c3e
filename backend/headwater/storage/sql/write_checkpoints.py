"""Write checkpoints of clients. They have a lock of their own: the endpoint writes them and must never wait for a
flush.

A store keeps the write checkpoints of so many clients of a user. When there are more, it forgets those written longest
ago, and keeps one stand-in for all forgotten clients of the user: its id is not below any of theirs, and it becomes
visible no sooner than they would have. A device that still waits for a forgotten one gets the stand-in when it connects
again, and its next id is higher than that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import orjson

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import WriteCheckpoint, stand_in_key, user_of
from headwater.storage.sql.cursor import Cursor, Row

CLIENTS_KEPT = 1000
"""The most clients of a user whose write checkpoints are kept."""

FORGOTTEN_AT_ONCE = 10_000
"""The most that are forgotten when a client comes."""

MAX_ID = 2**63 - 1

_SELECT = "select key, id, lsns, seq from write_checkpoints"

_PUT = """
insert into write_checkpoints ({columns}key, id, lsns, seq, requested_at)
values ({values}?, ?, ?, ?, {requested_at})
on conflict ({column}) do update set
    id = excluded.id, lsns = excluded.lsns, seq = excluded.seq, requested_at = excluded.requested_at
"""

_FORGET_CLIENTS = """
delete from write_checkpoints where {column} in (
    select w.{column} from write_checkpoints w where {clients} and w.seq <= (
        select w.seq from write_checkpoints w where {clients} order by w.seq desc limit 1 offset ?2
    ) order by w.seq limit ?3
) returning requested_at is null, key, id, lsns, seq
"""


def put(db: Cursor, wanted: Mapping[str, int | None], lsns: Mapping[str, Lsn]) -> dict[str, int]:
    """Store write checkpoints by key, with the id that the client chose, or None for the next one. Processes run one
    after the other, so that a reader that has read up to a `seq` has seen all below it. Returns the ids stored
    afterwards."""
    if not wanted:
        return {}
    with db.transaction():
        seq = _lock(db)
        known = _known(db, wanted)
        written: dict[str, WriteCheckpoint] = {}
        for key, chosen in wanted.items():
            following = next_write(key, known, chosen, lsns, seq + 1)
            if following is not None:
                written[key], seq = following, following.seq
        same = [(key, wanted[key]) for key in wanted if key not in written]
        if same:
            again = f"update write_checkpoints set requested_at = {db.dialect.now} where {_found(db)} and id = ?"
            db.execute_many(
                f"{again} and requested_at is not null",
                [(db.dialect.stored_write_key(key), chosen) for key, chosen in same],
            )
        if written:
            _store(db, list(written.values()), chosen=any(number is not None for number in wanted.values()))
            _forget_clients(db, {user_of(key) for key in wanted if key not in known}, lsns, seq)
            db.notify()
    return {key: (written.get(key) or known[key]).id for key in wanted}


def _lock(db: Cursor) -> int:
    """Have other writers wait until the commit. Returns the last `seq`."""
    return int(db.rows(f"select seq from write_state{db.dialect.for_update}")[0][0])


def _found(db: Cursor) -> str:
    return f"{db.dialect.write_key} = ?"


def _known(db: Cursor, keys: Iterable[str]) -> dict[str, WriteCheckpoint]:
    """What is stored under these keys, and for the forgotten clients of their users."""
    stored: list[str | bytes] = [
        db.dialect.stored_write_key(each) for key in keys for each in (key, stand_in_key(user_of(key)))
    ]
    rows = db.rows(f"{_SELECT} where {db.dialect.write_key} {db.dialect.among}", stored)
    return {write.key: write for write in map(_write_checkpoint, rows)}


def _store(db: Cursor, writes: Sequence[WriteCheckpoint], *, chosen: bool) -> None:
    """Store write checkpoints, whose `seq` are the next ones."""
    column = db.dialect.write_key
    apart = column != "key"
    statement = _PUT.format(
        column=column,
        columns=f"{column}, " if apart else "",
        values="?, " if apart else "",
        requested_at=db.dialect.now if chosen else "null",
    )
    rows = [(write.key, write.id, orjson.dumps(write.lsns).decode(), write.seq) for write in writes]
    db.execute_many(statement, [(db.dialect.stored_write_key(row[0]), *row) for row in rows] if apart else rows)
    db.execute("update write_state set seq = ?", writes[-1].seq)


def _forget_clients(db: Cursor, users: Collection[str], lsns: Mapping[str, Lsn], seq: int) -> None:
    """Forget the clients of these users that are too many."""
    forgotten: dict[str, list[WriteCheckpoint]] = {}
    statement = _FORGET_CLIENTS.format(column=db.dialect.write_key, clients=db.dialect.clients_of)
    for created, *row in db.execute_many(statement, [(user, CLIENTS_KEPT, FORGOTTEN_AT_ONCE) for user in users]):
        if created:  # a client that chose its id asks again by itself
            forgotten.setdefault(user_of(row[0]), []).append(_write_checkpoint(tuple(row)))
    if forgotten:
        known = _known(db, map(stand_in_key, forgotten))
        stand_ins = [
            next_stand_in(user, known.get(stand_in_key(user)), forgotten[user], lsns, seq + n)
            for n, user in enumerate(forgotten, 1)
        ]
        _store(db, stand_ins, chosen=False)


def forget_requests(db: Cursor, seconds: float) -> int:
    """See `StoreReader.forget_write_requests`."""
    with db.transaction():
        _lock(db)
        return db.execute(f"delete from write_checkpoints where requested_at < {db.dialect.now} - ?", seconds)


def rewind(db: Cursor, tag: str, lsn: Lsn) -> None:
    """See `StoreWriter.rewind_write_checkpoints`."""
    with db.transaction():
        seq = _lock(db)
        beyond = [write for write in map(_write_checkpoint, db.rows(_SELECT)) if write.lsns.get(tag, lsn) > lsn]
        _move(db, [(write, {**write.lsns, tag: lsn}) for write in beyond], seq)


def forget_source(db: Cursor, source: str) -> None:
    """No write checkpoint waits for the source any more."""
    with db.transaction():
        seq = _lock(db)
        waiting = [write for write in map(_write_checkpoint, db.rows(_SELECT)) if source in write.lsns]
        _move(db, [(write, {tag: lsn for tag, lsn in write.lsns.items() if tag != source}) for write in waiting], seq)


def _move(db: Cursor, moved: Sequence[tuple[WriteCheckpoint, Mapping[str, Lsn]]], seq: int) -> None:
    """Have write checkpoints wait for other positions."""
    if moved:
        rows = [
            (orjson.dumps(lsns).decode(), seq + n, db.dialect.stored_write_key(write.key))
            for n, (write, lsns) in enumerate(moved, 1)
        ]
        db.execute_many(f"update write_checkpoints set lsns = ?, seq = ? where {_found(db)}", rows)
        db.execute("update write_state set seq = ?", seq + len(moved))
        db.notify()


def after(db: Cursor, seq: int) -> list[WriteCheckpoint]:
    """Write checkpoints created or replaced after `seq`, in order."""
    return [_write_checkpoint(row) for row in db.rows(f"{_SELECT} where seq > ? order by seq", seq)]


def newest(db: Cursor) -> int:
    """See `StoreReader.newest_write`."""
    return int(db.rows("select seq from write_state")[0][0])


def get(db: Cursor, key: str) -> WriteCheckpoint | None:
    """See `StoreReader.write_checkpoint`."""
    return of_client(key, _known(db, [key]))


def _write_checkpoint(row: Row) -> WriteCheckpoint:
    key, write_id, lsns, seq = row
    return WriteCheckpoint(key, write_id, {tag: Lsn(lsn) for tag, lsn in orjson.loads(lsns).items()}, seq)


# which write checkpoint follows


def of_client(key: str, known: Mapping[str, WriteCheckpoint]) -> WriteCheckpoint | None:
    """The key's own write checkpoint, or else the stand-in of its user; a key without a client is never forgotten."""
    user = user_of(key)
    stand_in = known.get(stand_in_key(user)) if key != user else None
    return known.get(key) or (stand_in and replace(stand_in, key=key))


def next_write(
    key: str, known: Mapping[str, WriteCheckpoint], chosen: int | None, lsns: Mapping[str, Lsn], seq: int
) -> WriteCheckpoint | None:
    """The write checkpoint that replaces a key's last one, with the id that the client chose, or None for the next one.
    `known` has what is stored for the key and for the forgotten clients of its user. None if the key's own stays."""
    own = known.get(key)
    write_id = _next_id(own, of_client(key, known), chosen)
    return None if write_id is None else WriteCheckpoint(key, write_id, _later_positions(own, lsns), seq)


def _next_id(own: WriteCheckpoint | None, stand_in: WriteCheckpoint | None, chosen: int | None) -> int | None:
    """The id that replaces the last one: `chosen` if that is higher, or one above the last if the client chose none.
    None if the key's own last one stays."""
    before = own or stand_in
    last = 0 if before is None else before.id
    if chosen is not None and chosen > last:
        return chosen
    if chosen is not None and own is not None:
        return None
    if last < MAX_ID:
        return last + 1
    return None if own else last


def _later_positions(before: WriteCheckpoint | None, lsns: Mapping[str, Lsn]) -> dict[str, Lsn]:
    """The positions of the next write checkpoint. Of two processes, the later writer may have read its position
    earlier, and a position never goes back. A source that is not asked this time keeps the position of before: the
    client may still wait for that write."""
    held = before.lsns if before else {}
    return {**held, **{source: max(lsn, held.get(source, lsn)) for source, lsn in lsns.items()}}


def next_stand_in(
    user: str, before: WriteCheckpoint | None, forgotten: Iterable[WriteCheckpoint], lsns: Mapping[str, Lsn], seq: int
) -> WriteCheckpoint:
    """The stand-in of a user whose clients are `forgotten`. Its id is its `seq`, which is higher than every id that the
    store counted up to by itself; a client's first choice may have been higher."""
    number = seq
    for each in filter(None, (before, *forgotten)):
        lsns, number = _later_positions(each, lsns), max(number, each.id)
    return WriteCheckpoint(stand_in_key(user), number, lsns, seq)
