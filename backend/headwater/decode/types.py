"""Descriptions of column types: built-in ones from a table, custom ones from the source's catalog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final

from headwater_rules.schema import ValueKind


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


class Oid(IntEnum):
    """Built-in types that do not read as plain text."""

    BOOL = 16
    BYTEA = 17
    INT8 = 20
    INT2 = 21
    INT4 = 23
    OID = 26
    JSON = 114
    FLOAT4 = 700
    FLOAT8 = 701
    DATE = 1082
    TIME = 1083
    TIMESTAMP = 1114
    TIMESTAMPTZ = 1184
    PG_LSN = 3220
    JSONB = 3802


# name, oid, oid of the array of it
SCALARS: Final = (
    ("bool", 16, 1000),
    ("bytea", 17, 1001),
    ("char", 18, 1002),
    ("name", 19, 1003),
    ("int8", 20, 1016),
    ("int2", 21, 1005),
    ("int2vector", 22, 1006),
    ("int4", 23, 1007),
    ("regproc", 24, 1008),
    ("text", 25, 1009),
    ("oid", 26, 1028),
    ("tid", 27, 1010),
    ("xid", 28, 1011),
    ("cid", 29, 1012),
    ("oidvector", 30, 1013),
    ("json", 114, 199),
    ("xml", 142, 143),
    ("point", 600, 1017),
    ("lseg", 601, 1018),
    ("path", 602, 1019),
    ("box", 603, 1020),
    ("polygon", 604, 1027),
    ("line", 628, 629),
    ("cidr", 650, 651),
    ("float4", 700, 1021),
    ("float8", 701, 1022),
    ("circle", 718, 719),
    ("macaddr8", 774, 775),
    ("money", 790, 791),
    ("macaddr", 829, 1040),
    ("inet", 869, 1041),
    ("aclitem", 1033, 1034),
    ("bpchar", 1042, 1014),
    ("varchar", 1043, 1015),
    ("date", 1082, 1182),
    ("time", 1083, 1183),
    ("timestamp", 1114, 1115),
    ("timestamptz", 1184, 1185),
    ("interval", 1186, 1187),
    ("timetz", 1266, 1270),
    ("bit", 1560, 1561),
    ("varbit", 1562, 1563),
    ("numeric", 1700, 1231),
    ("refcursor", 1790, 2201),
    ("regprocedure", 2202, 2207),
    ("regoper", 2203, 2208),
    ("regoperator", 2204, 2209),
    ("regclass", 2205, 2210),
    ("regtype", 2206, 2211),
    ("uuid", 2950, 2951),
    ("txid_snapshot", 2970, 2949),
    ("pg_lsn", 3220, 3221),
    ("tsvector", 3614, 3643),
    ("tsquery", 3615, 3645),
    ("gtsvector", 3642, 3644),
    ("regconfig", 3734, 3735),
    ("regdictionary", 3769, 3770),
    ("jsonb", 3802, 3807),
    ("jsonpath", 4072, 4073),
    ("regnamespace", 4089, 4090),
    ("regrole", 4096, 4097),
    ("regcollation", 4191, 4192),
    ("pg_snapshot", 5038, 5039),
    ("xid8", 5069, 271),
)

# name, oid, oid of the array of it, oid of the bounds' type
RANGES: Final = (
    ("int4range", 3904, 3905, 23),
    ("numrange", 3906, 3907, 1700),
    ("tsrange", 3908, 3909, 1114),
    ("tstzrange", 3910, 3911, 1184),
    ("daterange", 3912, 3913, 1082),
    ("int8range", 3926, 3927, 20),
)

# name, oid, oid of the array of it, oid of the range
MULTIRANGES: Final = (
    ("int4multirange", 4451, 6150, 3904),
    ("nummultirange", 4532, 6151, 3906),
    ("tsmultirange", 4533, 6152, 3908),
    ("tstzmultirange", 4534, 6153, 3910),
    ("datemultirange", 4535, 6155, 3912),
    ("int8multirange", 4536, 6157, 3926),
)

SEMICOLON_SEPARATED: Final = frozenset({603})
"""Types whose arrays are not separated by commas: box alone."""


def _builtin() -> Iterable[TypeDescriptor]:
    for name, oid, array_oid in SCALARS:
        delimiter = ";" if oid in SEMICOLON_SEPARATED else ","
        yield TypeDescriptor(oid, "pg_catalog", name, TypeKind.BASE)
        yield TypeDescriptor(array_oid, "pg_catalog", f"_{name}", TypeKind.ARRAY, oid, delimiter)
    for kind, ranges in ((TypeKind.RANGE, RANGES), (TypeKind.MULTIRANGE, MULTIRANGES)):
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


_KINDS: dict[int, ValueKind] = {
    **dict.fromkeys((Oid.BOOL, Oid.INT2, Oid.INT4, Oid.INT8, Oid.OID), ValueKind.INTEGER),
    **dict.fromkeys((Oid.FLOAT4, Oid.FLOAT8), ValueKind.REAL),
    **dict.fromkeys((Oid.JSON, Oid.JSONB), ValueKind.JSON),
    Oid.BYTEA: ValueKind.BLOB,
}


@dataclass(frozen=True, slots=True)
class TypeValues:
    """The `kind` of a type's values, and of the `elements` of an array. `by_option`: only with the option
    `custom_postgres_types`; without it, values are text."""

    kind: ValueKind
    elements: ValueKind | None = None
    by_option: bool = False


def values_of(oid: int, types: TypeCatalog) -> TypeValues:
    """The kind of value that a type is converted to."""
    descriptor = types.get(oid)
    if descriptor is None:
        return TypeValues(ValueKind.TEXT)
    match descriptor.kind:
        case TypeKind.DOMAIN:
            base = values_of(descriptor.element, types)
            return TypeValues(base.kind, base.elements, by_option=base.kind is not ValueKind.TEXT)
        case TypeKind.ARRAY:
            elements = values_of(descriptor.element, types).kind
            return TypeValues(ValueKind.JSON, elements, by_option=descriptor.element not in BUILTIN_TYPES)
        case TypeKind.COMPOSITE | TypeKind.RANGE | TypeKind.MULTIRANGE:
            return TypeValues(ValueKind.JSON, by_option=True)
        case _:
            return TypeValues(_KINDS.get(oid, ValueKind.TEXT))
