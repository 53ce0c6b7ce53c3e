"""Random queries of computed tables over random data: at each refresh, a device has what Postgres answers."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.computed_truth import answer, config_of_queries, on_device, refresh_all
from tests.support.examples import ALL, examples
from tests.support.fix_headwater import Deploy
from tests.support.fix_postgres import SourceDb

TABLES, ROUNDS = (25, 20) if ALL else (12, 3)
SEEDS = range(examples(20))

SCHEMA = """
create table accounts (id int primary key, region text, rank int);
create table orders (id int primary key, account int, amount numeric(9, 2), state text, open bool not null);
"""
STATES = ("new", "paid", "Straße", "o'clock", "")

Query = tuple[str, list[str]]


def change(random: Random) -> str:
    """A statement that changes some rows."""
    account, number = random.randrange(12), random.randrange(60)
    state, amount = random.choice(STATES).replace("'", "''"), f"{random.randrange(-500, 9_000) / 100:.2f}"
    order, some = f"{number}, {account}, {amount}, '{state}', {random.random() < 0.5}", f"{number}, {number + 5}"
    free = f"not exists (select from orders where id = {number + 100})"
    changed = "do update set account = excluded.account, amount = excluded.amount"
    values = f"i, i % 13, i * {account} / 7.0, null, true"
    renamed = "do update set region = excluded.region"
    return random.choice(
        (
            f"insert into orders values ({order}) on conflict (id) {changed}",
            f"insert into orders select {values} from generate_series({some}) i on conflict do nothing",
            f"update orders set state = '{state}', amount = nullif(amount, {amount}) where id % 12 = {account}",
            f"update orders set open = not open, account = nullif(account, {account}) where id % 7 = {account % 7}",
            f"update orders set id = id + 100 where id = {number} and {free}",
            f"delete from orders where id % 10 = {account % 10}",
            f"insert into accounts values ({account}, 'r{number % 3}', {number % 4}) on conflict (id) {renamed}",
            f"update accounts set rank = {number % 5}, region = nullif(region, 'r1') where id % 3 = {account % 3}",
            f"delete from accounts where id = {account}",
        )
    )


def query(random: Random) -> Query:
    """A query that gives the same rows whenever it is asked of the same data, and its key."""
    of = f"(SELECT * FROM orders WHERE {condition(random)}) o"
    return random.choice((_grouped, _newest, _distinct, _window, _joined, _absent, _set, _total, _recursive))(
        random, of
    )


def condition(random: Random) -> str:
    """A condition on orders, maybe of several."""
    one = random.choice(
        (
            "true",
            "open",
            f"amount > {random.randrange(60)}",
            "state IS NOT NULL",
            f"state IN ('{random.choice(('new', 'paid'))}', '')",
            f"id % {random.randrange(2, 5)} = 0",
            f"account NOT IN (SELECT id FROM accounts WHERE rank < {random.randrange(4)})",
        )
    )
    more = random.random()
    return f"({one} {'AND' if more < 0.2 else 'OR'} {condition(random)})" if more < 0.35 else one


def _grouped(random: Random, of: str) -> Query:
    by = random.sample(("coalesce(account, -1) AS who", "coalesce(state, '?') AS state", "open"), random.randint(1, 3))
    names = [each.split(" AS ")[-1] for each in by]
    every = (
        *("count(*) AS n", "sum(amount) AS total", "max(id) AS last", "count(DISTINCT state) AS states"),
        *("min(amount) FILTER (WHERE open) AS least", "string_agg(state, ',' ORDER BY id) AS all_states"),
    )
    values = random.sample(every, random.randint(1, 3))
    having = f" HAVING count(*) > {random.randrange(3)}" if random.random() < 0.4 else ""
    numbers = ", ".join(str(number) for number in range(1, len(by) + 1))
    return f"SELECT {', '.join([*by, *values])} FROM {of} GROUP BY {numbers}{having}", names


def _newest(random: Random, of: str) -> Query:
    by = random.choice(("amount DESC NULLS LAST", 'state COLLATE "C"', "account NULLS FIRST"))
    return f"SELECT id, amount, state FROM {of} ORDER BY {by}, id LIMIT {random.randint(1, 12)}", ["id"]


def _distinct(random: Random, of: str) -> Query:
    if random.random() < 0.5:
        return f"SELECT DISTINCT coalesce(account, 0) AS who, open FROM {of}", ["who", "open"]
    return f"SELECT DISTINCT ON (open) open, id, amount FROM {of} ORDER BY open, amount DESC NULLS LAST, id", ["open"]


def _window(random: Random, of: str) -> Query:
    what = random.choice(("row_number()", "sum(amount)", "lag(state)", "count(*)", "first_value(amount)"))
    by = random.choice(("account", "open", "state"))
    return f"SELECT id, {what} OVER (PARTITION BY {by} ORDER BY amount, id) AS value FROM {of}", ["id"]


def _joined(random: Random, of: str) -> Query:
    kind = random.choice(("LEFT", "INNER", "FULL"))
    key = "coalesce(o.id, -1) AS number, coalesce(a.id, -1) AS who" if kind == "FULL" else "o.id AS number, o.account"
    on = random.choice(("a.id = o.account", "a.id = o.account AND a.rank > 1"))
    names = ["number", "who"] if kind == "FULL" else ["number"]
    return f"SELECT {key}, a.region, o.amount FROM {of} {kind} JOIN accounts a ON {on}", names


def _absent(random: Random, of: str) -> Query:
    no = random.choice(("NOT EXISTS", "EXISTS"))
    return f"SELECT id, state FROM {of} WHERE {no} (SELECT FROM accounts a WHERE a.id = o.account)", ["id"]


def _set(random: Random, of: str) -> Query:
    kind = random.choice(("UNION", "EXCEPT", "INTERSECT"))
    return f"SELECT coalesce(account, -1) AS who FROM {of} {kind} SELECT id FROM accounts", ["who"]


def _total(random: Random, of: str) -> Query:
    nested = f"SELECT account, sum(amount) AS total FROM {of} GROUP BY account"
    what = random.choice(("max(total)", "count(total)", "sum(total)"))
    return f"SELECT 'all' AS of, {what} AS value FROM ({nested}) q", ["of"]


def _recursive(random: Random, of: str) -> Query:
    last = random.randint(2, 9)
    steps = f"WITH RECURSIVE step(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM step WHERE n < {last})"
    return f"{steps} SELECT n, count(o.id) AS orders FROM step LEFT JOIN {of} ON o.account = n GROUP BY n", ["n"]


@pytest.mark.parametrize("seed", SEEDS)
def test_device_has_answer_at_each_refresh(deploy: Deploy, source_db: SourceDb, seed: int) -> None:
    """Even seeds are of the embedded store, odd ones of Postgres'."""
    random = Random(seed)
    source_db.execute(SCHEMA)
    queries = {f"table_{number}": query(random) for number in range(TABLES)}
    deployment = deploy(config_of_queries(queries, "{every: 1d, least: 0s}"), on_postgres=seed % 2 == 1).start()
    for number in range(ROUNDS):
        if number == ROUNDS // 2:  # some queries are edited
            edited = random.sample(sorted(queries), TABLES // 3)
            queries |= {name: query(random) for name in edited}
            assert deployment.redeploy(config_of_queries(queries, "{every: 1d, least: 0s}")).note == ""
        for _ in range(random.randint(1, 8)):
            source_db.execute(change(random))
        refresh_all(deployment, queries)
        there = on_device(deployment)
        for name, (text, _) in queries.items():
            assert there.get(name, []) == answer(deployment, text), f"{name}, round {number}: {text}"
