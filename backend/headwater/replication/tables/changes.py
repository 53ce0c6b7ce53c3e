"""Brings the store's tables to what the catalog says now. Every kind of change to a table is handled here.

A new table is created, and a changed one gets another layout; both are compared with the source beside the stream, so
that devices are sent what differs. If the replica identity changed, rows get other ids before. All rows of a table are
removed if it is gone, no longer published, or if the new ids of its rows can't be derived.

Of a table to which only partitions were attached, only these are compared. The stream goes on for the other partitions,
and no stored row is from the new ones, so all their rows are new, or were streamed since. That takes a key: without
one, rows are counted over all partitions.

The stream does not bring renames of partitioned tables that are published as one table (roots). Postgres describes a
table in the stream once, and again after a change to it. Renaming a root does not change its partitions, whose rows go
on under its old name. So before a flush with rows of a root commits, its name is read from the catalog, which includes
every rename from before those rows were written. Only the event triggers see a name that is gone again by then. Changes
that came under another name than the stored one are left to a comparison, up to a position that is kept in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Final

import orjson
import psycopg

from headwater.oplog.change import Column, Relation
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn, format_lsn, parse_lsn
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.oplog.transform import DraftOp, RowKeys, decode_memberships, row_ops
from headwater.replication.tables.live import LiveContext, LiveTable
from headwater.source.catalog.published import PublishedTable
from headwater.source.catalog.shape import leaf_oids
from headwater.source.slot import end_of_log
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Lease, ReplicationProgress, SourceState, StoredTable
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.writer import StoreWriter

_log = logging.getLogger(__name__)

REMOVED_AT_ONCE = 5_000
"""How many rows of a table to remove at once; more would take too much memory."""

_UNSEEN: Final = frozenset(
    {
        Cause.REPLACED,
        Cause.SLOT_LOST,
        Cause.LEFT_OUT,
        Cause.PARTLY_PUBLISHED,
        Cause.REKEYED,
        Cause.LOCKED,
        Cause.IDS_LOST,
    }
)


def changed_unseen(table: StoredTable) -> bool:
    """Whether a table is compared because the stream may have missed changes, so stored rows may be older than it."""
    return table.has(*_UNSEEN)


def distrust(store: StoreWriter, lease: Lease, stored: Sequence[StoredTable], reason: ResyncReason) -> None:
    """Mark tables of which the store may have missed changes to be compared for `reason`. Also marks tables that are
    being compared already for a cause that trusts the stored rows. A table that a version in processing fills is left
    out: its deploy compares all of it before it is served."""
    trusted = [table for table in stored if not changed_unseen(table) and not table.has(Cause.NEW_IN_VERSION)]
    evaluated = [table.id for table in trusted if table.has(Cause.REDEFINED)]
    store.mark_resync(lease, evaluated, ResyncReason(Cause.REPLACED))
    store.mark_resync(lease, [table.id for table in trusted if table.id not in evaluated], reason)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """How the catalog differs from the store. A table can be gone and new at once. The shape of `touched` tables
    changed in a way that does not matter to their rows."""

    gone: tuple[StoredTable, ...]
    new: tuple[PublishedTable, ...]
    altered: tuple[tuple[StoredTable, PublishedTable], ...]
    touched: tuple[tuple[StoredTable, PublishedTable], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.altered or self.touched)

    @property
    def oids(self) -> frozenset[int]:
        """The oids of all tables whose rows are affected, before and now."""
        tables = [*self.gone, *self.new, *(table for before_and_now in self.altered for table in before_and_now)]
        return frozenset(table.relation.oid for table in tables)


def table_changes(stored: Sequence[StoredTable], published: Sequence[PublishedTable]) -> TableChanges:
    now = {table.relation.oid: table for table in published}
    named = {(table.relation.schema, table.relation.name): table for table in published}
    # A table that was dropped and created again, or swapped with another, is matched by its name
    by_name = {table.id: named.get((table.relation.schema, table.relation.name)) for table in stored}
    taken = {found.relation.oid for found in by_name.values() if found is not None}
    gone: list[StoredTable] = []
    altered: list[tuple[StoredTable, PublishedTable]] = []
    touched: list[tuple[StoredTable, PublishedTable]] = []
    kept: set[int] = set()
    for table in stored:
        found = by_name[table.id] or (None if table.relation.oid in taken else now.get(table.relation.oid))
        if found is not None and found.locked:
            kept.add(found.relation.oid)  # its definition can be read when the lock is gone
            continue
        if found is None or table.has(Cause.IDS_LOST) or ids_after(table, found.relation) is Ids.LOST:
            gone.append(table)
            continue
        kept.add(found.relation.oid)
        if not found.followed_on(table.fingerprint):
            altered.append((table, found))
        elif found.shape != table.fingerprint:
            touched.append((table, found))
    new = [table for oid, table in now.items() if oid not in kept]
    return TableChanges(tuple(gone), tuple(new), tuple(altered), tuple(touched))


class Ids(Enum):
    """What a change of a table does to the ids of its rows."""

    KEPT = "kept"
    DERIVED = "derived"  # from the values that are stored
    LOST = "lost"


def ids_after(table: StoredTable, after: Relation) -> Ids:
    """What changing a stored table to `after` does to the ids of its rows."""
    before = table.relation
    old, new = RowIdentity.of(before), RowIdentity.of(after)
    if new.kind is IdentityKind.NOTHING:  # any ids will do, but copies are found by their stored lines
        return Ids.KEPT if all(_columns(layout) == _columns(after) for layout in table.layouts) else Ids.LOST
    if new.kind is IdentityKind.FULL:
        return Ids.KEPT if old.kind is new.kind and _columns(before) == _columns(after) else Ids.DERIVED
    key = [after.columns[position] for position in new.columns]
    known = [before.columns[position] for position in old.columns]
    if old.kind is new.kind and [column.name for column in known] == [column.name for column in key]:
        return Ids.KEPT
    if {(column.name, column.type_oid) for column in key} <= set(_columns(before)):
        return Ids.DERIVED
    return Ids.KEPT if old.kind is new.kind and _renamed(known, key, after) else Ids.LOST


def _renamed(known: Sequence[Column], key: Sequence[Column], after: Relation) -> bool:
    """Whether key columns seem to be renamed. If they are different columns after all, the comparison finds every row
    different."""
    gone = {column.name for column in known} - {column.name for column in after.columns}
    return [c.type_oid for c in known] == [c.type_oid for c in key] and all(
        old.name == new.name or old.name in gone for old, new in zip(known, key, strict=True)
    )


def _columns(relation: Relation) -> list[tuple[str, int]]:
    return [(column.name, column.type_oid) for column in relation.columns]


def adapt(store: StoreWriter, lease: Lease, state: SourceState, context: LiveContext, changes: TableChanges) -> None:
    """Make the store's tables what the catalog says. Each step is a transaction; after a crash, `table_changes` finds
    what is left. `context` is of the tables as they are stored."""
    for table in changes.gone:
        name = table.relation.qualified_name
        _log.info("removing the rows of %s: it is gone, not published any more, or its rows got other ids", name)
        store.drop_table(lease, _emptied(store, lease, state, context, table))
    for table, published in changes.touched:
        if table.has(Cause.REDEFINED) and not published.all_streamed_since(table.fingerprint):
            store.mark_resync(lease, [table.id], ResyncReason(Cause.REPLACED))
        store.add_layout(lease, table.id, published.relation, published.shape)
    for table, published in changes.altered:
        attached = attach_reason(table, published)
        if attached:
            _log.info("comparing a part of %s with the source: %s", published.qualified_name, attached)
            store.mark_resync(lease, [table.id], attached)
            store.add_layout(lease, table.id, published.relation, published.shape)
            continue
        rekeyed = table.has(Cause.REKEYED) or ids_after(table, published.relation) is Ids.DERIVED
        _log.info(
            "%s was altered: %sit is compared with the source",
            published.qualified_name,
            "its rows get other ids, then " if rekeyed else "",
        )
        unseen = (
            changed_unseen(table) or is_another(table, published) or not published.all_streamed_since(table.fingerprint)
        )
        cause = Cause.REKEYED if rekeyed else Cause.REPLACED if unseen else Cause.REDEFINED
        store.mark_resync(lease, [table.id], ResyncReason(cause))
        store.add_layout(lease, table.id, published.relation, published.shape)
    if changes.new:
        _log.info("new tables: %s", ", ".join(table.qualified_name for table in changes.new))
        pairs = [(table.relation, table.shape) for table in changes.new]
        store.create_tables(lease, state.source, pairs, ResyncReason(Cause.NEW))


def is_another(table: StoredTable, published: PublishedTable) -> bool:
    """Whether the published table has another oid or name than the stored one."""
    before, now = table.relation, published.relation
    return (before.oid, before.schema, before.name) != (now.oid, now.schema, now.name)


def _emptied(store: StoreWriter, lease: Lease, state: SourceState, context: LiveContext, table: StoredTable) -> int:
    """Remove all rows of a table, from devices too. Returns the id of its empty generation."""
    with flushed(store, lease, state.source, state.lsn) as flush:
        live = context.table(table.id, table.layouts)
        return flush.truncate(table.id, ()) if live is None else empty(flush, live, context.keys)


@contextmanager
def flushed(store: StoreWriter, lease: Lease, source: str, position: Lsn) -> Iterator[Flush]:
    """A flush beside those of the stream, which is at `position`. It is committed at the end."""
    flush = store.begin(lease)
    try:
        yield flush
        flush.commit(source, ReplicationProgress(position))
    except BaseException:
        flush.rollback()
        raise


def empty(flush: Flush, table: LiveTable, keys: StoreKeys) -> int:
    """Remove all rows of a table: by one CLEAR a bucket, or by REMOVEs where buckets also have rows of other tables.
    Returns the id of its new, empty generation."""
    # By an older name, its rows may have been in other buckets
    names = {(layout.schema, layout.name) for layout in table.layouts}
    exclusive = table.bound.exclusive and len(names) == 1
    if not exclusive:
        remove_rows(flush, table.id, keys)
    return flush.truncate(table.id, table.bound.definitions if exclusive else ())


def remove_rows(flush: Flush, table: int, keys: StoreKeys) -> None:
    """Remove all rows of a table (by the id of its generation) from their buckets, by one REMOVE each."""
    rows = iter(flush.table_members(table))
    while some := list(islice(rows, REMOVED_AT_ONCE)):
        flush.append([op for row in some for op in _removes(table, keys, *row)], {})


def _removes(table_id: int, keys: StoreKeys, row_id: str, members: str, subkey: str | None) -> list[DraftOp]:
    """Ops that remove a row from all its buckets."""
    return row_ops(decode_memberships(members, row_id), (), RowKeys(table_id, row_id, keys, subkey))[0]


# attached partitions


def attach_reason(table: StoredTable, published: PublishedTable) -> ResyncReason | None:
    """Why to compare a stored table to which only partitions were attached. None if anything else changed, or if the
    whole table is to be compared already."""
    if compared_whole(table) or RowIdentity.of(published.relation).kind is not IdentityKind.KEY:
        return None
    new = published.attached_since(table.fingerprint)
    if not new:
        return None
    partitions = tuple((leaf.oid, f"{leaf.schema}.{leaf.name}") for leaf in published.leaves if leaf.oid in new)
    return ResyncReason(Cause.ATTACHED, partitions=(*(table.resync.partitions if table.resync else ()), *partitions))


def compared_whole(table: StoredTable) -> bool:
    """Whether a stored table is marked to be compared as a whole."""
    return table.resync is not None and not table.has(Cause.ATTACHED)


def attached_only(published: PublishedTable, table: StoredTable) -> PublishedTable:
    """The table with only those partitions that are to be compared."""
    named = {oid for oid, _ in table.resync.partitions} if table.resync else set[int]()
    return replace(published, leaves=tuple(leaf for leaf in published.leaves if leaf.oid in named))


# names of partitioned tables


def is_root(table: StoredTable) -> bool:
    """Whether a table's rows are in partitions, by its stored shape."""
    return not table.computed and leaf_oids(table.fingerprint) != {table.relation.oid}


