"""Converts the Python value that a driver would give for a column to the value that the service would compute."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from uuid import UUID

from headwater_rules.plan import ConversionOptions, Value

_INTEGERS = range(-(2**63), 2**63)


def column_value(value: object, options: ConversionOptions) -> Value:
    """The SQLite value of a column. Raises TypeError for a type without an obvious column type, and ValueError for a
    text that Postgres can't store."""
    match value:
        case None | bytes():
            return value
        case Enum():
            return column_value(value.value, options)
        case int() | float() | Decimal():
            return _number(value)
        case str():
            if "\0" in value:
                raise ValueError("Postgres has no text with a NUL character")
            return value
        case bytearray() | memoryview():
            return bytes(value)
        case UUID():
            return str(value)
        case date() | time():
            return _moment(value, options)
        case Mapping():
            return json.dumps(value, ensure_ascii=False)  # with the blanks that jsonb prints
        case list() | tuple():
            return json.dumps(_elements(value, options), ensure_ascii=False, separators=(",", ":"))
        case _:
            name = type(value).__name__
            raise TypeError(f"no column type is obvious for a {name}: give the text that Postgres prints for it")


def row_values(row: Mapping[str, object], options: ConversionOptions) -> dict[str, Value]:
    """A row's columns, each converted by `column_value`; errors name the column."""
    values: dict[str, Value] = {}
    for name, value in row.items():
        try:
            values[name] = column_value(value, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"column `{name}`: {error}") from None
    return values


def _elements(items: Sequence[object], options: ConversionOptions) -> list[object]:
    """The elements of an array column, each converted like a column, except that JSON stays JSON."""
    found: list[object] = []
    for item in items:
        match item:
            case Mapping():
                found.append(item)
            case list() | tuple():
                found.append(_elements(item, options))
            case _:
                value = column_value(item, options)
                found.append(None if isinstance(value, bytes) else value)
    return found


def _number(value: float | Decimal) -> Value:
    if isinstance(value, int):
        return int(value) if value in _INTEGERS else str(value)  # beyond them a numeric column, as Decimal
    if math.isfinite(value):
        return value if isinstance(value, float) else format(value, "f")
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _moment(value: date | time, options: ConversionOptions) -> str:
    if isinstance(value, time):
        return _clock(value, options) + f"{value:%z}"
    if not isinstance(value, datetime):
        return value.isoformat()
    zone = ""
    if value.tzinfo is not None:
        value, zone = value.astimezone(UTC), "Z"
    joint = "T" if options.timestamps_iso8601 else " "
    return f"{value.date().isoformat()}{joint}{_clock(value.time(), options)}{zone}"


def _clock(value: time, options: ConversionOptions) -> str:
    fraction = f"{value.microsecond:06d}"
    fraction = fraction[: options.timestamp_digits] if options.timestamps_iso8601 else fraction.rstrip("0")
    return f"{value:%H:%M:%S}" + (f".{fraction}" if fraction else "")
