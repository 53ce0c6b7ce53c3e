"""Each form of a query that needs other rows or the time, on both stores: a device that stays connected and a new one
have Postgres' own answer after changes, after a deploy, after a crash at each failpoint of a flush, and after an audit.

All forms live in one service, six as streams that are followed row by row, six as computed tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from headwater.embedded.postgres import EmbeddedPostgres
from headwater.storage.address import PostgresAddress
from tests.support.changed_source import Device, unheard
from tests.support.computed_truth import Rows, answer, by_table, config_of_queries
from tests.support.dying import FLUSH_POINTS, REFRESH_POINTS
from tests.support.fix_headwater import Deployment
from tests.support.fix_postgres import Connection, databases
from tests.support.fix_processes import Launch, launching
from tests.support.fix_service import config_of, free_port
from tests.support.local_bulk import local_bulk
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

DATA = """
set timezone = 'UTC';
create table orders (id int primary key, account text, amount numeric(9, 2), rank int, open bool, at timestamptz);
insert into orders select i, 'a' || i % 9, i * 7 % 101, i % 20, i % 3 = 0, now() - interval '7 hours' * i
    from generate_series(1, 60) i;
create table accounts (id text primary key, region text, least int);
insert into accounts select 'a' || i, case when i % 3 > 0 then 'r' || i % 2 end, i * 2 from generate_series(1, 7) i;
create table blocked (id int primary key, account text, hard bool);
insert into blocked values (0, 'a1', true), (-1, 'a2', true), (-2, 'a3', false);
create view seen as select id, account, amount from orders where open;
"""
FOLLOWED = {
    "time_window": "SELECT o.id, o.rank FROM orders AS {o} WHERE o.at > now() - interval '7 days' AND {only}",
    "ranged": "SELECT o.id, o.rank FROM orders AS {o} JOIN accounts a ON a.id = o.account"
    " WHERE o.rank >= a.least AND {only}",
    "not_in": "SELECT o.id FROM orders AS {o}"
    " WHERE o.account NOT IN (SELECT account FROM blocked WHERE hard) AND {only}",
    "not_exists": "SELECT o.id FROM orders AS {o}"
    " WHERE NOT EXISTS (SELECT 1 FROM blocked b WHERE b.account = o.account AND b.hard) AND {only}",
    "left_join": "SELECT o.id FROM orders AS {o} LEFT JOIN accounts a ON a.id = o.account"
    " WHERE a.region IS NULL AND {only}",
    "joined": "SELECT o.id, a.region, a.least FROM orders AS {o} LEFT JOIN accounts a ON a.id = o.account WHERE {only}",
}
"""By stream, which is the table on devices too. `o.` is a column of it."""
COMPUTED = {
    "top_n": ("SELECT id, amount FROM {orders} ORDER BY amount DESC, id LIMIT 10", ["id"]),
    "counted": ("SELECT count(*) AS n FROM {orders} WHERE open", ["n"]),
    "summed": ("SELECT 'all' AS of, sum(amount) AS total FROM {orders}", ["of"]),
    "grouped": ("SELECT account, open, sum(amount) AS total FROM {orders} GROUP BY account, open", ["account", "open"]),
    "different": ("SELECT DISTINCT account, id / 1000 AS made FROM {orders}", ["account", "made"]),
    "of_view": ("SELECT s.id, s.amount FROM seen s JOIN {orders} USING (id)", ["id"]),
}
SOME = {"flush.before_commit", "refresh.before_merge"}


def changes(number: int) -> str:
    """Statements that change the answers of all forms, each time others. They are one transaction."""
    return f"""
update orders set amount = amount + {number}.50, rank = (rank + {number}) % 20 where id % 11 = {number % 11};
delete from orders where id % 37 = {number};
insert into orders
    select {1000 * number} + i, 'a' || i, 90 + 11 * {number} + i, 20 - i, i > 0, now() - interval '1 day' * (i % 9)
    from generate_series(0, 11) i;
