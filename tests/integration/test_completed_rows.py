"""Rows that are completed from the source: what was asked for belongs to what was streamed, and a comparison that could
not bring it takes no row with it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.oplog.change import Cell, Relation
from headwater.oplog.limits import ROW_LIMIT
from headwater.source.connect import SourceUnreachableError
from headwater.source.rows.fetch import Fetched, RowFetcher
from tests.integration.test_private_history import CONFIG, given
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deploy, Deployment, wait_until
from tests.support.waiting_bulk import Waiting

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


BY_OWNER = """
config: {edition: 3}
streams:
  own:
    auto_subscribe: true
    query: SELECT * FROM live WHERE owner = auth.user_id()
"""

LEFT_OUT = {
    "private meanwhile": "alter table live rename to resting; {change}; alter table resting rename to live",
    "another identity": "alter table live replica identity full; {change}",
}


def held_questions(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Rows that are asked of the source come when they are let go: whether any was asked for, and what lets them go."""
    fetch, asked, answer = RowFetcher.fetch, threading.Event(), threading.Event()

    def late(
        fetcher: RowFetcher, relation: Relation, keys: Sequence[Sequence[Cell]], files: Collection[int]
    ) -> Fetched | None:
        asked.set()
        assert answer.wait(60)
        return fetch(fetcher, relation, keys, files)

    monkeypatch.setattr(RowFetcher, "fetch", late)
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
def test_a_row_is_not_completed_by_what_it_became_while_its_changes_were_left_out(
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
    deployment.close()
    assert deployment.problems() == []


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
def test_a_row_that_comes_without_all_its_values_during_a_comparison_is_shown(
    deploy: Deploy, source_db: SourceDb, name: str, stopped: str
) -> None:
    """The snapshot does not have the row, or has it as the store does: nothing differs that would bring the values."""
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES[name])
    bulk = Waiting()
    deployment = deploy(CONFIG.replace(", SELECT * FROM others", ""))
    deployment.bulk = bulk
    device = Device(deployment.start())
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
    deployment.close()
    assert deployment.problems() == []


@pytest.mark.parametrize("meanwhile", ["", "alter table emptied add more int", "vacuum full emptied"])
def test_a_comparison_ends_though_one_of_its_tables_is_emptied_and_rows_of_it_lack_values(
    deploy: Deploy, source_db: SourceDb, meanwhile: str
) -> None:
    """The table has another file then than when it was last looked at, and its rows are waited for at the end."""
    source_db.execute("create table emptied (id text primary key, n int, body text)")
    source_db.execute("create table beside (id text primary key); insert into beside values ('1')")
    source_db.execute("alter table emptied alter body set storage external")
    source_db.execute("create publication headwater for all tables")
    bulk = Waiting()
    deployment = deploy(CONFIG.replace("live", "emptied").replace("others", "beside"))
    deployment.bulk = bulk
    device = Device(deployment.start())
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
    deployment.close()
    assert deployment.problems() == []


def test_what_a_row_lacks_outlives_a_comparison_that_evaluates_it(deploy: Deploy, source_db: SourceDb) -> None:
    """The stream brought the row whole since the snapshot, then changed it without a value that nobody trusts."""
    source_db.execute("create table live (id text primary key, n int, body text)")
    source_db.execute("alter table live alter body set storage external; insert into live values ('1', 0, 'small')")
    bulk = Waiting()
    deployment = deploy(CONFIG.replace(", SELECT * FROM others", ""))
    deployment.bulk = bulk
    device = Device(deployment.start())
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
    deployment.close()
    assert deployment.problems() == []


def test_a_row_that_may_be_small_enough_is_not_too_large_after_a_restart(deploy: Deploy, source_db: SourceDb) -> None:
    """What the stream told of it was not stored, since a value lacks that the comparison is to bring; what was stored
    is the size of the value before."""
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES["is small enough now"].replace("primary key (id, n)", "primary key (id)"))
    bulk = Waiting()
    deployment = deploy(CONFIG.replace(", SELECT * FROM others", ""))
    deployment.bulk = bulk
    device = Device(deployment.start())
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
    deployment.close()
    assert deployment.problems() == []


def shapes(deployment: Deployment) -> list[str]:
    with deployment.store() as store:
        return [table.fingerprint for table in store.tables("default")]


def test_a_row_that_lacks_values_after_a_comparison_survives_an_error(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of the row is in memory only: without the mark, the next attempt would know nothing of it."""
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES["enters a row filter"])
    fetch, failures = RowFetcher.fetch, [True]

    def failing(
        fetcher: RowFetcher, relation: Relation, keys: Sequence[Sequence[Cell]], files: Collection[int]
    ) -> Fetched | None:
        if failures:
            failures.pop()
            raise SourceUnreachableError("the connection was closed", "source", "it is tried again")
        return fetch(fetcher, relation, keys, files)

    monkeypatch.setattr(RowFetcher, "fetch", failing)
    bulk = Waiting()
    deployment = deploy(CONFIG.replace(", SELECT * FROM others", ""))
    deployment.bulk = bulk
    device = Device(deployment.start())
    source_db.execute("alter table live add another int")
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set n = 1")
    deployment.caught_up()
    bulk.go.set()
    truth = published_rows(source_db, {"public.live": "true"})
    wait_until(lambda: not failures and settled(deployment) and device.rows() == truth, "the row to be shown")
    deployment.close()
    assert deployment.problems() == []


def test_a_table_that_is_locked_when_its_rows_are_asked_for_holds_up_no_other(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_db.needs(15, "row filters of publications")
    source_db.execute(SOURCES["enters a row filter"])
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute("alter publication headwater add table others")
    asked, locked = held_questions(monkeypatch)
    deployment = deploy(CONFIG)
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
    deployment.close()
    assert deployment.problems() == []


def test_a_change_of_one_table_is_taken_up_while_another_is_locked(deploy: Deploy, source_db: SourceDb) -> None:
    for table in ("live", "others"):
        source_db.execute(f"create table {table} (id text primary key, body text)")
    deployment = deploy(CONFIG)
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


def test_a_row_is_not_completed_by_what_a_rewrite_made_of_it(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, answer = asking_for_a_row_of_a(deploy, source_db, monkeypatch)
    source_db.execute(
        "alter table live alter owner type text using 'b', alter body type text using repeat('secret', 2000)"
    )
    answer.set()
    wait_until(lambda: settled(deployment) and list(deployment.rows("b")) == [("live", "1")], "the row of b")
    assert secrets_given_to_a(deployment) == []
