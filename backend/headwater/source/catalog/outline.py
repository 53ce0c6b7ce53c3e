"""The tables of a source with their keys and references, for proposing a sync config."""

from __future__ import annotations

from collections import defaultdict

import psycopg

from headwater.source.catalog.schema import read_schema
from headwater.source.connect import SourceSettings, connect, connection_error
from headwater_rules.propose.outline import OutlinedTable, Reference

_TABLES = """
select c.oid::int8, n.nspname, c.relname, coalesce((
    select array_agg(a.attname::text order by k.place)
    from pg_index i cross join unnest(i.indkey) with ordinality k (number, place)
      join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number
    where i.indrelid = c.oid and i.indisprimary), '{}'), (
    -- As the last analysis counted; before the first one by its size, at 100 bytes for each row
    select coalesce(sum(case when l.reltuples < 0 then pg_relation_size(l.oid) / 100 else l.reltuples end), 0)::int8
    from (select c.oid union select relid::oid from pg_partition_tree(c.oid) where isleaf) parts (oid)
      join pg_class l on l.oid = parts.oid
    where l.relkind = 'r')
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and not c.relispartition
"""

_COLUMNS = """
select a.attrelid::int8, a.attname, a.attgenerated <> '' or a.attidentity = 'a',
  a.attnotnull and not a.atthasdef and a.attidentity = '', coalesce((
    select array_agg(e.enumlabel::text order by e.enumsortorder) from pg_enum e where e.enumtypid = a.atttypid), '{}')
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relkind in ('r', 'p') and not c.relispartition and a.attnum > 0 and not a.attisdropped
"""

_SECURED = "select c.oid::int8 from pg_class c where c.relrowsecurity and c.oid in (select polrelid from pg_policy)"

_REFERENCES = """
select k.conrelid::int8, a.attname, n.nspname, c.relname, b.attname,
  k.confdeltype = 'c' and a.attnotnull
from pg_constraint k
  join pg_class c on c.oid = k.confrelid join pg_namespace n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = k.conrelid and a.attnum = k.conkey[1]
  join pg_attribute b on b.attrelid = k.confrelid and b.attnum = k.confkey[1]
where k.contype = 'f' and k.conparentid = 0 and cardinality(k.conkey) = 1
order by k.conrelid, a.attnum
"""


def read_outline(settings: SourceSettings) -> tuple[OutlinedTable, ...]:
    """All tables but partitions, in the order of their names. Raises SourceUnreachable or SourceRefused."""
    schema = read_schema(settings)
    references: dict[int, list[Reference]] = defaultdict(list)
    computed: dict[int, set[str]] = defaultdict(set)
    required: dict[int, set[str]] = defaultdict(set)
    choices: dict[int, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    with connect(settings) as conn:
        try:
            known = {
                (schema, name): (oid, tuple(key), rows)
                for oid, schema, name, key, rows in conn.execute(_TABLES.encode())
            }
            for oid, column, schema_name, name, target, owning in conn.execute(_REFERENCES.encode()):
                references[oid].append(Reference(column, schema_name, name, target, owning=owning))
            for oid, column, is_computed, is_required, labels in conn.execute(_COLUMNS):
                if is_computed or is_required:
                    (computed if is_computed else required)[oid].add(column)
                if labels:
                    choices[oid].append((column, tuple(labels)))
            secured = {oid for (oid,) in conn.execute(_SECURED)}
        except psycopg.Error as error:
            raise connection_error(settings, error) from error
    found = []
    for table in schema.tables:
        if (table.schema, table.name) in known:
            oid, key, rows = known[table.schema, table.name]
            found.append(
                OutlinedTable(
                    table.schema, table.name, table.columns, key, tuple(references[oid]), rows,
                    frozenset(computed[oid]), frozenset(required[oid]), tuple(choices[oid]), oid in secured,
                )
            )  # fmt: skip
    return tuple(found)
