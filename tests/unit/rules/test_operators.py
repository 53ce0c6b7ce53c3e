"""Every operator on every kind of value, as the language documents it.

Where this differs from the documented behaviour on purpose, the comment beside the case says why.
"""

from __future__ import annotations

import pytest

from headwater_rules.plan import Value
from tests.unit.rules.rules_values import INFINITY, LARGEST, SMALLEST, failure_of, refusal_of, same, value_of


@pytest.mark.parametrize(
    ("expression", "a", "b", "expected"),
    [
        ("a + b", 1, 2, 3),
        ("a + b", 1, 2.5, 3.5),
        ("a + b", 1, None, None),
        ("a + b", "2", 1, 3),
        ("a + b", "2.5", 1, 3.5),
        ("a + b", "7x", 1, 8),
        ("a + b", "2.5x", 1, 3.5),
        ("a + b", "abc", 1, 1),
        ("a + b", "", 1, 1),
        ("a + b", b"2", 1, 3),
        ("a + b", LARGEST, 1, 2.0**63),
        ("a - b", 1, 3, -2),
        ("a - b", SMALLEST, 1, float(SMALLEST) - 1),
        ("a * b", 3, 4, 12),
        ("a * b", LARGEST, 2, 2.0**64),
        ("a * b", 0.1, 3, 0.30000000000000004),
        ("a / b", 7, 2, 3),
        ("a / b", -7, 2, -3),
        ("a / b", 7, 2.0, 3.5),
        ("a / b", 7, 0, None),
        ("a / b", 7.0, 0, None),
        ("a / b", 7, 0.0, None),
        ("a / b", 7, "x", None),
        ("a / b", "7", "2", 3),
        ("a / b", SMALLEST, -1, 2.0**63),
        ("a / b", None, 0, None),
        # the published engine compiles the following and fails when it evaluates them
        ("a % b", 7, 4, 3),
        ("a % b", -7, 4, -3),
        ("a % b", 7, -4, 3),
        ("a % b", 7, 0, None),
        ("a % b", 7.9, 4, 3.0),
        ("a % b", "7", 4, 3),
        ("a % b", None, 4, None),
        ("a % b", SMALLEST, -1, 0),
        ("a & b", 12, 10, 8),
        ("a & b", "12", 10.9, 8),
        ("a & b", None, 1, None),
        ("a | b", 12, 10, 14),
        ("a | b", -1, 0, -1),
        ("a << b", 1, 4, 16),
        ("a << b", 1, 64, 0),
        ("a << b", 1, -1, 0),
        ("a >> b", 16, 4, 1),
        ("a >> b", -1, 70, -1),
        ("a >> b", None, 1, None),
        ("~a", 5, None, -6),
        ("~a", None, None, None),
        ("+a", "x", None, "x"),
        # the published service knows a minus before literals only
        ("-a", 5, None, -5),
        ("-a", 2.5, None, -2.5),
        ("-a", "5", None, -5),
        ("-a", "abc", None, 0),
        ("-a", None, None, None),
        ("-a", SMALLEST, None, 2.0**63),
        ("- -a", 5, None, 5),
        ("a - -b", 5, 3, 8),
    ],
)
def test_arithmetic(expression: str, a: Value, b: Value, expected: Value) -> None:
    assert same(value_of(expression, a, b), expected)


