"""Computes the next write checkpoint of a key, for every back end. Pure.

A store keeps the write checkpoints of so many clients of a user. When there are more, it forgets those written longest
ago, and keeps one stand-in for all forgotten clients of the user: its id is not below any of theirs, and it becomes
visible no sooner than they would have. A device that still waits for a forgotten one gets the stand-in when it connects
again, and its next id is higher than that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import WriteCheckpoint
from headwater.storage.shared.write_key import stand_in_key, user_of

CLIENTS_KEPT = 1000
"""The most clients of a user whose write checkpoints are kept."""

FORGOTTEN_AT_ONCE = 10_000
"""The most that are forgotten when a client comes: a store of an earlier version may have kept any number."""

MAX_ID = 2**63 - 1


def of_client(key: str, known: Mapping[str, WriteCheckpoint]) -> WriteCheckpoint | None:
    """The key's own write checkpoint, or else the stand-in of its user; a key without a client is never forgotten."""
    user = user_of(key)
    stand_in = known.get(stand_in_key(user)) if key != user else None
    return known.get(key) or (stand_in and replace(stand_in, key=key))


def following(
    key: str,
    known: Mapping[str, WriteCheckpoint],
    chosen: int | None,
    lsns: Mapping[str, Lsn],
    next_seq: Callable[[], int],
) -> WriteCheckpoint | None:
    """The write checkpoint that replaces a key's last one, with the id that the client chose, or None for the next one.
    `known` has what is stored for the key and for the forgotten clients of its user. None if the key's own stays."""
    own = known.get(key)
    write_id = _next_id(own, of_client(key, known), chosen)
    return None if write_id is None else WriteCheckpoint(key, write_id, _later_positions(own, lsns), next_seq())


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
    """The positions of the next write checkpoint. Of two processes, the later writer may have asked the source earlier,
    and a position never goes back."""
    return {tag: max(lsn, before.lsns.get(tag, lsn) if before else lsn) for tag, lsn in lsns.items()}


def next_stand_in(
    user: str, before: WriteCheckpoint | None, forgotten: Iterable[WriteCheckpoint], lsns: Mapping[str, Lsn], seq: int
) -> WriteCheckpoint:
    """The stand-in of a user whose clients are `forgotten`. Its id is its `seq`, which is higher than every id that the
    store counted up to by itself; a client's first choice may have been higher."""
    number = seq
    for each in filter(None, (before, *forgotten)):
        lsns, number = _later_positions(each, lsns), max(number, each.id)
    return WriteCheckpoint(stand_in_key(user), number, lsns, seq)
