"""Partitions that were attached to a table: the only ones of it that are compared with the source.

What the table had before is followed by the stream as ever, and nothing that the store has came from the new ones. So
all their rows are new, or were streamed since. Only a key says so of each: without one, rows are counted over all
partitions.
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
    """Why a stored table is to be compared if nothing happened to it but that partitions were attached; none if more
    did, or if all of it is waiting to be compared."""
    if compared_whole(table) or RowIdentity.of(published.relation).kind is not IdentityKind.KEY:
        return None
    new = published.attached_since(table.fingerprint)
    if not new:
        return None
    names = [f"{leaf.schema}.{leaf.name} ({leaf.oid})" for leaf in published.leaves if leaf.oid in new]
    waiting = [table.resync.detail] if table.resync else []
    return ResyncReason(Cause.ATTACHED, ", ".join([*waiting, *names]))


def compared_whole(table: StoredTable) -> bool:
    """Whether all of a stored table is being compared with the source, or soon is."""
    return table.resync is not None and not table.has(Cause.ATTACHED)


def narrowed(published: PublishedTable, table: StoredTable) -> PublishedTable:
    """The table with no partitions but those for which it is being compared."""
    named = {int(oid) for oid in _OID.findall(table.resync.detail if table.resync else "")}
    return replace(published, leaves=tuple(leaf for leaf in published.leaves if leaf.oid in named))
