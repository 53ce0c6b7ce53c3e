"""Values that the stream leaves out are fetched from the source: seldom, together, and only as of the change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

import psycopg
import pytest

from headwater.oplog.change import Cell, Relation
from headwater.oplog.limits import ROW_LIMIT
from headwater.replication.stream import flush_builder
from headwater.source.connect import SourceUnreachableError
from headwater.source.rows.fetch import Fetched, RowFetcher
from tests.support.changed_source import Device, ask_beside, compared, given, held_back, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.local_bulk import Waiting
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

Rows = dict[tuple[str, str], tuple[object, ...]]

CONFIG = auto_streams(all=["SELECT * FROM items", "SELECT * FROM others"])

BIG = "repeat('toast', 2000)"


def read_rows(monkeypatch: pytest.MonkeyPatch, around: Callable[[Callable[[], None], int], None]) -> None:
    """Rows are read within `around`, which is given what reads them, and how many they are."""
    fetch = RowFetcher.fetch

    def held(
        fetcher: RowFetcher, relation: Relation, keys: Sequence[Sequence[Cell]], files: Collection[int]
    ) -> Fetched | None:
        found: list[Fetched | None] = []
        around(lambda: found.append(fetch(fetcher, relation, keys, files)), len(keys))
        return found[0]

    monkeypatch.setattr(RowFetcher, "fetch", held)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows the source was asked for, each time."""
    sizes: list[int] = []

    def counting(read: Callable[[], None], rows: int) -> None:
        sizes.append(rows)
        read()

    read_rows(monkeypatch, counting)
    return sizes


def create(source: SourceDb, publication: str = "for table items, others") -> None:
    source.execute("create table items (id text primary key, n int, body text, more text)")
    source.execute("alter table items alter body set storage external, alter more set storage external")
    source.execute("create table others (id text primary key, body text)")
    source.execute(f"create publication headwater {publication}")


def create_filtered(source: SourceDb, rows: int) -> None:
    """Rows that do not pass the filter of the publication yet."""
    source.needs(15, "row filters of publications")
    source.execute("create table items (id text, n int, body text, more text, primary key (id, n))")
    source.execute("alter table items alter body set storage external")
    source.execute("create table others (id text primary key, body text)")
    source.execute("create publication headwater for table items where (n > 0), others")
    source.execute(f"insert into items select i::text, 0, {BIG} || i, 'x' from generate_series(1, {rows}) i")


def truth(source: SourceDb, condition: str = "true") -> Rows:
    rows = source.fetch(f"select id, n, body, more from items where {condition}")
    return {("items", row[0]): tuple(row[1:]) for row in rows}


def shown(deployment: Deployment) -> Rows:
    found = deployment.rows("a")
    return {key: (row["n"], row["body"], row["more"]) for key, row in found.items() if key[0] == "items"}


