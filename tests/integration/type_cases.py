"""Every kind of Postgres type as a column, with literals to insert and the values that they become on a device."""

from __future__ import annotations

from dataclasses import dataclass

from headwater_rules.plan import Value

UUID = "0b6f0f1e-1111-4222-8333-444455556666"
CONTROLS = "".join(chr(code) for code in range(1, 128))

CUSTOM_TYPES = """
create type mood as enum ('happy', 'sad "quoted"');
create domain age as int check (value >= 0);
create domain label as text;
create domain scores as int[];
create type spot as (x int, "lab""el" text, seen timestamptz);
create type tour as (name label, spots spot[], days daterange);
create type textrange as range (subtype = text, multirange_type_name = textmultirange);
alter type spot add attribute gone int;
alter type spot drop attribute gone;
alter type spot add attribute ages age[];
"""


@dataclass(frozen=True)
class Case:
    """A column: its type, and SQL literals with the values that they become."""

    type: str
    values: tuple[tuple[str, Value], ...]


def case(type_name: str, *values: tuple[str, Value]) -> Case:
    return Case(type_name, values)


def same(type_name: str, *literals: str) -> Case:
    """A type whose text is kept."""
    return Case(type_name, tuple((literal, literal) for literal in literals))


def span(lower: str, upper: str, lower_exclusive: int = 0, upper_exclusive: int = 1) -> str:
    exclusive = f'"lower_exclusive":{lower_exclusive},"upper_exclusive":{upper_exclusive}'
    return f'{{"lower":{lower},"upper":{upper},{exclusive}}}'


