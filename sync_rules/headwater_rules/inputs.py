"""The values of a request as expressions see them. Numbers are doubles there, as in the JSON they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import orjson

from headwater_rules.engine import engine, renumber, select_sql
from headwater_rules.errors import EvaluationError
from headwater_rules.naming import canonical
from headwater_rules.plan import Expr, FromRequest, RequestInput, RequestStage, Value, element_column

Canonical = int | float | str


class Inputs:
    """Claims and parameters for one subscription. Converts only what is asked for, and that once."""

    def __init__(
        self,
        claims: Mapping[str, object],
        connection: Mapping[str, object] | None,
        subscription: Mapping[str, object] | None,
    ) -> None:
        self._claims = claims
        self._connection = connection
        self._subscription = subscription
        self._values: dict[str, Value] = {}
        self._computed: dict[FromRequest, tuple[Canonical, ...]] = {}

    def holds(self, gate: Expr) -> bool:
        """Whether a condition is true. Raises EvaluationError."""
        return bool(self._scalar(gate))

    def values(self, source: FromRequest) -> tuple[Canonical, ...]:
        """The value of `source` in the form that names use, or every distinct one of an array; nothing for null and
        blobs. Raises EvaluationError."""
        known = self._computed.get(source)
        if known is None:
            found = self._elements(source.expr) if source.each else [self._scalar(source.expr)]
            parts = [canonical(value) for value in found]
            known = self._computed[source] = tuple(dict.fromkeys(part for part in parts if part is not None))
        return known

    def rows(self, stage: RequestStage) -> list[tuple[Canonical, ...]]:
        """The distinct rows of a stage, without those that hold a null or a blob. Raises EvaluationError."""
        sql, names = stage_statement(stage)
        found = engine().rows(sql, [self._input(name) for name in names])
        wanted = len(stage.outputs)
        rows = (tuple(part for value in row[:wanted] if (part := canonical(value)) is not None) for row in found)
        return list(dict.fromkeys(row for row in rows if len(row) == wanted))

    def _scalar(self, expr: Expr) -> Value:
        if expr.sql == "?1":
            return self._input(expr.inputs[0])
        rows = engine().rows(f"SELECT {expr.sql}", self._bindings(expr))
        return rows[0][0]

    def _elements(self, expr: Expr) -> list[Value]:
        rows = engine().rows(f"SELECT value FROM json_each({expr.sql})", self._bindings(expr))
        return [row[0] for row in rows]

    def _bindings(self, expr: Expr) -> Sequence[Value]:
        return [self._input(name) for name in expr.inputs]

    def _input(self, name: str) -> Value:
        if name not in self._values:
            self._values[name] = self._convert(RequestInput(name))
        return self._values[name]

    def _convert(self, name: RequestInput) -> Value:
        match name:
            case RequestInput.USER_ID:
                return _value(self._claims.get("sub"))
            case RequestInput.CLAIMS:
                return _json(self._claims)
            case RequestInput.CONNECTION:
                return None if self._connection is None else _json(self._connection)
            case RequestInput.SUBSCRIPTION:
                return None if self._subscription is None else _json(self._subscription)


@lru_cache(maxsize=1000)
def stage_statement(stage: RequestStage) -> tuple[str, tuple[str, ...]]:
    """The SELECT of a stage, and the inputs to bind."""
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
    try:
        return float(number)
    except OverflowError:
        return None


def _encodable(text: str) -> str:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise EvaluationError("a value of the request is no valid Unicode text") from None
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
        case int():
            return _double(value)
        case Mapping():
            return {str(key): _doubles(item) for key, item in value.items()}
        case list() | tuple():
            return [_doubles(item) for item in value]
        case _:
            return value
