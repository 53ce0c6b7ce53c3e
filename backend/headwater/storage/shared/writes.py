"""How the write checkpoints of a key go on, the same for every back end. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from headwater.oplog.lsn import Lsn
from headwater.storage.contract.store import WriteCheckpoint

MAX_ID = 2**63 - 1


def next_id(before: WriteCheckpoint | None, chosen: int | None) -> int | None:
    """The id that replaces the last one: `chosen` by the client if that is higher, else none does; one above the last
    if the client chose none."""
    last = 0 if before is None else before.id
    if chosen is None:
        return last + 1 if last < MAX_ID else None
    return chosen if chosen > last else None


def later_positions(before: WriteCheckpoint | None, lsns: Mapping[str, Lsn]) -> dict[str, Lsn]:
    """The positions that the next one stands for. Of two processes the later one may have asked the source earlier: a
    position never goes back."""
    return {tag: max(lsn, before.lsns.get(tag, lsn) if before else lsn) for tag, lsn in lsns.items()}
