"""Random queries with left joins give a device what Postgres answers, after random changes too."""

from __future__ import annotations

import random

import psycopg
import pytest

from headwater_rules.compiler.compile import findings_in
from headwater_rules.errors import RuleCode, Severity
from headwater_rules.testing.rules_test import RulesTest
from tests.support.fix_postgres import SourceDb

COLUMNS = {"t": ("k", "n", "u"), "m": ("t", "k", "n", "u"), "o": ("k", "n", "u")}
FIRST = (
    "m.t = t.id",
    "m.id = t.k",
    "m.id = t.k AND m.n > 1",
    "m.t = t.id AND m.n > 1",
    "m.t = t.id AND m.u = 'ann'",
    "m.t = t.id AND t.k = 1",
    "m.t = t.id OR m.id = t.k",
    "m.k = t.k AND m.u = auth.user_id()",
)
SECOND = ("", " LEFT JOIN o ON o.id = m.k", " LEFT JOIN o ON o.k = t.k AND o.n < 3", " JOIN o ON o.id = m.k")
ATOMS = (
    "t.u = auth.user_id()", "t.k > 1", "t.k IS NULL", "m.u = auth.user_id()", "m.n IN (1, 2)", "m.id IS NOT NULL",
    "m.n > 0", "coalesce(m.n, 0) = 1", "CASE WHEN m.n = 1 THEN true ELSE false END", "m.n = t.n",
    "m.k IN (SELECT id FROM o WHERE u = auth.user_id())", "EXISTS (SELECT 1 FROM o x WHERE x.n = m.n AND x.k = t.k)",
    "t.id IN (SELECT a.t FROM m a LEFT JOIN o b ON b.id = a.k WHERE a.n = 2 OR b.u = auth.user_id())",
    "m.id IS NULL", "coalesce(m.n, 1) = 1", "m.n IS DISTINCT FROM 2", "coalesce(m.k, 2) = t.k",
)  # fmt: skip
OF_SECOND = ("o.u = auth.user_id()", "o.n = m.n", "o.n > 1")
USERS = ("ann", "bob")
MISSING = ATOMS[-4:]
"""May hold where there is no row."""


def _condition(chance: random.Random, atoms: tuple[str, ...], depth: int = 2) -> str:
    if depth == 0 or chance.random() < 0.3:
        return chance.choice(atoms)
    between = chance.choice((" AND ", " OR "))
    return f"({between.join(_condition(chance, atoms, depth - 1) for _ in range(2))})"


def _values(chance: random.Random, table: str) -> dict[str, object]:
    return {
        name: chance.choice(("ann", "bob", "cat", None)) if name == "u" else chance.choice((None, 1, 2, 3))
        for name in COLUMNS[table]
    }


class _Both:
    """The same rows in Postgres and under the rules."""

    def __init__(self, connection: psycopg.Connection, rules: RulesTest) -> None:
        self._connection, self._rules = connection, rules
        self._read = {definition.table.name for definition in rules.plan.lookups}
        self._read |= {source.table.name for bucket in rules.plan.buckets for source in bucket.sources}
        self._there: set[tuple[str, int]] = set()
        for table in COLUMNS:
            connection.execute(f"truncate {table}".encode())

    def put(self, table: str, number: int, values: dict[str, object]) -> None:
        self.take(table, number)
        names = ", ".join(values)
        marks = ", ".join(["%s"] * len(values))
        query = f"insert into {table} (id, {names}) values (%s, {marks})"
        self._connection.execute(query.encode(), [number, *values.values()])
        if table in self._read:
            self._rules.insert(table, {"id": number, **values})
        self._there.add((table, number))

    def take(self, table: str, number: int) -> None:
        if (table, number) in self._there:
            self._connection.execute(f"delete from {table} where id = %s".encode(), [number])
            if table in self._read:
                self._rules.delete(table, {"id": number})
            self._there.remove((table, number))

    def compare(self, query: str) -> None:
        for user in USERS:
            asked = query.replace("auth.user_id()", f"'{user}'")
            expected = {row[0] for row in self._connection.execute(asked.encode())}
            held = {int(str(row["id"])) for row in self._rules.client(user).table("t")}
            assert held == expected, f"{query} for {user}"


@pytest.mark.parametrize("seed", range(6))
def test_left_joins_as_postgres(source_db: SourceDb, seed: int) -> None:
    chance = random.Random(seed)
    compared = 0
    with psycopg.connect(source_db.dsn, autocommit=True) as connection:
        for table, names in COLUMNS.items():
            columns = ", ".join(f"{name} {'text' if name == 'u' else 'int'}" for name in names)
            connection.execute(f"create table {table} (id int primary key, {columns})".encode())
        for _ in range(60):
            second = chance.choice(SECOND)
            where = _condition(chance, ATOMS + OF_SECOND if second else ATOMS)
            query = f'SELECT t.* FROM t AS "t" LEFT JOIN m ON {chance.choice(FIRST)}{second} WHERE {where}'
            config = (
                "config: {edition: 3}\nstreams:\n  s:\n    auto_subscribe: true\n"
                f"    accept_potentially_dangerous_queries: true\n    query: |\n      {query}\n"
            )
            found = findings_in(config, None)
            if any(finding.severity is Severity.FATAL for finding in found) and any(atom in where for atom in MISSING):
                continue  # where its ON compares with the request, say
            if any(finding.code is RuleCode.ONE_OF_SEVERAL for finding in found):
                continue  # of several rows one counts
            rules = RulesTest.of_text(config)
            both = _Both(connection, rules)
            for table in COLUMNS:
                for number in range(1, 6):
                    both.put(table, number, _values(chance, table))
            both.compare(query)
            for _ in range(6):
                table, number = chance.choice(tuple(COLUMNS)), chance.randint(1, 6)
                if chance.random() < 0.3:
                    both.take(table, number)
                else:
                    both.put(table, number, _values(chance, table))
                both.compare(query)
            compared += 1
    assert compared > 15