@pytest.mark.parametrize(
    ("literal", "expected"),
    [
        ("1", 1),
        ("-1", -1),
        ("1.50", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("9223372036854775807", LARGEST),
        ("9223372036854775808", 2.0**63),
        ("-9223372036854775808", SMALLEST),
        ("-9223372036854775809", -(2.0**63)),
        ("9" * 5000, None),  # infinite, which JSON cannot say
        ("TRUE", 1),
        ("false", 0),
        ("NULL", None),
        ("'it''s ?1'", "it's ?1"),
        ("''", ""),
        ("'a\\n'", "a\\n"),
        ("'😀'", "😀"),
        ("TRUE = 1", 1),
        ("TRUE = '1'", 0),
    ],
    ids=lambda value: str(value)[:24],
)
def test_literals(literal: str, expected: Value) -> None:
    assert same(value_of(literal), expected)


@pytest.mark.parametrize(
    ("a", "expected"),
    [
        (None, None),
        ("x", "x"),
        (1, "1"),
        (SMALLEST, str(SMALLEST)),
        (1.0, "1"),
        (-0.0, "0"),
        (1.5, "1.5"),
        (0.1 + 0.2, "0.30000000000000004"),
        (63689951013470144.0, "63689951013470140"),  # the shortest digits, then zeros
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.25e-5, "0.0000125"),
        (1e-6, "0.000001"),
        (-1e-6, "-0.000001"),
        (1.5e-7, "1.5e-7"),
        (5e-324, "5e-324"),
        (INFINITY, "Infinity"),
        (-INFINITY, "-Infinity"),
        (b"x", "x"),
        (b"\xff", "\ufffd"),
    ],
)
def test_text_form(a: Value, expected: str | None) -> None:
    assert value_of("a::text", a) == expected
    assert value_of("ifnull(a, NULL)::text", a) == expected
    assert value_of("a || '!'", a) == (None if expected is None else f"{expected}!")
    assert value_of("'!' || a", a) == (None if expected is None else f"!{expected}")
    assert value_of("concat(a, '!')", a) == f"{expected or ''}!"
    assert value_of("trim(a)", a) == expected
    assert value_of("upper(lower(a))", a) == (None if expected is None else expected.upper())


@pytest.mark.parametrize(
    ("a", "integer", "real", "numeric"),
    [
        (None, None, None, None),
        (7, 7, 7.0, 7),
        (1.5, 1, 1.5, 1.5),
        (-1.5, -2, -1.5, -1.5),  # floors, where SQLite truncates
        (-2.0, -2, -2.0, -2.0),
        (1e300, LARGEST, 1e300, 1e300),
        (-1e300, SMALLEST, -1e300, -1e300),
        ("12", 12, 12.0, 12),
        ("12abc", 12, 12.0, 12),
        (" 12", 12, 12.0, 12),
        ("-1.5", -1, -1.5, -1.5),  # of a text the leading digits count
        ("1e2", 1, 100.0, 100),
        ("1.0", 1, 1.0, 1),
        ("abc", 0, 0.0, 0),
        ("", 0, 0.0, 0),
        ("99999999999999999999", LARGEST, 1e20, 1e20),
        (b"12", 12, 12.0, 12),
    ],
)
def test_number_casts(a: Value, integer: Value, real: Value, numeric: Value) -> None:
    for name, expected in [("integer", integer), ("bigint", integer), ("real", real), ("numeric", numeric)]:
        assert same(value_of(f"a::{name}", a), expected)
        assert same(value_of(f"CAST(ifnull(a, NULL) AS {name})", a), expected)
    assert same(value_of("a::double precision", a), real)


@pytest.mark.parametrize(("a", "expected"), [(None, ""), ("é", "C3A9"), (12, "3132"), (1.0, "31"), (b"\0\xff", "00FF")])
def test_blob_cast(a: Value, expected: str) -> None:
    assert value_of("hex(a::blob)", a) == expected
    assert value_of("typeof(a::bytea)", a) == ("null" if a is None else "blob")


def test_cast_without_affinity() -> None:
    assert value_of("a::text = 1", 1) == 0
    assert value_of("a::integer = '1'", 1) == 0
    assert value_of("a::text IN (1, 2)", 1) == 0


JSON = (
    '{"k":null,"t":true,"f":false,"i":9007199254740993,"r":1.50,'
    '"s":"é\\n","a":[10,[20],{"x":1}],"o":{"0":"zero"},"a.b":5,"":6,"q\\"\\\\":7,"\\u00fc":8,"it\'s ?1":9}'
)


@pytest.mark.parametrize(
    ("path", "arrow", "text"),
    [
        ("k", "null", None), ("missing", None, None), ("t", "true", 1), ("f", "false", 0),
        ("i", "9007199254740993", 9007199254740993), ("r", "1.50", 1.5), ("s", '"é\\n"', "é\n"),
        ("a", '[10,[20],{"x":1}]', '[10,[20],{"x":1}]'), ("a.b", "5", 5), ("", "6", 6), ('q"\\', "7", 7),
        ("ü", "8", 8), ("$.a.0", "10", 10), ("$.a.1.0", "20", 20), ("$.a.2.x", "1", 1), ("$.a.9", None, None),
        ("$.a.00", None, None), ("$.a.٣", None, None), ("$.a.-1", None, None), ("$.o.0", '"zero"', "zero"),
        ("$.a." + "1" * 5000, None, None), ("$.i.x", None, None), ("$.", "6", 6), ("it''s ?1", "9", 9),
    ],
    ids=lambda value: str(value)[:12],
)  # fmt: skip
def test_json_access(path: str, arrow: Value, text: Value) -> None:
    assert same(value_of(f"a -> '{path}'", JSON), arrow)
    assert same(value_of(f"a ->> '{path}'", JSON), text)
    if path.startswith("$"):
        assert same(value_of(f"json_extract(a, '{path}')", JSON), text)


