"""Rules that compare columns with the current time, on the whole service and with a clock of the test's: devices have
what Postgres would answer at that time."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from headwater.insight.rows import CurrentRows
from headwater.source.clock import source_clock
from headwater.storage.open import open_store
from tests.support.changed_source import settled
from tests.support.dying import FLUSH_POINTS, die_at
from tests.support.fix_headwater import Deploy, Deployment, plan_of
from tests.support.fix_postgres import SourceDb
from tests.support.store_file import store_file
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

WINDOWS = {
    "recent": "at > now() - interval '7 days'",
    "due": "now() < until + interval '1 hour'",
    "begun": "day <= now()",
    "between": "now() BETWEEN at AND until AND owner <> 'nobody'",
    "outside": "at IS NOT NULL AND NOT (at > now() - interval '3 days')",
}


def config(**conditions: str) -> str:
    return auto_streams(
        **{name: f"SELECT id, body FROM notes AS {name} WHERE {text}" for name, text in conditions.items()}
    )


@dataclass
class Clock:
    now: datetime = START

    def __call__(self) -> int:
        return (self.now - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)

    def literal(self) -> str:
        return f"timestamptz '{self.now.isoformat()}'"


def answers(source: SourceDb, clock: Clock, conditions: dict[str, str]) -> dict[str, dict[str, str]]:
    """What Postgres says, by stream."""
    return {
        name: dict(source.fetch(f"select id, body from notes where {text.replace('now()', clock.literal())}"))
        for name, text in conditions.items()
    }


def shown(deployment: Deployment, conditions: dict[str, str]) -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = {name: {} for name in conditions}
    for (table, row_id), row in deployment.rows("anybody").items():
        found[table][row_id] = row["body"]
    return found


def agree(deployment: Deployment, clock: Clock, conditions: dict[str, str] = WINDOWS) -> None:
    truth = answers(deployment.source, clock, conditions)
    try:
        wait_until(lambda: shown(deployment, conditions) == truth, "devices to have what Postgres answers")
    except AssertionError:
        assert shown(deployment, conditions) == truth
        raise


def prepare(source: SourceDb, identity: str = "default") -> None:
    source.execute(
        "set timezone = 'UTC'; create table notes (id text primary key, owner text not null default 'me', body text,"
        " at timestamptz, until timestamp, day date, big text)"
    )
    source.execute(f"alter table notes replica identity {identity}; alter table notes alter big set storage external")
    insert(source, Random(1), 60)


def insert(source: SourceDb, random: Random, count: int, name: str = "n") -> None:
    for number in range(count):
        at = START + timedelta(hours=random.randrange(-240, 240), seconds=random.randrange(3600))
        until, day = at + timedelta(hours=random.randrange(96)), at.date()
        values = [f"{name}{number}", f"body {number}", at, until.replace(tzinfo=None), day]
        with_nulls = [values[0], values[1], *(None if random.random() < 0.1 else each for each in values[2:])]
        source.connection.execute(
            "insert into notes (id, body, at, until, day, big) values (%s, %s, %s, %s, %s, repeat('x', 9000))"
            " on conflict (id) do update set at = excluded.at, until = excluded.until, day = excluded.day",
            with_nulls,
        )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("identity", ["default", pytest.param("full", marks=pytest.mark.long)])
def test_ten_days_with_changes_and_restarts(deploy: Deploy, source_db: SourceDb, clock: Clock, identity: str) -> None:
    prepare(source_db, identity)
    deployment, random = deploy(config(**WINDOWS)), Random(2)
    deployment.clock = clock
    deployment.start()
    agree(deployment, clock)
    for step in range(30):
        if step % 5 == 2:  # what comes due meanwhile is done at the start
            deployment.stop()
        clock.now += timedelta(hours=8, seconds=random.randrange(600))
        if step % 3 == 0:
            insert(source_db, random, 8, f"s{step}")
            source_db.execute(f"update notes set at = at + interval '5 days' where id like '%{step % 10}'")
            source_db.execute(f"update notes set body = 'changed at {step}' where id like '%{(step + 1) % 10}'")
            source_db.execute(f"delete from notes where id like '%{step % 7}{step % 10}'")
        if not deployment.running:
            deployment.start()
        agree(deployment, clock)
    assert deployment.ask("audit")["differences"] == {}


def test_every_stage_of_a_deploy(deploy: Deploy, source_db: SourceDb, clock: Clock) -> None:
    """A version that is made while rows flip has them as they are, one that has lost the clock keeps rows."""
    prepare(source_db)
    deployment = deploy(config(recent=WINDOWS["recent"]))
    deployment.clock = clock
    deployment.start()
    stages = [
        {"recent": WINDOWS["recent"], "due": WINDOWS["due"]},
        {"recent": "at > now() - interval '2 days'", "outside": WINDOWS["outside"]},
        {"all": "owner = 'me'"},
        WINDOWS,
    ]
    for conditions in stages:
        clock.now += timedelta(hours=30)
        deployment.redeploy(config(**conditions))
        agree(deployment, clock, conditions)
        clock.now += timedelta(hours=30)
        agree(deployment, clock, conditions)
        deployment.stop()
        deployment.start()
        clock.now += timedelta(hours=5)
        agree(deployment, clock, conditions)
        assert deployment.ask("audit")["differences"] == {}
    deployment.keep_stopped = 0.0
    deployment.redeploy(config(all="owner = 'me'"))
    deployment.stop()
    deployment.start()

    def next_flip() -> int | None:
        with deployment.store() as store:
            return store.next_flip(table.id for table in store.tables(deployment.name))

    wait_until(lambda: next_flip() is None, "the times of rows to be removed, which nothing needs")


EMPTIED = """truncate notes;
insert into notes (id, body, at)
    select i::text, 'b', timestamptz '2026-03-01 12:00Z' + i * interval '11 hours' from generate_series(-20, 20) i"""


@pytest.mark.parametrize(
    "change",
    [
        "alter table notes rename column body to text; alter table notes rename column text to body",
        "alter table notes add column more text default 'z'",
        "alter table notes alter column at type timestamp using at at time zone 'UTC'",
        "alter table notes replica identity full",
        "create unique index by_owner on notes (owner, id); alter table notes replica identity using index by_owner",
        EMPTIED,
    ],
)
def test_tables_that_change(deploy: Deploy, source_db: SourceDb, clock: Clock, change: str) -> None:
    prepare(source_db)
    deployment = deploy(config(**WINDOWS))
    deployment.clock = clock
    deployment.start()
    agree(deployment, clock)
    source_db.execute(change)
    clock.now += timedelta(hours=20)
    source_db.execute(
        "update notes set at = at + interval '1 day' where id like '%3'; delete from notes where id = 'n4'"
    )
    wait_until(lambda: settled(deployment), "comparisons to end")
    agree(deployment, clock)
    clock.now += timedelta(hours=70)
    agree(deployment, clock)
    assert deployment.ask("audit")["differences"] == {}


def test_lost_slot(deploy: Deploy, source_db: SourceDb, clock: Clock) -> None:
    prepare(source_db)
    deployment = deploy(config(**WINDOWS))
    deployment.clock = clock
    deployment.start()
    agree(deployment, clock)
    deployment.stop()
    source_db.lose_slots()
    source_db.execute(
        "update notes set at = at + interval '4 days' where id like '%2'; delete from notes where id = 'n1'"
    )
    insert(source_db, Random(9), 10, "late")
    clock.now += timedelta(days=2)
    deployment.start()
    wait_until(lambda: settled(deployment), "comparisons to end")
    agree(deployment, clock)
    clock.now += timedelta(days=3)
    agree(deployment, clock)


def test_two_replicators_with_different_clocks(deploy: Deploy, source_db: SourceDb, clock: Clock) -> None:
    """What has left does not come back because the one that takes over is slow."""
    prepare(source_db)
    deployment = deploy(config(**WINDOWS))
    deployment.clock = clock
    deployment.start()
    clock.now += timedelta(days=2)
    agree(deployment, clock)
    before, ops = answers(source_db, clock, WINDOWS), deployment.op_count()
    deployment.stop()
    slow = Clock(clock.now - timedelta(hours=30))
    deployment.clock = slow
    deployment.start()
    source_db.execute("update notes set body = body")  # no value changes, and all rows are looked at
    deployment.caught_up()
    assert (shown(deployment, WINDOWS), deployment.op_count()) == (before, ops)
    slow.now = clock.now + timedelta(hours=9)
    agree(deployment, slow)


def test_clock_of_the_source(deploy: Deploy, source_db: SourceDb) -> None:
    """Rows flip by themselves, a few seconds after the moment, by the time of the source's server."""
    source_db.execute("create table notes (id text primary key, body text, at timestamptz)")
    deployment = deploy(config(recent="at > now() - interval '1 hour'")).start()
    source_db.execute(
        "insert into notes values ('soon', 'x', now() - interval '59 minutes 58 seconds'), ('no', 'x', now())"
    )
    assert shown(deployment, {"recent": ""})["recent"].keys() == {"soon", "no"}
    wait_until(lambda: shown(deployment, {"recent": ""})["recent"].keys() == {"no"}, "the row to leave")
    ((passed,),) = source_db.fetch(
        "select extract(epoch from now() - at - interval '1 hour') from notes where id = 'soon'"
    )
    assert passed >= 0


