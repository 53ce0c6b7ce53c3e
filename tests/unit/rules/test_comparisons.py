"""Every comparison, condition and `LIKE` on every kind of value, as the language documents it.

Where this differs from the documented behaviour on purpose, the comment beside the case says why.
"""

from __future__ import annotations

from itertools import product

import pytest

from headwater_rules.plan import Value
from tests.unit.rules.rules_values import INFINITY, LARGEST, SMALLEST, failure_of, refusal_of, same, value_of, values_of


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1, 1, 1),
        (1, 2, 0),
        (1, 1.0, 1),
        (2**53, float(2**53), 1),
        (2**53 + 1, float(2**53), 0),  # by value: no integer is rounded to a real before it is compared
        (1, "1", 0),
        (1.0, "1.0", 0),
        ("", None, None),
        (None, None, None),
        (0, None, None),
        ("a", "a", 1),
        ("a", "A", 0),
        ("é", "e\u0301", 0),
        ("a", b"a", 0),
        (1, b"1", 0),
        (b"a", b"a", 1),  # the published service fails on two blobs; a key column of type bytea deserves better
        (b"a", b"b", 0),
        (0.0, -0.0, 1),
    ],
)
def test_equality(a: Value, b: Value, expected: int | None) -> None:
    assert same(value_of("a = b", a, b), expected)
    assert same(value_of("b = a", a, b), expected)
    assert same(value_of("a <> b", a, b), 0 if expected else 1)  # edition 3: not equal holds for null
    assert same(value_of("NOT (a = b)", a, b), 0 if expected else 1)


# each is less than the next; what stands in one row is equal
ORDER: list[list[Value]] = [
    [-INFINITY], [SMALLEST], [-1.5], [-1], [0, 0.0, -0.0], [1, 1.0], [2**53, 2.0**53], [2**53 + 1], [LARGEST],
    [2.0**63], [INFINITY], [""], ["-1"], ["1"], ["10"], ["9"], ["Z"], ["a"], ["é"], ["\ud7ff"],
    ["\U0001f600"], ["\uffff"],  # by UTF-16 unit: the first one's begin with d83d
    [b""], [b"a"], [b"a\0"], [b"b"],
]  # fmt: skip


def test_order() -> None:
    ranked = [(rank, value) for rank, group in enumerate(ORDER) for value in group]
    for (first, a), (second, b) in product(ranked, ranked):
        found = values_of(("a < b", "a <= b", "a > b", "a >= b", "a = b"), a, b, None)
        expected = [first < second, first <= second, first > second, first >= second, first == second]
        assert found == [int(each) for each in expected], (a, b)


@pytest.mark.parametrize("literal", ["\U0001f600", "a\U0001f600", "\ufffd", "\ud7ff", "z"])
def test_order_of_literals(literal: str) -> None:
    for value in ("\U0001f600", "a\ufffd", "\ufffd", "\ud7ff", "z"):
        less = literal.encode("utf-16-be") < value.encode("utf-16-be")
        assert value_of(f"'{literal}' < a", value) == less
        assert value_of(f"a > '{literal}'", value) == less
        assert value_of(f"a BETWEEN '{literal}' AND '\ufffd\ufffd'", value) == (less or value == literal)


