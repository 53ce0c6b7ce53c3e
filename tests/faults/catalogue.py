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


def undoable(do: Callable[[FaultyService], object], undo: Callable[[FaultyService], object] | None = None) -> Inject:
    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        do(service)
        try:
            yield
        finally:
            if undo is not None:
                undo(service)

    return inject


def together(*changes: Inject) -> Inject:
    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change(service))
            yield

    return inject


def statements(do: str, undo: str, *, disconnect: bool = False) -> Inject:
    """By SQL in the source. With `disconnect`, of a right that is looked at when somebody comes."""
    changed = undoable(lambda service: service.sql(do), lambda service: service.sql(undo))
    return together(changed, undoable(FaultyService.disconnect)) if disconnect else changed


def while_stopped(change: Inject) -> Inject:
    """The service is stopped before, and is not started."""
    return together(undoable(FaultyService.stop), change)


def started_with(change: Inject) -> Inject:
    """The service is stopped, and started again when the change is there."""
    return together(while_stopped(change), undoable(FaultyService.start, FaultyService.stop))


def configured(section: str, value: Any) -> Inject:
    """Another section in the service config."""

    @contextmanager
    def inject(service: FaultyService) -> Iterator[None]:
        before = service.config[section]
        service.config[section] = value
        service.write()
        try:
            yield
        finally:
            service.config[section] = before
            service.write()

    return inject


def ruled(query: str) -> Inject:
    """The sync config has another query, too."""

    def write(service: FaultyService, text: str) -> None:
        service.sync = text

    return undoable(lambda service: write(service, f"{SYNC}      - {query}\n"), lambda service: write(service, SYNC))


def set_to(name: str, value: str) -> Inject:
    return lambda service: service.setting(name, value)


def refused(line: str) -> Inject:
    def refuse(service: FaultyService) -> None:
        service.refuse(line)
        service.disconnect()

    return undoable(refuse, lambda service: service.refuse(""))


@contextmanager
def open_transaction(service: FaultyService) -> Iterator[None]:
    with contextlib.closing(psycopg.connect(service.dsn)) as conn:
        conn.execute("insert into unseen values (0, 'open')")
        yield
        with contextlib.suppress(psycopg.Error):
            conn.rollback()


def fill_log(segments: int) -> Callable[[FaultyService], None]:
    def fill(service: FaultyService) -> None:
        for _ in range(segments):
            service.sql("select pg_logical_emit_message(false, 'x', 'x'), pg_switch_wal()")

    return fill


def drop_unread_slots(service: FaultyService) -> None:
    service.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")


# single faults


@contextmanager
def senders_used_up(service: FaultyService) -> Iterator[None]:
    with ExitStack() as stack:
        service.disconnect()
        for _ in range(9):
            with contextlib.suppress(psycopg.OperationalError):
                conn = psycopg.connect(service.server.dsn() + " replication=database", autocommit=True)
                stack.enter_context(contextlib.closing(conn))
        yield


slots_used_up = together(
    *(
        statements(
            f"select pg_create_physical_replication_slot('{name}')", f"select pg_drop_replication_slot('{name}')"
        )
        for name in (f"other_{n}" for n in range(7))
    )
)


def lose_slot(service: FaultyService) -> None:
    """More log than the slot may keep."""
    fill_log(40)(service)
    service.sql("checkpoint")
    service.sql("checkpoint")


paused = undoable(lambda service: service.signal(signal.SIGSTOP), lambda service: service.signal(signal.SIGCONT))

forgotten_slot = together(
    set_to("max_slot_wal_keep_size", "-1"),
    statements(
        "select pg_create_physical_replication_slot('forgotten', true)",
        "select pg_drop_replication_slot('forgotten')",
    ),
    undoable(fill_log(66)),
)


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
        drop_unread_slots(service)
        shutil.rmtree(aside)


