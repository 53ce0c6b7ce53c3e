"""Bringing the store's tables to what the catalog says now: the one answer to every hint that a table is another.

A new table is made, and a changed one gets another layout; both are compared with the source beside the stream, so
that devices are sent what differs. Where rows are told apart in another way now, they get other ids before. Of a table
that is gone, no longer published, or of whose rows the new ids can't be told, all rows are removed first.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from headwater.oplog.change import Column, Relation
from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.oplog.transform import DraftOp, RowKeys, decode_members, row_ops
from headwater.replication.tables.attached import attach_reason
from headwater.replication.tables.live import LiveContext, LiveTable
from headwater.source.catalog.published import PublishedTable
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import Flush, Lease, Progress, SourceState, StoredTable, StoreWriter

_log = logging.getLogger(__name__)

REMOVED_AT_ONCE = 5_000
"""Rows of a table that is emptied, of which all are not held in memory."""


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
    """Whether a table is compared for a cause that may have left rows in the store that are older than the stream."""
    return table.has(*_UNSEEN)


def distrust(store: StoreWriter, lease: Lease, stored: Sequence[StoredTable], reason: ResyncReason) -> None:
    """Have all of these tables compared for `reason`, of which the store may have missed something. It holds for those,
    too, that are being compared already for a cause that trusts what the store has. A table that a version on its way
    fills is compared whole by that, before anybody sees it."""
    trusted = [table for table in stored if not changed_unseen(table) and not table.has(Cause.NEW_IN_VERSION)]
    evaluated = [table.id for table in trusted if table.has(Cause.REDEFINED)]
    store.mark_resync(lease, evaluated, ResyncReason(Cause.REPLACED))
    store.mark_resync(lease, [table.id for table in trusted if table.id not in evaluated], reason)


@dataclass(frozen=True, slots=True)
class TableChanges:
    """How the catalog differs from the store. A table can be gone and new at once. Those that were `touched` have
    another shape that makes no difference to their rows."""

    gone: tuple[StoredTable, ...]
    new: tuple[PublishedTable, ...]
    altered: tuple[tuple[StoredTable, PublishedTable], ...]
    touched: tuple[tuple[StoredTable, PublishedTable], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.gone or self.new or self.altered or self.touched)

    @property
    def oids(self) -> frozenset[int]:
        """All tables whose rows are concerned, as they were and as they are."""
        before = [table.relation.oid for table in [*self.gone, *(table for table, _ in self.altered)]]
        after = [table.relation.oid for table in [*self.new, *(table for _, table in self.altered)]]
        return frozenset([*before, *after])


def table_changes(stored: Sequence[StoredTable], published: Sequence[PublishedTable]) -> TableChanges:
    """What came, went or changed its shape."""
    now = {table.relation.oid: table for table in published}
    named = {(table.relation.schema, table.relation.name): table for table in published}
    # One that was dropped and made again, or swapped with another, is compared with what was there by its name
    by_name = {table.id: named.get((table.relation.schema, table.relation.name)) for table in stored}
    taken = {found.relation.oid for found in by_name.values() if found is not None}
    gone: list[StoredTable] = []
    altered: list[tuple[StoredTable, PublishedTable]] = []
    touched: list[tuple[StoredTable, PublishedTable]] = []
    kept: set[int] = set()
    for table in stored:
        found = by_name[table.id] or (None if table.relation.oid in taken else now.get(table.relation.oid))
        if found is not None and found.locked:
            kept.add(found.relation.oid)  # what it is now is seen when the lock is gone
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
    """What becomes of the ids of a table's rows when it is another."""

    KEPT = "kept"
    DERIVED = "derived"  # from the values that are stored
    LOST = "lost"


def ids_after(table: StoredTable, after: Relation) -> Ids:
    """What a change of a stored table to `after` does to its rows' ids."""
    before = table.relation
    old, new = RowIdentity.of(before), RowIdentity.of(after)
    if new.kind is IdentityKind.NOTHING:  # any ids will do, but copies are found by the lines as they are stored
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
    """Whether columns of a key go by other names now, for all that can be seen. Should they be others after all, the
    comparison with the source finds all their rows different."""
    gone = {column.name for column in known} - {column.name for column in after.columns}
    return [c.type_oid for c in known] == [c.type_oid for c in key] and all(
        old.name == new.name or old.name in gone for old, new in zip(known, key, strict=True)
    )


