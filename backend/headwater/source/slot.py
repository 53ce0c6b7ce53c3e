"""Replication slots: creates them with an exported snapshot, reads their state, ends their readers, drops them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import psycopg
from psycopg import pq

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source.connect import (
    SourceSettings,
    SourceUnreachableError,
    dial,
    pooler_error,
    source_errors,
    sql_name,
    wait_for,
)

_STOPPED_SECONDS = 0.5  # how often to look whether to stop
READERS = "headwater snapshot"
"""The application name of sessions that hold a snapshot, or read tables for one or for a comparison."""

_log = logging.getLogger(__name__)


class SlotError(HeadwaterError):
    """The slot can't be created or used, for a reason that a person has to resolve."""

    code = "HW_2201"


class SlotLostError(HeadwaterError):
    """The slot is gone, or Postgres removed log that it still needed."""

    code = "PSYNC_S1146"


class SlotBusyError(HeadwaterError):
    """Another session reads the slot."""

    code = "HW_2202"


class SlotExistsError(SlotBusyError):
    """A slot of this name was created meanwhile."""


class SlotForeignError(HeadwaterError):
    """The slot belongs to another service. A person has to decide who keeps it."""

    code = "HW_2203"


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """A row of pg_replication_slots. `database` is empty for a physical slot; `active_pid` is the walsender that reads
    the slot, if any."""

    name: str
    database: str
    wal_status: str
    active_pid: int | None
    confirmed_flush: Lsn


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """Identifies a cluster, and its history after a failover or a restore."""

    system_id: str
    timeline: int


def slot_name(settings: SourceSettings) -> str:
    """The name of a new slot for this source. It depends on the database, since slot names are shared by the
    cluster."""
    unique = "\0".join((settings.slot_prefix, settings.name, settings.database))
    stem = _allowed(f"{settings.slot_prefix}{settings.name}")[:36]
    return f"{stem}_{_allowed(settings.database)[:17]}_{_hash(unique)}"


def temporary_slot_name(slot: str) -> str:
    """The name of the temporary slot of the service that owns `slot`."""
    return f"{slot[:47]}_{_hash(slot)}_resync"


def _allowed(text: str) -> str:
    """The text with only lower-case letters, digits and underscores, as Postgres demands."""
    return re.sub(r"[^a-z0-9_]", "_", text.lower())


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def slot_status(conn: psycopg.Connection, name: str) -> SlotStatus | None:
    """None when there is no such slot."""
    row = conn.execute(
        "select coalesce(database::text, ''), coalesce(wal_status, 'reserved'), active_pid,"
        " coalesce(confirmed_flush_lsn, '0/0')::text from pg_replication_slots where slot_name = %s",
        [name],
    ).fetchone()
    return None if row is None else SlotStatus(name, row[0], row[1], row[2], parse_lsn(row[3]))


def database_oid(conn: psycopg.Connection) -> int:
    """The oid of our database, which a copy of it does not have."""
    ((oid,),) = conn.execute("select oid::int8 from pg_database where datname = current_database()").fetchall()
    return int(oid)


def system_identity(conn: psycopg.Connection) -> SystemIdentity:
    # After a promotion, pg_control_checkpoint() shows the old timeline for some time; a WAL file's name begins with it
    (row,) = conn.execute(
        "select (select system_identifier::text from pg_control_system()), pg_walfile_name(pg_current_wal_insert_lsn())"
    ).fetchall()
    return SystemIdentity(row[0], int(row[1][:8], 16))


def end_of_log(conn: psycopg.Connection) -> Lsn:
    return parse_lsn(conn.execute("select pg_current_wal_insert_lsn()::text").fetchall()[0][0])


