"""Removes a source from a store once the configuration does not name it any more: devices lose its rows, and the store
forgets it. Its database is left alone, for nobody says how to reach it now."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from headwater.errors import HeadwaterError, machine_errors
from headwater.oplog.lsn import ZERO
from headwater.replication.own_slot import slot_note
from headwater.replication.tables.changes import flushed, remove_rows
from headwater.replication.versions import Peers, served_definitions
from headwater.storage.contract.store import Lease, LeaseHeldError, SourceState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter

_log = logging.getLogger(__name__)

_LEASE_SECONDS = 120.0
_AGAIN_SECONDS = 30.0


def remove_unnamed(store: StoreWriter, peers: Peers, owner: str, stop: threading.Event) -> None:
    """Remove all sources that the store has and the configuration does not name. One that a replicator still follows,
    or that fails, is tried again until `stop` is set."""
    while not stop.is_set():
        try:
            with machine_errors():
                unnamed = [name for name in store.sources() if name not in peers]
                if not [name for name in unnamed if not remove_source(store, name, owner)]:
                    return
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
    tables = store.tables(name)
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
    """Remove all rows of these tables, which are all that the source has, from devices too: by one CLEAR a bucket, or
    by REMOVEs where other sources have rows in its buckets. Returns the ids of the empty generations."""
    emptied: list[int] = []
    with flushed(store, lease, lease.name, ZERO if state is None else state.lsn) as flush:
        flush.lock()  # whoever begins to share a definition from now on, writes to it after the commit
        with open_store(store.address).open_verify() as reader:
            checked = reader.definitions(lease.name)
        alone = checked.sources == {lease.name}
        for table in tables:
            if not alone:
                remove_rows(flush, table, store.keys())
            emptied.append(flush.truncate(table, checked.own if alone else ()))
    return emptied
