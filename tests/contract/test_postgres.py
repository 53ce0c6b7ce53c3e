"""What the store in Postgres promises beyond the contract: errors that help, and a life with servers that restart
and writers that vanish."""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from psycopg import sql

from headwater.codes import Kind
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import (
    LeaseHeldError,
    LeaseLostError,
    PartLostError,
    ReplicationProgress,
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
)
from headwater.storage.open import open_store
from headwater.storage.postgres.connection import connect
from headwater.storage.postgres.writer import PostgresWriter
from tests.contract.source_writer import (
    RELATION,
    SOURCE,
    A,
    B,
    SourceWriter,
    assert_in_step,
    noise,
    totals,
    write_batch,
)
from tests.support.model_device import contents
from tests.support.waiting import wait_until

NewAddress = Callable[[], PostgresAddress]


@pytest.fixture
def address(new_postgres_address: NewAddress) -> PostgresAddress:
    return new_postgres_address()


@pytest.fixture
def writer(address: PostgresAddress) -> Iterator[SourceWriter]:
    with closing(open_store(address).open_writer()) as store:
        yield SourceWriter(address, store, store.acquire(SOURCE, "here:1", 30.0))


@pytest.fixture
def admin(address: PostgresAddress) -> Iterator[psycopg.Connection]:
    """A hand in the store's database, in its schema."""
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute(sql.SQL("set search_path = {}").format(sql.Identifier(address.schema)))
        yield connection


def end_connections(admin: psycopg.Connection, purpose: str) -> int:
    """End those of our sessions that are for something, as a restart of the server would. Returns how many."""
    return admin.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = %s"
        " and datname = current_database()",
        [f"headwater {purpose}"],
    ).rowcount


def test_schema(writer: SourceWriter, admin: psycopg.Connection) -> None:
    writer.bootstrap({"1": (A, "x")})
    writer.write({str(i): (A, "y") for i in range(300)})
    elsewhere = admin.execute(
        "select c.relname from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'r'"
        " and n.nspname not in ('pg_catalog', 'information_schema') and n.nspname !~ '^(store_|pg_)'"
    ).fetchall()
    assert elsewhere == []


def test_two_stores_in_one_database(writer: SourceWriter, new_postgres_address: NewAddress) -> None:
    writer.bootstrap({"1": (A, "x")})
    with (
        closing(open_store(new_postgres_address()).open_writer()) as other,
        closing(open_store(other.address).open_reader()) as reader,
    ):
        second = SourceWriter(other.address, other, other.acquire(SOURCE, "there:1", 30.0))
        assert reader.newest() is None
        second.bootstrap({"2": (A, "other")})
        assert contents([assert_in_step(reader, A)]) == {("todos", "2"): {"text": "other"}}


def test_holder_without_session(writer: SourceWriter, admin: psycopg.Connection) -> None:
    """As when its process was killed on another machine, where nobody here can see it."""

    def left(seconds: int) -> None:
        admin.execute("update leases set expires_at = clock_timestamp() + make_interval(secs => %s)", [seconds])

    writer.bootstrap({"1": (A, "x")})
    writer.write({"1": (A, "y")})
    with closing(open_store(writer.address).open_writer()) as other:
        left(15)
        with pytest.raises(LeaseHeldError):  # it may be slow, but it is there
            other.acquire(SOURCE, "there:1", 30.0)
        ((ended,),) = admin.execute(
            "select pg_terminate_backend(split_part(flushing, ' ', 1)::int, 20000) from leases"
        ).fetchall()
        assert ended
        left(25)
        with pytest.raises(LeaseHeldError):  # it renews its lease, so it only has to connect again
            other.acquire(SOURCE, "there:1", 30.0)
        left(15)
        assert other.acquire(SOURCE, "there:1", 30.0).epoch == 2


