"""Generated columns that Postgres does not compute for us: they are read with their rows, which may be further by then
than the stream is. No device gets a row that is a mix of two."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.oplog.change import Cell, Relation
from headwater.source.rows.fetch import Fetched, RowFetcher
from tests.integration.test_private_history import held_back
from tests.integration.test_trusted_rows import asked
from tests.support.changed_source import Device, published_rows, settled
from tests.support.fix_headwater import Deploy, wait_until
from tests.support.waiting_bulk import Waiting

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb


CONFIG = """
config: {edition: 3}
streams:
  all:
    auto_subscribe: true
    query: SELECT * FROM live
"""

# A row of the table can't be given without a value for such a column
TABLE = """
create domain filled as text not null;
create table live (
    id text primary key, body text, same filled generated always as (coalesce(body, 'none')) stored, big text
);
alter table live alter big set storage external;
create publication headwater for table live
"""


def read_rows(monkeypatch: pytest.MonkeyPatch, around: Callable[[Callable[[], None]], None]) -> None:
    """Rows are read within `around`, which is given what reads them."""
    fetch = RowFetcher.fetch

    def held(
        fetcher: RowFetcher, relation: Relation, keys: Sequence[Sequence[Cell]], files: Collection[int]
    ) -> Fetched | None:
        found: list[Fetched | None] = []
        around(lambda: found.append(fetch(fetcher, relation, keys, files)))
        return found[0]

    monkeypatch.setattr(RowFetcher, "fetch", held)


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


def test_a_row_that_goes_and_comes_back_while_it_is_read_has_its_own_columns(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream brings it as it is in the store, which has the columns of another moment."""
    source_db.execute(TABLE)
    source_db.execute("insert into live values ('1', 'zero')")
    deployment = deploy(CONFIG)
    device = Device(deployment.start())
    was_read = threading.Event()

    def around(read: Callable[[], None]) -> None:
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
    deployment.close()
    assert deployment.problems() == []


def test_a_row_that_a_comparison_reads_is_held_until_the_stream_has_come_to_it(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    source_db.execute(TABLE)
    source_db.execute("insert into live values ('1', 'zero', default, repeat('toast', 2000))")
    bulk = Waiting()
    deployment = deploy(CONFIG)
    deployment.bulk = bulk
    device = Device(deployment.start())
    resync = asked(deployment, "resync")
    wait_until(bulk.begun.is_set, "the comparison")
    source_db.execute("update live set body = 'first'")
    deployment.caught_up()
    was_read = threading.Event()

    def around(read: Callable[[], None]) -> None:
        read()
        was_read.set()

    read_rows(monkeypatch, around)
    with held_back():
        changed(source_db, "second")
        bulk.go.set()
        wait_until(was_read.is_set, "the row to be read")
        changed(source_db, "first")
    resync.join(60)
    assert [record.kind for record in deployment.bulk_records()] == ["snapshot", "re-sync"], "done without an error"
    assert settled(deployment)
    deployment.caught_up()
    assert device.rows() == published_rows(source_db, {"public.live": "true"})
    deployment.close()
    assert deployment.problems() == []
