"""Partitions that were attached to a table: the only ones of it that are compared with the source.

What the table had before is followed by the stream as ever, and nothing that the store has came from the new ones. So
all their rows are new, or were streamed since. Only a key says so of each: without one, rows are counted over all
partitions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from headwater.oplog.row_id import IdentityKind, RowIdentity
from headwater.source.catalog import PublishedTable
from headwater.storage.contract.store import StoredTable

ATTACHED = "partitions were attached: "
"""How the reason begins for which only some partitions of a table are compared with the source. It names them."""

_OID = re.compile(r"\((\d+)\)")


def attach_reason(table: StoredTable, published: PublishedTable) -> str:
    """Why a stored table is to be compared if nothing happened to it but that partitions were attached; empty if
    more did, or if all of it is waiting to be compared."""
    if compared_whole(table) or RowIdentity.of(published.relation).kind is not IdentityKind.KEY:
        return ""
    new = published.attached_since(table.fingerprint)
    if not new:
        return ""
    names = [f"{leaf.schema}.{leaf.name} ({leaf.oid})" for leaf in published.leaves if leaf.oid in new]
    return (f"{table.resync}, " if table.resync else ATTACHED) + ", ".join(names)


def compared_whole(table: StoredTable) -> bool:
    """Whether all of a stored table is being compared with the source, or soon is."""
    return bool(table.resync) and not only_attached(table.resync)


def only_attached(reason: str) -> bool:
    """Whether that is a reason to compare some partitions only."""
    return reason.startswith(ATTACHED)


def narrowed(published: PublishedTable, reason: str) -> PublishedTable:
    """The table with no partitions but those that the reason names."""
    named = {int(oid) for oid in _OID.findall(reason)}
    return replace(published, leaves=tuple(leaf for leaf in published.leaves if leaf.oid in named))


def whole_too(stored: Sequence[StoredTable]) -> list[int]:
    """The ids of those tables that have to be marked when all of each is to be compared."""
    return [table.id for table in stored if not compared_whole(table)]
