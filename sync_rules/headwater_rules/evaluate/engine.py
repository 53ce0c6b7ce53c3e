"""The pinned SQLite that evaluates expressions: one in-memory connection per thread, restricted to reading, with the
functions of the rule language that SQLite lacks."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from typing import Final

import apsw

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate import clock, natives
from headwater_rules.plan import Value

_STEPS_PER_TICK: Final = 1000
_MAX_TICKS: Final = 10_000  # ten million virtual machine steps, about a second, for one row or request expression
_MAX_SECONDS: Final = 60.0
"""A fallback for steps that each process megabytes. In practice the limit of steps decides, because it is the same on
every machine."""
_MAX_BYTES: Final = 64 * 1024 * 1024

MAX_PATTERN: Final = 250
"""Maximum length of a LIKE pattern in bytes. SQLite's search takes time proportional to pattern times text, and can't
be interrupted."""

_ALLOWED_ACTIONS: Final = frozenset({apsw.SQLITE_SELECT, apsw.SQLITE_READ, apsw.SQLITE_FUNCTION})
_ALLOWED_FUNCTIONS: Final = natives.FUNCTIONS.keys() | {
    "->", "->>", "abs", "ceil", "coalesce", "concat", "concat_ws", "date", "datetime", "floor", "hw_clock", "ifnull",
    "iif", "json", "json_array", "json_array_length", "json_extract", "json_object", "json_type", "json_valid",
    "julianday", "like", "ltrim", "max", "min", "nullif", "quote", "replace", "round", "rtrim", "sign", "strftime",
    "substr", "time", "trim", "trunc", "typeof", "unixepoch",
}  # fmt: skip


class SqliteEngine:
    """Runs prepared expressions. Belongs to one thread; get it from `engine()`."""

    __slots__ = ("_connection", "_cursor", "_deadline", "_max_seconds", "_max_ticks", "_ticks", "flip")

    def __init__(
        self, *, max_seconds: float = _MAX_SECONDS, max_ticks: int = _MAX_TICKS, max_bytes: int = _MAX_BYTES
    ) -> None:
        self._max_seconds = max_seconds
        self._max_ticks = max_ticks
        self._deadline = 0.0
        self._ticks = 0
        self.flip: int | None = None
        """The least time at which a comparison with the clock changes, of those made since this was set to None."""
        connection = apsw.Connection(":memory:", statementcachesize=2000)
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, max_bytes)
        connection.limit(apsw.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN)
        for name, (function, arguments) in natives.FUNCTIONS.items():
            connection.create_scalar_function(name, function, arguments, deterministic=True)
        connection.create_scalar_function("hw_clock", self._compare_with_clock, -1, deterministic=True)
        connection.create_collation("utf16", natives.compare_utf16)
        connection.authorizer = _authorize
        connection.set_progress_handler(self._tick, _STEPS_PER_TICK)
        self._connection = connection
        self._cursor = connection.cursor()

    def rows(self, sql: str, bindings: Sequence[Value]) -> list[tuple[Value, ...]]:
        """All rows of a statement. Raises EvaluationError when it fails on these values or takes too long."""
        self._ticks = 0
        try:
            return self._cursor.execute(sql, bindings).fetchall()
        except apsw.InterruptError:
            raise EvaluationError("evaluation takes too long") from None
        except apsw.Error as error:
            raise EvaluationError(str(error)) from None
        except UnicodeError:  # JSON can escape half of a surrogate pair, which is not a character
            raise EvaluationError("a text is not valid Unicode") from None

    def check(self, sql: str) -> None:
        """Prepare without running. Raises EvaluationError with SQLite's message."""
        try:
            self._cursor.execute(f"explain {sql}", (None,) * _parameters(sql)).fetchall()
        except apsw.Error as error:
            raise EvaluationError(str(error)) from None

    def _compare_with_clock(self, *arguments: Value) -> int | None:
        holds, flip = clock.compare(arguments)
        if flip is not None and (self.flip is None or flip < self.flip):
            self.flip = flip
        return holds

    def _tick(self) -> bool:
        self._ticks += 1
        now = time.monotonic()
        if self._ticks == 1:
            self._deadline = now + self._max_seconds
        return self._ticks > self._max_ticks or now > self._deadline


_local = threading.local()


def engine() -> SqliteEngine:
    """The calling thread's engine."""
    try:
        found: SqliteEngine = _local.engine
    except AttributeError:
        found = _local.engine = SqliteEngine()
    return found


def small_engine() -> SqliteEngine:
    """The calling thread's engine for values that are tried while rules are compiled: what needs more than 100,000
    steps or bytes fails."""
    try:
        found: SqliteEngine = _local.small
    except AttributeError:
        found = _local.small = SqliteEngine(max_ticks=100, max_bytes=100_000)
    return found


_PLACEHOLDER: Final = re.compile(r"'(?:[^']|'')*'|\?(\d+)")


def renumber(sql: str, targets: Sequence[str]) -> str:
    """`sql` with each `?i` outside of quotes replaced by `targets[i - 1]`."""
    return _PLACEHOLDER.sub(lambda match: targets[int(match[1]) - 1] if match[1] else match[0], sql)


def used(sql: str) -> list[int]:
    """The numbers of the `?i` outside of quotes."""
    return [int(match[1]) for match in _PLACEHOLDER.finditer(sql) if match[1]]


def select_sql(values: Sequence[str], arrays: Sequence[str], filters: Sequence[str]) -> str:
    """The SELECT of values over the elements of JSON arrays, called e0, e1 …, in every combination that passes the
    filters."""
    sql = f"SELECT {', '.join(values) or '1'}"
    if arrays:
        sql += " FROM " + ", ".join(f"json_each({array}) AS e{number}" for number, array in enumerate(arrays))
    return sql + (f" WHERE {' AND '.join(filters)}" if filters else "")


def _parameters(sql: str) -> int:
    return max(used(sql), default=0)


def _authorize(action: int, first: str | None, second: str | None, _database: str | None, _trigger: str | None) -> int:
    if action not in _ALLOWED_ACTIONS:
        return apsw.SQLITE_DENY
    if action == apsw.SQLITE_READ and first != "json_each":
        return apsw.SQLITE_DENY
    if action == apsw.SQLITE_FUNCTION and second not in _ALLOWED_FUNCTIONS:
        return apsw.SQLITE_DENY
    return apsw.SQLITE_OK
