"""What each Postgres type becomes on the device."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.decode.types import BUILTIN_TYPES, TypeCatalog
from headwater.decode.values import converters, row_converter
from headwater.decode.wire import DecodeError
from headwater.oplog.change import Column
from headwater_rules.plan import ConversionOptions, Value

EDITION_3 = ConversionOptions()
EDITION_1 = ConversionOptions(timestamps_iso8601=False, custom_postgres_types=False)

OIDS = {each.name: oid for oid, each in BUILTIN_TYPES.items()}

MOOD, AGE, POINT, POINTS, AGES, MOODS, SPAN, SPANS, TREE, FLAGS, LONG_TEXT, BARE, UNKNOWN = range(20001, 20014)

CUSTOM = TypeCatalog.from_rows(
    [
        (MOOD, "public", "mood", "e", 0, ",", [], []),
        (AGE, "public", "age", "d", OIDS["int4"], ",", [], []),
        (POINT, "public", "spot", "c", 0, ",", ["x", 'lab"el'], [OIDS["int4"], OIDS["text"]]),
        (POINTS, "public", "_spot", "a", POINT, ",", [], []),
        (AGES, "public", "_age", "a", AGE, ",", [], []),
        (MOODS, "public", "_mood", "a", MOOD, ",", [], []),
        (SPAN, "public", "textrange", "r", OIDS["text"], ",", [], []),
        (SPANS, "public", "textmultirange", "m", SPAN, ",", [], []),
        (TREE, "public", "tree", "c", 0, ",", ["at", "spots", "span"], [OIDS["timestamptz"], POINTS, SPAN]),
        (FLAGS, "public", "flags", "d", OIDS["_bool"], ",", [], []),
        (LONG_TEXT, "public", "long_text", "d", OIDS["text"], ",", [], []),
        (BARE, "public", "bare", "c", 0, ",", [], []),
    ]
)
OIDS |= {each.name: oid for oid, each in CUSTOM.custom.items()} | {"unknown": UNKNOWN}


def convert(type_name: str, text: str, options: ConversionOptions = EDITION_3) -> Value:
    columns = [Column("c", OIDS[type_name], -1, False)]
    (value,) = row_converter(columns, CUSTOM, options)([text])
    return value


def bounds(lower: str, upper: str, lower_exclusive: int, upper_exclusive: int) -> str:
    """The JSON object of a range."""
    exclusive = f'"lower_exclusive":{lower_exclusive},"upper_exclusive":{upper_exclusive}'
    return f'{{"lower":{lower},"upper":{upper},{exclusive}}}'


SCALARS: list[tuple[str, str, Value]] = [
    *[(name, " as is ", " as is ") for name in ("text", "varchar", "bpchar", "name", "xml", "tsvector", "unknown")],
    ("uuid", "0b6f0f1e-1111-4222-8333-444455556666", "0b6f0f1e-1111-4222-8333-444455556666"),
    ("interval", "1 day 01:00:00", "1 day 01:00:00"),
    ("timetz", "17:42:01.12+00", "17:42:01.12+00"),
    ("money", "$1,000.00", "$1,000.00"),
    ("bit", "101", "101"),
    ("inet", "10.0.0.1/8", "10.0.0.1/8"),
    ("point", "(1,2)", "(1,2)"),
    ("int2vector", "1 2 3", "1 2 3"),
    ("mood", "happy", "happy"),
    ("bool", "t", 1),
    ("bool", "f", 0),
    ("int2", "-32768", -32768),
    ("int4", "2147483647", 2147483647),
    ("int8", "-9223372036854775808", -(2**63)),
    ("oid", "4294967295", 4294967295),
    ("float4", "314", 314.0),
    ("float8", "0.1", 0.1),
    ("float8", "1e-300", 1e-300),
    ("float8", "NaN", "NaN"),
    ("float8", "Infinity", "Infinity"),
    ("float4", "-Infinity", "-Infinity"),
    ("numeric", "18014398509481982123.00", "18014398509481982123.00"),
    ("numeric", "NaN", "NaN"),
    ("bytea", "\\x00ff7f", b"\x00\xff\x7f"),
    ("bytea", "\\x", b""),
    ("json", '{"b" : 1,  "a": [1.0]}', '{"b" : 1,  "a": [1.0]}'),
    ("jsonb", '{"a": [1.0]}', '{"a": [1.0]}'),
    ("pg_lsn", "16/B374D848", "00000016/B374D848"),
    ("pg_lsn", "0/0", "00000000/00000000"),
    ("date", "2023-03-06", "2023-03-06"),
    ("date", "0044-03-15 BC", "0044-03-15 BC"),
    ("date", "infinity", "9999-12-31"),
    ("date", "-infinity", "0000-01-01"),
    ("time", "17:42:01.12", "17:42:01.120000"),
    ("time", "24:00:00", "24:00:00.000000"),
    ("timestamp", "2023-03-06 15:47:12.4", "2023-03-06T15:47:12.400000"),
    ("timestamp", "2023-03-06 15:47:12.123456", "2023-03-06T15:47:12.123456"),
    ("timestamp", "2023-03-06 15:47:12", "2023-03-06T15:47:12.000000"),
    ("timestamp", "10000-01-01 00:00:00", "10000-01-01T00:00:00.000000"),
    ("timestamp", "294276-12-31 23:59:59.999999", "294276-12-31T23:59:59.999999"),
    ("timestamp", "0044-03-15 12:00:00 BC", None),
    ("timestamp", "0044-03-15 12:00:00.123456 BC", None),
    ("timestamp", "infinity", "9999-12-31T23:59:59.000000"),
    ("timestamp", "-infinity", "0000-01-01T00:00:00.000000"),
    ("timestamptz", "2023-03-06 13:47:00+00", "2023-03-06T13:47:00.000000Z"),
    ("timestamptz", "2023-03-06 13:47:00.12345+00", "2023-03-06T13:47:00.123450Z"),
    ("timestamptz", "10000-01-01 00:00:00+00", None),
    ("timestamptz", "0044-03-15 12:00:00+00 BC", None),
    ("timestamptz", "infinity", "9999-12-31T23:59:59.000000Z"),
    ("timestamptz", "-infinity", "0000-01-01T00:00:00.000000Z"),
    ("age", "41", 41),
    ("flags", "{t,f}", "[1,0]"),
    ("long_text", "{x}", "{x}"),
    ("int4range", "empty", "empty"),
]

COMPOSED: list[tuple[str, str, str]] = [
    ("_int4", "{}", "[]"),
    ("_int4", "{1,NULL,-3}", "[1,null,-3]"),
    ("_int8", "[2:3]={1,2}", "[1,2]"),
    ("_int4", "[0:1][-1:0]={{1,2},{3,4}}", "[[1,2],[3,4]]"),
    ("_int4", "{{{1,2},{3,NULL}}}", "[[[1,2],[3,null]]]"),
    ("_bool", "{t,f}", "[1,0]"),
    ("_float8", "{1,2.5,NaN}", '[1.0,2.5,"NaN"]'),
    ("_numeric", "{1.50,NaN}", '["1.50","NaN"]'),
    ("_text", '{a,"b c","",NULL,"NULL",null}', '["a","b c","",null,"NULL","null"]'),
    ("_text", r'{"say \"hi\"","back\\slash","{x,y}","a,b"}', r'["say \"hi\"","back\\slash","{x,y}","a,b"]'),
    ("_text", '{"line\nbreak",ünï}', '["line\\nbreak","ünï"]'),
    ("_text", '{{a,"}"},{",",NULL}}', '[["a","}"],[",",null]]'),
    ("_bytea", '{"\\\\x00ff",NULL}', "[null,null]"),
    ("_json", r'{"{\"a\" : [1]}",null,3}', '[{"a" : [1]},null,3]'),
    ("_jsonb", r'{"[1, 2]"}', "[[1, 2]]"),
    ("_date", "{2023-03-06,infinity}", '["2023-03-06","9999-12-31"]'),
    ("_timestamp", '{"2023-03-06 15:47:12.4"}', '["2023-03-06T15:47:12.400000"]'),
    (
        "_timestamptz",
        '{"2023-03-06 13:47:00+00","0044-03-15 12:00:00+00 BC"}',
        '["2023-03-06T13:47:00.000000Z",null]',
    ),
    ("_pg_lsn", "{16/B374D848}", '["00000016/B374D848"]'),
    ("_box", "{(1,1),(0,0);(2,2),(1,1)}", '["(1,1),(0,0)","(2,2),(1,1)"]'),
    ("_int4range", '{"[1,5)",empty}', f'[{bounds("1", "5", 0, 1)},"empty"]'),
    ("_mood", "{happy,sad}", '["happy","sad"]'),
    ("_age", "{1,2}", "[1,2]"),
    ("spot", '(1,"a b")', r'{"x":1,"lab\"el":"a b"}'),
    ("spot", "(,)", r'{"x":null,"lab\"el":null}'),
    ("spot", '(1,"")', r'{"x":1,"lab\"el":""}'),
    ("spot", r'(1,"say ""hi"" \\ ,()")', r'{"x":1,"lab\"el":"say \"hi\" \\ ,()"}'),
    ("_spot", '{"(1,a)","(2,\\"b c\\")",NULL}', r'[{"x":1,"lab\"el":"a"},{"x":2,"lab\"el":"b c"},null]'),
    ("bare", "()", "{}"),
    ("int4range", "[1,10)", bounds("1", "10", 0, 1)),
    ("int8range", "(,5]", bounds("null", "5", 1, 0)),
    ("numrange", "[1.50,)", bounds('"1.50"', "null", 0, 1)),
    (
        "tstzrange",
        '["2023-03-06 13:47:00+00",infinity]',
        bounds('"2023-03-06T13:47:00.000000Z"', '"9999-12-31T23:59:59.000000Z"', 0, 0),
    ),
    ("textrange", r'["a,""b\\","")', bounds(r'"a,\"b\\"', '""', 0, 1)),
    ("int4multirange", "{}", "[]"),
    ("int4multirange", "{[1,3),[5,8)}", f"[{bounds('1', '3', 0, 1)},{bounds('5', '8', 0, 1)}]"),
    ("textmultirange", '{["a,)",b)}', "[" + bounds('"a,)"', '"b"', 0, 1) + "]"),
    (
        "tree",
        r'("2023-03-06 13:47:00+00","{""(1,\\""b c\\"")""}",empty)',
        r'{"at":"2023-03-06T13:47:00.000000Z","spots":[{"x":1,"lab\"el":"b c"}],"span":"empty"}',
    ),
]

LEGACY: list[tuple[str, str, Value]] = [
    ("time", "17:42:01.12", "17:42:01.12"),
    ("timestamp", "2023-03-06 15:47:12.4", "2023-03-06 15:47:12.4"),
    ("timestamp", "infinity", "9999-12-31 23:59:59"),
    ("timestamp", "0044-03-15 12:00:00 BC", None),
    ("timestamptz", "2023-03-06 13:47:00+00", "2023-03-06 13:47:00Z"),
    ("timestamptz", "2023-03-06 13:47:00.12345+00", "2023-03-06 13:47:00.12345Z"),
    ("timestamptz", "-infinity", "0000-01-01 00:00:00Z"),
    ("_timestamp", '{"2023-03-06 15:47:12.4"}', '["2023-03-06 15:47:12.4"]'),
    ("_int4", "{1,2}", "[1,2]"),
    ("_age", "{1,2}", "{1,2}"),
    ("_spot", '{"(1,a)"}', '{"(1,a)"}'),
    ("age", "41", "41"),
    ("spot", "(1,foo)", "(1,foo)"),
    ("int4range", "[1,10)", "[1,10)"),
    ("int4multirange", "{[1,3)}", "{[1,3)}"),
    ("_int4range", '{"[1,5)"}', '["[1,5)"]'),
    ("_box", "{(1,1),(0,0);(2,2),(1,1)}", '["(1","1)","(0","0);(2","2)","(1","1)"]'),
]


@pytest.mark.parametrize(("type_name", "text", "value"), SCALARS)
def test_scalars(type_name: str, text: str, value: Value) -> None:
    converted = convert(type_name, text)
    assert converted == value
    assert type(converted) is type(value)


@pytest.mark.parametrize(("type_name", "text", "value"), COMPOSED)
def test_composed_values(type_name: str, text: str, value: str) -> None:
    assert convert(type_name, text) == value
    json.loads(value)


@pytest.mark.parametrize(("type_name", "text", "value"), LEGACY)
def test_edition_1(type_name: str, text: str, value: Value) -> None:
    assert convert(type_name, text, EDITION_1) == value


@pytest.mark.parametrize(
    ("digits", "timestamptz", "time", "infinity"),
    [
        (0, "2023-03-06T13:47:00Z", "17:42:01", "9999-12-31T23:59:59"),
        (3, "2023-03-06T13:47:00.987Z", "17:42:01.100", "9999-12-31T23:59:59.000"),
        (6, "2023-03-06T13:47:00.987654Z", "17:42:01.100000", "9999-12-31T23:59:59.000000"),
        (9, "2023-03-06T13:47:00.987654Z", "17:42:01.100000", "9999-12-31T23:59:59.000000"),
    ],
)
def test_timestamp_digits(digits: int, timestamptz: str, time: str, infinity: str) -> None:
    options = ConversionOptions(timestamp_digits=digits)
    assert convert("timestamptz", "2023-03-06 13:47:00.987654+00", options) == timestamptz
    assert convert("time", "17:42:01.1", options) == time
    assert convert("timestamp", "infinity", options) == infinity


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("_int4", "{1,2"), ("_int4", "{1,,2}"), ("_int4", "{x}"), ("_int4", "{{1,2}"), ("_int4", "{{1}{2}}"),
        ("_int4", "{{1},}"), ("_int4", '{"1}'), ("_int4", "{1}2}"), ("_int4", "{1}{2}"), ("_text", "{"),
        ("_text", ""), ("spot", "(1,a,b)"), ("spot", "(1)"), ("spot", "1,a"), ("spot", '(1,"a)'),
        ("spot", "(x,a)"), ("int4range", "[1,2"), ("int4range", "[1,2,3)"), ("int4range", "[x,2)"),
        ("int4multirange", "{[1,2)"), ("int4multirange", "{[1,2)[3,4)}"), ("int4multirange", "{1}"),
        ("_spot", '{"(x,a)"}'),
    ],
)  # fmt: skip
def test_unparsable_composed_value(type_name: str, text: str) -> None:
    assert convert(type_name, text) == text


@given(
    st.sampled_from(["_text", "_int4", "spot", "_spot", "tree", "int4range", "textrange", "textmultirange"]), st.data()
)
def test_noise_in_a_composed_value(type_name: str, data: st.DataObject) -> None:
    text = data.draw(st.text(st.sampled_from('{}[]()",\\1 a')))
    value = convert(type_name, text)
    assert isinstance(value, str)
    assert value == text or json.loads(value) is not None


@given(st.recursive(st.one_of(st.none(), st.text()), lambda inner: st.lists(inner, min_size=1), max_leaves=20))
def test_any_array_of_texts(value: object) -> None:
    wrapped = [value]
    assert json.loads(str(convert("_text", _array_text(wrapped)))) == wrapped


def _array_text(value: object) -> str:
    """An array as Postgres prints it, all texts quoted."""
    if value is None:
        return "NULL"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    assert isinstance(value, list)
    return f"{{{','.join(_array_text(item) for item in value)}}}"


def test_row_converter() -> None:
    columns = [
        Column("id", OIDS["int8"], -1, True),
        Column("name", OIDS["text"], -1, False),
        Column("done", OIDS["bool"], -1, False),
        Column("at", OIDS["timestamptz"], -1, False),
    ]
    convert_row = row_converter(columns, TypeCatalog(), EDITION_3)
    assert convert_row(("1", "a", "t", "2023-03-06 13:47:00+00")) == [1, "a", 1, "2023-03-06T13:47:00.000000Z"]
    assert convert_row([None, None, None, None]) == [None, None, None, None]
    functions = converters(columns, TypeCatalog(), EDITION_3)
    assert [function is None for function in functions] == [False, True, False, False]
    assert row_converter([], TypeCatalog(), EDITION_3)([]) == []


@pytest.mark.parametrize("row", [(), ("1",), ("1", "2", "3")])
def test_row_of_another_width(row: tuple[str, ...]) -> None:
    columns = [Column("a", OIDS["int4"], -1, False), Column("b", OIDS["text"], -1, False)]
    with pytest.raises(DecodeError, match="2 columns"):
        row_converter(columns, TypeCatalog(), EDITION_3)(row)


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("int4", "geheim"),
        ("bool", "true"),
        ("float8", "geheim"),
        ("bytea", "\\000geheim"),
        ("pg_lsn", "geheim"),
        ("timestamp", "06.03.2023"),
        ("timestamptz", "2023-03-06 08:47:00-05"),
    ],
)
def test_value_of_an_unpinned_session(type_name: str, text: str) -> None:
    columns = [Column("a", OIDS["text"], -1, False), Column("b", OIDS[type_name], -1, False)]
    with pytest.raises(DecodeError, match="column b") as caught:
        row_converter(columns, TypeCatalog(), EDITION_3)(["x", text])
    assert text not in str(caught.value)
