"""Descriptions of column types: built-in ones from a table, custom ones from the source's catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from headwater.decode import builtin


class TypeKind(Enum):
    """Kinds of types; the values are those of TYPE_QUERY."""

    BASE = "b"
    ENUM = "e"
    ARRAY = "a"
    DOMAIN = "d"
    COMPOSITE = "c"
    RANGE = "r"
    MULTIRANGE = "m"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A field of a composite type."""

    name: str
    type_oid: int


@dataclass(frozen=True, slots=True)
class TypeDescriptor:
    """One type. `element` is the type of an array's elements, a domain's base, a range's bounds or a multirange's
    ranges."""

    oid: int
    schema: str
    name: str
    kind: TypeKind
    element: int = 0
    delimiter: str = ","
    attributes: tuple[Attribute, ...] = ()


TypeRow = tuple[int, str, str, str, int, str, Sequence[str], Sequence[int]]
"""oid, schema, name, kind, element, delimiter, names of the attributes, type oids of the attributes."""

TYPE_QUERY: Final = """
with recursive wanted (oid) as (
    select unnest(%(oids)s::oid[])
    union
    select part.oid
    from wanted
    join pg_catalog.pg_type t on t.oid = wanted.oid
    cross join lateral (
        select e.oid from pg_catalog.pg_type e where e.oid = t.typelem and e.typarray = t.oid
        union all
        select t.typbasetype where t.typtype = 'd'
        union all
        select a.atttypid from pg_catalog.pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        union all
        select r.rngsubtype from pg_catalog.pg_range r where r.rngtypid = t.oid
        union all
        select r.rngtypid from pg_catalog.pg_range r where r.rngmultitypid = t.oid
    ) part
)
select
    t.oid,
    n.nspname,
    t.typname,
    case when e.oid is not null then 'a' else t.typtype::text end,
    coalesce(e.oid, nullif(t.typbasetype, 0), r.rngsubtype, m.rngtypid, 0),
    coalesce(e.typdelim, ',')::text,
    array(
        select a.attname::text from pg_catalog.pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        order by a.attnum
    ),
    array(
        select a.atttypid from pg_catalog.pg_attribute a
        where t.typtype = 'c' and a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        order by a.attnum
    )
from wanted
join pg_catalog.pg_type t on t.oid = wanted.oid
join pg_catalog.pg_namespace n on n.oid = t.typnamespace
left join pg_catalog.pg_type e on e.oid = t.typelem and e.typarray = t.oid
left join pg_catalog.pg_range r on r.rngtypid = t.oid
left join pg_catalog.pg_range m on m.rngmultitypid = t.oid
order by t.oid
"""
"""Describes the types in the parameter `oids` (a list), and all types that they are made of, as TypeRow tuples."""


def _builtin() -> Iterable[TypeDescriptor]:
    for name, oid, array_oid in builtin.SCALARS:
        delimiter = ";" if oid in builtin.SEMICOLON_SEPARATED else ","
        yield TypeDescriptor(oid, "pg_catalog", name, TypeKind.BASE)
        yield TypeDescriptor(array_oid, "pg_catalog", f"_{name}", TypeKind.ARRAY, oid, delimiter)
    for kind, ranges in ((TypeKind.RANGE, builtin.RANGES), (TypeKind.MULTIRANGE, builtin.MULTIRANGES)):
        for name, oid, array_oid, element in ranges:
            yield TypeDescriptor(oid, "pg_catalog", name, kind, element)
            yield TypeDescriptor(array_oid, "pg_catalog", f"_{name}", TypeKind.ARRAY, oid)


BUILTIN_TYPES: Final[Mapping[int, TypeDescriptor]] = {each.oid: each for each in _builtin()}


@dataclass(frozen=True, slots=True)
class TypeCatalog:
    """Types by oid. `TypeCatalog()` has the built-in types; others are loaded from each source."""

    custom: Mapping[int, TypeDescriptor] = field(default_factory=dict)

    @classmethod
    def from_rows(cls, rows: Iterable[TypeRow]) -> TypeCatalog:
        """A catalog of what TYPE_QUERY returned."""
        described = (_descriptor(row) for row in rows)
        return cls({each.oid: each for each in described if each.oid not in BUILTIN_TYPES})

    def with_rows(self, rows: Iterable[TypeRow]) -> TypeCatalog:
        """This catalog with what TYPE_QUERY returned, which replaces known types."""
        return TypeCatalog({**self.custom, **self.from_rows(rows).custom})

    def get(self, oid: int) -> TypeDescriptor | None:
        return BUILTIN_TYPES.get(oid) or self.custom.get(oid)

    def missing(self, oids: Iterable[int]) -> list[int]:
        """The oids that are not in the catalog, once each and sorted."""
        return sorted(oid for oid in set(oids) if self.get(oid) is None)


def _descriptor(row: TypeRow) -> TypeDescriptor:
    oid, schema, name, kind, element, delimiter, names, types = row
    attributes = tuple(Attribute(*each) for each in zip(names, types, strict=True))
    return TypeDescriptor(oid, schema, name, _kind(kind), element, delimiter, attributes)


def _kind(code: str) -> TypeKind:
    """Pseudo-types and kinds of later Postgres versions are kept as text, like a base type."""
    try:
        return TypeKind(code)
    except ValueError:
        return TypeKind.BASE
