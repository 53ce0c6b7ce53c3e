"""No rule reaches the present moment, chance, a file or code, whatever it calls and whatever a row holds."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.compiler.functions import KNOWN
from headwater_rules.errors import EvaluationError, SyncConfigError
from headwater_rules.evaluate import natives
from headwater_rules.evaluate.engine import SqliteEngine, engine
from headwater_rules.plan import Value
from tests.unit.rules.rules_values import value_of

MOMENT_WORDS = ["now", "NOW", "Now", "subsec", "subsecond", " now", "now\0", "now\0x", b"now", b"subsec", b"now\0"]


@pytest.mark.parametrize("word", MOMENT_WORDS)
@pytest.mark.parametrize(
    "expression",
    ["unixepoch(a)", "datetime(a)", "date(a)", "time(a)", "julianday(a)", "strftime('%s', a)", "datetime(a, '+1 day')",
     "datetime(a, 'subsec')", "unixepoch(a || '')", "unixepoch(ifnull(a, 0))", "datetime(a::blob)"],
)  # fmt: skip
def test_now_in_values(expression: str, word: Value) -> None:
    assert value_of(expression, word) is None


def test_now_in_literals() -> None:
    assert value_of("datetime('now')") is None
    assert value_of("datetime('n' || 'ow')") is None
    assert value_of("datetime(a ->> 'x')", '{"x":"now\\u0000"}') is None
    assert value_of("datetime(ifnull('subsec', a))") is None


FORBIDDEN = re.compile(
    r"random|now|current|load_extension|readfile|writefile|edit|fts|rtree|geopoly|sqlite_|changes|last_insert|log$"
)


def test_reached_functions() -> None:
    everything = {name for (name,) in apsw.Connection(":memory:").execute("SELECT name FROM pragma_function_list")}
    assert len(everything) > 100
    calls = [(name, call) for name in sorted(everything | natives.FUNCTIONS.keys() | KNOWN) for call in calls_of(name)]
    columns = ",\n".join(f"      {call} AS v{number}" for number, (_, call) in enumerate(calls))
    query = f"query: |\n      SELECT\n{columns}\n      FROM t\n"
    with pytest.raises(SyncConfigError) as caught:
        compile_config(f"config: {{edition: 3}}\nstreams:\n  s:\n    {query}")
    refused = {error.span.line for error in caught.value.errors if error.span}
    reached = {name for line, (name, _) in enumerate(calls, start=6) if line not in refused}
    assert reached == KNOWN
    assert not [name for name in reached if FORBIDDEN.search(name)]


def calls_of(function: str) -> list[str]:
    """Calls of up to three arguments, one of which suits each function that a rule may call."""
    calls = [f'"{function}"({", ".join(["a"] * count)})' for count in range(4)]
    return [*calls, f"\"{function}\"(a, '$.k')"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT load_extension('x')", "SELECT random()", "SELECT randomblob(4)", "SELECT current_timestamp",
        "SELECT fts5_source_id()", "SELECT count(*) FROM sqlite_master", "SELECT * FROM pragma_database_list",
        "SELECT printf('%100d', 1)", "SELECT readfile('/etc/passwd')",
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
        "PRAGMA writable_schema = 1", "PRAGMA user_version", "CREATE TABLE x (y)", "ATTACH ':memory:' AS other",
    ],
)  # fmt: skip
def test_engine_refuses(sql: str) -> None:
    with pytest.raises(EvaluationError, match=r"not authorized|prohibited|no such function"):
        engine().rows(sql, ())


def test_engine_refuses_vacuum() -> None:
    with pytest.raises(EvaluationError):
        engine().rows("VACUUM", ())


def test_engine_writes_no_file(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError):
        engine().rows(f"ATTACH '{tmp_path / 'x.db'}' AS other", ())
    with pytest.raises(EvaluationError):
        engine().rows(f"VACUUM INTO '{tmp_path / 'x.db'}'", ())
    assert list(tmp_path.iterdir()) == []


def test_engine_time_limit() -> None:
    few_steps = "SELECT value FROM json_each(?1) WHERE replace(?2, 'a', value) = 'b'"
    bindings = ("[" + "1," * 1000 + "1]", "a" * 1000)
    assert engine().rows(few_steps, bindings) == []
    with pytest.raises(EvaluationError, match="too long"):
        SqliteEngine(max_seconds=0).rows(few_steps, bindings)
