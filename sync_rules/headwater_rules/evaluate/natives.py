"""Functions of the rule language that SQLite lacks or defines differently, for the engine to register.

Text is measured in UTF-16 units, as in the published service and the JavaScript clients; half of a surrogate pair
becomes U+FFFD. The functions raise nothing but EvaluationError, whatever values they get.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Final

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate import geometry
from headwater_rules.evaluate.naming import as_text
from headwater_rules.plan import Value

_INTEGER_PREFIX: Final = re.compile(r"\s*[+-]?0*[1-9]", re.ASCII)
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_MOMENT_START: Final = frozenset("0123456789+-. \t\n\v\f\r")


def _truth(value: Value) -> int:
    """Whether a value counts as true: a number unless 0, text by the integer it begins with, null and blobs never."""
    match value:
        case int() | float():
            return int(value != 0)
        case str():
            return int(_INTEGER_PREFIX.match(value) is not None)
        case _:
            return 0


def _floor(value: Value) -> Value:
    """Reals rounded down to an integral real; other values unchanged."""
    return float(math.floor(value)) if isinstance(value, float) and math.isfinite(value) else value


def _blob(value: Value) -> bytes | None:
    """A blob unchanged; other values as the UTF-8 of their text form."""
    text = None if isinstance(value, bytes) else as_text(value)
    return value if isinstance(value, bytes) else None if text is None else text.encode()


def _upper(value: Value) -> str | None:
    text = as_text(value)
    return None if text is None else text.upper()


def _lower(value: Value) -> str | None:
    text = as_text(value)
    return None if text is None else text.lower()


def _base64(value: Value) -> str:
    return base64.b64encode(_blob(value) or b"").decode()


def _hex(value: Value) -> str:
    return (_blob(value) or b"").hex().upper()


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _length(value: Value) -> int | None:
    if isinstance(value, bytes):
        return len(value)
    text = as_text(value)
    return None if text is None else _units(text)


def _substring(value: Value, start: int | None, *length: int | None) -> Value:
    """The arguments after the first are integers or null: the compiler casts them."""
    if value is None or start is None or length == (None,):
        return None
    count = length[0] if length else None
    if isinstance(value, bytes):
        return value[_span(len(value), start, count)]
    text = as_text(value) or ""
    if text.isascii():
        return text[_span(len(text), start, count)]
    units = text.encode("utf-16-le")
    span = _span(len(units) // 2, start, count)
    return units[2 * span.start : 2 * span.stop].decode("utf-16-le", "replace")


def _span(size: int, start: int, count: int | None) -> slice:
    """The slice that SQLite's substr takes: a negative start counts from the end, 0 is before the first unit, and a
    negative count takes what precedes the start."""
    first = start - 1 if start > 0 else size + start if start < 0 else -1
    if count is None:
        return slice(min(max(first, 0), size), size)
    low, high = (first, first + count) if count >= 0 else (first + count, first)
    return slice(min(max(low, 0), size), min(max(high, 0), size))


def _instr(value: Value, wanted: Value) -> int | None:
    if isinstance(value, bytes) and isinstance(wanted, bytes):
        return value.find(wanted) + 1
    text, part = as_text(value), as_text(wanted)
    if text is None or part is None:
        return None
    found = text.find(part)
    return 0 if found < 0 else _units(text[:found]) + 1


def _json_keys(value: Value) -> str | None:
    if value is None:
        return None
    try:
        parsed: object = orjson.loads(as_text(value) or "")
    except orjson.JSONDecodeError:
        raise EvaluationError("json_keys: malformed JSON") from None
    if not isinstance(parsed, dict):
        raise EvaluationError("json_keys: not a JSON object")
    return orjson.dumps(list(parsed)).decode()


def _uuid_blob(value: Value) -> bytes | None:
    if value is None:
        return None
    text = as_text(value) or ""
    if not _UUID.fullmatch(text):
        raise EvaluationError("uuid_blob: not a UUID")
    return bytes.fromhex(text.replace("-", ""))


def _moment(value: Value) -> Value:
    """The value if SQLite may read it as a point in time, else null. SQLite's words for the current time ('now',
    'subsec', also in a blob or before a NUL character) do not begin like a number; all other times do."""
    if isinstance(value, str):
        return value if value[:1] in _MOMENT_START else None
    return None if isinstance(value, bytes) else value


def compare_utf16(left: str, right: str) -> int:
    """The order of texts by UTF-16 unit, as a SQLite collation."""
    first, second = left.encode("utf-16-be", "surrogatepass"), right.encode("utf-16-be", "surrogatepass")
    return (first > second) - (first < second)


FUNCTIONS: Final[dict[str, tuple[Callable[..., Value], int]]] = {
    "hw_truth": (_truth, 1),
    "hw_text": (as_text, 1),
    "hw_floor": (_floor, 1),
    "hw_blob": (_blob, 1),
    "hw_hex": (_hex, 1),
    "hw_length": (_length, 1),
    "hw_substring": (_substring, -1),
    "hw_instr": (_instr, 2),
    "hw_moment": (_moment, 1),
    "upper": (_upper, 1),  # SQLite's own only handle ASCII
    "lower": (_lower, 1),
    "base64": (_base64, 1),
    "json_keys": (_json_keys, 1),
    "uuid_blob": (_uuid_blob, 1),
    "st_asgeojson": (geometry.as_geojson, 1),
    "st_astext": (geometry.as_wkt, 1),
    "st_x": (partial(geometry.coordinate, number=0), 1),
    "st_y": (partial(geometry.coordinate, number=1), 1),
}
"""Name and number of arguments; -1 stands for any number."""
