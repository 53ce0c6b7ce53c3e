"""Databases with one tag: their tables are one output, in the same buckets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.oplog.lsn import Lsn
from tests.support.changed_source import Device, settled
from tests.support.fix_headwater import STORES
from tests.support.fix_sources import NewSources, Sources
from tests.support.store_checker import histories
from tests.support.waiting import wait_until

ITEMS = "create table items (id text primary key, owner text, body text);"
YAML = """
config: {edition: 3}
streams:
  items: {auto_subscribe: true, query: 'SELECT id, body FROM "shop.public".items WHERE owner = auth.user_id()'}
"""


def make(new_sources: NewSources, on_postgres: bool, yaml: str = YAML) -> Sources:
    """Two shards; both have an item `same`."""
    east = ITEMS + "insert into items values ('same', 'a', 'east'), ('e', 'a', 'only east')"
    west = ITEMS + "insert into items values ('same', 'a', 'west'), ('w', 'a', 'only west')"
    return new_sources(yaml, {"shop/east": east, "shop/west": west}, on_postgres=on_postgres).start()


def bodies(sources: Sources) -> dict[str, object]:
    """By id, what a new device shows."""
    return {row_id: row["body"] for (_, row_id), row in sources.rows("a").items()}


def entries(sources: Sources, row_id: str) -> list[str]:
    """What a device has stored of a row: one entry for each shard that has it."""
    sources.caught_up()
    buckets = sources.any.buckets("a").values()
    return sorted(data for bucket in buckets for (_, each, _), (_, data, _) in bucket.rows.items() if each == row_id)


@STORES
def test_shards_share_their_buckets(new_sources: NewSources, on_postgres: bool) -> None:
    sources = make(new_sources, on_postgres)
    assert bodies(sources).keys() == {"same", "e", "w"}
    assert len(sources.any.buckets("a")) == 1
    assert len(entries(sources, "same")) == 2


@STORES
def test_same_ids_in_two_shards_stay_two_rows(new_sources: NewSources, on_postgres: bool) -> None:
    sources = make(new_sources, on_postgres)
    device = Device(sources.any)
    device.rows()
    east, west = sources["shop/east"].source, sources["shop/west"].source
    east.execute("delete from items where id = 'same'")
    assert bodies(sources)["same"] == "west"
    east.execute("insert into items values ('same', 'a', 'east again')")
    west.execute("delete from items where id = 'same'")
    assert bodies(sources)["same"] == "east again"
    assert {key[1] for key in device.rows()} == {"same", "e", "w"}


@STORES
@pytest.mark.parametrize("first", ["insert", "delete"])
def test_a_row_moves_to_another_shard(new_sources: NewSources, on_postgres: bool, first: str) -> None:
    sources = make(new_sources, on_postgres)
    device = Device(sources.any)
    device.rows()
    east, west = sources["shop/east"], sources["shop/west"]
    insert = (west, "insert into items values ('e', 'a', 'moved')")
    delete = (east, "delete from items where id = 'e'")
    for shard, statement in (insert, delete) if first == "insert" else (delete, insert):
        shard.source.execute(statement)
        shard.caught_up()
        device.rows()
    assert bodies(sources)["e"] == "moved"
    assert device.rows()["items", "e"]["body"] == "moved"
    assert len(entries(sources, "e")) == 1


@STORES
@pytest.mark.parametrize("statement", ["truncate items", "drop table items"])
def test_a_shard_that_loses_its_rows_leaves_those_of_others(
    new_sources: NewSources, on_postgres: bool, statement: str
) -> None:
    sources = make(new_sources, on_postgres)
    device = Device(sources.any)
    device.rows()
    sources["shop/east"].source.execute(statement)
    wait_until(lambda: set(bodies(sources)) == {"same", "w"}, "the rows of the shard to go")
    assert device.rows()["items", "same"]["body"] == "west"
    sources["shop/west"].source.execute("truncate items")
    assert bodies(sources) == {}
    assert device.rows() == {}


@STORES
def test_other_ids_of_a_shard_leave_the_rows_of_others(new_sources: NewSources, on_postgres: bool) -> None:
    sources = make(new_sources, on_postgres)
    device = Device(sources.any)
    before = device.rows()
    ops = sources.any.op_count()
    east = sources["shop/east"]
    east.source.execute("alter table items replica identity full")
    wait_until(lambda: settled(east) and "re-key" in east.kinds(), "the rows to have other ids")
    assert device.rows() == before
    assert sources.any.op_count() == ops
    assert len(entries(sources, "same")) == 2
    assert east.ask("resync")["ops"] == 0
    east.source.execute("delete from items where id = 'same'")
    assert bodies(sources)["same"] == "west"
    assert len(entries(sources, "same")) == 1
    assert {row_id for _, row_id in device.rows()} == {"same", "e", "w"}


@STORES
def test_a_shard_that_comes_later(new_sources: NewSources, on_postgres: bool) -> None:
    sources = make(new_sources, on_postgres)
    device = Device(sources.any)
    device.rows()
    before = histories(sources.any.address)
    sources.add("shop/north", ITEMS + "insert into items values ('same', 'a', 'north'), ('n', 'a', 'only north')")
    sources.restart()
    assert bodies(sources).keys() == {"same", "e", "w", "n"}
    assert len(entries(sources, "same")) == 3
    after = histories(sources.any.address)
    assert {name: ops[: len(before[name])] for name, ops in after.items()} == before  # nothing is sent again
    assert device.rows().keys() == sources.rows("a").keys()


@STORES
def test_a_version_of_shards(new_sources: NewSources, on_postgres: bool) -> None:
    sources = make(new_sources, on_postgres)
    sources["shop/west"].stop()
    number = sources.deploy(YAML.replace("id, body", "id, body, upper(body) AS loud"))
    sources.wait_for(lambda _: sources.note(number) == "waits for source shop/west", "the version to wait")
    sources["shop/east"].source.execute("update items set body = 'meanwhile' where id = 'e'")
    sources["shop/east"].caught_up()
    sources.start()
    sources.wait_for(lambda _: sources.state(number).value == "active", "the version to be served")
    rows = sources.rows("a")
    assert {row_id: row["loud"] for (_, row_id), row in rows.items()} == {
        "e": "MEANWHILE",
        "w": "ONLY WEST",
        "same": rows["items", "same"]["loud"],
    }
    assert len(entries(sources, "same")) == 2


@STORES
def test_a_shard_that_is_read_again(new_sources: NewSources, on_postgres: bool) -> None:
    sources = make(new_sources, on_postgres)
    device = Device(sources.any)
    device.rows()
    east = sources["shop/east"]
    east.stop()
    with east.store() as store:  # as after a restore from a backup: the slot is ahead
        lease = store.acquire(east.name, "somebody", 10.0)
        state = store.source_state(east.name)
        assert state is not None
        store.move_source(lease, replace(state, lsn=Lsn(state.lsn - 1_000_000)))
        store.release(lease)
    east.source.execute("delete from items where id = 'e'; insert into items values ('e2', 'a', 'later')")
    east.start()
    assert east.kinds().count("snapshot") == 3
    assert bodies(sources).keys() == {"same", "e2", "w"}
    assert device.rows() == sources.rows("a")
    assert len(entries(sources, "same")) == 2