class NameBook:
    """By oid, up to which position the stream may use a wrong name for a root. Kept in the store."""

    def __init__(self, store: StoreWriter, tag: str) -> None:
        self._store = store
        self._key = f"names of partitioned tables {tag}"

    def read(self) -> dict[int, Lsn]:
        known = orjson.loads(self._store.get_meta(self._key) or "{}")
        return {int(oid): parse_lsn(upto) for oid, upto in known.items()}

    def distrust(self, lease: Lease, oids: Collection[int], upto: Lsn) -> None:
        """Leave changes of these tables up to a position to comparisons."""
        self._write(lease, self.read() | dict.fromkeys(oids, upto))

    def pass_over(self, lease: Lease, position: Lsn) -> None:
        """Delete entries up to the position from which the stream is read."""
        known = self.read()
        ahead = {oid: upto for oid, upto in known.items() if upto > position}
        if ahead != known:
            self._write(lease, ahead)

    def forget(self, lease: Lease) -> None:
        """Delete all, since the source has another history: its positions mean other transactions."""
        if self.read():
            self._write(lease, {})

    def _write(self, lease: Lease, known: Mapping[int, Lsn]) -> None:
        text = orjson.dumps({str(oid): format_lsn(upto) for oid, upto in known.items()}).decode()
        self._store.set_meta(lease, self._key, text)


def distrust_named(book: NameBook, lease: Lease, conn: psycopg.Connection, changes: TableChanges) -> Mapping[int, Lsn]:
    """Note roots that are new or renamed, before they are taken up: the stream may use their new names for rows that
    were written before. Returns the positions by oid."""
    named = [table for table in changes.new if _is_root(table)]
    named += [found for stored, found in changes.altered if _is_root(found) and is_another(stored, found)]
    if not named:
        return {}
    oids, upto = [table.relation.oid for table in named], end_of_log(conn)
    book.distrust(lease, oids, upto)
    return dict.fromkeys(oids, upto)


def _is_root(table: PublishedTable) -> bool:
    return [leaf.oid for leaf in table.leaves] != [table.relation.oid]