def test_machine_whose_clock_is_set(source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time that is far ahead would be stored, and nothing would leave or enter any more for as long."""
    clock = source_clock(source_db.connection)
    before = clock()
    monkeypatch.setattr("time.time_ns", lambda: 1 << 62)
    monkeypatch.setattr("time.monotonic_ns", lambda: 0)  # which stands still while the machine sleeps
    assert before <= clock() < before + 60_000_000
    assert abs(before / 1e6 - float(source_db.fetch("select extract(epoch from clock_timestamp())")[0][0])) < 60


def test_preview_and_explain_see_the_time_of_the_service(deploy: Deploy, source_db: SourceDb, clock: Clock) -> None:
    prepare(source_db)
    clock.now = datetime.now(UTC) + timedelta(days=3650)  # later than the machine's, as of a source that is ahead
    source_db.execute("insert into notes (id, body, at) values ('far', 'x', %s)", clock.now)
    deployment = deploy(config(recent=WINDOWS["recent"]))
    deployment.clock = clock
    deployment.start()
    agree(deployment, clock, {"recent": WINDOWS["recent"]})
    with closing(open_store(deployment.address).open_writer()) as store:
        rows, plan = CurrentRows(store, [deployment.settings]), plan_of(deployment.yaml)
        pages = [rows.pages(table, 100) for table in rows.tables(plan)]
        given = [row_id for _, row_id, result in rows.scan("rows", plan, pages) if result.puts]
    assert len(given) == 1


def test_audit_finds_a_row_that_was_never_flipped(deploy: Deploy, source_db: SourceDb, clock: Clock) -> None:
    prepare(source_db)
    deployment = deploy(config(recent=WINDOWS["recent"]))
    deployment.clock = clock
    deployment.start()
    agree(deployment, clock, {"recent": WINDOWS["recent"]})
    deployment.stop()
    forget_times(deployment)
    clock.now += timedelta(days=2)
    deployment.start()
    stale = set(answers(source_db, Clock(), {"recent": WINDOWS["recent"]})["recent"])
    stale -= set(answers(source_db, clock, {"recent": WINDOWS["recent"]})["recent"])
    assert stale
    found = deployment.ask("audit")
    assert found["differences"] == {"public.notes": len(stale) + kept(deployment, clock)}
    deployment.ask("audit", repair=True)
    agree(deployment, clock, {"recent": WINDOWS["recent"]})


def kept(deployment: Deployment, clock: Clock) -> int:
    """How many rows are in their buckets and will have to leave, which nothing would tell."""
    return len(answers(deployment.source, clock, {"recent": WINDOWS["recent"]})["recent"])


def forget_times(deployment: Deployment) -> None:
    with store_file(deployment.directory) as db:
        db.execute("delete from flips")


def test_rows_that_cannot_be_evaluated(deploy: Deploy, source_db: SourceDb, clock: Clock) -> None:
    """A row that is too large, and one that lacks a value, come in their time once they can."""
    prepare(source_db)
    deployment = deploy(config(recent=WINDOWS["recent"]))
    deployment.clock = clock
    deployment.start()
    source_db.execute(
        "insert into notes (id, body, at, big) values ('huge', 'x', %s, repeat('y', 16000000))", clock.now
    )
    deployment.caught_up()
    assert "huge" not in shown(deployment, {"recent": ""})["recent"]
    clock.now += timedelta(days=3)
    source_db.execute("update notes set big = 'small' where id = 'huge'")
    agree(deployment, clock, {"recent": WINDOWS["recent"]})
    clock.now += timedelta(days=5)
    agree(deployment, clock, {"recent": WINDOWS["recent"]})


def test_killed_at_each_moment_of_a_flip(
    deploy: Deploy, source_db: SourceDb, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replicator dies before and after each commit of rows that flip: nothing is lost, and nothing comes twice."""
    prepare(source_db)
    deployment = deploy(config(**WINDOWS))
    deployment.clock = clock
    deployment.start()
    agree(deployment, clock)
    for point in FLUSH_POINTS:
        deployment.stop()
        clock.now += timedelta(hours=17)
        die_at(point, deployment, monkeypatch)
        deployment.start()
        agree(deployment, clock)
    assert deployment.ask("audit")["differences"] == {}
