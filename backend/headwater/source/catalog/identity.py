"""The replica identity of a partitioned table that is published as one table: each partition has its own.

Setting the replica identity of a partitioned table does not change its partitions, and new ones begin with the default.
The stream describes the root, but the old rows that it sends have the columns of their partition's identity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import psycopg

from headwater.oplog.change import ReplicaIdentity
from headwater.source.catalog.leaves import TREE

USABLE = "i.indisvalid and i.indisunique and i.indimmediate and i.indpred is null"
"""What Postgres demands of an index `i` that identifies rows, besides columns that are not null."""


def identifies(table: str) -> str:
    """SQL: whether index `i` is the replica identity of `table`, a row of pg_class."""
    return (
        f"i.indrelid = {table}.oid and {USABLE} and case {table}.relreplident"
        " when 'd' then i.indisprimary when 'i' then i.indisreplident else false end"
    )


class Identity(NamedTuple):
    """A replica identity, and the names of its columns: those of its index, else none."""

    kind: ReplicaIdentity
    key: frozenset[str]


NO_IDENTITY = Identity(ReplicaIdentity.NOTHING, frozenset())

_LEAVES = f"""{TREE}
select distinct part.root::int8, leaf.relreplident::text, coalesce((
    select array(select a.attname::text from pg_attribute a
                 where a.attrelid = leaf.oid and a.attnum = any((i.indkey::int2[])[0:i.indnkeyatts - 1]) order by 1)
    from pg_index i where {identifies("leaf")}), '{{}}')
from part join pg_class top on top.oid = part.root and top.relkind = 'p'
  join pg_class leaf on leaf.oid = part.oid and leaf.relkind = 'r'
"""


def leaf_identities(conn: psycopg.Connection, oids: Sequence[int]) -> Mapping[int, Sequence[Identity]]:
    """By oid of each partitioned table, the different identities of its partitions."""
    found: dict[int, list[Identity]] = defaultdict(list)
    for root, kind, key in conn.execute(_LEAVES.encode(), {"oids": list(oids)}):
        identity = Identity(ReplicaIdentity(kind), frozenset(key))
        keyless = identity.kind is not ReplicaIdentity.FULL and not key
        found[root].append(NO_IDENTITY if keyless else identity)
    return found


def common_identity(own: Identity, primary: frozenset[str], leaves: Iterable[Identity]) -> Identity | None:
    """The identity that holds for all rows of a partitioned table: its own key, or its primary key, if every old row
    that is streamed has these columns. None where the partitions have nothing in common."""
    identities = set(leaves)
    key = own.key or primary
    whole = {leaf for leaf in identities if leaf.kind is ReplicaIdentity.FULL}
    if not identities:
        return own
    if identities == {NO_IDENTITY}:  # no updates or deletes come
        return NO_IDENTITY if own.key or own.kind is ReplicaIdentity.FULL else own
    if identities <= whole | {NO_IDENTITY} and not own.key:
        return Identity(ReplicaIdentity.FULL, frozenset())
    if key and all(leaf in whole or leaf == NO_IDENTITY or key <= leaf.key for leaf in identities):
        return own if own.key else Identity(ReplicaIdentity.DEFAULT, key)
    return None
