"""What a table was while rules did not speak of it is nobody's business: names decide what is public, as of each
change. Nothing that a row said under a private name ever reaches a device, whoever has the public one by now."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import pytest

from headwater.replication.stream.flush_builder import FLUSH_CHANGES
from headwater.source.rows.fetch import Names, RowFetcher
from headwater.source.triggers import install
from tests.support.changed_source import Device, given, held_back, published_rows, settled
from tests.support.fix_headwater import HASTY, TRIGGERED, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.sync_configs import auto_streams
from tests.support.turns import in_turn
from tests.support.waiting import wait_until

CONFIG = auto_streams(all=["SELECT * FROM live", "SELECT * FROM others"])

SHOWN = {"public.live": "true", "public.others": "true"}
ROWS = 20
BIG = "repeat('private', 2000)"
SWAP = "alter table live rename to tmp; alter table staging rename to live; alter table tmp rename to staging"

HISTORY = """
insert into staging select i::text, 'private ' || i from generate_series(5, 30) i;
update staging set body = 'private still';
truncate staging;
insert into staging select i::text, 'private ' || i from generate_series(5, 30) i;
update staging set body = 'cleaned';
insert into others select 'filler ' || i, 'x' from generate_series(1, 50) i
"""

MOVES = {
    "swapped": SWAP,
    "dropped and replaced": "drop table live; alter table staging rename to live",
    "swapped and back": f"{SWAP}; update live set body = 'public now'; {SWAP};"
    " update staging set body = 'private again' where id < '15'",
    "out to another schema, in from one": "create schema hidden; alter table live set schema hidden;"
    " alter table staging rename to live",
    "private while renamed": "alter table live rename to resting; update resting set body = 'private for a while';"
    " insert into resting values ('r', 'private'); truncate staging;"
    " update resting set body = 'shown again'; alter table resting rename to live",
    "truncated while renamed": "alter table live rename to resting; truncate resting;"
    " insert into resting select i::text, 'private ' || i from generate_series(1, 9) i;"
    " update resting set body = 'shown ' || id; alter table resting rename to live",
}


def prepare(source: SourceDb) -> None:
    for table in ("live", "staging"):
        source.execute(f"create table {table} (id text primary key, body text)")
    source.execute(f"insert into live select i::text, 'public ' || i from generate_series(1, {ROWS}) i")
    source.execute("create table others (id text primary key, body text)")
    source.execute("create publication headwater for all tables")


def hold_to_the_truth(deployment: Deployment, source: SourceDb, device: Device) -> None:
    truth = published_rows(source, SHOWN)
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the device to show the truth")
    source.execute("insert into live values ('last', 'written'); update live set body = 'after all' where id = '7'")
    assert deployment.caught_up()
    # what the catalog was read as between two renames is taken up, and then what it was read as after them
    truth = published_rows(source, SHOWN)
    wait_until(lambda: device.rows() == truth, "the device to show the truth once more")
    assert "private" not in given(deployment)


@contextmanager
def unseen(deployment: Deployment, how: str) -> Iterator[None]:
    """What is done meanwhile is seen afterwards: the replicator is `stopped`, or `behind`; or it is `live`."""
    if how == "stopped":
        deployment.stop()
    with held_back() if how == "behind" else nullcontext():
        yield
    if how == "stopped":
        deployment.start()


@pytest.mark.parametrize(("move", "how"), in_turn(MOVES, every=["stopped", "behind", "live"]))
def test_private_history_of_table_is_hidden(deploy: Deploy, source_db: SourceDb, move: str, how: str) -> None:
    prepare(source_db)
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    assert device.rows() == published_rows(source_db, SHOWN)
    with unseen(deployment, how):
        for statement in [*HISTORY.split(";"), *MOVES[move].split(";")]:
            source_db.execute(statement)
        if (how, move) == ("behind", "dropped and replaced"):  # the catalog's news can come before the stream does
            wait_until(lambda: settled(deployment) or compared_as_now(deployment, source_db), "the catalog's news")
    hold_to_the_truth(deployment, source_db, device)


def compared_as_now(deployment: Deployment, source: SourceDb) -> bool:
    """The store knows which table has the public name now."""
    ((oid,),) = source.fetch("select 'live'::regclass::oid::int8")
    with deployment.store() as store:
        return any(table.relation.oid == oid for table in store.tables("default"))


@pytest.mark.parametrize("how", ["stopped", "behind", "live"])
def test_private_history_of_partition_is_hidden(deploy: Deploy, source_db: SourceDb, how: str) -> None:
    source_db.execute("create table live (id text primary key, body text) partition by hash (id)")
    source_db.execute("create table live_0 partition of live for values with (modulus 2, remainder 0)")
    source_db.execute("create table staging (id text primary key, body text)")
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute("create publication headwater for all tables with (publish_via_partition_root)")
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    attach = "alter table live attach partition staging for values with (modulus 2, remainder 1)"
    belongs = "delete from staging where not satisfies_hash_partition('live'::regclass, 2, 1, id)"
    statements = [*HISTORY.split(";"), belongs, attach]
    with unseen(deployment, how):
        for statement in statements:
            source_db.execute(statement)
    wait_until(
        lambda: settled(deployment) and device.rows() == published_rows(source_db, SHOWN),
        "the device to show the truth",
    )
    assert "private" not in given(deployment)


def test_row_is_fetched_from_its_own_table(deploy: Deploy, source_db: SourceDb) -> None:
    """A row that enters a row filter lacks its untouched value; by the time it is asked for, another table has the
    name, and the key."""
    source_db.needs(15, "row filters of publications")
    source_db.execute("create table live (id text, n int, body text, primary key (id, n))")
    source_db.execute("alter table live alter body set storage external")
    source_db.execute("create table staging (id text, n int, body text, primary key (id, n))")
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute("create publication headwater for table live where (n > 0), others")
    source_db.execute("insert into live values ('1', 0, repeat('public', 2000))")
    source_db.execute(f"insert into staging values ('1', 5, {BIG})")
    deployment = deploy(CONFIG).start()
    with held_back():
        source_db.execute("update live set n = 5")
        source_db.execute(SWAP)
    wait_until(
        lambda: settled(deployment) and deployment.rows("a") == {}, "the table to be gone, for it is not published"
    )
    assert "private" not in given(deployment)


def test_row_is_not_completed_from_before_unseen_change(deploy: Deploy, source_db: SourceDb) -> None:
    """The stream brings a row without its large value, which was another while the table had a private name."""
    source_db.execute("create table live (id text primary key, n int, body text)")
    source_db.execute("alter table live alter body set storage external")
    source_db.execute("create table others (id text primary key, body text)")
    source_db.execute("create publication headwater for table live, others")
    source_db.execute("insert into live values ('1', 1, repeat('before', 2000))")
    deployment = deploy(CONFIG).start()
    device = Device(deployment)
    with held_back():
        source_db.execute("alter table live rename to resting")
        source_db.execute("update resting set body = repeat('after', 2000)")
        source_db.execute("alter table resting rename to live")
        source_db.execute("update live set n = 2")
    truth = published_rows(source_db, SHOWN)
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the device to show the truth")
    said = [line for line in given(deployment).split("\n") if "before" in line]
    assert [line for line in said if r"\"n\":2" in line] == []


PRIVATE = (
    "update resting set body = 'private for a while'",
    "insert into resting values ('r', 'private')",
    "update live_0 set body = 'private still' where id = '2'",
)


def partitioned(deployment: Deployment, source: SourceDb) -> Device:
    """A device that shows a partitioned table, of whose partition the stream has told."""
    source.execute("create table live (id text primary key, body text) partition by hash (id)")
    source.execute("create table live_0 partition of live for values with (modulus 1, remainder 0)")
    source.execute("create table others (id text primary key, body text)")
    source.execute("create publication headwater for table live, others with (publish_via_partition_root)")
    source.execute("insert into live values ('1', 'public')")
    device = Device(deployment.start())
    source.execute("insert into live values ('2', 'public')")
    deployment.caught_up()
    return device


def shows_live(deployment: Deployment) -> bool:
    deployment.raise_failure()
    with deployment.store() as store:
        return any(table.relation.name == "live" for table in store.tables("default"))


@pytest.mark.parametrize("looks", [0.2, 3.0], ids=["by a look", "by its rows"])
def test_renamed_partitioned_table_is_hidden(deploy: Deploy, source_db: SourceDb, looks: float) -> None:
    """After its root was renamed, Postgres sends what follows under its former name."""
    deployment = deploy(CONFIG, intervals=replace(HASTY, catalog=looks))
    device = partitioned(deployment, source_db)
    source_db.execute("alter table live rename to resting")
    for statement in PRIVATE:
        source_db.execute(statement)
    deployment.caught_up()
    assert "private" not in given(deployment)
    source_db.execute("update resting set body = 'shown again'; alter table resting rename to live")
    hold_to_the_truth(deployment, source_db, device)


@pytest.mark.parametrize("after", ["", "alter table resting rename to live"], ids=["for good", "for a while"])
def test_formerly_renamed_partitioned_table_is_hidden(deploy: Deploy, source_db: SourceDb, after: str) -> None:
    """The stream comes to it when the catalog's news were taken up."""
    deployment = deploy(CONFIG)
    device = partitioned(deployment, source_db)
    with held_back():
        source_db.execute("alter table live rename to resting")
        wait_until(lambda: not shows_live(deployment), "the table to be gone")
        for statement in PRIVATE:
            source_db.execute(statement)
        if after:
            source_db.execute("insert into others select i::text, 'x' from generate_series(1, %s) i", FLUSH_CHANGES)
            source_db.execute("update resting set body = 'shown again'")
            source_db.execute(after)
            wait_until(lambda: shows_live(deployment), "the table to be back")
    if not after:
        deployment.caught_up()
        assert device.rows() == {}
        source_db.execute("update resting set body = 'shown again'; alter table resting rename to live")
    hold_to_the_truth(deployment, source_db, device)


