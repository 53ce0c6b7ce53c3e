"""The values of a request's token and parameters as inputs of expressions.

JSON readers store numbers as doubles, which round integers beyond 2^53: one user's id would become another's. An
expression that reads such a number fails, so that it gives no rows; expressions that read other values of the same
token are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar, cast

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.engine import engine, renumber, select_sql
from headwater_rules.evaluate.naming import canonical
from headwater_rules.plan import Expr, FromRequest, RequestInput, RequestStage, Value, element_column

LARGEST = 2**53

Steps = tuple[str | int, ...]
"""The path to a value in JSON: keys of objects and positions in arrays."""

_TEXT = r"('(?:[^']|'')*')"
_READING = re.compile(rf"\(\?(\d+) ->>? {_TEXT}|json_type\(\?(\d+), {_TEXT}|{_TEXT}|\?(\d+)")
_STEP = re.compile(r'\."([^"\\]*)"|\[(\d+)\]')


def is_exact(number: float) -> bool:
    """Whether a number of a request is certainly exact. A real of 2^53 may be rounded already."""
    return abs(number) <= LARGEST if isinstance(number, int) else not abs(number) >= LARGEST


def holds_inexact(value: object, steps: Steps = ()) -> bool:
    """Whether the value that `steps` lead to contains an inexact number."""
    for step in steps:
        value = _inside(value, step)
    match value:
        case bool():
            return False
        case int() | float():
            return not is_exact(value)
        case Mapping():
            return any(holds_inexact(item) for item in value.values())
        case list() | tuple():
            return any(holds_inexact(item) for item in value)
        case _:
            return False


def _inside(value: object, step: str | int) -> object:
    if isinstance(value, Mapping):
        return value.get(step) if isinstance(step, str) else None
    if isinstance(value, Sequence) and not isinstance(value, str) and isinstance(step, int):
        return value[step] if step < len(value) else None
    return None


@lru_cache(maxsize=10_000)
def readings(sql: str) -> tuple[tuple[int, Steps], ...]:
    """What an expression reads of its inputs, which are JSON texts: positions of inputs, each with the path to a value.
    An input that is used in any other way than a JSON access is read as a whole."""
    found: dict[tuple[int, Steps], None] = {}
    for match in _READING.finditer(sql):
        number, path = match[1] or match[3] or match[6], match[2] or match[4]
        if number:
            found[int(number) - 1, _steps(path) if path else ()] = None
    return tuple(found)


def _steps(literal: str) -> Steps:
    """The steps of a path, up to the first that is not supported here; the value there is read as a whole."""
    path = literal[1:-1].replace("''", "'")
    steps: list[str | int] = []
    position = 1 if path.startswith("$") else len(path)
    while step := _STEP.match(path, position):
        steps.append(step[1] if step[2] is None else int(step[2]))
        position = step.end()
    return tuple(steps)


def named(steps: Steps) -> str:
    """Steps as written in a rule."""
    return ".".join(map(str, steps if len(steps) == 1 else ("$", *steps)))


Canonical = int | float | str
_NONE_FOUND: Mapping[str, Value] = MappingProxyType({})
Result = TypeVar("Result")

_CALLED = {
    RequestInput.USER_ID: "the user id",
    RequestInput.CLAIMS: "the token",
    RequestInput.CONNECTION: "the connection's parameters",
    RequestInput.SUBSCRIPTION: "the subscription's parameters",
}


class Inputs:
    """Claims and parameters for one subscription. Converts values on demand, and only once; what does not depend on the
    subscription only once for all that have the same `common`, which has the same claims and connection."""

    def __init__(
        self,
        claims: Mapping[str, object],
        connection: Mapping[str, object] | None,
        subscription: Mapping[str, object] | None,
        common: Inputs | None = None,
    ) -> None:
        self._common = common
        self._sources: dict[RequestInput, object] = {
            RequestInput.USER_ID: claims.get("sub"),
            RequestInput.CLAIMS: claims,
            RequestInput.CONNECTION: connection,
            RequestInput.SUBSCRIPTION: subscription,
        }
        self._values: dict[str, Value] = {}
        self._inexact: dict[str, bool] = {}
        self._computed: dict[object, object] = {}

    def holds(self, gate: Expr) -> bool:
        """Whether a condition is true. Raises EvaluationError."""
        return self._once(gate, gate.inputs, lambda: bool(self._scalar(gate)))

    def passes(self, condition: Expr, found: Mapping[str, Value]) -> bool:
        """Whether a condition is true, of which some inputs are values of rows. Raises EvaluationError."""
        bindings = self._bindings(condition.sql, condition.inputs, found)
        return bool(engine().rows(f"SELECT {condition.sql}", bindings)[0][0])

    def values(self, source: FromRequest) -> tuple[Canonical, ...]:
        """The value of `source` in canonical form, or every distinct one of an array; nothing for null and blobs.
        Raises EvaluationError."""
        return self._once(source, source.expr.inputs, lambda: self._values_of(source))

    def rows(self, stage: RequestStage) -> list[tuple[Canonical, ...]]:
        """The distinct rows of a stage, without those that contain a null or a blob. Raises EvaluationError."""
        sql, names = stage_statement(stage)
        return self._once(stage, names, lambda: self._rows_of(stage, sql, names))

    def _once(self, key: object, names: Sequence[str], compute: Callable[[], Result]) -> Result:
        if self._common is not None and RequestInput.SUBSCRIPTION.value not in names:
            return self._common._once(key, names, compute)
        if key not in self._computed:
            try:
                self._computed[key] = compute()
            except EvaluationError as error:
                self._computed[key] = error
        known = self._computed[key]
        if isinstance(known, EvaluationError):
            raise known.with_traceback(None)  # a traceback would grow with each raise
        return cast(Result, known)

    def _values_of(self, source: FromRequest) -> tuple[Canonical, ...]:
        found = self._elements(source.expr) if source.each else [self._scalar(source.expr)]
        parts = [_canonical(value) for value in found]
        return tuple(dict.fromkeys(part for part in parts if part is not None))

    def _rows_of(self, stage: RequestStage, sql: str, names: Sequence[str]) -> list[tuple[Canonical, ...]]:
        found = engine().rows(sql, self._bindings(sql, names))
        wanted = len(stage.outputs)
        rows = (tuple(part for value in row[:wanted] if (part := _canonical(value)) is not None) for row in found)
        return list(dict.fromkeys(row for row in rows if len(row) == wanted))

    def _scalar(self, expr: Expr) -> Value:
        bindings = self._bindings(expr.sql, expr.inputs)
        if expr.sql == "?1":
            return bindings[0]
        return engine().rows(f"SELECT {expr.sql}", bindings)[0][0]

    def _elements(self, expr: Expr) -> list[Value]:
        rows = engine().rows(f"SELECT value FROM json_each({expr.sql})", self._bindings(expr.sql, expr.inputs))
        return [row[0] for row in rows]

    def _bindings(self, sql: str, names: Sequence[str], found: Mapping[str, Value] = _NONE_FOUND) -> list[Value]:
        """The inputs of an expression, of which `found` are none of the request. Raises EvaluationError when it reads
        an inexact number of that."""
        values = [found[name] if name in found else self._input(name) for name in names]
        if any(name not in found and self._holder(name)._inexact[name] for name in names):
            for position, steps in readings(sql):
                if names[position] not in found:
                    self._refuse_inexact(names[position], steps)
        return values

    def _holder(self, name: str) -> Inputs:
        common = self._common
        return self if common is None or name == RequestInput.SUBSCRIPTION.value else common

    def _input(self, name: str) -> Value:
        holder = self._holder(name)
        if holder is not self:
            return holder._input(name)
        if name not in self._values:
            source = self._sources[RequestInput(name)]
            self._values[name] = _value(source)  # fails if it is nested too deeply to be searched
            self._inexact[name] = holds_inexact(source)
        return self._values[name]

    def _refuse_inexact(self, name: str, steps: Steps) -> None:
        source = RequestInput(name)
        if holds_inexact(self._sources[source], steps):
            where = f"`{named(steps)}` of {_CALLED[source]}" if steps else _CALLED[source]
            raise EvaluationError(f"{where} holds a number beyond 2^53, which JSON rounds: send it as a text")


@lru_cache(maxsize=1000)
def stage_statement(stage: RequestStage) -> tuple[str, tuple[str, ...]]:
    """The SELECT of a stage, and the names of the inputs to bind."""
    bindings: dict[str, int] = {}

    def written(expr: Expr) -> str:
        return renumber(
            expr.sql,
            [element_column(name) or f"?{bindings.setdefault(name, len(bindings) + 1)}" for name in expr.inputs],
        )

    outputs, arrays, filters = ([*map(written, exprs)] for exprs in (stage.outputs, stage.arrays, stage.filters))
    return select_sql(outputs, arrays, filters), tuple(bindings)


def _value(claim: object) -> Value:
    match claim:
        case None:
            return None
        case bool():
            return int(claim)
        case int() | float():
            return _double(claim)
        case str():
            return _encodable(claim)
        case _:
            return _json(claim)


def _double(number: float) -> float | None:
    """The number, or null for one that must not be read."""
    return float(number) if is_exact(number) else None


def _canonical(value: Value) -> Canonical | None:
    """Like `canonical`, but raises EvaluationError for reals that may be rounded."""
    if isinstance(value, float) and abs(value) > LARGEST:
        raise EvaluationError("a computed real is beyond 2^53 and so rounded: write `…::integer` of a text")
    return canonical(value)


def _encodable(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise EvaluationError("a value of the request is not valid Unicode text") from None
    return text


def _json(value: object) -> str:
    try:
        return orjson.dumps(_doubles(value)).decode()
    except (TypeError, RecursionError):
        raise EvaluationError("a value of the request is not valid JSON, or nested too deeply") from None


def _doubles(value: object) -> object:
    match value:
        case bool():
            return value
        case int() | float():
            return _double(value)
        case Mapping():
            return {str(key): _doubles(item) for key, item in value.items()}
        case list() | tuple():
            return [_doubles(item) for item in value]
        case _:
            return value
