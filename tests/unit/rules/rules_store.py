"""A store of dictionaries around the rules: rows go in, and what a user sees comes out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import pytest

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleError, Span, SyncConfigError
from headwater_rules.evaluate.requests import resolve
from headwater_rules.evaluate.rows import TableProgram, bind_table
from headwater_rules.plan import SyncPlan, Value
from headwater_rules.results import Put, Resolution, StreamSubscription, SyncRequest

Rows = Mapping[str, Sequence[Mapping[str, Value]]]


def plan_of(*queries: str, stream: str = "s") -> SyncPlan:
    """The plan of one automatic stream."""
    lines = ["config: {edition: 3}", "streams:", f"  {stream}:", "    auto_subscribe: true"]
    lines += ["    accept_potentially_dangerous_queries: true", "    queries:"]
    for query in queries:
        lines += ["      - |", *(f"        {line}" for line in query.splitlines())]
    return compile_config("\n".join(lines) + "\n").plan


def errors_of(text: str) -> SyncConfigError:
    """What is wrong with a config that is refused."""
    with pytest.raises(SyncConfigError) as caught:
        compile_config(text)
    return caught.value


def place_of(error: RuleError) -> Span:
    assert error.span is not None
    return error.span


def bound(plan: SyncPlan, table: str, columns: Sequence[str]) -> TableProgram:
    """The program of a table that the plan reads."""
    program = bind_table(plan, "default", "public", table, columns)
    assert program is not None
    return program


class RuleStore:
    """Evaluates every row once, as replication would; then answers requests."""

    def __init__(self, plan: SyncPlan, tables: Rows) -> None:
        self.plan = plan
        self.puts: list[Put] = []
        self.errors: list[str] = []
        self._lookups: dict[str, list[str]] = {}
        for table, rows in tables.items():
            for number, row in enumerate(rows):
                program = bind_table(plan, "default", "public", table, list(row))
                if program is None:
                    continue
                result = program.evaluate(list(row.values()), f"{table}-{number}")
                self.puts += result.puts
                self.errors += result.errors
                for entry in result.lookups:
                    self._lookups.setdefault(entry.key, []).append(entry.output)

    def read(self, keys: Sequence[str]) -> dict[str, list[str]]:
        return {key: self._lookups[key] for key in keys if key in self._lookups}

    def resolve(self, claims: Mapping[str, object], *subscriptions: StreamSubscription) -> Resolution:
        return resolve(self.plan, SyncRequest(claims, subscriptions=subscriptions), self.read)

    def visible(self, claims: Mapping[str, object], *subscriptions: StreamSubscription) -> set[tuple[str, str]]:
        """(table, id) of every row in a bucket of the user."""
        names = {bucket.name for bucket in self.resolve(claims, *subscriptions).buckets}
        return {(put.table, put.id) for put in self.puts if put.bucket in names}


def truthy(*arguments: Value) -> int:
    """What the language takes for true, said in another way than the planner says it."""
    (value,) = arguments
    if isinstance(value, str):
        prefix = re.match(r"\s*[+-]?\d+", value)
        return int(prefix is not None and int(prefix[0]) != 0)
    return int(isinstance(value, int | float) and value != 0)
