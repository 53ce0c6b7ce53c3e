"""The values of a request as expressions see them. Numbers are doubles, as in the JSON they came from; numbers that
doubles round can't be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar, cast

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.engine import engine, renumber, select_sql
from headwater_rules.evaluate.large_numbers import LARGEST, Steps, holds_inexact, is_exact, named, readings
from headwater_rules.evaluate.naming import canonical
from headwater_rules.plan import Expr, FromRequest, RequestInput, RequestStage, Value, element_column

Canonical = int | float | str
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

    def _bindings(self, sql: str, names: Sequence[str]) -> list[Value]:
        """The inputs of an expression. Raises EvaluationError when it reads an inexact number."""
        values = [self._input(name) for name in names]
        if any(self._holder(name)._inexact[name] for name in names):
            for position, steps in readings(sql):
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
