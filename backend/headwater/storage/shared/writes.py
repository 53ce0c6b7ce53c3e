"""Computes the next write checkpoint of a key, for every back end. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.reader import WriteCheckpoint

MAX_ID = 2**63 - 1


def next_id(before: WriteCheckpoint | None, chosen: int | None) -> int | None:
    """The id that replaces the last one: `chosen` if that is higher, or one above the last if the client chose none.
    None if the last one stays."""
    last = 0 if before is None else before.id
    if chosen is None:
        return last + 1 if last < MAX_ID else None
    return chosen if chosen > last else None


def later_positions(before: WriteCheckpoint | None, lsns: Mapping[str, Lsn]) -> dict[str, Lsn]:
    """The positions of the next write checkpoint. Of two processes, the later writer may have asked the source earlier,
    and a position never goes back."""
    return {tag: max(lsn, before.lsns.get(tag, lsn) if before else lsn) for tag, lsn in lsns.items()}