def test_row_over_limit_is_not_fetched(
    deploy: Deploy, source_db: SourceDb, fetches: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    create(source_db)
    large, half = f"repeat('x', {ROW_LIMIT})", f"repeat('y', {ROW_LIMIT * 2 // 3})"
    source_db.execute(f"insert into items values ('one', 0, {large}, 'small'), ('two', 0, {half}, {half})")
    deployment = deploy(CONFIG).start()
    caplog.clear()
    for n in range(1, 21):
        source_db.execute("update items set n = %s", n)
        source_db.execute("insert into others values (%s, 'x')", str(n))
    assert shown(deployment) == {}
    assert fetches == []
    assert not [r for r in caplog.records if "too large" in r.getMessage()], "said once, when it was found"
    source_db.execute("update items set body = 'short'")  # the other value of `two` is known nowhere but there
    assert shown(deployment) == truth(source_db)
    assert fetches == [1]
    source_db.execute(f"update items set body = {large}; update items set more = 'tiny'; update items set n = 30")
    assert shown(deployment) == {}
    assert fetches == [1], "values that shrink do not have a row asked for that is too large still"
    assert deployment.ask("audit")["differences"] == {}


def test_incomplete_rows_are_fetched_together(deploy: Deploy, source_db: SourceDb, fetches: list[int]) -> None:
    create_filtered(source_db, 200)
    deployment = deploy(CONFIG).start()
    source_db.execute(
        "begin; update items set n = 1 where id <> '7'; update items set more = 'y' where n = 1;"
        " update items set n = 2 where id < '15'; delete from items where id = '9'; commit"
    )
    assert shown(deployment) == truth(source_db, "n > 0")
    assert sum(fetches) <= 200
    assert len(fetches) <= 4, "a few at first, to see how large they are"


def test_rows_of_compare_are_not_fetched(deploy: Deploy, source_db: SourceDb, fetches: list[int]) -> None:
    create(source_db, "for table others")
    source_db.execute(f"insert into items select i::text, 0, {BIG} || i, 'x' from generate_series(1, 50) i")
    deployment = deploy(CONFIG).start()
    with psycopg.connect(source_db.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # the comparison's snapshot waits for it to end
        source_db.execute("alter publication headwater add table items")
        wait_until(lambda: compared(deployment), "the table to be filled")
        for n in range(1, 11):
            source_db.execute("update items set n = n + 1")
            source_db.execute("update items set id = 'moved ' || id where id = %s", str(n))
            source_db.execute("insert into others values (%s, 'x')", str(n))
            deployment.caught_up()
        source_db.execute(
            "update items set more = 'y', n = n + 1 where id like '2%'; delete from items where id = '31'"
        )
        deployment.caught_up()
        assert shown(deployment) == {}, "no row is shown that is not complete"
    wait_until(lambda: settled(deployment), "the table to be filled")
    assert shown(deployment) == truth(source_db)
    assert fetches == []
    source_db.execute("update items set n = n + 1")
    assert shown(deployment) == truth(source_db)
    assert fetches == []


def test_slow_fetches_become_a_compare(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, fetches: list[int]
) -> None:
    monkeypatch.setattr(flush_builder, "READING_SECONDS", -1.0)
    create_filtered(source_db, 20)
    deployment = deploy(CONFIG).start()
    source_db.execute("update items set n = 1; update items set more = 'y' where id < '3'")
    wait_until(lambda: settled(deployment) and shown(deployment) == truth(source_db, "n > 0"), "the comparison")
    assert len(fetches) == 1
    assert deployment.kinds() == ["snapshot", "re-sync"]


LIVE = auto_streams(all="SELECT * FROM live")
LIVE_AND_OTHERS = auto_streams(all=["SELECT * FROM live", "SELECT * FROM others"])
BY_OWNER = auto_streams(own="SELECT * FROM live WHERE owner = auth.user_id()")


def waiting(deploy: Deploy, rules: str = LIVE) -> tuple[Waiting, Deployment, Device]:
    """A deployment whose comparisons wait, and a device."""
    bulk = Waiting()
    deployment = deploy(rules, bulk=bulk)
    return bulk, deployment, Device(deployment.start())


LEFT_OUT = {
    "private meanwhile": "alter table live rename to resting; {change}; alter table resting rename to live",
    "another identity": "alter table live replica identity full; {change}",
}


def held_questions(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Rows that are asked of the source come when they are let go: whether any was asked for, and what lets them go."""
    asked, answer = threading.Event(), threading.Event()

    def late(read: Callable[[], None], _: int) -> None:
        asked.set()
        assert answer.wait(60)
        read()

    read_rows(monkeypatch, late)
    return asked, answer


def asking_for_a_row_of_a(
    deploy: Deploy, source: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> tuple[Deployment, threading.Event]:
    """A deployment that asks for a row of a, whose body the stream left out; it is answered once the event is set."""
    source.needs(15, "row filters of publications")
    source.execute("create table live (id text, n int, owner text, body text, primary key (id, n))")
    source.execute("alter table live alter body set storage external")
    source.execute("create publication headwater for table live where (n > 0)")
    source.execute("insert into live values ('1', 0, 'a', repeat('of a', 2000))")
    asked, answer = held_questions(monkeypatch)
    deployment = deploy(BY_OWNER).start()
    source.execute("update live set n = 1")
    wait_until(asked.is_set, "the row to be asked for")
    return deployment, answer


def secrets_given_to_a(deployment: Deployment) -> list[str]:
    """What says the secret, of all that was given out as a row of a."""
    of_a = [op for op in given(deployment).split("\n") if r"\"owner\":\"a\"" in op]
    return [op[:100] for op in of_a if "secret" in op]


@pytest.mark.parametrize("how", LEFT_OUT)
def test_fetched_row_of_unseen_change_is_dropped(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The row was one of a, and then one of b: no device gets what it says for b as a row of a."""
    deployment, answer = asking_for_a_row_of_a(deploy, source_db, monkeypatch)
    table = "resting" if "resting" in LEFT_OUT[how] else "live"
    change = f"update {table} set owner = 'b', body = repeat('secret', 2000)"
    for statement in LEFT_OUT[how].format(change=change).split(";"):
        source_db.execute(statement)
    answer.set()
    wait_until(
        lambda: settled(deployment) and list(deployment.rows("b")) == [("live", "1")], "the row to be shown to b"
    )
    assert deployment.rows("a") == {}
    assert secrets_given_to_a(deployment) == []


COLUMNS = "id text, n int, body text, more text, primary key (id, n)"
SOURCES = {
    "enters a row filter": f"create table live ({COLUMNS}); alter table live alter body set storage external;"
    " create publication headwater for table live where (n > 0);"
    " insert into live values ('1', 0, repeat('toast', 2000))",
    "enters one beside a new partition": f"create table live ({COLUMNS}) partition by list (id);"
    " create table live_1 partition of live for values in ('1'); alter table live_1 alter body set storage external;"
    " create publication headwater for table live where (n > 0) with (publish_via_partition_root);"
    " insert into live values ('1', 0, repeat('toast', 2000))",
    "is small enough now": f"create table live ({COLUMNS}); create publication headwater for table live;"
    " alter table live alter body set storage external, alter more set storage external;"
    f" insert into live values ('1', 0, repeat('x', {ROW_LIMIT}), repeat('y', 9000))",
}


@pytest.mark.parametrize("stopped", ["", "after the comparison", "within it"])
@pytest.mark.parametrize("name", SOURCES)
def test_incomplete_row_during_compare_is_shown(deploy: Deploy, source_db: SourceDb, name: str, stopped: str) -> None:
    """The snapshot does not have the row, or has it as the store does: nothing differs that would bring the values."""
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES[name])
    bulk, deployment, device = waiting(deploy)
    if "partition" in name:
        source_db.execute("create table live_2 partition of live for values in ('2')")
    else:
        source_db.execute("alter table live add another int")
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set body = 'small'" if "small" in name else "update live set n = 1")
    deployment.caught_up()
    if stopped == "within it":
        deployment.stop()
    bulk.go.set()
    if stopped == "after the comparison":
        wait_until(lambda: settled(deployment), "the comparison to end")
        deployment.stop()
    if stopped:
        deployment.start()
    truth = published_rows(source_db, {"public.live": "true"})
    assert list(truth) == [("live", "1")]
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the row to be shown")


@pytest.mark.parametrize("meanwhile", ["", "alter table emptied add more int", "vacuum full emptied"])
def test_compare_ends_when_table_is_truncated(deploy: Deploy, source_db: SourceDb, meanwhile: str) -> None:
    """The table has another file then than when it was last looked at, and its rows are waited for at the end."""
    source_db.execute("create table emptied (id text primary key, n int, body text)")
    source_db.execute("create table beside (id text primary key); insert into beside values ('1')")
    source_db.execute("alter table emptied alter body set storage external")
    source_db.execute("create publication headwater for all tables")
    bulk, deployment, device = waiting(deploy, LIVE_AND_OTHERS.replace("live", "emptied").replace("others", "beside"))
    deployment.stop()
    source_db.lose_slots()
    deployment.start()
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("truncate emptied; insert into emptied values ('1', 0, repeat('toast', 2000))")
    if meanwhile:
        source_db.execute(meanwhile)
    deployment.caught_up()
    ((file,),) = source_db.fetch("select pg_relation_filenode('emptied')::text")
    wait_until(lambda: any(file in shape for shape in shapes(deployment)), "the new file to be seen")
    source_db.execute("update emptied set n = 1")
    deployment.caught_up()
    bulk.go.set()
    truth = published_rows(source_db, {"public.emptied": "true", "public.beside": "true"})
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the row to be shown", 60)


def test_missing_value_outlives_compare(deploy: Deploy, source_db: SourceDb) -> None:
    """The stream brought the row whole since the snapshot, then changed it without a value that nobody trusts."""
    source_db.execute("create table live (id text primary key, n int, body text)")
    source_db.execute("alter table live alter body set storage external; insert into live values ('1', 0, 'small')")
    bulk, deployment, device = waiting(deploy)
    deployment.stop()
    source_db.lose_slots()
    source_db.execute("alter table live add another int")
    deployment.start()
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set body = repeat('toast', 2000)")
    deployment.caught_up()
    source_db.execute("update live set n = 1")
    deployment.caught_up()
    bulk.go.set()
    truth = published_rows(source_db, {"public.live": "true"})
    assert truth["live", "1"]["n"] == 1
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert device.rows() == truth


def test_row_that_shrinks_is_shown_after_restart(deploy: Deploy, source_db: SourceDb) -> None:
    """What the stream told of it was not stored, since a value lacks that the comparison is to bring; what was stored
    is the size of the value before."""
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES["is small enough now"].replace("primary key (id, n)", "primary key (id)"))
    bulk, deployment, device = waiting(deploy)
    source_db.execute("alter publication headwater set table live where (id <> 'another')")
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set body = repeat('z', 9000)")
    deployment.caught_up()
    deployment.stop()
    bulk.begun.clear()
    deployment.start()
    wait_until(bulk.begun.is_set, "the comparison to begin again")
    source_db.execute("update live set n = 1")
    deployment.caught_up()
    bulk.go.set()
    truth = published_rows(source_db, {"public.live": "true"})
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert device.rows() == truth


def shapes(deployment: Deployment) -> list[str]:
    with deployment.store() as store:
        return [table.fingerprint for table in store.tables("default")]


def test_missing_value_survives_error_after_compare(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of the row is in memory only: without the mark, the next attempt would know nothing of it."""
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES["enters a row filter"])
    failures = [True]

    def failing(read: Callable[[], None], _: int) -> None:
        if failures:
            failures.pop()
            raise SourceUnreachableError("the connection was closed", "source", "it is tried again")
        read()

    read_rows(monkeypatch, failing)
    bulk, deployment, device = waiting(deploy)
    source_db.execute("alter table live add another int")
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set n = 1")
    deployment.caught_up()
    bulk.go.set()
    truth = published_rows(source_db, {"public.live": "true"})
    wait_until(lambda: not failures and settled(deployment) and device.rows() == truth, "the row to be shown")


def test_locked_table_delays_no_other_fetch(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES["enters a row filter"])
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute("alter publication headwater add table others")
    asked, locked = held_questions(monkeypatch)
    deployment = deploy(LIVE_AND_OTHERS)
    device = Device(deployment.start())
    source_db.execute("update live set n = 1")
    wait_until(asked.is_set, "the row to be asked for")
    with psycopg.connect(source_db.dsn) as other:
        other.execute("lock table live")
        locked.set()
        source_db.execute("insert into others values ('1', 'one')")
        wait_until(lambda: ("others", "1") in device.rows(), "the commit to another table", 10)
    truth = published_rows(source_db, {"public.live": "true", "public.others": "true"})
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the row to be shown")


def test_alter_is_noticed_while_other_table_is_locked(deploy: Deploy, source_db: SourceDb) -> None:
    for table in ("live", "others"):
        source_db.execute(f"create table {table} (id text primary key, body text)")
    deployment = deploy(LIVE_AND_OTHERS)
    device = Device(deployment.start())
    with psycopg.connect(source_db.dsn) as other:
        other.execute("lock table live")
        source_db.execute("alter table others add more int default 5; insert into others values ('1', 'one')")
        wait_until(lambda: "more" in columns(deployment, "others"), "the new column to be known", 20)
    wait_until(
        lambda: device.rows().get(("others", "1"), {}).get("more") == 5, "the comparison, which waits for the lock"
    )


def columns(deployment: Deployment, name: str) -> set[str]:
    """Those that the store knows of a table."""
    with deployment.store() as store:
        tables = [table.relation for table in store.tables("default") if table.relation.name == name]
    return {column.name for table in tables for column in table.columns}


def test_fetched_row_of_rewrite_is_dropped(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, answer = asking_for_a_row_of_a(deploy, source_db, monkeypatch)
    source_db.execute(
        "alter table live alter owner type text using 'b', alter body type text using repeat('secret', 2000)"
    )
    answer.set()
    wait_until(lambda: settled(deployment) and list(deployment.rows("b")) == [("live", "1")], "the row of b")
    assert secrets_given_to_a(deployment) == []


# A row of the table can't be given without a value for such a column
TABLE = """
create domain filled as text not null;
create table live (
    id text primary key, body text, same filled generated always as (coalesce(body, 'none')) stored, big text
);
alter table live alter big set storage external;
create publication headwater for table live
"""


def changed(source: SourceDb, body: str) -> None:
    """Make a change from any thread, and wait until the source has sent it: what is sent by then arrives together."""
    with psycopg.connect(source.dsn, autocommit=True) as conn:
        conn.execute("update live set body = %s", [body])
        ((position,),) = conn.execute("select pg_current_wal_insert_lsn()::text").fetchall()
        query = (
            "select r.sent_lsn >= %s::pg_lsn from pg_stat_replication r"
            " join pg_replication_slots s on s.active_pid = r.pid"
            " where s.database = current_database() and not s.temporary"
        )
        wait_until(lambda: conn.execute(query, [position]).fetchall() == [(True,)], "the change to be sent")


def test_row_reread_while_it_flips(deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream brings it as it is in the store, which has the columns of another moment."""
    source_db.execute(TABLE)
    source_db.execute("insert into live values ('1', 'zero')")
    deployment = deploy(LIVE)
    device = Device(deployment.start())
    was_read = threading.Event()

    def around(read: Callable[[], None], _: int) -> None:
        if was_read.is_set():
            read()
            return
        changed(source_db, "second")
        read()
        changed(source_db, "first")
        was_read.set()

    read_rows(monkeypatch, around)
    source_db.execute("update live set body = 'first'")
    wait_until(was_read.is_set, "the row to be read")
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, {"public.live": "true"})


def test_row_of_compare_waits_for_stream(deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch) -> None:
    source_db.execute(TABLE)
    source_db.execute("insert into live values ('1', 'zero', default, repeat('toast', 2000))")
    bulk, deployment, device = waiting(deploy)
    resync = ask_beside(deployment, "resync")
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set body = 'first'")
    deployment.caught_up()
    was_read = threading.Event()

    def around(read: Callable[[], None], _: int) -> None:
        read()
        was_read.set()

    read_rows(monkeypatch, around)
    with held_back():
        changed(source_db, "second")
        bulk.go.set()
        wait_until(was_read.is_set, "the row to be read")
        changed(source_db, "first")
    resync.join(60)
    assert deployment.kinds() == ["snapshot", "re-sync"], "done without an error"
    assert settled(deployment)
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, {"public.live": "true"})
