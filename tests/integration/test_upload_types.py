"""Values of a device's SQLite become values of Postgres' types, as they came down and as an app writes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headwater.source.upload.settings import Conflict, TableRule
from tests.support.fix_postgres import SourceDb
from tests.support.fix_upload import Uploads, patch, put

# type, the value in JSON, what Postgres then has as text
CASES = [
    ("boolean", 1, "true"),
    ("boolean", 0, "false"),
    ("boolean", "t", "true"),
    ("boolean", True, "true"),
    ("smallint", -7, "-7"),
    ("integer", 42, "42"),
    ("integer", "42", "42"),
    ("integer", 2.0, "2"),
    ("bigint", "9223372036854775807", "9223372036854775807"),
    ("bigint", 9223372036854775807, "9223372036854775807"),
    ("numeric", 12345678901234567890.5, "12345678901234567000"),
    ("numeric(30,10)", "12345678901234567890.0123456789", "12345678901234567890.0123456789"),
    ("numeric", "NaN", "NaN"),
    ("real", 1.5, "1.5"),
    ("double precision", 1e300, "1e+300"),
    ("double precision", "Infinity", "Infinity"),
    ("text", "Zoë \U0001f980 'quoted' \\ %s {} $1", "Zoë \U0001f980 'quoted' \\ %s {} $1"),
    ("text", 5, "5"),
    ("text", '{"a": 1}', '{"a": 1}'),
    ("text", "", ""),
    ("varchar(5)", "abcde", "abcde"),
    ("char(5)", "ab", "ab"),
    ("uuid", "B3E1C3A6-6E2B-4A5E-9F43-0D3A0F1D6B11", "b3e1c3a6-6e2b-4a5e-9f43-0d3a0f1d6b11"),
    ("date", "2025-06-01", "2025-06-01"),
    ("time", "10:00:00.25", "10:00:00.25"),
    ("timestamp", "2025-06-01 10:00:00", "2025-06-01 10:00:00"),
    ("timestamp", "2025-06-01T10:00:00.123456", "2025-06-01 10:00:00.123456"),
    ("timestamptz", "2025-06-01T10:00:00.000Z", "2025-06-01 10:00:00+00"),
    ("timestamptz", "2025-06-01 10:00:00+02:00", "2025-06-01 08:00:00+00"),
    ("timestamptz", "2025-06-01 10:00:00", "2025-06-01 10:00:00+00"),
    ("interval", "1 day 02:00:00", "1 day 02:00:00"),
    ("json", '{"b": 1,  "a": [1.50, null]}', '{"b": 1,  "a": [1.50, null]}'),
    ("jsonb", '{"b": 1, "a": "x"}', '{"a": "x", "b": 1}'),
    ("jsonb", '"text"', '"text"'),
    ("jsonb", 5, "5"),
    ("jsonb", {"a": [1, None, True]}, '{"a": [1, null, true]}'),
    ("integer[]", "[1,2,null]", "{1,2,NULL}"),
    ("integer[]", "[]", "{}"),
    ("integer[]", "{1,2}", "{1,2}"),
    ("integer[][]", "[[1,2],[3,4]]", "{{1,2},{3,4}}"),
    ("text[]", '["a b", "c\\"d", "{e,f}", "NULL", ""]', '{"a b","c\\"d","{e,f}","NULL",""}'),
    ("text[]", ["x", None], "{x,NULL}"),
    ("boolean[]", "[1,0]", "{t,f}"),
    ("jsonb[]", '[{"a":1},[2]]', '{"{\\"a\\": 1}",[2]}'),
    ("numeric[]", "[12345678901234567890.0123456789]", "{12345678901234567890.0123456789}"),
    ("mood", "happy", "happy"),
    ("mood[]", '["happy","sad"]', "{happy,sad}"),
    ("positive", 5, "5"),
    ("tags", '["a","b"]', "{a,b}"),
    ("place", '{"name":"Bern, old","spot":[1,2]}', '("Bern, old","{1,2}")'),
    ("place", '(Bern,"{1,2}")', '(Bern,"{1,2}")'),
    ("int4range", '{"lower":1,"upper":5,"lower_exclusive":0,"upper_exclusive":1}', "[1,5)"),
    ("int4range", "[1,5)", "[1,5)"),
    ("int4range", '{"lower":null,"upper":5,"lower_exclusive":1,"upper_exclusive":1}', "(,5)"),
    ("int4range", "empty", "empty"),
    (
        "tsrange",
        '{"lower":"2025-01-01 00:00:00","upper":null,"lower_exclusive":0,"upper_exclusive":1}',
        '["2025-01-01 00:00:00",)',
    ),
    ("int4multirange", '[{"lower":1,"upper":3,"lower_exclusive":0,"upper_exclusive":1}]', "{[1,3)}"),
    ("bytea", "\\x00ff", "\\x00ff"),
    ("bytea", "AP8=", "\\x00ff"),
    ("inet", "10.0.0.1", "10.0.0.1/32"),
    ("point", "(1,2)", "(1,2)"),
    ("bit(3)", "101", "101"),
    ("pg_lsn", "0/1A2B3C", "0/1A2B3C"),
    ('"Odd %s type"', "x", "x"),
]

BAD = [
    ("boolean", 2),
    ("integer", 1.5),
    ("integer", 2147483648),
    ("integer", "four"),
    ("integer", "1; drop table t"),
    ("uuid", "x"),
    ("timestamptz", "yesterday-ish"),
    ("timestamptz", 1717236000000000),
    ("json", "{"),
    ("jsonb", '"\\u0000"'),
    ("integer[]", "[1,[2]]"),
    ("integer[]", '["a"]'),
    ("integer[]", "[1"),
    ("mood", "angry"),
    ("positive", -5),
    ("varchar(5)", "abcdef"),
    ("numeric(4,2)", 123),
    ("bytea", "not base64!"),
    ("place", '{"name":1,"spot":"x"}'),
    ("int4range", '{"lower":5,"upper":1}'),
    ("text", "a\0b"),
    ("text", "half \ud800"),
    ("text[]", '["a\\u0000b"]'),
    ("text[]", '["\\ud800"]'),
]

TYPES = """
create type mood as enum ('happy', 'sad');
create domain positive as integer check (value > 0);
create domain tags as text[];
create type place as (name text, spot integer[]);
create domain "Odd %s type" as text;
"""


@pytest.fixture
def typed(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> Callable[..., Uploads]:
    """`typed({"c1": "integer"})`: an endpoint that takes writes to a table `t` with these columns."""

    def start(columns: dict[str, str], conflict: Conflict = Conflict.LAST_WRITE_WINS) -> Uploads:
        source_db.execute(TYPES)
        listed = ", ".join(f"{name} {of_type}" for name, of_type in columns.items())
        source_db.execute(f"create table t (id text primary key, {listed})")
        return uploads_of({"t": TableRule("public", "t", conflict=conflict, row_security=False)})

    return start


def stored(uploads: Uploads, columns: dict[str, str]) -> list[object]:
    names = ", ".join(f"{name}::text" for name in columns)
    uploads.db.execute("set timezone to 'UTC'")
    (row,) = uploads.rows(f"select {names} from t")
    return list(row)


def test_value_is_stored(typed: Callable[..., Uploads]) -> None:
    columns = {f"c{number}": of_type for number, (of_type, _, _) in enumerate(CASES)}
    uploads = typed(columns)
    device = uploads.device()
    values = {f"c{number}": value for number, (_, value, _) in enumerate(CASES)}
    device.applied(put("t", "1", **values))
    wanted = [text for _, _, text in CASES]
    assert stored(uploads, columns) == wanted
    device.applied(patch("t", "1", None, **dict.fromkeys(columns)))
    assert stored(uploads, columns) == [None] * len(CASES)
    device.applied(patch("t", "1", None, **values))
    assert stored(uploads, columns) == wanted


def test_value_is_unchanged(typed: Callable[..., Uploads]) -> None:
    columns = {f"c{number}": of_type for number, (of_type, _, _) in enumerate(CASES)}
    uploads = typed(columns, Conflict.REJECT_CHANGED)
    device = uploads.device()
    values = {f"c{number}": value for number, (_, value, _) in enumerate(CASES)}
    device.applied(put("t", "1", **values))
    for name, value in values.items():
        device.applied(patch("t", "1", {name: value}, c0=1))
        assert device.parked(patch("t", "1", {name: None}, c0=1))["code"] == "HW_6112"
    nothing = dict.fromkeys(columns)
    device.applied(patch("t", "1", values, **nothing), patch("t", "1", nothing, c0=1))


def test_bad_value_is_parked(typed: Callable[..., Uploads]) -> None:
    columns = {f"c{number}": of_type for number, (of_type, _) in enumerate(BAD)}
    uploads = typed(columns)
    device = uploads.device()
    for number, (of_type, value) in enumerate(BAD):
        error = device.parked(put("t", "1", **{f"c{number}": value}))
        assert error["code"] in ("HW_6111", "HW_6117"), of_type
    assert uploads.rows("select * from t") == []
    assert uploads.rows("select count(*) from headwater_upload.dead_letters") == [(len(BAD),)]


def test_unreadable_key_and_old_value_are_parked(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute("create table t (hall int, number int, who text, n int, primary key (hall, number))")
    rule = TableRule("public", "t", conflict=Conflict.REJECT_CHANGED, row_security=False)
    device = uploads_of({"t": rule}).device()
    for entry in (
        put("t", "3/x", number=3),
        put("t", "3/3", number="x"),
        patch("t", "3/3", {"n": "x"}, who="a"),
        patch("t", "3/3", {"n": 1}, n="x"),
    ):
        assert device.parked(entry)["sqlstate"] == "22P02"


def test_numbers_keep_every_digit(typed: Callable[..., Uploads]) -> None:
    uploads = typed({"a": "numeric", "b": "bigint", "c": "jsonb"})
    body = (
        b'{"client_id": "c", "transactions": [{"crud": [{"op_id": 1, "op": "PUT", "type": "t", "id": "1", "data":'
        b' {"a": 0.12345678901234567890123, "b": 9007199254740993, "c": {"n": 1.10000000000000000001}}}]}]}'
    )
    assert uploads.post("ann", body).json()["transactions"][0]["outcome"] == "applied"
    assert uploads.rows("select a::text, b, c::text from t") == [
        ("0.12345678901234567890123", 9007199254740993, '{"n": 1.10000000000000000001}')
    ]


def test_columns_filled_by_postgres(source_db: SourceDb, uploads_of: Callable[..., Uploads]) -> None:
    source_db.execute(
        "create table t (id text primary key, a int, b int generated always as (a * 2) stored,"
        " n int generated always as identity, at timestamptz not null default now())"
    )
    device = uploads_of({"t": TableRule("public", "t", row_security=False)}).device()
    device.applied(put("t", "1", a=2))
    for name in ("b", "n"):
        assert "HW_6118" in device.post(device.transaction(put("t", "2", a=2, **{name: 4}))).text
    assert source_db.fetch("select id, b, n, at is not null from t") == [("1", 4, 1, True)]
