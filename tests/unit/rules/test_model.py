"""An independent model of the operators, written from the language's description: SQLite must agree with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater_rules.plan import Value
from tests.support.examples import examples
from tests.unit.rules.rules_values import INFINITY, LARGEST, SMALLEST, same, values_of

_NUMBER = re.compile(r"[ \t\n\r\f\v]*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)", re.ASCII)
_INTEGER = re.compile(r"[ \t\n\r\f\v]*([+-]?\d+)", re.ASCII)
Number = int | float


def m_text(value: Value) -> str | None:
    """The text form, by the rules that ECMA-262 gives for numbers."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if not isinstance(value, float):
        return None if value is None else str(value)
    if value in {INFINITY, -INFINITY}:
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "0"
    sign, digits_, exponent = Decimal(repr(value)).normalize().as_tuple()
    digits, k = "".join(map(str, digits_)), len(digits_)
    assert isinstance(exponent, int)
    n = exponent + k
    if k <= n <= 21:
        body = digits + "0" * (n - k)
    elif 0 < n <= 21:
        body = f"{digits[:n]}.{digits[n:]}"
    elif -6 < n <= 0:
        body = "0." + "0" * -n + digits
    else:
        body = digits[0] + (f".{digits[1:]}" if k > 1 else "") + f"e{n - 1:+d}"
    return f"{'-' if sign else ''}{body}"


def m_clamp(number: int) -> int:
    return max(min(number, LARGEST), SMALLEST)


def m_number(value: int | float | str | bytes) -> Number:
    """An operand of arithmetic: of a text the number that it begins with."""
    if isinstance(value, int | float):
        return value
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    found = _NUMBER.match(text)
    if found is None:
        return 0
    whole = re.fullmatch(r"[+-]?\d+", found[1])
    return int(found[1]) if whole and SMALLEST <= int(found[1]) <= LARGEST else float(found[1])


