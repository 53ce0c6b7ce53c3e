"""Removes a source from a store once the configuration does not name it any more: devices lose its rows, and the store
forgets it. Its database is left alone, for nobody says how to reach it now.

A file that was cut short, a changed tag, or a machine that still has yesterday's configuration look just like a source
that somebody removed. So its rows stay for a while, until all other sources were read, and as long as another process
follows it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from headwater.errors import HeadwaterError, machine_errors
from headwater.oplog.lsn import ZERO
from headwater.replication.own_slot import slot_note
from headwater.replication.tables.changes import flushed
from headwater.replication.versions import Peers, served_definitions
from headwater.storage.contract.store import Lease, LeaseHeldError, SourceState
from headwater.storage.sql.writer import StoreWriter

_log = logging.getLogger(__name__)

_LEASE_SECONDS = 120.0
_AGAIN_SECONDS = 30.0
_ROWS_AT_ONCE = 5_000


def remove_unnamed(store: StoreWriter, peers: Peers, owner: str, stop: threading.Event, after_seconds: float) -> None:
    """Remove all sources that the store has and the configuration does not name, unless `stop` is set before. Each has
    to be free of replicators for `after_seconds` from now on, and all that the configuration names have to be read."""
    since: dict[str, float] = {}
    said: set[str] = set()

    def tell(text: str, *values: object) -> None:
        if (line := text % values) not in said:
            said.add(line)
            _log.warning("%s", line)

    while not stop.is_set():
        try:
            with machine_errors():
                unnamed = [name for name in store.sources() if name not in peers]
                if not unnamed:
                    return
                unread = [name for name in peers if store.source_state(name) is None]
                for name in unnamed:
                    if store.is_followed(name):
                        since[name] = time.monotonic()
                        tell("another process follows the source %s, which this configuration does not name", name)
                        continue
                    left = since.setdefault(name, time.monotonic()) + after_seconds - time.monotonic()
                    if left <= 0 and not unread:
                        remove_source(store, name, owner)
                    elif unread:
                        tell("source %s is not in the configuration: it stays until %s was read", name, unread[0])
                    else:
                        tell(
                            "source %s is not in the configuration: its rows leave devices %d minutes from now",
                            *(name, round(after_seconds / 60)),
                        )
        except HeadwaterError as error:
            _log.warning("a source that is not in the configuration could not be removed yet: %s", error)
        stop.wait(_AGAIN_SECONDS)


def remove_source(store: StoreWriter, name: str, owner: str) -> bool:
    """Remove a source and all that the store has of it. Returns False, and does nothing, while a replicator follows it:
    then it is to be called again. A removal that was interrupted goes on where it was."""
    try:
        lease = store.acquire(name, owner, _LEASE_SECONDS)
    except LeaseHeldError as error:
        _log.warning("source %s is not in the configuration, but can't be removed yet: %s", name, error)
        return False
    try:
        _remove(store, lease)
    finally:
        store.release(lease)
    return True


def _remove(store: StoreWriter, lease: Lease) -> None:
    name = lease.name
    state = store.source_state(name)
    slot = slot_note(name, store).name
    store.discard_staged(lease)
    tables = store.all_tables(name)
    for table in _emptied(store, lease, state, [table.id for table in tables]):
        store.drop_table(lease, table)
    store.forget_source(lease, served_definitions(store))
    _log.warning("source %s is not in the configuration any more: %d tables of it were removed", name, len(tables))
    if slot:
        _log.warning(
            "the replication slot of source %s may still be in its database, which then keeps its log for it: "
            "run there: select pg_drop_replication_slot('%s')",
            name,
            slot,
        )


def _emptied(store: StoreWriter, lease: Lease, state: SourceState | None, tables: Sequence[int]) -> list[int]:
    """Remove all rows of these tables, which are all that the source has, from devices too: some at a time from buckets
    that other sources have, by REMOVEs, then from its own by one CLEAR each. Returns the ids of the empty
    generations."""
    while True:
        _, left = store.definitions_of(lease.name)
        for table in tables:
            place: int | None = 0
            while place is not None:
                place = store.leave_others(lease, table, place, _ROWS_AT_ONCE)
                store.renew(lease)
        with flushed(store, lease, lease.name, ZERO if state is None else state.lsn) as flush:
            flush.lock()  # whoever begins to share a definition from now on, writes to it after the commit
            own, shared = store.definitions_of(lease.name)
            if shared <= left:
                return [flush.truncate(table, own) for table in tables]