@pytest.mark.parametrize("sign", ["=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("a", [None, 0, 1.5, "a", b"a"])
def test_compare_with_null(sign: str, a: Value) -> None:
    assert value_of(f"a {sign} b", a, None) is None
    assert value_of(f"b {sign} a", a, None) is None


TRUTH: list[tuple[Value, int]] = [
    (None, 0), (0, 0), (0.0, 0), (-0.0, 0), (1, 1), (-1, 1), (0.1, 1), (INFINITY, 1), (LARGEST, 1),
    ("", 0), ("0", 0), ("0.9", 0), ("1", 1), ("1x", 1), ("x1", 0), (" 2", 1), ("-3", 1), ("00", 0), ("001", 1),
    ("true", 0), ("é", 0), ("٣", 0), ("99999999999999999999", 1), (b"", 0), (b"1", 0),
]  # fmt: skip


@pytest.mark.parametrize(("a", "truth"), TRUTH)
def test_truth(a: Value, truth: int) -> None:
    assert value_of("CASE WHEN a THEN 1 ELSE 0 END", a) == truth
    assert value_of("iif(a, 1, 0)", a) == truth
    assert value_of("iif(ifnull(a, NULL), 1, 0)", a) == truth  # of a computed value as of a column
    assert value_of("NOT a", a) == 1 - truth
    assert value_of("NOT NOT a", a) == truth


@pytest.mark.parametrize(("a", "a_true"), TRUTH[::3])
@pytest.mark.parametrize(("b", "b_true"), TRUTH[1::4])
def test_and_or_null(a: Value, a_true: int, b: Value, b_true: int) -> None:
    assert value_of("a AND b", a, b) == a_true & b_true
    assert value_of("a OR b", a, b) == a_true | b_true


@pytest.mark.parametrize(
    ("a", "is_null", "is_true", "is_false"),
    [(None, 1, 0, 0), (1, 0, 1, 0), (0, 0, 0, 1), (1.0, 0, 1, 0), (2, 0, 0, 0), ("1", 0, 0, 0), (b"", 0, 0, 0)],
)  # fmt: skip
def test_is(a: Value, is_null: int, is_true: int, is_false: int) -> None:
    expressions = ("a IS NULL", "a IS NOT NULL", "a IS TRUE", "a IS NOT TRUE", "a IS FALSE", "a IS NOT FALSE")
    found = values_of(expressions, a, None, None)
    assert found == [is_null, 1 - is_null, is_true, 1 - is_true, is_false, 1 - is_false]


@pytest.mark.parametrize(
    ("a", "b", "distinct"),
    [(None, None, 0), (None, 0, 1), (1, 1.0, 0), (1, "1", 1), ("a", "a", 0), (b"a", b"a", 0), (b"a", "a", 1)],
)
def test_is_distinct_from(a: Value, b: Value, distinct: int) -> None:
    # the published service refuses it
    assert value_of("a IS DISTINCT FROM b", a, b) == distinct
    assert value_of("a IS NOT DISTINCT FROM b", a, b) == 1 - distinct


@pytest.mark.parametrize(
    ("expression", "a", "b", "expected"),
    [
        ("a IN (1, 'x', 2.5)", 1.0, None, 1),
        ("a IN (1, 'x', 2.5)", "1", None, 0),
        ("a IN (1, 'x', 2.5)", None, None, None),
        ("a IN (1, NULL)", 2, None, None),
        ("a NOT IN (1, 2)", 3, None, 1),
        ("a NOT IN (1, 2)", 2, None, 0),
        ("a NOT IN (1, 2)", None, None, 1),  # as `!=`, and NOT of null
        ("a NOT IN ('x')", "x", None, 0),
        ("a IN (b, 'y')", "x", "x", 1),
        ("a NOT IN (b, 'y')", "x", "x", 0),
        ("a IN ARRAY['x', 'y']", "y", None, 1),
        ("a IN ROW('x', 'y')", "y", None, 1),
        ("a IN (-1, -2)", -1, None, 1),
        ("a IN b", "x", '["x",1,null]', 1),
        ("a IN b", 1.0, '["x",1,null]', 1),
        ("a IN b", 1, "[true]", 1),
        ("a IN b", "y", '["x"]', 0),
        ("a IN b", "y", "[]", 0),
        ("a IN b", "y", None, 0),
        ("a IN b", None, '["x"]', None),
        ("a NOT IN b", "y", '["x"]', 1),
        ("a NOT IN b", "x", '["x"]', 0),
        ("'[1]' IN b", None, "[[1]]", 1),
        ("a BETWEEN 1 AND 3", 1, None, 1),
        ("a BETWEEN 1 AND 3", 3.0, None, 1),
        ("a BETWEEN 1 AND 3", 4, None, 0),
        ("a BETWEEN 3 AND 1", 2, None, 0),
        ("a BETWEEN 1 AND 3", "2", None, 0),
        ("a BETWEEN 'a' AND 'c'", "b", None, 1),
        ("a BETWEEN 1 AND 3", None, None, None),
        ("a BETWEEN b AND 3", 1, None, None),
        ("a NOT BETWEEN 1 AND 3", 4, None, 1),
        ("a NOT BETWEEN 1 AND 3", None, None, 1),
        ("a BETWEEN b AND b", "\U0001f600", "\U0001f600", 1),
        ("CASE a WHEN 1 THEN 'one' WHEN 'x' THEN 'ex' ELSE 'other' END", 1.0, None, "one"),
        ("CASE a WHEN 1 THEN 'one' WHEN 'x' THEN 'ex' ELSE 'other' END", "1", None, "other"),
        ("CASE a WHEN NULL THEN 'null' ELSE 'other' END", None, None, "other"),
        ("CASE WHEN a = 1 THEN 'one' WHEN a THEN 'true' END", 2, None, "true"),
        ("CASE WHEN a = 1 THEN 'one' WHEN a THEN 'true' END", "0.9", None, None),
    ],
)
def test_in_between_and_case(expression: str, a: Value, b: Value, expected: Value) -> None:
    assert same(value_of(expression, a, b), expected)


@pytest.mark.parametrize(
    ("pattern", "a", "expected"),
    [
        # the published service refuses LIKE. This is SQLite's: A to Z match in either case, other letters as they are
        ("'ab%'", "ABc", 1),
        ("'%é'", "CAFé", 1),
        ("'%é'", "CAFÉ", 0),
        ("'a_c'", "abc", 1),
        ("'a_c'", "ac", 0),
        ("'_'", "😀", 1),
        ("'%'", "", 1),
        ("'%'", None, None),
        ("NULL", "x", None),
        ("'1.5'", 1.5, 1),
        ("'1'", 1.0, 1),
        ("'a\\%'", "a\\b", 1),  # a backslash is itself, unlike in Postgres
        ("'a!%' ESCAPE '!'", "a%", 1),
        ("'a!%' ESCAPE '!'", "ab", 0),
        ("'x%'", b"xy", 1),
        ("b", "x", None),
    ],
)
def test_like(pattern: str, a: Value, expected: int | None) -> None:
    assert value_of(f"a LIKE {pattern}", a) == expected
    assert value_of(f"a NOT LIKE {pattern}", a) == (0 if expected else 1)
    assert value_of(f"NOT a LIKE {pattern}", a) == (0 if expected else 1)


def test_long_like_pattern() -> None:
    assert "longer than 250 bytes" in refusal_of(f"a LIKE '{'x' * 251}'").message
    assert failure_of("a LIKE b", "x", "x" * 251) == "LIKE or GLOB pattern too complex"
