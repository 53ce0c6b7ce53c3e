"""The faults: how each is made and undone, and the words by which it has to be named, with what to do about it."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import apsw
import psycopg

from headwater.embedded.postgres import StopMode
from tests.faults.service import PASSWORD, ROLE, SYNC, FaultyService

Inject = Callable[[FaultyService], AbstractContextManager[None]]

EVERYWHERE = ("status", "doctor", "log")


@dataclass(frozen=True)
class Fault:
    """`cause` and `remedy` are words that have to be said in each of `where`: … is for any, and ` / ` between those of
    which one has to be said. Rows go on flowing if it `flows`."""

    name: str
    cause: str
    remedy: str
    inject: Inject
    where: tuple[str, ...] = EVERYWHERE
    flows: bool = False

    def missing(self, where: str, text: str) -> list[str]:
        """What a text lacks."""
        wanted = {"cause": self.cause, "remedy": self.remedy}
        return [f"{where} does not name the {kind}" for kind, words in wanted.items() if not _says(text, words)]


def _says(text: str, words: str) -> bool:
    return any(re.search(".*".join(map(re.escape, each.split("…"))), text) for each in words.split(" / "))


# ways to inject


def statements(do: str, undo: str, *, disconnect: bool = False) -> Inject:
    """By SQL in the source. With `disconnect`, of a right that is looked at when somebody comes."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        service.sql(do)
        if disconnect:
            service.disconnect()
        try:
            yield
        finally:
            service.sql(undo)

    return inject


def started_with(change: Inject) -> Inject:
    """The service is stopped, and started again when the change is there."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        service.stop()
        with change(service):
            service.start()
            try:
                yield
            finally:
                service.stop()

    return inject


def while_stopped(change: Inject) -> Inject:
    """The service is stopped before, and is not started."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        service.stop()
        with change(service):
            yield

    return inject


def configured(*path: str, value: Any) -> Inject:
    """Another value in the service config."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        *sections, key = path
        place: Any = service.config
        for section in sections:
            place = place[section]
        missing = object()
        before = place.get(key, missing)
        place[key] = value
        service.write()
        try:
            yield
        finally:
            if before is missing:
                del place[key]
            else:
                place[key] = before
            service.write()

    return inject


def ruled(query: str) -> Inject:
    """The sync config has another query, too."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        service.sync = f"{SYNC}      - {query}\n"
        try:
            yield
        finally:
            service.sync = SYNC

    return inject


def set_to(name: str, value: str) -> Inject:
    return lambda service: service.setting(name, value)


def together(*changes: Inject) -> Inject:
    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change(service))
            yield

    return inject


