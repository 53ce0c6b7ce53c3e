"""Leaves: the tables that hold the rows of a published table. These are its partitions, or the table itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg


@dataclass(frozen=True, slots=True)
class Leaf:
    """A table that holds rows: the published table itself, or one partition of it. `pages` counts its 8 kB blocks,
    `estimated_rows` its rows, both as the planner last knew them (0 when it never looked), or as of now from
    `sizes.measured`. `attached` changes when a partition is detached and attached again."""

    oid: int
    schema: str
    name: str
    relfilenode: int
    pages: int
    estimated_rows: int
    attached: str = ""


TREE = """
with recursive tree (root, oid) as (
    select t, t from unnest(%(oids)s::oid[]) t
    union all
    select tree.root, i.inhrelid from tree join pg_class c on c.oid = tree.oid and c.relkind = 'p'
      join pg_inherits i on i.inhparent = tree.oid and not i.inhdetachpending
), part as (
    select tree.root, tree.oid from tree join pg_class c on c.oid = tree.oid and c.relkind <> 'p'
)
"""
"""SQL: `part` has the partitions of the tables `oids`, each with its root; a table without partitions has itself. The
function of Postgres would wait for a lock on each."""


def load_leaves(conn: psycopg.Connection, oids: Sequence[int]) -> dict[int, tuple[Leaf, ...]]:
    """The leaves of these tables, by the table's oid."""
    rows = conn.execute(
        f"""{TREE}
           select part.root::int8, leaf.oid::int8, n.nspname, leaf.relname,
                  leaf.relfilenode::int8,
                  leaf.relpages::int8, greatest(leaf.reltuples, 0)::int8,
                  array(with recursive above (parent, entry) as (
                            select i.inhparent, i.inhparent || ' ' || i.xmin from pg_inherits i
                            where i.inhrelid = leaf.oid and leaf.relispartition
                            union all
                            select i.inhparent, i.inhparent || ' ' || i.xmin
                            from above join pg_class c on c.oid = above.parent and c.relispartition
                              join pg_inherits i on i.inhrelid = above.parent)
                        select entry from above order by 1)::text
           from part join pg_class leaf on leaf.oid = part.oid and leaf.relkind = 'r'
             join pg_namespace n on n.oid = leaf.relnamespace
           order by part.root, leaf.oid""".encode(),
        {"oids": list(oids)},
    ).fetchall()
    leaves: dict[int, list[Leaf]] = defaultdict(list)
    for root, *leaf in rows:
        leaves[root].append(Leaf(*leaf))
    return {root: tuple(found) for root, found in leaves.items()}