def test_partitioned_table_is_asked_once_a_flush(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    names = RowFetcher.names

    def counted(fetcher: RowFetcher, oids: Collection[int]) -> Names:
        asked.append(len(oids))
        return names(fetcher, oids)

    monkeypatch.setattr(RowFetcher, "names", counted)
    deployment = deploy(CONFIG)
    partitioned(deployment, source_db)
    before = len(asked)
    source_db.execute("insert into others select i::text, 'x' from generate_series(1, 100) i")
    deployment.caught_up()
    assert len(asked) == before
    source_db.execute("insert into live select i::text, 'x' from generate_series(3, 30000) i")
    deployment.caught_up()
    assert asked[before:] == [1]


AWAY = {
    "renamed": ("alter table live rename to resting", "resting", "alter table resting rename to live"),
    "moved": (
        "create schema hidden; alter table live set schema hidden",
        "hidden.live",
        "alter table hidden.live set schema public",
    ),
    "in one transaction": (
        "begin; alter table live rename to resting",
        "resting",
        "alter table resting rename to live; commit",
    ),
}


def away_for_a_while(deployment: Deployment, source: SourceDb, how: str) -> Device:
    """A partitioned table has had another name, and its own again, before the stream comes to what was written to it
    meanwhile. Nobody looks at the catalog."""
    away, name, back = AWAY[how]
    deployment.intervals = TRIGGERED
    device = partitioned(deployment, source)
    with held_back():
        source.execute(away)
        for statement in PRIVATE:
            source.execute(statement.replace("resting", name))
        source.execute("insert into others select i::text, 'x' from generate_series(1, %s) i", FLUSH_CHANGES)
        source.execute(f"update {name} set body = 'shown again'")
        source.execute(back)
    return device


@pytest.mark.parametrize("how", AWAY)
def test_triggers_name_partitioned_table(deploy: Deploy, source_db: SourceDb, how: str) -> None:
    install(source_db.settings())
    deployment = deploy(CONFIG)
    device = away_for_a_while(deployment, source_db, how)
    hold_to_the_truth(deployment, source_db, device)


def test_truth_in_the_end_without_triggers(deploy: Deploy, source_db: SourceDb) -> None:
    """What they are given meanwhile depends on when somebody looks, as docs/security.md says."""
    deployment = deploy(CONFIG)
    device = away_for_a_while(deployment, source_db, "renamed")
    truth = published_rows(source_db, SHOWN)
    wait_until(lambda: settled(deployment) and device.rows() == truth, "the device to show the truth")