def timeline_ends(settings: SourceSettings, timeline: int) -> dict[int, Lsn]:
    """Where each timeline ended that the present one, `timeline`, descends from. Raises SlotError when the server has
    no history file for it. https://www.postgresql.org/docs/current/protocol-replication.html"""
    conn = replication_connection(settings, "headwater identity")
    try:
        result = conn.exec_(f"TIMELINE_HISTORY {timeline:d}".encode())
        if result.status != pq.ExecStatus.TUPLES_OK:
            reason = conn.error_message.decode(errors="replace").strip()
            raise SlotError(f"the history of timeline {timeline} can't be read: {reason}", settings.address)
        text = (result.get_value(0, 1) or b"").decode(errors="replace")
    finally:
        conn.finish()
    lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {int(line[0]): parse_lsn(line[1]) for line in lines}


# While a service uses a slot, it holds an advisory lock with the slot's and the store's name. Anybody may take such a
# lock, so only those count whose role could use the slot
_CLAIMS = """
select l.pid from pg_locks l join pg_stat_activity a on a.pid = l.pid join pg_roles r on r.oid = a.usesysid
where l.locktype = 'advisory' and l.objsubid = 2 and l.classid = hashtext('headwater ' || %s)::oid
  and l.objid <> hashtext(%s)::oid and l.database = (select oid from pg_database where datname = current_database())
  and (r.rolreplication or r.rolsuper or r.rolname = session_user)
"""


def claim_slot(conn: psycopg.Connection, name: str, store: str) -> None:
    """Show other services that this store uses the slot, until the connection ends."""
    conn.execute("set idle_session_timeout = 0")
    conn.execute("select pg_advisory_lock_shared(hashtext('headwater ' || %s), hashtext(%s))", [name, store])


def claims_of_others(conn: psycopg.Connection, name: str, store: str) -> list[int]:
    """Pids of sessions that claim a slot of this database for another store."""
    return [pid for (pid,) in conn.execute(_CLAIMS, [name, store])]


def end_sessions(conn: psycopg.Connection, pids: Iterable[int]) -> None:
    """End these sessions, waiting up to 5 s for each."""
    with _as_login(conn):
        conn.execute("select pg_terminate_backend(pid, 5000) from unnest(%s::int[]) pid", [list(pids)])


def end_reader(conn: psycopg.Connection, name: str) -> None:
    """End the walsender that reads a slot of this database. To be called with the lease, for the store's own slot, so
    the reader is a replicator that lost the lease."""
    with _as_login(conn):
        conn.execute(
            "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots"
            " where slot_name = %s and active_pid is not null and database = current_database()",
            [name],
        )


@contextlib.contextmanager
def _as_login(conn: psycopg.Connection) -> Iterator[None]:
    """What only the role that logged in may do: a login can become another role at once (ALTER ROLE … SET role), which
    need not have the right to replicate."""
    conn.execute("set role none")
    try:
        yield
    finally:
        conn.execute("reset role")


@dataclass(frozen=True, slots=True)
class Walsender:
    """What a walsender does. `works` is false when it waits for its client, and None when the role may not see that."""

    pid: int
    works: bool | None


_WALSENDER = """
select case when state is not null then coalesce(wait_event_type not in ('Activity', 'Client'), true) end
from pg_stat_activity where pid = %s
"""


def walsender(conn: psycopg.Connection, pid: int) -> Walsender | None:
    """What a walsender of the role that logged in does. None when it has ended."""
    with _as_login(conn):
        row = conn.execute(_WALSENDER, [pid]).fetchone()
    return None if row is None else Walsender(pid, row[0])


def drop_slot(conn: psycopg.Connection, name: str, *, stray: bool = False) -> None:
    """Drop a slot of this database, or with `stray` ours of a database that was renamed, if it exists. Raises
    SlotBusyError while it is read."""
    try:
        _drop(conn, name, "true" if stray else "database = current_database()")
    except psycopg.errors.ObjectInUse as error:
        raise slot_busy_error(name, conn.info.dbname) from error


def drop_unread_slot(conn: psycopg.Connection, name: str) -> None:
    """Drop a slot of this database if it exists and nobody reads it."""
    with contextlib.suppress(psycopg.errors.ObjectInUse):  # a reader connected just now
        _drop(conn, name, "database = current_database() and not active")


