"""Random queries that are followed row by row (time windows, absence, left joins, joined columns, ranges between rows)
over random data, on the whole service: after random changes, devices that keep what they are sent over HTTP have what
Postgres answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from math import isinf
from random import Random
from uuid import UUID

import httpx
import pytest

from headwater_rules.compiler.compile import findings_in
from headwater_rules.errors import RuleCode, Severity
from tests.support.examples import ALL
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import Service
from tests.support.model_client import ModelClient
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

STREAMS, ROUNDS, SEEDS = (25, 10, 40) if ALL else (15, 3, 2)
USERS = ("ann", "bob")
START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

SCHEMA = """
set timezone = 'UTC';
create table t (id text primary key, u text, r text, a int, b int, f double precision, s text, flag bool,
    at timestamptz, ts timestamp, d date, k uuid, n numeric(6, 2), big text);
create table m (id text primary key, r text, t text, a int, s text, flag bool, d date, n numeric(6, 2), big text);
create table o (id text primary key, a int, s text);
alter table t alter big set storage external; alter table m alter big set storage external;
"""
COLUMNS = {
    "t": ("u", "r", "a", "b", "f", "s", "flag", "at", "ts", "d", "k", "n", "big"),
    "m": ("r", "t", "a", "s", "flag", "d", "n", "big"),
    "o": ("a", "s"),
}
COUNTS = {"t": 20, "m": 10, "o": 6}
VALUES: Mapping[str, Callable[[Random], object]] = {
    "u": lambda random: random.choice(("ann", "bob", "cat")),
    "r": lambda random: str(random.randrange(10)),
    "t": lambda random: str(random.randrange(20)),
    "a": lambda random: random.randrange(5),
    "b": lambda random: random.randrange(5),
    "f": lambda random: random.choice((0.5, -2.25, 1e-9, 1e21, 3.0, float("inf"))),
    "s": lambda random: random.choice(("x", "", "Straße", "o'clock", "\U0001f600")),
    "flag": lambda random: random.random() < 0.5,
    "at": lambda random: START + timedelta(minutes=random.randrange(-14_400, 14_400)),
    "ts": lambda random: (START + timedelta(minutes=random.randrange(-14_400, 14_400))).replace(tzinfo=None),
    "d": lambda random: (START + timedelta(days=random.randrange(-10, 10))).date(),
    "k": lambda random: UUID(int=random.randrange(3)),
    "n": lambda random: random.choice((Decimal("1.50"), Decimal(2), Decimal("-0.01"))),
    "big": lambda random: random.choice("xyz") * 9_000,
}


def value(random: Random, column: str) -> object:
    return None if random.random() < 0.15 else VALUES[column](random)


def change(source: SourceDb, random: Random) -> bool:
    """A statement that changes some rows. Whether rows that depend on these change in the same checkpoint."""
    table = random.choice(list(COLUMNS))
    row_id, column = str(random.randrange(COUNTS[table])), random.choice(COLUMNS[table])
    kind = random.random()
    if kind < 0.45:
        columns = ("id", *COLUMNS[table])
        marks, changed = ", ".join(["%s"] * len(columns)), ", ".join(f"{c} = excluded.{c}" for c in COLUMNS[table])
        statement = f"insert into {table} values ({marks}) on conflict (id) do update set {changed}"
        source.execute(statement, row_id, *(value(random, each) for each in COLUMNS[table]))
    elif kind < 0.7:
        source.execute(f"update {table} set {column} = %s where id = %s", value(random, column), row_id)
    elif kind < 0.8:
        changed = f"update {table} set {column} = %s where id::int %% 3 = %s"
        source.execute(changed, value(random, column), random.randrange(3))
    elif kind < 0.85:
        free = f"not exists (select from {table} where id = %s)"
        other = str(random.randrange(COUNTS[table]))
        source.execute(f"update {table} set id = %s where id = %s and {free}", other, row_id, other)
    elif kind < 0.86:
        source.execute(f"truncate {table}")
        return False
    else:
        source.execute(f"delete from {table} where id = %s", row_id)
    return True


# queries


def any_of(random: Random, *texts: str) -> str:
    return random.choice(texts)


def combined(random: Random, atom: Callable[[], str], depth: int = 2) -> str:
    if depth == 0 or random.random() < 0.4:
        return atom()
    between = random.choice((" AND ", " OR "))
    return f"({between.join(combined(random, atom, depth - 1) for _ in range(2))})"


def own(random: Random, t: str) -> str:
    """A condition on a row alone. Where it is null, so it is in SQL."""
    k = random.randrange(5)
    return any_of(
        random,
        f"{t}.a > {k}",
        f"{t}.a = {t}.b",
        f"{t}.a BETWEEN {k} AND {k + 2}",
        f"{t}.s IN ('x', '')",
        f"{t}.s IS NULL",
        f"{t}.flag",
        f"{t}.flag IS NOT TRUE",
        f"{t}.a IS DISTINCT FROM {k}",
        f"coalesce({t}.a, 0) < {k}",
        f"{t}.f >= {k}.5",
        f"{t}.u = auth.user_id()",
        f"{t}.k = '{UUID(int=1)}'",
    )


def window(random: Random, t: str) -> str:
    column = random.choice(("at", "ts", "d"))
    now = any_of(random, "now()", "now() - interval '3 days'", "now() + interval '1 day 02:00'")
    of = any_of(random, f"{t}.{column}", f"{t}.{column} + interval '36 hours'", f"{t}.{column} - interval '1 month'")
    compared = any_of(random, f"{of} > {now}", f"{of} <= {now}", f"{now} < {of}", f"{now} >= {of}")
    between = f"{of} BETWEEN now() - interval '2 days' AND now() + interval '2 days'"
    absent = f"({t}.{column} IS NOT NULL AND NOT ({compared}))"
    return any_of(random, compared, compared, between, absent, f"{t}.d BETWEEN current_date AND current_date + 3")


def of_other(random: Random, m: str) -> str:
    k = random.randrange(4)
    return any_of(
        random, f"{m}.a > {k}", f"{m}.s = 'x'", f"{m}.s IS NOT NULL", f"{m}.a = {k}", f"coalesce({m}.a, 1) = 1"
    )


def absence(random: Random, t: str) -> str:
    m, o = of_other(random, "m"), of_other(random, "o")
    return any_of(
        random,
        f"{t}.r NOT IN (SELECT id FROM m WHERE {m})",
        f"{t}.r NOT IN (SELECT r FROM m WHERE {m})",
        f"{t}.a NOT IN (SELECT a FROM o WHERE {o})",
        f"{t}.a NOT IN (SELECT a FROM o WHERE a IS NOT NULL)",
        f"{t}.d NOT IN (SELECT d FROM m WHERE m.flag AND d IS NOT NULL)",
        f"NOT EXISTS (SELECT 1 FROM m WHERE m.t = {t}.id)",
        f"NOT EXISTS (SELECT 1 FROM m WHERE m.t = {t}.id AND {m})",
        f"NOT EXISTS (SELECT 1 FROM m WHERE m.a = {t}.a AND m.s = {t}.s AND {m})",
        f"NOT EXISTS (SELECT 1 FROM m WHERE m.t = {t}.id OR m.id = {t}.r)",
        f"NOT EXISTS (SELECT 1 FROM m WHERE m.n = {t}.n)",
        f"NOT EXISTS (SELECT 1 FROM m WHERE m.id = {t}.r AND NOT EXISTS (SELECT 1 FROM o WHERE o.id = m.r AND {o}))",
        f"NOT EXISTS (SELECT 1 FROM m WHERE m.t = {t}.id AND m.r NOT IN (SELECT id FROM o WHERE {o}))",
        f"{t}.r IN (SELECT id FROM m WHERE {m})",
        f"{t}.r IN (SELECT id FROM m WHERE m.r NOT IN (SELECT id FROM o WHERE {o}))",
    )


def of_joined(random: Random, t: str, *, two: bool) -> str:
    k = random.randrange(4)
    more = ("o.a > 1", "o.id IS NULL", "coalesce(o.a, 2) = m.a", f"o.a >= {t}.a", "o.s = m.s") if two else ()
    return any_of(
        random,
        "m.id IS NULL",
        "m.id IS NULL",
        "m.id IS NOT NULL",
        "m.a IS NULL",
        f"m.a >= {t}.a",
        f"{t}.d < m.d",
        f"{t}.a BETWEEN m.a AND m.a + 2",
        f"coalesce(m.a, 0) < {k}",
        f"m.a = {t}.a",
        f"m.s = {t}.s",
        f"m.s > {t}.id",
        "m.s IN ('x', '')",
        "m.flag",
        "coalesce(m.flag, false)",
        f"m.a IS DISTINCT FROM {t}.a",
        f"CASE WHEN m.a = {k} THEN true ELSE false END",
        "NOT EXISTS (SELECT 1 FROM o x WHERE x.s = m.s)",
        f"m.n = {t}.n",
        *more,
        *more,
    )


def query(random: Random, t: str) -> str:
    """A query of a stream that is called `t`."""

    def alone() -> str:
        return random.choice((own, window, window, absence, absence))(random, t)

    shown = f"{t}.id, {t}.a, {t}.s, {t}.{random.choice(COLUMNS['t'])} AS more"
    if random.random() < 0.45:
        return f"SELECT {shown} FROM t AS {t} WHERE {combined(random, alone)}"
    two = random.random() < 0.4
    kind = any_of(random, "LEFT JOIN", "LEFT JOIN", "JOIN")
    on = any_of(random, f"m.id = {t}.r", f"m.id = {t}.r", f"m.t = {t}.id")
    if random.random() < 0.3:
        on += " AND " + any_of(random, "m.a > 1", "m.flag", f"{t}.a = 1", "m.s = 'x'", f"m.a >= {t}.b")
    second = any_of(
        random, " LEFT JOIN o ON o.id = m.r", " LEFT JOIN o ON o.id = m.r AND o.a > 1", " JOIN o ON o.id = m.r"
    )

    def both() -> str:
        return alone() if random.random() < 0.3 else of_joined(random, t, two=two)

    if random.random() < 0.6 and "m.id" in on:
        shown += f", m.{random.choice(COLUMNS['m'])} AS other" + (", o.s AS third" if two else "")
    where = f" WHERE {combined(random, both)}" if random.random() < 0.85 else ""
    return f"SELECT {shown} FROM t AS {t} {kind} m ON {on}{second if two else ''}{where}"


def accepted(text: str) -> bool:
    """Whether the rules take it, and each row is joined to one at most."""
    found = findings_in(config({"q": text}), None)
    several = any(finding.code is RuleCode.ONE_OF_SEVERAL for finding in found)
    return not several and not any(finding.severity is Severity.FATAL for finding in found)


def drawn(random: Random, name: str) -> str:
    """A query that the rules accept."""
    while not accepted(text := query(random, name)):
        pass
    return text


def config(queries: Mapping[str, str]) -> str:
    opened = "    accept_potentially_dangerous_queries: true\n    auto_subscribe: true"
    return auto_streams(**queries).replace("    auto_subscribe: true", opened)


# both sides


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> int:
        return (self.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def asked(self, text: str) -> str:
        """A query as of this time."""
        at = f"timestamptz '{self.now.isoformat()}'"
        return text.replace("now()", at).replace("current_date", f"({at})::date")


Rows = dict[str, dict[str, object]]


def answer(source: SourceDb, text: str) -> Rows:
    """What Postgres answers, by id, as devices have it."""
    cursor = source.connection.execute(text.encode())
    names = [column.name for column in cursor.description or ()]
    rows: Rows = {}
    for row in cursor.fetchall():
        shown = {name: as_device(value) for name, value in zip(names, row, strict=True)}
        shown = {name: value for name, value in shown.items() if value is not None}
        assert rows.setdefault(str(shown["id"]), shown) == shown, "a row is joined to several"
    return rows


def as_device(value: object) -> object:
    match value:
        case bool():
            return int(value)
        case float():
            return "Infinity" if isinf(value) else value
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%S.%f") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case _:
            return value


@dataclass
class Device:
    """One that comes again and again, and keeps what it was sent."""

    service: Service
    user: str
    client: ModelClient = field(default_factory=ModelClient)

    def rows(self, op_id: int) -> dict[str, Rows]:
        """Its rows by table, at a checkpoint that has this op."""
        positions = [{"name": name, "after": str(at)} for name, at in self.client.connect().items()]
        headers = {"authorization": f"Token {self.service.token(self.user)}"}
        url, body = f"{self.service.endpoint}/sync/stream", {"raw_data": True, "buckets": positions}
        with httpx.stream("POST", url, json=body, headers=headers, timeout=60) as response:
            for line in response.iter_lines():
                self.client.receive(line.encode() + b"\n")
                complete = json.loads(line).get("checkpoint_complete")
                if complete is not None and int(complete["last_op_id"]) >= op_id:
                    break
        self.client.lines.clear()
        found: dict[str, Rows] = {}
        for (table, row_id), row in self.client.rows.items():
            found.setdefault(table, {})[row_id] = {name: value for name, value in row.items() if value is not None}
        return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_devices_have_answers_of_postgres(
    deploy: Deploy, source_db: SourceDb, serve: Callable[..., Service], seed: int
) -> None:
    """Even seeds are of the embedded store, odd ones of Postgres'."""
    random, clock = Random(seed), Clock()
    source_db.execute(SCHEMA)
    for table in COLUMNS:
        if random.random() < 0.3:
            source_db.execute(f"alter table {table} replica identity full")
    for _ in range(100):
        change(source_db, random)
    asked = {name: drawn(random, name) for name in (f"q{number}" for number in range(STREAMS))}
    deployment = deploy(config(asked), on_postgres=seed % 2 == 1)
    deployment.clock = clock
    deployment.start()
    service = serve(deployment)
    devices = [Device(service, user) for user in USERS]
    for number in range(ROUNDS):
        if number == ROUNDS // 2:  # some queries are edited
            asked |= {name: drawn(random, name) for name in random.sample(sorted(asked), STREAMS // 3)}
            assert deployment.redeploy(config(asked)).note == ""
        strict = True
        for _ in range(random.randint(1, 12)):
            strict &= change(source_db, random)
        clock.now += timedelta(hours=random.randrange(20))
        agree(deployment, devices, asked, clock, strict=strict)


def agree(
    deployment: Deployment, devices: list[Device], asked: Mapping[str, str], clock: Clock, *, strict: bool
) -> None:
    """A stream without the time is right in each checkpoint, if it is `strict`; others once what came due is there."""

    def wrong() -> dict[str, str]:
        op_id, found = deployment.caught_up(), dict[str, str]()
        for device in devices:
            there = device.rows(op_id)
            for name, text in asked.items():
                sql = clock.asked(text).replace("auth.user_id()", f"'{device.user}'")
                seen, right = there.get(name, {}), answer(deployment.source, sql)
                if seen != right:
                    found[f"{name} of {device.user}"] = f"{text}: {differing(seen, right)}"
        return found

    found = wrong()
    late = {name: text for name, text in found.items() if "now()" not in text and "current_date" not in text}
    assert not (strict and late), "\n".join(f"{name}: {what}" for name, what in late.items())
    if found:
        with suppress(AssertionError):
            wait_until(lambda: wrong() == {}, "what came due", 20)
        assert wrong() == {}


def differing(seen: Rows, right: Rows) -> str:
    """Rows that only one of them has."""
    keys = [each for each in sorted(seen.keys() | right.keys()) if seen.get(each) != right.get(each)]
    return "; ".join(f"{str(seen.get(each))[:300]} is {str(right.get(each))[:300]}" for each in keys[:3])