def m_integer(value: int | float | str | bytes, *, floor: bool) -> int:
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        if value in {INFINITY, -INFINITY}:
            return LARGEST if value > 0 else SMALLEST
        return m_clamp(int(value // 1) if floor else int(value))
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    found = _INTEGER.match(text)
    return m_clamp(int(found[1])) if found else 0


def m_arithmetic(sign: str, left: Value, right: Value) -> Value:
    if left is None or right is None:
        return None
    a, b = m_number(left), m_number(right)
    both = isinstance(a, int) and isinstance(b, int)
    if sign in {"&", "|", "<<", ">>", "%"}:
        return m_bits(sign, m_integer(left, floor=False), m_integer(right, floor=False), both=both)
    if sign == "/":
        if b == 0:
            return None
        if isinstance(a, int) and isinstance(b, int):
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return quotient if quotient <= LARGEST else float(quotient)
        return m_real(float(a) / float(b))
    if isinstance(a, int) and isinstance(b, int):
        exact = {"+": a + b, "-": a - b, "*": a * b}[sign]
        if SMALLEST <= exact <= LARGEST:
            return exact
    first, second = float(a), float(b)
    return m_real({"+": first + second, "-": first - second, "*": first * second}[sign])


def m_bits(sign: str, a: int, b: int, *, both: bool) -> Value:
    if sign == "&":
        return a & b
    if sign == "|":
        return a | b
    if sign == "%":
        if b == 0:
            return None
        rest = abs(a) % abs(b)
        rest = -rest if a < 0 else rest
        return rest if both else float(rest)
    if (sign == "<<") == (b >= 0):
        shifted = (a << min(abs(b), 64)) & (2**64 - 1)
        return shifted - 2**64 if shifted > LARGEST else shifted
    return a >> min(abs(b), 64)


def m_real(value: float) -> float | None:
    return None if math.isnan(value) else value


def m_key(value: int | float | str | bytes) -> tuple[int, object]:
    if isinstance(value, int | float):
        return 1, value
    return (2, value.encode("utf-16-be")) if isinstance(value, str) else (3, value)


def m_compare(sign: str, a: Value, b: Value) -> int | None:
    if a is None or b is None:
        return None
    (kind_a, key_a), (kind_b, key_b) = m_key(a), m_key(b)
    order = (kind_a > kind_b) - (kind_a < kind_b)
    if order == 0:
        order = (key_a > key_b) - (key_a < key_b)  # type: ignore[operator]  # of one kind
    holds = {"=": order == 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}
    return int(holds[sign])


def m_true(value: Value) -> bool:
    if isinstance(value, str):
        found = _INTEGER.match(value)
        return found is not None and int(found[1]) != 0
    return isinstance(value, int | float) and value != 0


def m_between(value: Value, low: Value, high: Value) -> int | None:
    ends = [m_compare(">=", value, low), m_compare("<=", value, high)]
    return 0 if 0 in ends else None if None in ends else 1


def m_in(value: Value, items: list[Value]) -> int | None:
    found = [m_compare("=", value, item) for item in items]
    return 1 if 1 in found else None if None in found else 0


def m_concat(a: Value, b: Value) -> str | None:
    first, second = m_text(a), m_text(b)
    return None if first is None or second is None else first + second


@dataclass(frozen=True)
class Model:
    """An expression of the language, and what it means."""

    sql: str
    value: Callable[[Value, Value, Value], Value]


COLUMNS = [
    Model("a", lambda a, b, c: a),
    Model("b", lambda a, b, c: b),
    Model("c", lambda a, b, c: c),
    Model("1", lambda a, b, c: 1),
    Model("-2.5", lambda a, b, c: -2.5),
    Model("'7x'", lambda a, b, c: "7x"),
    Model("NULL", lambda a, b, c: None),
    Model("TRUE", lambda a, b, c: 1),
]


def _operator(sql: str, meaning: Callable[..., Value]) -> Callable[[Model, Model, Model], Model]:
    """An operator on as many of three models as `sql` has places."""

    def combine(*models: Model) -> Model:
        used = models[: sql.count("{}")]
        return Model(
            sql.format(*(each.sql for each in used)), lambda a, b, c: meaning(*(each.value(a, b, c) for each in used))
        )

    return combine


OPERATORS: list[Callable[[Model, Model, Model], Model]] = [
    *(_operator(f"({{}} {sign} {{}})", partial(m_compare, sign)) for sign in ("=", "<", "<=", ">", ">=")),
    *(_operator(f"({{}} {sign} {{}})", partial(m_arithmetic, sign))
      for sign in ("+", "-", "*", "/", "%", "&", "|", "<<", ">>")),
    _operator("({} != {})", lambda x, y: int(m_compare("=", x, y) != 1)),
    _operator("({} AND {})", lambda x, y: int(m_true(x) and m_true(y))),
    _operator("({} OR {})", lambda x, y: int(m_true(x) or m_true(y))),
    _operator("({} || {})", m_concat),
    _operator("({} IS DISTINCT FROM {})",
              lambda x, y: int(not ((x is None and y is None) or m_compare("=", x, y) == 1))),
    _operator("(NOT {})", lambda x: int(not m_true(x))),
    _operator("({} IS NULL)", lambda x: int(x is None)),
    _operator("({} IS TRUE)", lambda x: int(m_compare("=", x, 1) == 1)),
    _operator("({} IS NOT FALSE)", lambda x: int(m_compare("=", x, 0) != 1)),
    _operator("({})::text", m_text),
    _operator("({})::integer", lambda x: None if x is None else m_integer(x, floor=True)),
    _operator("({} BETWEEN {} AND {})", m_between),
    _operator("({} IN ({}, {}))", lambda x, y, z: m_in(x, [y, z])),
    _operator("({} NOT IN ({}, {}))", lambda x, y, z: int(m_in(x, [y, z]) != 1)),
    _operator("(CASE WHEN {} THEN {} ELSE {} END)", lambda x, y, z: y if m_true(x) else z),
    _operator("(CASE {} WHEN {} THEN 1 WHEN {} THEN 2 END)",
              lambda x, y, z: 1 if m_compare("=", x, y) == 1 else 2 if m_compare("=", x, z) == 1 else None),
    _operator("iif({}, {}, {})", lambda x, y, z: y if m_true(x) else z),
    _operator("coalesce({}, {}, {})", lambda x, y, z: next((v for v in (x, y, z) if v is not None), None)),
]  # fmt: skip

texts = st.one_of(
    st.sampled_from(["", "abc", "7", "-3", "2.5", "7x", "0.9", " 4 ", "1e2", "-", ".", "é", "0x1", "9" * 20, "+1"]),
    st.text(st.sampled_from("a1é\ud7ff\uffff\U0001f600"), max_size=3),
)
integers = st.one_of(
    st.integers(-3, 3), st.sampled_from([LARGEST, SMALLEST, 2**53 + 1]), st.integers(SMALLEST, LARGEST)
)
values = st.one_of(
    st.none(), integers, st.floats(allow_nan=False), st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e-6, 1e21]), texts,
    st.binary(max_size=2),
)  # fmt: skip


def expected_of(value: Value) -> object:
    """What a device reads: blobs are left out, JSON has no infinite numbers."""
    return None if isinstance(value, bytes) or value in {INFINITY, -INFINITY} else value


def assert_agrees(models: list[Model], a: Value, b: Value, c: Value) -> None:
    found = values_of(tuple(f"CASE WHEN typeof({m.sql}) <> 'blob' THEN {m.sql} END" for m in models), a, b, c)
    for model, value in zip(models, found, strict=True):
        expected = expected_of(model.value(a, b, c))
        assert same(value, expected), f"{model.sql}: {value!r}, not {expected!r}"


@settings(deadline=None, max_examples=examples(300))
@example("9" * 20, 1, None)
@example("\U0001f600", "\uffff", 0.0)
@given(values, values, values)
def test_operators_agree(a: Value, b: Value, c: Value) -> None:
    assert_agrees([operator(*COLUMNS[:3]) for operator in OPERATORS], a, b, c)


nested = st.recursive(
    st.sampled_from(COLUMNS),
    lambda inner: st.tuples(st.sampled_from(OPERATORS), inner, inner, inner).map(lambda t: t[0](*t[1:])),
    max_leaves=7,
)


@settings(deadline=None, max_examples=examples(200))
@given(nested, values, values, values)
def test_nested_expressions_agree(model: Model, a: Value, b: Value, c: Value) -> None:
    assert_agrees([model], a, b, c)
