"""The sizes of tables, only asked for tables that are read whole: Postgres waits for a lock on each.

If one of them is locked, the planner's estimates are used for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from psycopg import errors

from headwater.source.catalog.leaves import Leaf
from headwater.source.catalog.published import PublishedTable
from headwater.source.connect import SourceSettings, connect

_SIZES = """
select c.oid::int8, (coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8)::int8, c.relpages::int8
from pg_class c where c.oid = any(%s::oid[])
"""


def measured(source: SourceSettings, tables: Sequence[PublishedTable]) -> list[PublishedTable]:
    """The tables with their present sizes, and the planner's estimates of rows scaled to these. Raises what `connect`
    raises."""
    oids = [leaf.oid for table in tables for leaf in table.leaves]
    with connect(source, application_name="headwater sizes", patient=True) as conn:
        conn.execute("set lock_timeout = '2s'")
        try:
            found = {oid: (pages, known) for oid, pages, known in conn.execute(_SIZES, [oids]).fetchall()}
        except errors.LockNotAvailable:
            return list(tables)
    leaves = [tuple(_sized(leaf, *found.get(leaf.oid, (0, 0))) for leaf in table.leaves) for table in tables]
    return [replace(table, leaves=own) for table, own in zip(tables, leaves, strict=True)]


def _sized(leaf: Leaf, pages: int, known: int) -> Leaf:
    """`known` is the number of pages that the planner's estimate is for."""
    return replace(leaf, pages=pages, estimated_rows=leaf.estimated_rows * pages // known if known else 0)