def _drop(conn: psycopg.Connection, name: str, which: str) -> None:
    with _as_login(conn):
        conn.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            f" where slot_name = %s and {which}".encode(),
            [name],
        )


def slot_busy_error(name: str, where: str) -> SlotBusyError:
    return SlotBusyError(
        f'another session reads the slot "{name}"',
        where,
        "stop the other headwater, or give this one another slot_name_prefix",
    )


class SnapshotKeeper:
    """Creates a slot and keeps the snapshot that Postgres exported with it: exactly the commits before
    `consistent_point`.

    The snapshot, and a `temporary` slot, last as long as this object is open. Creating it waits for all transactions
    that are writing now, and is given up once `stop` is set. Raises SlotExistsError, SlotError, or what
    `connection_error` makes of a failed connection.
    """

    def __init__(
        self, settings: SourceSettings, name: str, *, temporary: bool = False, stop: threading.Event | None = None
    ) -> None:
        self._conn = replication_connection(settings, READERS)
        kind = "TEMPORARY LOGICAL" if temporary else "LOGICAL"
        # Standbys copy slots with FAILOVER (sync_replication_slots), so that no new slot is needed after a failover
        kept = self._conn.server_version >= 17_00_00 and not temporary
        options = "(SNAPSHOT 'export', FAILOVER true)" if kept else "EXPORT_SNAPSHOT"
        _log.info("making slot %s, once all transactions that are writing at the source now have ended", name)
        try:
            with source_errors(settings):
                result = _result(self._conn, f'CREATE_REPLICATION_SLOT "{name}" {kind} pgoutput {options}', stop)
            if result is None or result.status != pq.ExecStatus.TUPLES_OK:
                raise _creation_error(result, name, settings)
            self.slot = name
            self.consistent_point = parse_lsn((result.get_value(0, 1) or b"").decode())
            self.snapshot = (result.get_value(0, 2) or b"").decode()
        except BaseException:
            self._conn.finish()
            raise

    def __enter__(self) -> SnapshotKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the snapshot."""
        self._conn.finish()


def replication_connection(settings: SourceSettings, application_name: str) -> pq.abc.PGconn:
    """A blocking walsender connection. The caller has to `finish` it."""
    with source_errors(settings):
        return dial(settings, application_name, replication=True)


def _result(conn: pq.abc.PGconn, command: str, stop: threading.Event | None) -> pq.abc.PGresult | None:
    """Run a command that may wait for long. It is cancelled when `stop` is set."""
    conn.send_query(command.encode())
    while conn.is_busy():
        wait_for(conn, _STOPPED_SECONDS)
        conn.consume_input()
        if stop is not None and stop.is_set():
            conn.get_cancel().cancel()  # it would go on waiting without us
    return conn.get_result()


def _creation_error(result: pq.abc.PGresult | None, name: str, settings: SourceSettings) -> HeadwaterError:
    fields = pq.DiagnosticField
    state, told = [(result and result.error_field(each)) or b"" for each in (fields.SQLSTATE, fields.MESSAGE_PRIMARY)]
    where = settings.address
    match state.decode():
        case "53400":
            return SourceUnreachableError(
                "the source database has no free replication slot",
                where,
                "drop one that nobody reads (pg_replication_slots), or run ALTER SYSTEM SET max_replication_slots = …"
                " and restart Postgres",
            )
        case "42501":
            fix = f"run ALTER ROLE {sql_name(settings.user)} REPLICATION"
            return SlotError("the role may not replicate", where, fix)
        case "55000":
            return SlotError("wal_level is not logical", where, "set wal_level = logical and restart Postgres")
        case "42601":  # a syntax error: the session is an ordinary one, as the pooler of Supabase gives
            return pooler_error(settings)
        case "42710":
            return SlotExistsError(f'the slot "{name}" exists already', where, "another headwater may be using it")
        case _:
            return SlotError(f'the slot "{name}" can\'t be created: {told.decode(errors="replace")}', where)