def test_simultaneous_starts(address: PostgresAddress) -> None:
    stores: list[PostgresWriter] = []
    threads = [threading.Thread(target=lambda: stores.append(PostgresWriter(address))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 6
    assert len({store.keys().secret for store in stores}) == 1
    for store in stores:
        store.close()


def test_killed_start(address: PostgresAddress, admin: psycopg.Connection) -> None:
    script = (
        "import pickle, sys; from headwater.storage.open import open_store;"
        "open_store(pickle.loads(bytes.fromhex(sys.argv[1]))).open_writer()"
    )
    environment = {**os.environ, "HEADWATER_FAILPOINT": "migrate.before_commit"}
    done = subprocess.run([sys.executable, "-c", script, pickle.dumps(address).hex()], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert admin.execute("select 1 from pg_namespace where nspname = %s", [address.schema]).fetchall() == []
    with closing(open_store(address).open_writer()) as store:
        assert store.acquire(SOURCE, "here:1", 30.0).epoch == 1


def test_secrets_are_in_no_message(address: PostgresAddress) -> None:
    wrong = replace(address, conninfo=f"{address.conninfo} user=nobody password=hush-hush")
    with pytest.raises(HeadwaterError) as caught:
        open_store(wrong).open_writer()
    assert "hush-hush" not in str(caught.value) + repr(wrong)
    assert "has no such role" in str(caught.value)


@pytest.mark.parametrize(
    ("conninfo", "expected"),
    [
        ("host=127.0.0.1 port=9 connect_timeout=2", "cannot be reached"),
        ("dbname=nowhere", "does not exist"),
        ("sslmode=require", "does not support TLS"),
    ],
)
def test_refusing_server(address: PostgresAddress, conninfo: str, expected: str) -> None:
    with pytest.raises(HeadwaterError, match=expected) as caught:
        open_store(replace(address, conninfo=f"{address.conninfo} {conninfo}")).open_writer()
    assert caught.value.fix
    assert (caught.value.kind is Kind.RETRY) == (expected == "cannot be reached")


def test_role_without_schema_right(address: PostgresAddress, admin: psycopg.Connection) -> None:
    admin.execute("drop role if exists meek")
    admin.execute("create role meek login")
    with pytest.raises(StoreError, match=r"permission denied for database.*own the schema"):
        open_store(replace(address, conninfo=f"{address.conninfo} user=meek")).open_writer()
    admin.execute(sql.SQL("create schema {} authorization meek").format(sql.Identifier(address.schema)))
    with closing(open_store(replace(address, conninfo=f"{address.conninfo} user=meek")).open_writer()) as store:
        assert store.versions() == []
    admin.execute(sql.SQL("drop schema {} cascade").format(sql.Identifier(address.schema)))
    admin.execute("drop role meek")


def test_role_without_connections(address: PostgresAddress, admin: psycopg.Connection) -> None:
    admin.execute("create role narrow login connection limit 0")
    with pytest.raises(StoreUnreachableError, match=r"no connection to spare.*ALTER ROLE … CONNECTION LIMIT"):
        open_store(replace(address, conninfo=f"{address.conninfo} user=narrow")).open_writer()
    admin.execute("drop role narrow")


def test_other_encoding(postgres: EmbeddedPostgres, address: PostgresAddress, admin: psycopg.Connection) -> None:
    admin.execute("create database latin encoding 'LATIN1' lc_collate 'C' lc_ctype 'C' template template0")
    with pytest.raises(StoreError, match="has the encoding LATIN1"):
        open_store(replace(address, conninfo=postgres.dsn("latin"))).open_writer()
    admin.execute("drop database latin")


def test_flush_loses_its_connection(writer: SourceWriter, admin: psycopg.Connection) -> None:
    writer.bootstrap({"1": (A, "x")})
    flush = writer.store.begin(writer.lease)
    flush.put_rows(writer.table, [CurrentRow("2", 0, "2\tlost", "", None)])
    assert end_connections(admin, "flush") == 1
    with pytest.raises(StoreUnreachableError):
        flush.commit(SOURCE, ReplicationProgress(Lsn(999)))
    flush.rollback()
    writer.write({"3": (A, "kept")})
    assert set(writer.rows()) == {"1", "3"}
    state = writer.store.source_state(SOURCE)
    assert state is not None
    assert state.lsn < 999


def test_readers_outlive_a_restart(writer: SourceWriter, admin: psycopg.Connection) -> None:
    writer.bootstrap({"1": (A, "x")})
    with closing(open_store(writer.address).open_reader()) as reader:
        before = totals(reader, A)
        assert end_connections(admin, "reader") >= 1
        assert end_connections(admin, "store") >= 1
        assert totals(reader, A) == before
        assert writer.store.change_counter() >= 0


def test_listener_outlives_a_restart(writer: SourceWriter, admin: psycopg.Connection) -> None:
    writer.bootstrap({"1": (A, "x")})
    with closing(open_store(writer.address).open_reader()) as reader, closing(reader.listen()) as listener:
        assert end_connections(admin, "listener") == 1
        assert select.select([listener], [], [], 20)[0]
        listener.drain()
        writer.write({"1": (A, "y")})
        assert select.select([listener], [], [], 20)[0]


def test_write_checkpoint_wakes_others(writer: SourceWriter) -> None:
    one, other = open_store(writer.address).open_reader(), open_store(writer.address).open_reader()
    with closing(one), closing(other), closing(other.listen()) as listener:
        one.create_write_checkpoint(["u/1"], {})
        assert select.select([listener], [], [], 20)[0]


def test_write_checkpoint_during_flush(writer: SourceWriter, admin: psycopg.Connection) -> None:
    writer.bootstrap({"1": (A, "x")})
    with admin.transaction(), closing(open_store(writer.address).open_reader()) as reader:
        admin.execute("select 1 from state for update")
        assert reader.create_write_checkpoint(["u/1"], {}) == {"u/1": 1}
        assert writer.store.submit("resync", SOURCE, "{}") > 0
        assert totals(reader, A)[2] == 2


def test_vanished_writer(writer: SourceWriter, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_settings(), "idle_in_transaction_session_timeout", "2s")
    writer.bootstrap({"1": (A, "x")})
    frozen = writer.store.begin(writer.lease)
    writer.table = frozen.truncate(writer.table, ["todos.1"])  # from here on it has the store's lock
    with closing(open_store(writer.address).open_writer()) as store:
        second = SourceWriter(writer.address, store, store.acquire("other", "there:1", 30.0), "other")
        second.bootstrap({"9": (B, "y")})
    with pytest.raises(HeadwaterError):
        frozen.commit(SOURCE, ReplicationProgress(Lsn(1)))


def _settings() -> dict[str, str]:
    from headwater.storage.postgres import connection

    return connection._SETTINGS


def test_frozen_holder(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    frozen = writer.store.begin(writer.lease)
    gone = frozen.truncate(writer.table, ["todos.1"])  # from here on it has the store's lock
    with (
        closing(open_store(writer.address).open_writer()) as store,
        closing(open_store(writer.address).open_reader()) as reader,
    ):
        second = SourceWriter(writer.address, store, store.acquire(SOURCE, "here:1", 30.0), table=writer.table)
        second.write({"2": (A, "y")})
        assert set(assert_in_step(reader, A).rows) == {("todos", "1", "1"), ("todos", "2", "1")}
    frozen.put_rows(gone, [CurrentRow("3", 0, "late", "", None)])  # is sent with the commit
    with pytest.raises(HeadwaterError):
        frozen.commit(SOURCE, ReplicationProgress(Lsn(1)))


def test_busy_store(writer: SourceWriter, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.bootstrap({"1": (A, "x")})
    monkeypatch.setitem(_settings(), "lock_timeout", "100ms")
    with closing(open_store(writer.address).open_writer()) as store, admin.transaction():
        admin.execute("select 1 from state for update")
        hurried = SourceWriter(writer.address, store, writer.lease, table=writer.table)
        with pytest.raises(StoreBusyError):
            hurried.write({"2": (A, "y")})


def test_busy_store_is_written_later(
    writer: SourceWriter, admin: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed in a pipeline leaves nothing behind on its connection, which is used again."""
    writer.bootstrap({"1": (A, "x")})
    monkeypatch.setitem(_settings(), "lock_timeout", "50ms")
    with closing(open_store(writer.address).open_writer()) as store:
        hurried = SourceWriter(writer.address, store, writer.lease, table=writer.table)
        with admin.transaction():
            admin.execute("select 1 from state for update")
            for _ in range(8):
                flush = store.begin(writer.lease)
                flush.put_rows(writer.table, [CurrentRow("2", 0, "2\ty", "", None)])
                with pytest.raises(StoreBusyError):
                    flush.truncate(writer.table, [])
                flush.rollback()
        hurried.write({"2": (A, "y")})
    with closing(open_store(writer.address).open_reader()) as reader:
        assert set(assert_in_step(reader, A).rows) == {("todos", "1", "1"), ("todos", "2", "1")}


def test_lease_lost_while_waiting(writer: SourceWriter, admin: psycopg.Connection) -> None:
    writer.bootstrap({"1": (A, "x")})
    before = writer.store.tables(SOURCE)
    failures: list[BaseException] = []

    def write() -> None:
        try:
            writer.write({"2": (A, "late")})
        except LeaseLostError as error:
            failures.append(error)

    waiting = threading.Thread(target=write)
    with admin.transaction():
        admin.execute("select 1 from state for update")
        waiting.start()
        wait_until(lambda: bool(admin.execute("select 1 from pg_locks where not granted").fetchall()), "a lock")
        admin.execute("update leases set epoch = epoch + 1, owner = 'there:1'")
    waiting.join()
    assert len(failures) == 1
    with closing(open_store(writer.address).open_reader()) as reader:
        assert contents([assert_in_step(reader, A)]) == {("todos", "1"): {"text": "x"}}
    assert writer.store.tables(SOURCE) == before


def test_part_emptied_by_a_crash(writer: SourceWriter, admin: psycopg.Connection) -> None:
    """Tables of parts are unlogged: after a crash they are there, and empty."""
    writer.bootstrap({"1": (A, "x")})
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")])
    part = writer.part(staged.id, {"2": (A, "y")}, 0, 1)
    additions = writer.additions({"1": (B, "z")})
    for emptied in (part, additions):
        for kind in ("rows", "segments"):
            admin.execute(sql.SQL("truncate {}").format(sql.Identifier(f"{emptied.path}_{kind}")))
    with pytest.raises(PartLostError, match="a part of the bulk job is damaged"):
        writer.store.stage(writer.lease, [part])
    with pytest.raises(PartLostError, match="a part of the bulk job is damaged"):
        writer.store.take_page(writer.lease, additions, 0, ())
    with closing(open_store(writer.address).open_reader()) as reader:
        assert contents([assert_in_step(reader, A)]) == {("todos", "1"): {"text": "x"}}
        assert totals(reader, B)[1:] == (0, 0)


def test_bulk_work_leaves_nothing(writer: SourceWriter, admin: psycopg.Connection) -> None:
    writer.bootstrap({"1": (A, "x")})
    with open_store(writer.address).open_part(writer.table, 0, "a") as part:
        write_batch(part, writer.table, [("1", (B, "left"))], writer.keys, added=True)
    killed = open_store(writer.address).open_part(writer.table, 1, "b")
    write_batch(killed, writer.table, [("1", (B, "left"))], writer.keys, added=True)
    writer.additions({"1": (B, "never taken")})
    (staged,) = writer.store.stage_tables(writer.lease, SOURCE, [(RELATION, "print")])
    writer.store.stage(writer.lease, [writer.part(staged.id, {"2": (B, "lost")}, 0, 1)])
    writer.truncate()
    writer.store.discard_staged(writer.lease)
    killed.__exit__(None, None, None)

    def left() -> list[str]:
        rows = admin.execute(
            "select tablename from pg_tables where schemaname = current_schema()"
            " and (tablename like 'stage\\_%' or tablename like 'rows\\_%') order by 1"
        )
        return [row[0] for row in rows]

    wait_until(lambda: left() == [f"rows_{writer.table}"], "what was left to go")
    for table in ("staged_parts", "staged_segments", "staged_buckets"):
        assert admin.execute(sql.SQL("select 1 from {}").format(sql.Identifier(table))).fetchall() == []
    assert admin.execute("select id from segment_blobs where id not in (select blob from segments)").fetchall() == []
    assert admin.execute("select id from tables").fetchall() == [(writer.table,)]


def test_jobs_of_two_sources(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    part = writer.additions({"1": (B, "z")})
    with closing(open_store(writer.address).open_writer()) as store:
        store.discard_staged(store.acquire("other", "there:1", 30.0))
    writer.store.take_page(writer.lease, part, 0, ())
    with closing(open_store(writer.address).open_reader()) as reader:
        assert contents([assert_in_step(reader, B)]) == {("todos", "1"): {"text": "z"}}


def test_long_keys(writer: SourceWriter) -> None:
    writer.bootstrap({"1": (A, "x")})
    ids = [noise(100_000), noise(100_000) + "2", "é" * 501]
    with writer.rolled_back() as flush:
        flush.put_rows(writer.table, [CurrentRow(row_id, 0, str(n), "", None) for n, row_id in enumerate(ids)])
        flush.put_rows(writer.table, [CurrentRow(ids[1], 0, "again", "", None)])
        assert {row_id: row.line for row_id, row in flush.current(writer.table, ids).items()} == {
            ids[0]: "0", ids[1]: "again", ids[2]: "2",
        }  # fmt: skip
        flush.delete_rows(writer.table, ids[:1])
        assert set(flush.current(writer.table, ids)) == set(ids[1:])


def test_dead_machine(address: PostgresAddress) -> None:
    """It says nothing, so only the system can tell, and by its own settings it would wait for hours."""
    with closing(connect(address)) as connection, socket.socket(fileno=os.dup(connection.fileno())) as end:
        of_tcp = partial(end.getsockopt, socket.IPPROTO_TCP)
        assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        silence = of_tcp(socket.TCP_KEEPIDLE) + of_tcp(socket.TCP_KEEPINTVL) * of_tcp(socket.TCP_KEEPCNT)
        assert silence <= 70
        assert of_tcp(socket.TCP_USER_TIMEOUT) == 60_000
        assert connection.execute("show tcp_user_timeout").fetchall() == [("60000",)]  # the same for us
    given = replace(address, conninfo=f"{address.conninfo} keepalives_idle=5")
    with closing(connect(given)) as connection, socket.socket(fileno=os.dup(connection.fileno())) as end:
        assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
