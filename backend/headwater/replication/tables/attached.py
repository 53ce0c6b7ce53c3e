"""Partitions that were attached to a table: only these are compared with the source, not the whole table.

The stream goes on for the other partitions, and no stored row is from the new ones. So all their rows are new, or were
streamed since. That takes a key: without one, rows are counted over all partitions.
"""

from __future__ import annotations

import re
from dataclasses import replace

from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.source.catalog.published import PublishedTable
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable

_OID = re.compile(r"\((\d+)\)")


def attach_reason(table: StoredTable, published: PublishedTable) -> ResyncReason | None:
    """Why to compare a stored table to which only partitions were attached. None if anything else changed, or if the
    whole table is to be compared already."""
    if compared_whole(table) or RowIdentity.of(published.relation).kind is not IdentityKind.KEY:
        return None
    new = published.attached_since(table.fingerprint)
    if not new:
        return None
    names = [f"{leaf.schema}.{leaf.name} ({leaf.oid})" for leaf in published.leaves if leaf.oid in new]
    waiting = [table.resync.detail] if table.resync else []
    return ResyncReason(Cause.ATTACHED, ", ".join([*waiting, *names]))


def compared_whole(table: StoredTable) -> bool:
    """Whether a stored table is marked to be compared as a whole."""
    return table.resync is not None and not table.has(Cause.ATTACHED)


def narrowed(published: PublishedTable, table: StoredTable) -> PublishedTable:
    """The table with only the partitions that are to be compared."""
    named = {int(oid) for oid in _OID.findall(table.resync.detail if table.resync else "")}
    return replace(published, leaves=tuple(leaf for leaf in published.leaves if leaf.oid in named))