def connected(dsn: Callable[[FaultyService], str], *texts: str, **options: Any) -> Inject:
    """A session that has done this, and stays open."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        with contextlib.closing(psycopg.connect(dsn(service), **options)) as conn:
            for text in texts:
                conn.execute(text)
            yield
            with contextlib.suppress(psycopg.Error):
                conn.rollback()

    return inject


# single faults


@contextmanager
def source_down(service: FaultyService) -> Iterator[None]:
    service.server.stop(StopMode.IMMEDIATE)
    try:
        yield
    finally:
        service.server.start()


@contextmanager
def network_cut(service: FaultyService) -> Iterator[None]:
    service.network.cut()
    try:
        yield
    finally:
        service.network.mend()


@contextmanager
def network_silent(service: FaultyService) -> Iterator[None]:
    service.network.swallow()
    try:
        yield
    finally:
        service.network.mend()


def no_such_login(service: FaultyService) -> AbstractContextManager[None]:
    return refused(f"host all {ROLE} 127.0.0.1/32 reject")(service)


def refused(line: str) -> Inject:
    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        service.refuse(line)
        service.disconnect()
        try:
            yield
        finally:
            service.refuse("")

    return inject


@contextmanager
def senders_used_up(service: FaultyService) -> Iterator[None]:
    with ExitStack() as stack:
        service.disconnect()
        for _ in range(9):
            with contextlib.suppress(psycopg.OperationalError):
                conn = psycopg.connect(service.server.dsn() + " replication=database", autocommit=True)
                stack.enter_context(contextlib.closing(conn))
        yield


@contextmanager
def slots_used_up(service: FaultyService) -> Iterator[None]:
    names = [f"other_{n}" for n in range(7)]
    for name in names:
        service.sql(f"select pg_create_physical_replication_slot('{name}')")
    try:
        yield
    finally:
        for name in names:
            service.sql(f"select pg_drop_replication_slot('{name}')")


@contextmanager
def segments_written(service: FaultyService) -> Iterator[None]:
    """More log than the slot may keep."""
    for _ in range(40):
        service.sql("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
    service.sql("checkpoint")
    service.sql("checkpoint")
    yield


@contextmanager
def slot_dropped(service: FaultyService) -> Iterator[None]:
    service.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")
    yield


@contextmanager
def half_the_budget(service: FaultyService) -> Iterator[None]:
    service.signal(signal.SIGSTOP)
    for _ in range(20):
        service.sql("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


@contextmanager
def forgotten_slot(service: FaultyService) -> Iterator[None]:
    with service.setting("max_slot_wal_keep_size", "-1"):
        service.sql("select pg_create_physical_replication_slot('forgotten', true)")
        for _ in range(66):
            service.sql("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")
        try:
            yield
        finally:
            service.sql("select pg_drop_replication_slot('forgotten')")


@contextmanager
def prepared(service: FaultyService) -> Iterator[None]:
    service.sql("begin; insert into unseen values (1); prepare transaction 'forgotten'")
    try:
        yield
    finally:
        service.sql("rollback prepared 'forgotten'")


@contextmanager
def store_set_aside(service: FaultyService) -> Iterator[None]:
    """There is no store, so that the next start reads everything."""
    aside = service.store.with_name("aside")
    service.store.rename(aside)
    try:
        yield
    finally:
        service.stop()
        shutil.rmtree(service.store, ignore_errors=True)
        service.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")
        shutil.rmtree(aside)


@contextmanager
def large_transaction(service: FaultyService) -> Iterator[None]:
    service.sql("insert into notes select 'l' || n, repeat('y', 60) from generate_series(1, 2000000) n")
    try:
        yield
    finally:
        service.stop()
        shutil.rmtree(service.store)
        service.sql("truncate notes")
        service.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")


_SUBTRANSACTIONS = """
do $$ begin
  for n in 1..1500000 loop
    begin insert into unseen values (n); exception when others then raise; end;
  end loop;
end $$
"""  # they take long to decode, and little log


@contextmanager
def decoded_for_nobody(service: FaultyService) -> Iterator[None]:
    service.sql(_SUBTRANSACTIONS)
    try:
        yield
    finally:
        service.sql("truncate unseen")


@contextmanager
def disk_full(service: FaultyService) -> Iterator[None]:
    service.shrink_disk()
    service.sql("update notes set body = repeat(md5(random()::text), 2000)")
    try:
        yield
    finally:
        service.restore_disk()
        service.sql("update notes set body = 'x'")


@contextmanager
def store_removed(service: FaultyService) -> Iterator[None]:
    aside = service.store.parent / "store.db"
    (service.store / "store.db").rename(aside)
    service.sql("update notes set body = 'y'")
    try:
        yield
    finally:
        aside.rename(service.store / "store.db")


@contextmanager
def store_damaged(service: FaultyService) -> Iterator[None]:
    path = service.store / "store.db"
    whole = path.read_bytes()
    path.write_bytes(b"no database" * 1000)
    try:
        yield
    finally:
        service.stop()
        path.write_bytes(whole)


@contextmanager
def store_locked(service: FaultyService) -> Iterator[None]:
    with contextlib.closing(apsw.Connection(str(service.store / "store.db"))) as other:
        other.execute("begin immediate")
        service.sql("update notes set body = 'z'")
        yield
        other.execute("rollback")


@contextmanager
def second_replicator(service: FaultyService) -> Iterator[None]:
    process = service.start_second()
    try:
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def killed(service: FaultyService) -> Iterator[None]:
    service.kill()
    yield


@contextmanager
def paused(service: FaultyService) -> Iterator[None]:
    service.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        service.signal(signal.SIGCONT)


@contextmanager
def port_taken(service: FaultyService) -> Iterator[None]:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", service.port))
        taken.listen()
        yield


def uploading(entry: dict[str, Any], change: Inject) -> Inject:
    """A device writes while the change is there."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        with change(service):
            crud = {"op_id": 1, "op": "PUT", "type": "notes", **entry}
            service.post("/upload", {"client_id": f"c{entry['id']}", "transactions": [{"crud": [crud]}]})
            yield

    return inject


