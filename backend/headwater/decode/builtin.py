"""The built-in types, which have the same oids in every Postgres from 14 on."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


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