update orders set open = true where id % 13 = {number};
update orders set at = at + interval '5 days' where id % 7 = {number};
update accounts set least = 20 - least, region = case when region is null then 'new' end where id = 'a{1 + number % 6}';
insert into blocked values ({number}, 'a{(number + 2) % 6}', true); delete from blocked where id = {number} - 2;
"""


@dataclass
class Life:
    """One service, and a device that follows it."""

    deployment: Deployment
    launch: Launch
    device: Device = field(init=False)
    only: str = "true"
    more: str = ""
    _changes: int = 0

    def __post_init__(self) -> None:
        self.device = Device(self.deployment)

    def edited(self, only: str = "", more: str = "", refresh: str = "{after: auto, least: 0s}") -> str:
        """The config of all forms, maybe over the orders that meet another condition, and with one more column in
        computed tables."""
        self.only, self.more = only or self.only, more or self.more
        computed = config_of_queries({name: (query, COMPUTED[name][1]) for name, query in self._computed()}, refresh)
        followed = auto_streams(**dict(self._followed()))
        return computed + followed.partition("streams:\n")[2]

    def _followed(self) -> Iterator[tuple[str, str]]:
        for name, query in FOLLOWED.items():
            yield name, query.format(o=f'"{name}"', only=self.only).replace("o.", f'"{name}".')

    def _computed(self) -> Iterator[tuple[str, str]]:
        orders = f"(SELECT * FROM orders o WHERE {self.only}) o"
        column = f", 1 AS {self.more}" if self.more else ""
        for name, (query, _) in COMPUTED.items():
            yield name, f"SELECT q.*{column} FROM ({query.format(orders=orders)}) q"

    def answers(self) -> dict[str, Rows]:
        """What Postgres answers now, by form."""
        return {name: answer(self.deployment, query) for name, query in (*self._followed(), *self._computed())}

    def change(self) -> None:
        """Change the source so that no form has the answer that it had."""
        before = self.answers()
        self._changes += 1
        self.deployment.source.execute(changes(self._changes))
        after = self.answers()
        assert [name for name in after if after[name] == before[name] or not after[name]] == []

    def wrong(self) -> dict[str, tuple[Rows, ...]]:
        """By form, what a new device has, the one that stays connected, and Postgres, where they don't become the
        same."""
        found: dict[str, tuple[Rows, ...]] = {}

        def all_right() -> bool:
            found.clear()
            new, old = by_table(self.deployment.rows("a")), by_table(self.device.rows())
            for name, right in self.answers().items():
                if not (new.get(name, []) == old.get(name, []) == right):
                    found[name] = (new.get(name, []), old.get(name, []), right)
            return not found

        with suppress(AssertionError):
            wait_until(all_right, "the answers of Postgres", 40)
        return found


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def life(
    request: pytest.FixtureRequest,
    postgres: EmbeddedPostgres,
    maintenance: Connection,
    storage_dsn: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Life]:
    folder = tmp_path_factory.mktemp("forms")
    with ExitStack() as stack:
        launch = stack.enter_context(launching(folder))
        source = stack.enter_context(databases(postgres, maintenance))()
        source.execute(DATA)
        storage = (
            PostgresAddress(storage_dsn, "forms", "the storage of all forms") if request.param == "postgres" else None
        )
        deployment = Deployment(source, folder / "store", "", local_bulk(), storage=storage)
        stack.callback(deployment.close_whole)
        life = Life(deployment, launch)
        deployment.yaml = life.edited()
        deployment.start()
        assert life.wrong() == {}
        yield life


def test_stream(life: Life) -> None:
    life.change()
    assert life.wrong() == {}
    due = "insert into orders values (-1, 'a1', 1, 1, true, now() - interval '7 days' + interval '1 s')"
    life.deployment.source.execute(due)
    left = "select from orders where id = -1 and at <= now() - interval '7 days'"
    wait_until(lambda: life.deployment.source.fetch(left), "the row to be too old")
    assert life.wrong() == {}


def test_deploy(life: Life) -> None:
    for only in ("o.id % 5 > 0", "(o.id % 5 > 0 OR o.open)"):
        life.change()
        life.deployment.redeploy(life.edited(only))
        assert life.wrong() == {}


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=[] if p in SOME else pytest.mark.long) for p in (*FLUSH_POINTS, *REFRESH_POINTS)],
)
def test_crash(life: Life, point: str) -> None:
    life.deployment.stop_and_let_go()
    life.change()
    nth = 1
    if point in REFRESH_POINTS:
        life.deployment.yaml = life.edited(more=f"{life.more}more")
        nth = 3
    config = config_of(life.deployment, free_port())
    life.launch("replicate", config, failpoint=f"{point}:{nth}").died_at(point)
    life.deployment.start()
    assert life.wrong() == {}


def differ(found: dict[str, object]) -> tuple[Sequence[str], Sequence[str]]:
    """The tables of which an audit says that they differ, of the source and computed ones."""
    computed, differences = found["computed"], found["differences"]
    assert isinstance(computed, list)
    assert isinstance(differences, dict)
    assert [each for each in computed if each["problem"]] == []
    return sorted(differences), sorted(each["table"] for each in computed if each["differ"])


def test_audit(life: Life) -> None:
    """Changes that never arrived are found in each table, and mended in each form."""
    assert life.wrong() == {}
    life.deployment.redeploy(life.edited(refresh="{every: 1d}"))
    assert differ(life.deployment.ask("audit")) == ([], [])
    with unheard(life.deployment):
        life.change()
    tables = ["public.accounts", "public.blocked", "public.orders"]
    assert differ(life.deployment.ask("audit")) == (tables, sorted(COMPUTED))
    life.deployment.ask("audit", repair=True)
    assert life.wrong() == {}
    assert differ(life.deployment.ask("audit")) == ([], [])
    life.deployment.redeploy(life.edited())