@pytest.mark.parametrize(
    ("a", "expected"),
    [(None, None), ("[5]", 5), ("5", None), ("null", None), (5, None), ('{"0":"x"}', "x"), ("[[1, 2]]", "[1,2]")],
)
def test_json_access_to_scalars(a: Value, expected: Value) -> None:
    assert value_of("a ->> 0", a) == expected
    assert value_of("a ->> '0'", a) == expected


def test_json_root() -> None:
    assert value_of("a -> '$'", '{"a": 1}') == '{"a":1}'


@pytest.mark.parametrize("a", ["", "x", "{", "{'a':1", '{"a":1}}', "NaN1"])
@pytest.mark.parametrize(
    "expression", ["a -> 'k'", "a ->> 'k'", "json_extract(a, '$.k')", "json_array_length(a)", "'x' IN a"]
)
def test_malformed_json(expression: str, a: Value) -> None:
    assert failure_of(expression, a) == "malformed JSON"


def test_json_access_in_calls() -> None:
    assert value_of("length(a -> 'k')", '{"k":[1, 2]}') == 5
    assert value_of("ifnull(t.a ->> 'x', a ->> 'k')", '{"k":7}') == 7


def test_half_surrogate() -> None:
    broken = '{"k":"\\ud800"}'
    assert failure_of("a ->> 'k'", broken) == "a text is not valid Unicode"
    assert failure_of("upper(a ->> 'k')", broken) == "a text is not valid Unicode"
    assert value_of("a -> 'k'", broken) == '"\\ud800"'


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("a ILIKE 'x'", "`ILIKE` is not supported", "lower(x) LIKE"),
        ("a LIKE 'x' ESCAPE 'ab'", "`ESCAPE` takes one character", "ESCAPE '!'"),
        ("a LIKE ANY (ARRAY['x'])", "`ANY` is not supported", "x IN array"),
        ("a ~ 'x'", "regular expressions", "`LIKE`"),
        ("a ~* 'x'", "regular expressions", "`LIKE`"),
        ("a SIMILAR TO 'x'", "`SIMILAR TO` is not supported", "`LIKE`"),
        ("a # 1", "`#` is not supported", "(a | b)"),
        ("a ^ 2", "depend on the machine", "multiply"),
        ("a @> b", "`@>` and `<@` are not supported", "a && b"),
        ("a[1]", "`[…]` is not supported", "'$.0'"),
        ("ARRAY[1]", "an array is not supported", "json_array"),
        ("a COLLATE \"C\"", "`COLLATE` is not supported", "UTF-16"),
        ("a AT TIME ZONE 'utc'", "`AT TIME ZONE` is not supported", "datetime"),
        ("INTERVAL '1 day'", "`INTERVAL` is not supported", "+1 day"),
        ("X'00'", "hexadecimal literals", "decimal"),
        ("a::boolean", "unsupported type in a cast", "1 and 0"),
        ("a::timestamptz", "unsupported type in a cast", "datetime(x)"),
        ("a::jsonb", "unsupported type in a cast", "json(x)"),
        ("a::varchar(10)", "unsupported type in a cast", "text, integer"),
        ("a BETWEEN SYMMETRIC 1 AND 2", "`SYMMETRIC` is not supported", ""),
        ("a -> b", "must be a literal", "in quotes"),
        ("a -> '$[0]'", "`[…]` is not supported in a JSON path", "$.a.0"),
        ("(a = 1) -> 'x'", "applied to a condition", "brackets"),
        ("(SELECT 1)", "a subquery is not supported here", "WHERE"),
        ("sum(a) OVER ()", "window functions are not supported", "Postgres"),
    ],
)  # fmt: skip
def test_unsupported_syntax(expression: str, message: str, hint: str) -> None:
    error = refusal_of(expression)
    assert message in error.message
    assert hint in error.suggestion
