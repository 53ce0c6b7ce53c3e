"""Partitioned tables that are published as one, whose names the stream does not always tell.

Postgres describes a table in the stream once, and again when something was done to it. When a root is renamed, nothing
was done to its partitions, whose rows go on under its former name. So the catalog is asked before what a flush has of
such a table is committed: it then knows all names that were given before those rows were written. What was streamed
while a name was another than the store has for the table is left to a comparison, up to a position that is kept.
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
    """Whether a table's rows come through partitions, for all that is known."""
    return leaf_oids(table.fingerprint) != {table.relation.oid}


class NameBook:
    """By oid, up to which position the stream may call a root what it was not; kept by the store."""

    def __init__(self, store: StoreWriter, tag: str) -> None:
        self._store = store
        self._key = f"names of partitioned tables {tag}"

    def read(self) -> dict[int, Lsn]:
        known = orjson.loads(self._store.noted(self._key) or "{}")
        return {int(oid): parse_lsn(upto) for oid, upto in known.items()}

    def distrust(self, lease: Lease, oids: Collection[int], upto: Lsn) -> None:
        """What comes of these up to there is left to comparisons."""
        self._write(lease, self.read() | dict.fromkeys(oids, upto))

    def pass_over(self, lease: Lease, position: Lsn) -> None:
        """The stream is read from there."""
        known = self.read()
        ahead = {oid: upto for oid, upto in known.items() if upto > position}
        if ahead != known:
            self._write(lease, ahead)

    def forget(self, lease: Lease) -> None:
        """The source's history is another: its positions mean other transactions."""
        if self.read():
            self._write(lease, {})

    def _write(self, lease: Lease, known: Mapping[int, Lsn]) -> None:
        text = orjson.dumps({str(oid): format_lsn(upto) for oid, upto in known.items()}).decode()
        self._store.note(lease, self._key, text)


def distrust_named(book: NameBook, lease: Lease, conn: psycopg.Connection, changes: TableChanges) -> Mapping[int, Lsn]:
    """Before roots are taken up that came to their names: what was written to them before may be told under these."""
    named = [table for table in changes.new if _is_root(table)]
    named += [found for stored, found in changes.altered if _is_root(found) and is_another(stored, found)]
    if not named:
        return {}
    oids, upto = [table.relation.oid for table in named], end_of_log(conn)
    book.distrust(lease, oids, upto)
    return dict.fromkeys(oids, upto)


def _is_root(table: PublishedTable) -> bool:
    return [leaf.oid for leaf in table.leaves] != [table.relation.oid]