def _columns(relation: Relation) -> list[tuple[str, int]]:
    return [(column.name, column.type_oid) for column in relation.columns]


def adapt(store: StoreWriter, lease: Lease, state: SourceState, context: LiveContext, changes: TableChanges) -> None:
    """Make the store's tables what the catalog says. Each step is whole, and done again it finds less to do; `context`
    knows the tables as they are stored."""
    for table in changes.gone:
        name = f"{table.relation.schema}.{table.relation.name}"
        _log.info("the rows of %s are removed: it is gone, not published any more, or can't be followed on", name)
        store.drop_table(lease, _emptied(store, lease, state, context, table))
    for table, published in changes.touched:
        store.add_layout(lease, table.id, published.relation, published.shape)
    for table, published in changes.altered:
        partly = attach_reason(table, published)
        if partly:
            _log.info("%s is compared with the source in part: %s", published.qualified_name, partly)
            store.mark_resync(lease, [table.id], partly)
            store.add_layout(lease, table.id, published.relation, published.shape)
            continue
        rekeyed = table.has(Cause.REKEYED) or ids_after(table, published.relation) is Ids.DERIVED
        _log.info(
            "%s was altered; %sit is compared with the source",
            published.qualified_name,
            "its rows get other ids, and " if rekeyed else "",
        )
        unseen = changed_unseen(table) or is_another(table, published)
        cause = Cause.REKEYED if rekeyed else Cause.REPLACED if unseen else Cause.REDEFINED
        store.mark_resync(lease, [table.id], ResyncReason(cause))
        store.add_layout(lease, table.id, published.relation, published.shape)
    if changes.new:
        _log.info("new: %s", ", ".join(table.qualified_name for table in changes.new))
        pairs = [(table.relation, table.shape) for table in changes.new]
        store.create_tables(lease, state.tag, pairs, ResyncReason(Cause.NEW))


def is_another(table: StoredTable, published: PublishedTable) -> bool:
    """Whether it was not the same table under the same name all the time."""
    before, now = table.relation, published.relation
    return (before.oid, before.schema, before.name) != (now.oid, now.schema, now.name)


def verified_key(tag: str) -> str:
    """Under which the store notes that a source's tables were looked over."""
    return f"altered tables verified {tag}"


def verify_once(store: StoreWriter, lease: Lease, tag: str) -> None:
    """Have the tables of a source that were altered compared, and their rows evaluated, if that was not done before:
    earlier versions overlooked rows that stand in buckets as the table once was."""
    key = verified_key(tag)
    if store.noted(key):
        return
    altered = [t for t in store.tables(tag) if len(t.layouts) > 1 and not t.has(Cause.REKEYED, Cause.IDS_LOST)]
    if altered:
        _log.info("%d tables that were altered are compared with the source once", len(altered))
    for table in altered:
        cause = Cause.REPLACED if changed_unseen(table) else Cause.REDEFINED
        store.mark_resync(lease, [table.id], ResyncReason(cause))
    store.note(lease, key, "done")


def _emptied(store: StoreWriter, lease: Lease, state: SourceState, context: LiveContext, table: StoredTable) -> int:
    """Take a table's rows from devices. Returns the id of its empty generation."""
    flush = store.begin(lease)
    try:
        live = context.table(table.id, table.layouts)
        emptied = flush.truncate(table.id, ()) if live is None else empty(flush, live, context.salt)
        flush.commit(state.tag, Progress(state.lsn))
    except BaseException:
        flush.rollback()
        raise
    return emptied


def empty(flush: Flush, table: LiveTable, salt: bytes) -> int:
    """Remove all rows of a table: by one op a bucket, or by REMOVEs where buckets also hold rows of others. Returns
    the id of its new, empty generation."""
    names = {(layout.schema, layout.name) for layout in table.layouts}  # by another name it may stand elsewhere
    exclusive = table.bound.exclusive and len(names) == 1
    if not exclusive:
        rows = iter(flush.table_members(table.id))
        while some := list(islice(rows, REMOVED_AT_ONCE)):
            flush.append([op for row in some for op in _removes(table.id, salt, *row)], {})
    return flush.truncate(table.id, table.bound.definitions if exclusive else ())


def _removes(table_id: int, salt: bytes, row_id: str, members: str, subkey: str | None) -> list[DraftOp]:
    """Ops that take a row out of all buckets in which it stands."""
    return row_ops(decode_members(members, row_id), (), RowKeys(table_id, row_id, salt, subkey))[0]