FAULTS: tuple[Fault, ...] = (
    # the way to the source
    Fault("the source is down", "cannot be reached", "check that Postgres runs there", source_down),
    Fault("the network to the source is cut", "cannot be reached", "check that Postgres runs there", network_cut),
    Fault(
        "the network swallows everything",
        "cannot be reached / has not answered / did not answer",
        "check that Postgres runs / check the network",
        network_silent,
    ),
    Fault(
        "the password was changed",
        "rejects user name or password",
        "set username and password",
        statements(f"alter role {ROLE} password 'wrong'", f"alter role {ROLE} password '{PASSWORD}'", disconnect=True),
    ),
    Fault("pg_hba.conf rejects the role", "pg_hba.conf", "pg_hba.conf", no_such_login),
    Fault(
        "the role may not log in",
        "does not let this role log in",
        "ALTER ROLE … LOGIN",
        statements(f"alter role {ROLE} nologin", f"alter role {ROLE} login", disconnect=True),
    ),
    Fault(
        "the role's connection limit is reached",
        "connection limit / too many connections for role",
        "CONNECTION LIMIT",
        statements(f"alter role {ROLE} connection limit 0", f"alter role {ROLE} connection limit -1", disconnect=True),
    ),
    Fault("all WAL senders are in use", "WAL senders", "max_wal_senders", senders_used_up),
    Fault(
        "all replication slots are in use",
        "replication slots are free / no free replication slot",
        "drop one / max_replication_slots",
        started_with(together(store_set_aside, slots_used_up)),
    ),
    Fault(
        "the database is read-only, as hosts make it when its disk is full",
        "read-only",
        "default_transaction_read_only",
        set_to("default_transaction_read_only", "on"),
        flows=True,
    ),
    # rights
    Fault(
        "the role may not replicate",
        "may not replicate / does not let this role replicate",
        "ALTER ROLE … REPLICATION",
        statements(f"alter role {ROLE} noreplication", f"alter role {ROLE} replication", disconnect=True),
    ),
    Fault(
        "the role may not read a table",
        "may not read staff.people",
        "GRANT SELECT ON … TO",
        statements(f"revoke select on staff.people from {ROLE}", f"grant select on staff.people to {ROLE}"),
        flows=True,
    ),
    Fault(
        "the role may not use a schema",
        "may not use schema staff",
        "GRANT USAGE ON SCHEMA … TO",
        statements(f"revoke usage on schema staff from {ROLE}", f"grant usage on schema staff to {ROLE}"),
        flows=True,
    ),
    Fault(
        "row-level security hides rows",
        "row-level security hides rows of public.notes",
        "BYPASSRLS",
        statements(f"alter role {ROLE} nobypassrls", f"alter role {ROLE} bypassrls"),
        flows=True,
    ),
    # publications and tables
    Fault(
        "the publication is gone",
        'publication "headwater" does not exist',
        "source prepare",
        statements("drop publication headwater", "create publication headwater for table notes, staff.people"),
    ),
    Fault(
        "the publication leaves updates out",
        "update… of public.notes… is not published",
        "ALTER PUBLICATION … SET",
        statements(
            "alter publication headwater set (publish = 'insert, delete')",
            "alter publication headwater set (publish = 'insert, update, delete, truncate')",
        ),
        flows=True,
    ),
    Fault(
        "a table was taken out of the publication",
        "staff.people… not published",
        "ALTER PUBLICATION … ADD TABLE",
        statements(
            "alter publication headwater drop table staff.people", "alter publication headwater add table staff.people"
        ),
        flows=True,
    ),
    Fault(
        "a table of the sync config is not there",
        "no table matches staff.people",
        "create it, or correct the name",
        statements("alter table staff.people rename to folk", "alter table staff.folk rename to people"),
        flows=True,
    ),
    Fault(
        "the sync config names a view",
        "public.shown… is a view",
        "name its tables / name the ordinary tables / name the tables",
        together(
            statements("create view shown as select * from notes", "drop view shown"),
            started_with(ruled("SELECT * FROM shown")),
        ),
        flows=True,
    ),
    Fault(
        "a published table has nothing that identifies rows",
        "public.loose has no primary key, so Postgres refuses its updates",
        "add a primary key, or run ALTER TABLE … REPLICA IDENTITY FULL",
        statements("create table loose (a int); alter publication headwater add table loose", "drop table loose"),
        flows=True,
    ),
    # the slot
    Fault(
        "the slot was lost while Headwater was stopped",
        "the slot … is lost: Postgres has removed log",
        "start Headwater, which makes a new slot",
        while_stopped(together(set_to("max_slot_wal_keep_size", "64MB"), segments_written)),
        where=("status", "doctor"),
    ),
    Fault(
        "the slot was dropped while Headwater was stopped",
        "the slot … is gone",
        "start Headwater, which makes a new slot",
        while_stopped(slot_dropped),
        where=("status", "doctor"),
    ),
    Fault(
        "much of the log that the slot may keep is used up",
        "more than half of the 512 MB of log",
        "find out why the stream is slow",
        half_the_budget,
        where=("status", "doctor"),
    ),
    Fault(
        "a slot that nobody reads fills the source's disk",
        'nobody reads the replication slot "forgotten"',
        "pg_drop_replication_slot('forgotten')",
        forgotten_slot,
        flows=True,
    ),
    Fault(
        "the stream waits for a standby that is gone",
        'waits for the slot "gone"',
        "synchronized_standby_slots",
        set_to("synchronized_standby_slots", "gone"),
    ),
    # what takes long
    Fault(
        "an open transaction holds up the first start",
        "waits for the open transaction of pid",
        "pg_terminate_backend",
        started_with(
            together(store_set_aside, connected(lambda service: service.dsn, "insert into unseen values (0, 'open')"))
        ),
    ),
    Fault(
        "a forgotten prepared transaction holds up the first start",
        "waits for the prepared transaction 'forgotten'",
        "ROLLBACK PREPARED 'forgotten'",
        started_with(together(store_set_aside, prepared)),
    ),
    Fault("a large transaction is being stored", "a large transaction is being stored", "wait", large_transaction),
    Fault(
        "the source decodes something large that is none of ours",
        "decodes",
        "wait",
        decoded_for_nobody,
    ),
    # the store
    Fault("the store's disk is full", "the disk is full / 0.0 GB are free", "free space", disk_full),
    Fault("the store's file is gone", "a file of the store was removed", "put the original back", store_removed),
    Fault(
        "the store's file is damaged",
        "damaged, or not a SQLite database",
        "move store.db",
        started_with(store_damaged),
    ),
    Fault("another process has locked the store", "locked by another process", "second headwater", store_locked),
    Fault(
        "a second service works on the store",
        "another replicator is running",
        "stop it, or wait",
        second_replicator,
        where=("log",),
        flows=True,
    ),
    # the service
    Fault(
        "the service was killed",
        "process is gone",
        "start Headwater",
        killed,
        where=("status", "doctor"),
    ),
    Fault(
        "the replicator is paused or hangs",
        "has reported nothing since",
        "see its log and its machine",
        paused,
        where=("status", "doctor"),
    ),
    Fault(
        "another process has the port",
        "Address already in use",
        "set another",
        started_with(port_taken),
        where=("doctor", "log"),
    ),
    Fault(
        "the keys of tokens can't be fetched",
        "jwks / JWKS / keys",
        "check client_auth.jwks_uri",
        started_with(configured("client_auth", value={"audience": ["tests"], "jwks_uri": "http://127.0.0.1:9/keys"})),
        where=("doctor", "log"),
        flows=True,
    ),
    # uploads
    Fault(
        "the role of uploads lacks a grant",
        "lacks rights to the table (public.notes)",
        "GRANT INSERT, UPDATE ON … TO …app_user",
        uploading(
            {"id": "u1", "data": {"body": "a"}},
            statements("revoke insert, update on notes from app_user", "grant insert, update on notes to app_user"),
        ),
        flows=True,
    ),
    Fault(
        "a policy of an uploaded table is broken",
        "policies … notes / policy … notes / infinite recursion",
        "policy / policies",
        uploading(
            {"id": "u2", "data": {"body": "a"}},
            statements(
                "create policy broken on notes for all to app_user using ((select count(*) from notes) > 0)",
                "drop policy broken on notes",
            ),
        ),
        flows=True,
    ),
)
