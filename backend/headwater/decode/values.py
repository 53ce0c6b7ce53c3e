"""Converts values of Postgres to SQLite values. Only this module decides what each type becomes.

Integers and booleans become integers, floats reals, bytea a blob, composed types JSON text, all others text. NaN and
the infinities, which JSON does not have, stay as Postgres prints them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import orjson

from headwater.decode import nested
from headwater.decode.nested import Fragment
from headwater.decode.types import BUILTIN_TYPES, Oid, TypeCatalog, TypeDescriptor, TypeKind
from headwater.decode.wire import DecodeError
from headwater.oplog.change import Column
from headwater_rules.plan import ConversionOptions, Value

Converter = Callable[[str], Value]
Row = Sequence[str | None]
RowConverter = Callable[[Row], list[Value]]

_JSON = frozenset({Oid.JSON, Oid.JSONB})
_HEX_PREFIX = "\\x"

_FIRST_DAY = "0000-01-01"
_LAST_DAY = "9999-12-31"
_MAX_DIGITS = 6
_CLOCK = 8  # hh:mm:ss

_boolean: Callable[[str], int] = {"t": 1, "f": 0}.__getitem__


def converters(
    columns: Sequence[Column], types: TypeCatalog, options: ConversionOptions
) -> tuple[Converter | None, ...]:
    """For each column, the function from a cell's text to its value, or None where the text is the value.

    A converter raises ValueError or KeyError for text that Postgres does not print for a built-in type. A value of
    a composed type that does not parse (its definition changed since the catalog was read) is kept as its raw text.
    """
    plan = _Plan(types, options)
    return tuple([plan.converter(column.type_oid) for column in columns])


def row_converter(columns: Sequence[Column], types: TypeCatalog, options: ConversionOptions) -> RowConverter:
    """A function from the cells of one complete row to its values.

    The function raises DecodeError, naming the column, for a cell that is not valid for its column's type, and for a
    row with another number of cells."""
    functions = converters(columns, types, options)

    def explain(cells: Row) -> DecodeError:
        if len(cells) != len(columns):
            return DecodeError(f"row has {len(cells)} cells, its table {len(columns)} columns")
        for column, function, cell in zip(columns, functions, cells, strict=True):
            if function is not None and cell is not None and not _reads(function, cell):
                where = f"column {column.name}, type {column.type_oid}"
                fix = "let every connection to the source pin the session settings"
                return DecodeError("value is not valid for its type", where, fix)
        return DecodeError("row can't be converted")

    return _generate(functions, explain)


def _reads(function: Converter, cell: str) -> bool:
    try:
        function(cell)
    except (ValueError, KeyError):
        return False
    return True


def _generate(functions: Sequence[Converter | None], explain: Callable[[Row], DecodeError]) -> RowConverter:
    """One function without a loop: it takes two thirds of the time of a loop over converters and cells."""
    cells = [f"c{number}" for number in range(len(functions))]
    values = [
        cell if function is None else f"None if {cell} is None else f{number}({cell})"
        for number, (cell, function) in enumerate(zip(cells, functions, strict=True))
    ]
    lines = [
        "def convert(cells):",
        " try:",
        f"  [{', '.join(cells)}] = cells",
        f"  return [{', '.join(values)}]",
        " except (ValueError, KeyError):",
        "  raise explain(cells) from None",
    ]
    scope: dict[str, object] = {f"f{number}": function for number, function in enumerate(functions)}
    scope["explain"] = explain
    exec("\n".join(lines), scope)  # noqa: S102  # built from numbers alone
    return cast("RowConverter", scope["convert"])


class _Plan:
    """Chooses converters and fragments by type. Types are finite trees: Postgres lets none contain itself."""

    def __init__(self, types: TypeCatalog, options: ConversionOptions) -> None:
        self._types = types
        self._options = options
        self._scalars = _scalars(options)

    def converter(self, oid: int) -> Converter | None:
        """The function for the value of a column; None: text as it is."""
        descriptor = self._types.get(oid)
        if descriptor is None:
            return None
        match descriptor.kind:
            case TypeKind.BASE:
                return self._scalars.get(oid)
            case TypeKind.DOMAIN:
                return self.converter(descriptor.element) if self._options.custom_postgres_types else None
            case TypeKind.RANGE if self._options.custom_postgres_types:
                return _lenient(_empty_as_text(self._composed(descriptor)))
            case _:
                return _lenient(self._composed(descriptor)) if self._is_composed(descriptor) else None

    def fragment(self, oid: int) -> Fragment:
        """The function for a value inside another one."""
        descriptor = self._types.get(oid)
        if descriptor is None:
            return nested.quote
        if descriptor.kind is TypeKind.DOMAIN and self._options.custom_postgres_types:
            return self.fragment(descriptor.element)
        if self._is_composed(descriptor):
            return self._composed(descriptor)
        return self._scalar_fragment(oid)

    def _is_composed(self, descriptor: TypeDescriptor) -> bool:
        """Whether the value becomes JSON: arrays of built-in types always, the others by option."""
        match descriptor.kind:
            case TypeKind.ARRAY:
                return self._options.custom_postgres_types or descriptor.element in BUILTIN_TYPES
            case TypeKind.COMPOSITE | TypeKind.RANGE | TypeKind.MULTIRANGE:
                return self._options.custom_postgres_types
            case _:
                return False

    def _composed(self, descriptor: TypeDescriptor) -> Fragment:
        match descriptor.kind:
            case TypeKind.ARRAY:
                # without the option box[] is cut at its commas, as existing deployments know it
                delimiter = descriptor.delimiter if self._options.custom_postgres_types else ","
                return nested.array(self.fragment(descriptor.element), delimiter)
            case TypeKind.COMPOSITE:
                return nested.composite([(each.name, self.fragment(each.type_oid)) for each in descriptor.attributes])
            case TypeKind.RANGE:
                return nested.range_of(self.fragment(descriptor.element))
            case TypeKind.MULTIRANGE:
                ranges = self._types.get(descriptor.element)
                return nested.multirange_of(self.fragment(ranges.element) if ranges else nested.quote)
            case _:
                return nested.quote

    def _scalar_fragment(self, oid: int) -> Fragment:
        if oid in _JSON:
            return str
        function = self._scalars.get(oid)
        return nested.quote if function is None else _as_json(function)


def _scalars(options: ConversionOptions) -> Mapping[int, Converter | None]:
    return {
        Oid.BOOL: _boolean,
        Oid.INT2: int,
        Oid.INT4: int,
        Oid.INT8: int,
        Oid.OID: int,
        Oid.FLOAT4: _real,
        Oid.FLOAT8: _real,
        Oid.BYTEA: _blob,
        Oid.PG_LSN: _padded_lsn,
        Oid.DATE: _date,
        Oid.TIME: _time(options),
        Oid.TIMESTAMP: _timestamp(options),
        Oid.TIMESTAMPTZ: _timestamptz(options),
    }


def _lenient(fragment: Fragment) -> Converter:
    def convert(text: str) -> str:
        try:
            return fragment(text)
        except (ValueError, KeyError):
            return text

    return convert


def _empty_as_text(fragment: Fragment) -> Fragment:
    return lambda text: text if text == nested.EMPTY_RANGE else fragment(text)


def _as_json(function: Converter) -> Fragment:
    def convert(text: str) -> str:
        value = function(text)
        match value:
            case None | bytes():
                return "null"
            case str():
                return nested.quote(value)
            case _:
                return orjson.dumps(value).decode()

    return convert


def _real(text: str) -> float | str:
    value = float(text)
    return value if math.isfinite(value) else text


def _blob(text: str) -> bytes:
    if not text.startswith(_HEX_PREFIX):
        raise ValueError("not in hex")
    return bytes.fromhex(text[len(_HEX_PREFIX) :])


def _padded_lsn(text: str) -> str:
    """Both halves with all their digits, so that texts sort as positions do."""
    high, low = text.split("/")
    return f"{high:0>8}/{low:0>8}"


# Dates and times are as printed with DateStyle=ISO, TimeZone=UTC. A year that the date functions of SQLite do not know
# becomes null in timestamps (BC), and is kept in dates.


def _date(text: str) -> str:
    if text == "infinity":
        return _LAST_DAY
    return _FIRST_DAY if text == "-infinity" else text


def _time(options: ConversionOptions) -> Callable[[str], str | None] | None:
    return _clock_in_iso(options) if options.timestamps_iso8601 else None


def _timestamp(options: ConversionOptions) -> Callable[[str], str | None]:
    """Years from 10000 on are kept, years BC are null."""
    clock_text = _clock(options)
    joint = "T" if options.timestamps_iso8601 else " "
    first, last = _ends(clock_text, joint, "")

    def convert(text: str) -> str | None:
        if text[10:11] == " " and text[-1] != "C":
            return f"{text[:10]}{joint}{clock_text(text[11:])}"
        if text.endswith("infinity"):
            return first if text[0] == "-" else last
        if text.endswith(" BC"):
            return None
        day, clock = text.split(" ")
        return f"{day}{joint}{clock_text(clock)}"

    return convert


def _timestamptz(options: ConversionOptions) -> Callable[[str], str | None]:
    """Years from 10000 on and years BC are null."""
    clock_text = _clock(options)
    joint = "T" if options.timestamps_iso8601 else " "
    first, last = _ends(clock_text, joint, "Z")

    def convert(text: str) -> str | None:
        if text[10:11] == " " and text[-3:] == "+00":
            return f"{text[:10]}{joint}{clock_text(text[11:-3])}Z"
        if text.endswith("infinity"):
            return first if text[0] == "-" else last
        if text.endswith(("+00", "+00 BC")):
            return None
        raise ValueError("the session's time zone is not UTC")

    return convert


def _ends(clock_text: Callable[[str], str], joint: str, zone: str) -> tuple[str, str]:
    """The texts for minus and plus infinity."""
    return f"{_FIRST_DAY}{joint}{clock_text('00:00:00')}{zone}", f"{_LAST_DAY}{joint}{clock_text('23:59:59')}{zone}"


def _clock(options: ConversionOptions) -> Callable[[str], str]:
    return _clock_in_iso(options) if options.timestamps_iso8601 else str


def _clock_in_iso(options: ConversionOptions) -> Callable[[str], str]:
    """`hh:mm:ss[.f]` with exactly the configured number of digits, cut and never rounded."""
    digits = min(options.timestamp_digits, _MAX_DIGITS)
    zeros = "." + "0" * digits if digits else ""
    width = _CLOCK + len(zeros)

    def convert(clock: str) -> str:
        if len(clock) == width:
            return clock
        return clock + zeros if len(clock) == _CLOCK else (clock + zeros[1:])[:width]

    return convert
