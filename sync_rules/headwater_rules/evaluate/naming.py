"""Values as texts, and names that are used outside: digests of definitions, bucket names, lookup keys.

Rows and requests match by equal text, so both sides build it with the same function.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from decimal import Decimal

import orjson

from headwater_rules.plan import (
    SEMANTICS_VERSION,
    ConversionOptions,
    Expr,
    LookupDefinition,
    Output,
    RowSource,
    Star,
    TablePattern,
    Value,
)


def number_text(value: float) -> str:
    """A real as `||` prints it, in the way of JavaScript: the shortest digits that read back as the same number,
    integral ones without `.0`, with an exponent below 1e-6 and from 1e21."""
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value) if abs(value) < 2**53 else int(Decimal(repr(value))))
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if 1e-6 <= abs(value) < 1e-4:  # where Python already writes an exponent
        mantissa, _, exponent = repr(abs(value)).partition("e-")
        return f"{'-' if value < 0 else ''}0.{'0' * (int(exponent) - 1)}{mantissa.replace('.', '')}"
    return repr(value).replace("e-0", "e-")


def as_text(value: Value) -> str | None:
    """The text form of a value; null stays null."""
    match value:
        case str() | None:
            return value
        case float():
            return number_text(value)
        case bytes():
            return value.decode("utf-8", "replace")
        case _:
            return str(value)


SHORT = 8  # hex digits of a digest used in names; the compiler rejects a collision within a config

_INT64_END = 2.0**63


def canonical(value: Value) -> int | float | str | None:
    """The form in which equal values are identical: integral reals become integers. None for values that can't be part
    of a name: null, blobs, and reals without a JSON form."""
    kind = type(value)
    if kind is str or kind is int:
        return value  # type: ignore[return-value]  # the two branches above narrowed it
    if kind is not float:
        return None
    assert isinstance(value, float)
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() and -_INT64_END <= value < _INT64_END else value


def key_text(name: str, values: Iterable[Value]) -> str | None:
    """A full bucket name or lookup key: `name` and the canonical JSON array of `values`. None when one of them is null
    or a blob, because no row has such a key."""
    parts: list[int | float | str] = []
    for value in values:
        part = canonical(value)
        if part is None:
            return None
        parts.append(part)
    return name + orjson.dumps(parts).decode()


def bucket_digest(source: RowSource, options: ConversionOptions) -> str:
    """SHA-256 of the whole row side, as hex."""
    return _digest(
        {
            "table": _table(source.table),
            "output": source.output_table,
            "filters": _exprs(source.filters),
            "each": _exprs(source.each),
            "params": _exprs(source.params),
            "projection": [_item(item) for item in source.projection],
        },
        options,
    )


def lookup_digest(lookup: LookupDefinition, options: ConversionOptions) -> str:
    """SHA-256 of everything that determines the entries of a lookup, as hex."""
    return _digest(
        {
            "table": _table(lookup.table),
            "filters": _exprs(lookup.filters),
            "each": _exprs(lookup.each),
            "keys": _exprs(lookup.keys),
            "outputs": _exprs(lookup.outputs),
        },
        options,
    )


def expr_order(expr: Expr) -> tuple[str, tuple[str, ...]]:
    """A sort key that does not depend on the position in the config."""
    return expr.sql, expr.inputs


def _digest(body: dict[str, object], options: ConversionOptions) -> str:
    body["semantics"] = SEMANTICS_VERSION
    body["options"] = {
        "timestamps_iso8601": options.timestamps_iso8601,
        "custom_postgres_types": options.custom_postgres_types,
        "timestamp_digits": options.timestamp_digits,
    }
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _table(table: TablePattern) -> list[str]:
    return [table.tag, table.schema, table.name]


def _exprs(exprs: Iterable[Expr]) -> list[list[object]]:
    return [[expr.sql, list(expr.inputs)] for expr in exprs]


def _item(item: Output | Star) -> list[object]:
    if isinstance(item, Star):
        return ["*"] if item.everything else ["*", "visible"]
    return [item.name, item.expr.sql, list(item.expr.inputs)]