CASES = [
    same("text", "", "\\N", CONTROLS, "naïve ☃ \U0001f600", "x" * 20_000),
    same("varchar(20)", "", "a\tb", " padded "),
    case("char(4)", ("ab", "ab  "), ("", "    ")),
    same("name", "pg_catalog", ""),
    same('"char"', "x"),
    same("uuid", UUID),
    same("inet", "10.0.0.1/8", "::1"),
    same("cidr", "10.0.0.0/8"),
    same("macaddr", "08:00:2b:01:02:03"),
    same("macaddr8", "08:00:2b:01:02:03:04:05"),
    case("money", ("1000", "$1,000.00")),
    same("tsvector", "'a':1 'b''c':2"),
    same("tsquery", "'a' & 'b'"),
    same("bit(3)", "101"),
    same("varbit", "", "10"),
    case("interval", ("1 hour", "01:00:00"), ("1 year 2 days -3 min", "1 year 2 days -00:03:00")),
    same("timetz", "17:42:01.12+02"),
    same("point", "(1,2)"),
    same("box", "(2,2),(1,1)"),
    same("path", "((0,0),(1,1))"),
    same("polygon", "((0,0),(1,1),(1,0))"),
    same("circle", "<(0,0),1>"),
    same("line", "{1,2,3}"),
    same("lseg", "[(0,0),(1,1)]"),
    same("int2vector", "1 2 3"),
    same("regclass", "pg_class"),
    same("jsonpath", '$."a"'),
    same("xid", "4294967295"),
    same("xid8", "18446744073709551615"),
    same("cid", "7"),
    same("tid", "(1,2)"),
    same("pg_snapshot", "10:20:10,14,15"),
    same("txid_snapshot", "10:20:10,14,15"),
    same("aclitem", "postgres=r*w/postgres"),
    same("refcursor", "a cursor"),
    same("regcollation", '"C"'),
    same("regconfig", "english"),
    same("regdictionary", "english_stem"),
    same("regnamespace", "pg_catalog"),
    same("regoper", "||/"),
    same("regoperator", "+(integer,integer)"),
    same("regproc", "now"),
    same("regprocedure", "sum(integer)"),
    same("regrole", "postgres"),
    same("regtype", "integer"),
    same("xml", '<a b="c">\n<d/></a>'),
    case("bool", ("t", 1), ("f", 0)),
    case("int2", ("-32768", -32768), ("32767", 32767)),
    case("int4", ("-2147483648", -(2**31)), ("0", 0)),
    case("int8", ("-9223372036854775808", -(2**63)), ("9223372036854775807", 2**63 - 1)),
    case("oid", ("4294967295", 2**32 - 1)),
    case("float4", ("314", 314.0), ("0.1", 0.1), ("NaN", "NaN"), ("3.4028235e38", 3.4028235e38)),
    case("float8", ("0.30000000000000004", 0.1 + 0.2), ("5e-324", 5e-324), ("-inf", "-Infinity"), ("-0", -0.0)),
    same("numeric", "18014398509481982123.4500", "NaN", "Infinity", "-1"),
    case("numeric(6,2)", ("3", "3.00")),
    case("bytea", (r"\x00ff5c0a", b"\x00\xff\\\n"), ("", b"")),
    same("json", '{"b" : 1,  "a": [1.0]}', '"tab\\t"'),
    case("jsonb", ('{"b" : 1,  "a": [1.0]}', '{"a": [1.0], "b": 1}')),
    case("pg_lsn", ("16/B374D848", "00000016/B374D848"), ("0/0", "00000000/00000000")),
    case("date", ("2023-03-06", "2023-03-06"), ("infinity", "9999-12-31"), ("-infinity", "0000-01-01")),
    case("date", ("0044-03-15 BC", "0044-03-15 BC"), ("12345-01-01", "12345-01-01")),
    case("time", ("17:42:01.12", "17:42:01.120000"), ("24:00", "24:00:00.000000")),
    case("time(0)", ("17:42:01.7", "17:42:02.000000")),
    case(
        "timestamp",
        ("2023-03-06 15:47:12.4", "2023-03-06T15:47:12.400000"),
        ("0044-03-15 12:00 BC", None),
        ("10000-01-01", "10000-01-01T00:00:00.000000"),
        ("infinity", "9999-12-31T23:59:59.000000"),
        ("-infinity", "0000-01-01T00:00:00.000000"),
    ),
    case(
        "timestamptz",
        ("2023-03-06 15:47:00+02", "2023-03-06T13:47:00.000000Z"),
        ("1850-01-01 12:00:00.123456 America/New_York", "1850-01-01T16:56:02.123456Z"),
        ("0044-03-15 12:00+00 BC", None),
        ("10000-01-01 00:00+00", None),
        ("infinity", "9999-12-31T23:59:59.000000Z"),
    ),
    case("int4[]", ("{1,NULL,-3}", "[1,null,-3]"), ("{}", "[]"), ("[2:3]={1,2}", "[1,2]")),
    case("int4[]", ("{{1,2},{3,4}}", "[[1,2],[3,4]]"), ("[0:0][-1:0]={{1,2}}", "[[1,2]]")),
    case("bool[]", ("{t,f}", "[1,0]")),
    case("int8[]", ("{9223372036854775807}", "[9223372036854775807]")),
    case("float8[]", ("{1,2.5,NaN}", '[1.0,2.5,"NaN"]')),
    case("numeric[]", ("{1.50}", '["1.50"]')),
    case("text[]", (r'{a,"b c","",NULL,"NULL","q\"","\\","{,}"}', r'["a","b c","",null,"NULL","q\"","\\","{,}"]')),
    case("bytea[]", (r'{"\\x00"}', "[null]")),
    case("json[]", (r'{"{\"a\" : [1]}",NULL}', '[{"a" : [1]},null]')),
    case("date[]", ("{2023-03-06,infinity}", '["2023-03-06","9999-12-31"]')),
    case("timestamptz[]", ("{2023-03-06 15:47:00+02}", '["2023-03-06T13:47:00.000000Z"]')),
    case("uuid[]", (f"{{{UUID}}}", f'["{UUID}"]')),
    case("box[]", ("{(1,1),(0,0);(2,2),(1,1)}", '["(1,1),(0,0)","(2,2),(1,1)"]')),
    case("int4range", ("[1,9]", span("1", "10")), ("empty", "empty"), ("(,5]", span("null", "6", 1))),
    case("numrange", ("(1.5,]", span('"1.5"', "null", 1))),
    case("int8range", ("[1,9223372036854775806]", span("1", "9223372036854775807"))),
    case("tsrange", ("[2023-03-06 15:47,)", span('"2023-03-06T15:47:00.000000"', "null"))),
    case("int8multirange", ("{[1,3),[5,8)}", f"[{span('1', '3')},{span('5', '8')}]")),
    case("nummultirange", ("{[1.50,3]}", "[" + span('"1.50"', '"3"', 0, 0) + "]")),
    case("datemultirange", ("{[2023-01-01,2023-01-02)}", "[" + span('"2023-01-01"', '"2023-01-02"') + "]")),
    case("tsmultirange", ("{[2023-03-06 15:47,)}", "[" + span('"2023-03-06T15:47:00.000000"', "null") + "]")),
    case("tstzmultirange", ("{[2023-03-06 15:47+00,)}", "[" + span('"2023-03-06T15:47:00.000000Z"', "null") + "]")),
    case("daterange", ("[2023-01-01,infinity)", span('"2023-01-01"', '"9999-12-31"'))),
    case("tstzrange", ("[2023-03-06 15:47:00+02,)", span('"2023-03-06T13:47:00.000000Z"', "null"))),
    case("int4multirange", ("{[1,3),[5,8)}", f"[{span('1', '3')},{span('5', '8')}]"), ("{}", "[]")),
    case("int4range[]", ('{"[1,3)",empty}', f'[{span("1", "3")},"empty"]')),
    same("mood", "happy", 'sad "quoted"'),
    case("mood[]", (r'{happy,"sad \"quoted\""}', r'["happy","sad \"quoted\""]')),
    case("age", ("41", 41)),
    case("age[]", ("{1,2}", "[1,2]")),
    same("label", "{not an array}"),
    case("scores", ("{1,2}", "[1,2]")),
    case("scores[]", (r'{"{1,2}","{3}"}', "[[1,2],[3]]")),
    case(
        "spot",
        (
            r'(1,"say ""hi"", \\ ()",2023-03-06 15:47:00+02,"{1,2}")',
            r'{"x":1,"lab\"el":"say \"hi\", \\ ()","seen":"2023-03-06T13:47:00.000000Z","ages":[1,2]}',
        ),
        ("(,,,)", r'{"x":null,"lab\"el":null,"seen":null,"ages":null}'),
    ),
    case("spot[]", (r'{"(1,\"\",,)"}', r'[{"x":1,"lab\"el":"","seen":null,"ages":null}]')),
    case(
        "tour",
        (
            r'(north,"{""(1,\\""b c\\"",,)""}","[2023-01-01,2023-02-01)")',
            r'{"name":"north","spots":[{"x":1,"lab\"el":"b c","seen":null,"ages":null}],"days":'
            + span('"2023-01-01"', '"2023-02-01"')
            + "}",
        ),
    ),
    case("textrange", (r'["a,""b\\",c)', span(r'"a,\"b\\"', '"c"'))),
    case("textmultirange", (r'{["a,)",b)}', "[" + span('"a,)"', '"b"') + "]")),
]
