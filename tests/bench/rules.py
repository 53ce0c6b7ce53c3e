"""The rules alone, on one core: rows evaluated beside what it takes to write them as JSON, rows made into ops beside
the same without generated code, and compiling a large config beside parsing its SQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import orjson
import sqlglot

from headwater.bulk.bound_table import bind
from headwater.decode.types import TypeCatalog
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.keys import StoreKeys
from headwater.oplog.transform import Buckets, DraftOp, TableTransform
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.rows import bind_table
from headwater_rules.plan import Value
from tests.bench import data, report

BEST_OF = 5
COLUMNS = ("id", "list_id", "owner_id", "title", "done", "priority", "tags", "created_at")

_PLAIN = "SELECT * FROM todos WHERE owner_id = auth.user_id() AND NOT done"
_JOIN = "SELECT todos.* FROM todos JOIN lists ON todos.list_id = lists.id WHERE lists.owner_id = auth.user_id()"
_OR = (
    "SELECT * FROM todos WHERE owner_id = auth.user_id() OR list_id IN (SELECT id FROM lists WHERE owner = "
    "auth.user_id()) OR auth.user_id() IN tags OR priority = auth.parameter('level') OR created_at = "
    "auth.parameter('day')"
)
_DEFINITION = """
bucket_definitions:
  by_list:
    parameters: SELECT id AS list_id FROM lists WHERE owner_id = request.user_id()
    data:
      - SELECT * FROM todos WHERE list_id = bucket.list_id
      - SELECT id, title FROM todos WHERE list_id = bucket.list_id AND NOT done
      - SELECT * FROM todos AS urgent WHERE list_id = bucket.list_id AND priority = 1
"""
MANY = 200
"""Streams that ask one table who may see what."""

SHAPES = {
    "plain filter": _PLAIN, "join": _JOIN, "OR of five ways": _OR, "definition of three queries": _DEFINITION,
}  # fmt: skip


def run(rows: int) -> None:
    """Rows of one table through each shape of rules, rows made into ops, then the time to compile 200 streams."""
    values = [_row(number) for number in range(rows)]
    report.heading(f"evaluate {rows:,} rows of {len(COLUMNS)} columns, one core")
    written = rows / _best(lambda: [orjson.dumps(dict(zip(COLUMNS, row, strict=True))) for row in values])
    for name, shape in SHAPES.items():
        _evaluate(name, shape, values, written)
    _evaluate(f"{MANY} lookups", _many_lookups(), values[: rows // MANY], written)
    _make_ops(rows)
    _compile(200)


def _evaluate(name: str, shape: str, values: list[tuple[Value, ...]], written: float) -> None:
    program = bind_table(compile_config(_config(shape)).plan, "default", "public", "todos", COLUMNS)
    assert program is not None
    entries = sum(len(result.puts) + len(result.lookups) for result in (program.evaluate(row, "") for row in values))
    seconds = _best(lambda: [program.evaluate(row, "id") for row in values])
    report.line(f"{name}, {entries / len(values):.1f} entries a row", len(values) / seconds, "rows/s", "JSON", written)


def _compile(streams: int) -> None:
    report.heading(f"compile a config of {streams} streams")
    queries = [_JOIN.replace("todos", f"todos_{number}") for number in range(streams)]
    lines = [f"  s{number}: {{query: {query}}}" for number, query in enumerate(queries)]
    text = "\n".join(["config: {edition: 3}", "streams:", *lines]) + "\n"
    parsed = _best(lambda: [sqlglot.parse_one(query, dialect="postgres") for query in queries])
    report.line("compiled", _best(lambda: compile_config(text)), "s", "its SQL parsed", parsed)


def _make_ops(rows: int) -> None:
    types = {"id": 2950, "owner": 25, "title": 25, "done": 16, "n": 23, "created_at": 1184}
    columns = tuple(Column(name, oid, -1, name == "id") for name, oid in types.items())
    relation = Relation(1, "public", "items", ReplicaIdentity.DEFAULT, columns)
    bound = bind([compile_config(data.STREAMS).plan], "default", relation, TypeCatalog(), 1, StoreKeys(b"secret"))
    assert bound is not None
    assert bound.transform.plain is not None
    generated, general = bound.transform, replace(bound.transform, plain=None)
    report.heading(f"make ops of {rows:,} rows of {len(types)} columns, one core")
    new = [""] * rows
    for what, previous in {"added": new, "changed": _ops_made(generated, 1, new)}.items():
        others = rows / _best(partial(_ops_made, general, 0, previous))
        seconds = _best(partial(_ops_made, generated, 0, previous))
        report.line(f"rows that are {what}", rows / seconds, "rows/s", "in the general way", others)


def _ops_made(transform: TableTransform, version: int, previous: Sequence[str]) -> list[str]:
    """Make ops of rows with `previous` memberships. Returns the memberships after it."""
    ops: list[DraftOp] = []
    buckets: Buckets = {}
    members: list[str] = []
    for number, before in enumerate(previous):
        row_id = f"3c4f2b1a-0000-4000-8000-{number:012d}"
        title = f"title {number} with some more words"
        row = (row_id, f"u{number % 10}", title, "t", str(version), "2026-01-02 03:04:05.6+00")
        members.append(transform.write(before, None, row_id, row, ops, buckets).memberships)
    return members


def _many_lookups() -> str:
    queries = [
        f"  s{number}: {{query: SELECT * FROM t{number} WHERE list_id IN (SELECT list_id FROM todos"
        f" WHERE owner_id = auth.user_id() AND priority > {number % 5} AND title <> 'secret {number}')}}"
        for number in range(MANY)
    ]
    return "\n".join(["config: {edition: 3}", "streams:", *queries]) + "\n"


def _config(shape: str) -> str:
    if shape.startswith("SELECT"):
        return f'config: {{edition: 3}}\nstreams: {{s: {{query: "{shape}"}}}}\n'
    return shape


def _row(number: int) -> tuple[Value, ...]:
    return (
        f"todo-{number}", f"list-{number % 100}", f"user-{number % 50}", f"Water the plants {number}", number % 2,
        number % 5, f'["user-{number % 7}","user-{number % 11}"]', "2026-01-02T03:04:05.000000Z",
    )  # fmt: skip


def _best(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(BEST_OF):
        started = time.process_time()
        work()
        taken.append(time.process_time() - started)
    return min(taken)
