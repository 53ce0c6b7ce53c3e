"""Partitioned tables that are published as one table (roots), whose renames the stream does not tell.

Postgres describes a table in the stream once, and again after a change to it. Renaming a root does not change its
partitions, whose rows go on under its former name. So before a flush with rows of a root commits, the catalog is asked
for its name: the answer includes every rename from before those rows were written. A name that is gone again by then is
told by the event triggers alone. Changes that came under another name than the stored one are left to a comparison, up
to a position that is kept in the store.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import orjson
import psycopg

from headwater.oplog.lsn import Lsn, format_lsn, parse_lsn
from headwater.replication.tables.changes import TableChanges, is_another
from headwater.source.catalog.published import PublishedTable
from headwater.source.catalog.shape import leaf_oids
from headwater.source.slot import end_of_log
from headwater.storage.contract.store import Lease, StoredTable, StoreWriter


def is_root(table: StoredTable) -> bool:
    """Whether a table's rows are in partitions, by its stored shape."""
    return leaf_oids(table.fingerprint) != {table.relation.oid}


class NameBook:
    """By oid, up to which position the stream may use a wrong name for a root. Kept in the store."""

    def __init__(self, store: StoreWriter, tag: str) -> None:
        self._store = store
        self._key = f"names of partitioned tables {tag}"

    def read(self) -> dict[int, Lsn]:
        known = orjson.loads(self._store.noted(self._key) or "{}")
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
        self._store.note(lease, self._key, text)


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
