"""The pinned SQLite in which expressions run: one in-memory connection per thread, closed to everything but
reading, with the functions of the rule language that SQLite lacks.
"""

from __future__ import annotations

import base64
import json
import math
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Final

import apsw
import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.plan import Value

_STEPS_PER_TICK: Final = 100_000
_MAX_TICKS: Final = 100  # ten million virtual machine steps, about a second, for one row or request expression
_MAX_BYTES: Final = 64 * 1024 * 1024

_ALLOWED_ACTIONS: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION})


class Engine:
    """Runs prepared expressions. Belongs to one thread; get it from `engine()`."""

    __slots__ = ("_connection", "_cursor", "_ticks")

    def __init__(self) -> None:
        self._ticks = 0
        connection = apsw.Connection(":memory:", statementcachesize=2000)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, _MAX_BYTES)
        for name, (function, arguments) in _FUNCTIONS.items():
            connection.create_scalar_function(name, function, arguments, deterministic=True)
        connection.create_collation("utf16", _compare_utf16)
        connection.authorizer = _authorize
        connection.set_progress_handler(self._tick, _STEPS_PER_TICK)
        self._connection = connection
        self._cursor = connection.cursor()

    def rows(self, sql: str, bindings: Sequence[Value]) -> list[tuple[Value, ...]]:
        """All rows of a statement. Raises EvaluationError when it fails on these values or works too long."""
        self._ticks = 0
        try:
            return self._cursor.execute(sql, bindings).fetchall()
        except apsw.InterruptError:
            raise EvaluationError("evaluation takes too long") from None
        except apsw.Error as error:
            raise EvaluationError(str(error)) from None

    def check(self, sql: str) -> None:
        """Prepare without running. Raises EvaluationError with SQLite's words."""
        try:
            self._cursor.execute(f"explain {sql}", (None,) * _parameters(sql)).fetchall()
        except apsw.Error as error:
            raise EvaluationError(str(error)) from None

    def _tick(self) -> bool:
        self._ticks += 1
        return self._ticks > _MAX_TICKS


_local = threading.local()


def engine() -> Engine:
    """The calling thread's engine."""
    try:
        found: Engine = _local.engine
    except AttributeError:
        found = _local.engine = Engine()
    return found


_PLACEHOLDER: Final = re.compile(r"'(?:[^']|'')*'|\?(\d+)")


def renumber(sql: str, targets: Sequence[str]) -> str:
    """`sql` with `?i` replaced by `targets[i - 1]`, leaving what stands in quotes alone."""
    return _PLACEHOLDER.sub(lambda match: targets[int(match[1]) - 1] if match[1] else match[0], sql)


def _parameters(sql: str) -> int:
    return max((int(match[1]) for match in _PLACEHOLDER.finditer(sql) if match[1]), default=0)


def number_text(value: float) -> str:
    """A real as `||` prints it: integral ones without `.0`."""
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return orjson.dumps(value).decode()


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


_INTEGER_PREFIX: Final = re.compile(r"\s*[+-]?0*[1-9]", re.ASCII)


def _truth(value: Value) -> int:
    """A number unless 0; text by the integer it begins with; null and blobs never."""
    match value:
        case int() | float():
            return int(value != 0)
        case str():
            return int(_INTEGER_PREFIX.match(value) is not None)
        case _:
            return 0


def _floor(value: Value) -> Value:
    """Reals as the next lower integral real; everything else as it is."""
    return float(math.floor(value)) if isinstance(value, float) and math.isfinite(value) else value


def _upper(value: Value) -> str | None:
    text = as_text(value)
    return None if text is None else text.upper()


def _lower(value: Value) -> str | None:
    text = as_text(value)
    return None if text is None else text.lower()


def _base64(value: Value) -> str:
    return base64.b64encode(value if isinstance(value, bytes) else (as_text(value) or "").encode()).decode()


def _json_keys(value: Value) -> str | None:
    if value is None:
        return None
    try:
        parsed: object = json.loads(as_text(value) or "")
    except (ValueError, RecursionError):
        raise EvaluationError("json_keys: malformed JSON") from None
    if not isinstance(parsed, dict):
        raise EvaluationError("json_keys: not a JSON object")
    return json.dumps(list(parsed), ensure_ascii=False, separators=(",", ":"))


def _uuid_blob(value: Value) -> bytes | None:
    if value is None:
        return None
    try:
        return uuid.UUID(as_text(value)).bytes
    except ValueError:
        raise EvaluationError("uuid_blob: not a UUID") from None


def _compare_utf16(left: str, right: str) -> int:
    first, second = left.encode("utf-16-be", "surrogatepass"), right.encode("utf-16-be", "surrogatepass")
    return (first > second) - (first < second)


_FUNCTIONS: Final[dict[str, tuple[Callable[..., Value], int]]] = {
    "hw_truth": (_truth, 1),
    "hw_text": (as_text, 1),
    "hw_floor": (_floor, 1),
    "upper": (_upper, 1),  # SQLite's know ASCII only
    "lower": (_lower, 1),
    "base64": (_base64, 1),
    "json_keys": (_json_keys, 1),
    "uuid_blob": (_uuid_blob, 1),
}


_FORBIDDEN: Final = frozenset({"load_extension", "random", "randomblob"})


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action not in _ALLOWED_ACTIONS:
        return apsw.SQLITE_DENY
    if action == apsw.SQLITE_READ and first != "json_each":
        return apsw.SQLITE_DENY
    if action == apsw.SQLITE_FUNCTION and second in _FORBIDDEN:
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