def remove_large_transaction(service: FaultyService) -> None:
    service.stop()
    shutil.rmtree(service.store)
    service.sql("truncate notes")
    drop_unread_slots(service)


_LARGE = "insert into notes select 'l' || n, repeat('y', 60) from generate_series(1, 2000000) n"
_SUBTRANSACTIONS = """
do $$ begin
  for n in 1..1500000 loop
    begin insert into unseen values (n); exception when others then raise; end;
  end loop;
end $$
"""  # they take long to decode, and little log


def fill_disk(service: FaultyService) -> None:
    service.shrink_disk()
    service.sql("update notes set body = repeat(md5(random()::text), 2000)")


def empty_disk(service: FaultyService) -> None:
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
def port_taken(service: FaultyService) -> Iterator[None]:
    with socket.create_server(("127.0.0.1", service.port)):
        yield


def uploading(entry: dict[str, Any], change: Inject) -> Inject:
    """A device writes while the change is there."""

    def upload(service: FaultyService) -> None:
        crud = {"op_id": 1, "op": "PUT", "type": "notes", **entry}
        service.upload({"client_id": f"c{entry['id']}", "transactions": [{"crud": [crud]}]})

    return together(change, undoable(upload))


FAULTS: tuple[Fault, ...] = (
    # the way to the source
    Fault(
        "the source is down",
        "cannot be reached",
        "check that Postgres runs there",
        undoable(lambda service: service.server.stop(StopMode.IMMEDIATE), lambda service: service.server.start()),
    ),
    Fault(
        "the network to the source is cut",
        "cannot be reached",
        "check that Postgres runs there",
        undoable(lambda service: service.network.cut(), lambda service: service.network.mend()),
    ),
    Fault(
        "the network swallows everything",
        "cannot be reached / has not answered / did not answer",
        "check that Postgres runs / check the network",
        undoable(lambda service: service.network.swallow(), lambda service: service.network.mend()),
    ),
    Fault(
        "the password was changed",
        "rejects user name or password",
        "set username and password",
        statements(f"alter role {ROLE} password 'wrong'", f"alter role {ROLE} password '{PASSWORD}'", disconnect=True),
    ),
    Fault(
        "pg_hba.conf rejects the role", "pg_hba.conf", "pg_hba.conf", refused(f"host all {ROLE} 127.0.0.1/32 reject")
    ),
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
        while_stopped(together(set_to("max_slot_wal_keep_size", "64MB"), undoable(lose_slot))),
        where=("status", "doctor"),
    ),
    Fault(
        "the slot was dropped while Headwater was stopped",
        "the slot … is gone",
        "start Headwater, which makes a new slot",
        while_stopped(undoable(drop_unread_slots)),
        where=("status", "doctor"),
    ),
    Fault(
        "much of the log that the slot may keep is used up",
        "more than half of the 512 MB of log",
        "find out why the stream is slow",
        together(paused, undoable(fill_log(20))),
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
        started_with(together(store_set_aside, open_transaction)),
    ),
    Fault(
        "a forgotten prepared transaction holds up the first start",
        "waits for the prepared transaction 'forgotten'",
        "ROLLBACK PREPARED 'forgotten'",
        started_with(
            together(
                store_set_aside,
                statements(
                    "begin; insert into unseen values (1); prepare transaction 'forgotten'",
                    "rollback prepared 'forgotten'",
                ),
            )
        ),
    ),
    Fault(
        "a large transaction is being stored",
        "a large transaction is being stored",
        "wait",
        undoable(lambda service: service.sql(_LARGE), remove_large_transaction),
    ),
    Fault(
        "the source decodes something large that is none of ours",
        "decodes",
        "wait",
        statements(_SUBTRANSACTIONS, "truncate unseen"),
    ),
    # the store
    Fault(
        "the store's disk is full", "the disk is full / 0.0 GB are free", "free space", undoable(fill_disk, empty_disk)
    ),
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
        undoable(FaultyService.kill),
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
