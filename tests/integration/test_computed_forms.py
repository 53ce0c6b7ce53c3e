"""Forms of queries that rules refuse, as computed tables: a device has Postgres' answer after changes, after a deploy,
after a crash at each failpoint of a refresh, and after an audit. All forms live in one service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from tests.integration.test_computed_tables import REFRESH_POINTS
from tests.support.computed_truth import Rows, answer, config_of_queries, on_device
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import Connection, databases
from tests.support.fix_processes import Launch, launching
from tests.support.fix_service import config_of, free_port
from tests.support.local_bulk import local_bulk
from tests.support.waiting import wait_until

DATA = """
create table orders (id int primary key, account text not null, amount numeric(9, 2), open bool not null);
insert into orders select i, 'a' || i % 9, i * 7 % 101, i % 3 = 0 from generate_series(1, 200) i;
create table accounts (account text primary key, region text);
insert into accounts select 'a' || i, 'r' || i % 2 from generate_series(1, 6) i;
create view seen as select id, account, amount from orders where open;
"""
FORMS = {
    "top_n": ("SELECT id, amount FROM {orders} ORDER BY amount DESC, id LIMIT 10", ["id"]),
    "count": ("SELECT count(*) AS n FROM {orders} WHERE open", ["n"]),
    "sum": ("SELECT 'all' AS of, sum(amount) AS total FROM {orders}", ["of"]),
    "group": ("SELECT account, open, sum(amount) AS total FROM {orders} GROUP BY account, open", ["account", "open"]),
    "distinct": ("SELECT DISTINCT account, id % 4 AS rest FROM {orders}", ["account", "rest"]),
    "view": ("SELECT s.id, s.amount FROM seen s JOIN {orders} USING (id)", ["id"]),
    "window": ("SELECT id, rank() OVER (PARTITION BY account ORDER BY amount, id) AS place FROM {orders}", ["id"]),
    "left_join": ("SELECT o.id, a.region FROM {orders} LEFT JOIN accounts a USING (account)", ["id"]),
    "not_exists": (
        "SELECT o.id FROM {orders} WHERE NOT EXISTS (SELECT FROM accounts a WHERE a.account = o.account)",
        ["id"],
    ),
    "range": (
        "SELECT o.id, count(b.id) AS near FROM {orders} JOIN orders b ON abs(b.amount - o.amount) <= 1 GROUP BY o.id",
        ["id"],
    ),
}
STAGES = ("stream", "deploy", *REFRESH_POINTS, "audit")

Queries = dict[str, tuple[str, list[str]]]


def queries(orders: str, more: str = "") -> Queries:
    """The forms over rows of `orders` that satisfy a condition, with one more column if a name is given."""
    of = f"(SELECT * FROM orders WHERE {orders}) o"
    column = f", 1 AS {more}" if more else ""
    return {
        f"form_{name}": (f"SELECT q.*{column} FROM ({query.format(orders=of)}) q", key)
        for name, (query, key) in FORMS.items()
    }


def changes(number: int) -> str:
    """Statements that change the answers of all forms, each time others."""
    return f"""
update orders set amount = amount + {number}.50 where id % 11 = {number}; delete from orders where id % 37 = {number};
insert into orders select {1000 * number} + i, 'b' || i, 90 + i, i % 2 = 0 from generate_series(1, 5) i;
update orders set open = not open where id % 13 = {number}; delete from accounts where account = 'a{number}';
"""


Seen = dict[str, tuple[Rows, Rows]]


def seen(deployment: Deployment, asked: Queries) -> Seen:
    """What a device has, and what Postgres answers, by table, once both are the same, or do not become so."""
    found: Seen = {}

    def same() -> bool:
        there = on_device(deployment)
        found.update({name: (there.get(name, []), answer(deployment, query)) for name, (query, _) in asked.items()})
        return all(device == source for device, source in found.values())

    with suppress(AssertionError):  # the tests of the cells say which
        wait_until(same, "the answers of Postgres", 30)
    return found


@pytest.fixture(scope="module")
def life(
    postgres: EmbeddedPostgres, maintenance: Connection, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Seen]]:
    """What was seen at each stage of the life of one service."""
    folder = tmp_path_factory.mktemp("forms")
    with ExitStack() as stack:
        launch = stack.enter_context(launching(folder))
        source = stack.enter_context(databases(postgres, maintenance))()
        source.execute(DATA)
        asked = queries("true")
        deployment = Deployment(source, folder / "store", config_of_queries(asked, REFRESH), local_bulk())
        stack.callback(deployment.close_whole)
        deployment.start()
        yield lived(deployment, asked, launch)


REFRESH = "{after: auto, least: 0s}"


def lived(deployment: Deployment, asked: Queries, launch: Launch) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    seen(deployment, asked)
    deployment.source.execute(changes(1))
    found["stream"] = seen(deployment, asked)
    asked = queries("id % 5 > 0")
    deployment.redeploy(config_of_queries(asked, REFRESH))
    found["deploy"] = seen(deployment, asked)
    for number, point in enumerate(REFRESH_POINTS, 2):
        deployment.stop_and_let_go()
        deployment.source.execute(changes(number))
        asked = queries(f"id % 6 <> {number}", more=f"more_{number}")
        deployment.yaml = config_of_queries(asked, REFRESH)
        launch("replicate", config_of(deployment, free_port()), failpoint=f"{point}:3").died_at(point)
        deployment.start()
        found[point] = seen(deployment, asked)
    deployment.redeploy(config_of_queries(asked, "{every: 1d}"))
    before = {name: answer(deployment, query) for name, (query, _) in asked.items()}
    deployment.source.execute(changes(6))
    changed = {name for name, (query, _) in asked.items() if answer(deployment, query) != before[name]}
    compared = deployment.ask("audit", tables=[])["computed"]
    assert {each["table"] for each in compared if not each["problem"]} == asked.keys()
    assert {each["table"] for each in compared if each["differ"]} == changed
    deployment.ask("audit", tables=[], repair=True)
    found["audit"] = seen(deployment, asked)
    return found


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("form", FORMS)
def test_device_has_answer_of_postgres(life: dict[str, Seen], form: str, stage: str) -> None:
    device, source = life[stage][f"form_{form}"]
    assert device == source
    assert source
