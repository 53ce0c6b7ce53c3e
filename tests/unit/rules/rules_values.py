"""What an expression gives, evaluated as a service does: compiled from a config, over the values of one row."""

from __future__ import annotations

import json
from functools import cache

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleError, SyncConfigError
from headwater_rules.evaluate.rows import TableProgram
from headwater_rules.plan import Value
from headwater_rules.results import RowResult
from tests.unit.rules.rules_store import bound, plan_of

COLUMNS = ("id", "a", "b", "c")
LARGEST, SMALLEST = 2**63 - 1, -(2**63)
INFINITY = float("inf")


@cache
def program(*expressions: str) -> TableProgram:
    outputs = ", ".join(f"{expression} AS v{number}" for number, expression in enumerate(expressions))
    return bound(plan_of(f"SELECT id, {outputs} FROM t"), "t", COLUMNS)


def evaluate(expression: str, *values: Value) -> RowResult:
    """The result of `SELECT id, <expression> AS v0 FROM t` for a row with the values of a, b and c."""
    return program(expression).evaluate(("1", *values, *(None,) * (3 - len(values))), "row")


def value_of(expression: str, *values: Value) -> object:
    """The value as a device reads it."""
    result = evaluate(expression, *values)
    assert result.errors == []
    return json.loads(result.puts[0].data)["v0"]


def values_of(expressions: tuple[str, ...], *values: Value) -> list[object]:
    """The values of several expressions over one row."""
    result = program(*expressions).evaluate(("1", *values), "row")
    assert result.errors == []
    data = json.loads(result.puts[0].data)
    return [data[f"v{number}"] for number in range(len(expressions))]


def failure_of(expression: str, *values: Value) -> str:
    """Why the row has no such output."""
    result = evaluate(expression, *values)
    assert result.puts == []
    return result.errors[0].partition(": ")[2]


def refusal_of(expression: str) -> RuleError:
    """Why a config with this expression is refused."""
    with pytest.raises(SyncConfigError) as caught:
        compile_config(f"config: {{edition: 3}}\nstreams:\n  s:\n    query: |\n      SELECT {expression} AS v FROM t\n")
    (error,) = caught.value.errors
    return error


def same(first: object, second: object) -> bool:
    """Equal and of one type: 1 is not 1.0."""
    return type(first) is type(second) and first == second
