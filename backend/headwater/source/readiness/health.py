"""Checks a source while it is followed: log that slots hold back or are about to lose, changes that are not published,
tables that refuse updates. Findings name the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from headwater.source.connect import WRITABLE, SourceSettings, sql_name
from headwater.source.readiness.checks import catalog_findings, room_findings
from headwater.source.readiness.finding import Finding
from headwater.source.slot import READERS, slot_status, temporary_slot_name
from headwater.source.triggers import triggers_on
from headwater_rules.plan import Deciding, TablePattern

_HELD_BY_OTHERS = 1 << 30
"""Bytes of log that an unread slot may hold before there is a finding: a standby may be away for a moment."""


@dataclass(frozen=True, slots=True)
class SlotHealth:
    """Our slot, sizes in bytes. `behind` is the log that the store does not have yet, `held` what the server keeps
    because of the slot. With a `limit`, the slot is lost after another `left`. `xmin_age` is the age, in transactions,
    of the oldest catalog rows that the slot keeps; from `xmin_limit` on, Postgres forces a vacuum."""

    name: str
    wal_status: str
    active: bool
    behind: int
    held: int
    left: int | None
    limit: int | None
    xmin_age: int
    xmin_limit: int


@dataclass(frozen=True, slots=True)
class SourceHealth:
    slot: SlotHealth | None
    findings: tuple[Finding, ...]
    triggers: bool


def look(
    conn: psycopg.Connection,
    settings: SourceSettings,
    name: str,
    tables: Collection[int],
    patterns: Sequence[TablePattern] = (),
    deciding: Deciding = (),
) -> SourceHealth:
    """The source's health as far as it concerns our slot, which has this name, the tables with these oids, and those
    that the patterns name. `deciding` is described at `source_findings`."""
    slot = slot_health(conn, name)
    found = dict.fromkeys(catalog_findings(conn, settings, patterns, deciding, tables))
    findings = (*slot_findings(conn, name, slot), *room_findings(conn, settings, name), *found)
    return SourceHealth(slot, findings, triggers_on(conn))


_SLOT = """
select s.slot_name as name, coalesce(s.wal_status, 'reserved') as wal_status, s.active,
       greatest(pg_current_wal_lsn() - s.confirmed_flush_lsn, 0)::int8 as behind,
       greatest(pg_current_wal_lsn() - s.restart_lsn, 0)::int8 as held,
       case when s.safe_wal_size is not null then greatest(s.safe_wal_size, 0) end::int8 as "left",
       nullif(k.setting::int8, -1) * 1048576 as "limit",
       coalesce(age(s.catalog_xmin), 0)::int8 as xmin_age, a.setting::int8 as xmin_limit
from pg_replication_slots s, pg_settings k, pg_settings a
where s.slot_name = %s and k.name = 'max_slot_wal_keep_size' and a.name = 'autovacuum_freeze_max_age'
"""


def slot_health(conn: psycopg.Connection, name: str) -> SlotHealth | None:
    """None when there is no such slot."""
    with conn.cursor(row_factory=class_row(SlotHealth)) as cursor:
        return cursor.execute(_SLOT, [name]).fetchone()


def slot_findings(conn: psycopg.Connection, name: str, slot: SlotHealth | None) -> list[Finding]:
    """Findings about our slot's limits, and about unread slots of others that hold back log."""
    findings = [] if slot is None else [*_budget(slot), *_age(slot)]
    findings += [*held_up(conn, name), *_read_only(conn)]
    if (slot is None or not slot.active) and _commits_wait_for(conn, name):
        what = "commits at the source wait for Headwater, which is not following the stream"
        findings.append(Finding("HW_2025", what, _LET_GO))
    findings += _missing_standbys(conn, name)
    forgotten = conn.execute(
        "select slot_name::text from pg_replication_slots where not active and not temporary and slot_name <> %s"
        " and pg_current_wal_lsn() - restart_lsn > %s order by 1",
        [name, _HELD_BY_OTHERS],
    ).fetchall()
    for (other,) in forgotten:
        what = f'nobody reads the replication slot "{other}", which keeps over 1 GB of log from being removed'
        drop = sql.SQL("SELECT pg_drop_replication_slot({})").format(other).as_string(conn)
        findings.append(Finding("HW_2023", what, f"start what reads it, or run {drop}", fatal=False))
    return findings


def _missing_standbys(conn: psycopg.Connection, name: str) -> list[Finding]:
    """From Postgres 17 on, the stream of a slot with failover waits for standbys; our slot is one."""
    rows = conn.execute(
        """select w.standby, s.slot_name is not null
           from regexp_split_to_table(current_setting('synchronized_standby_slots', true), '[\\s,"]+') w(standby)
             left join pg_replication_slots s on s.slot_name = w.standby
           where w.standby <> '' and s.active is not true
             and exists (select from pg_replication_slots own where own.slot_name = %s
                           and to_jsonb(own) ->> 'failover' = 'true')""",
        [name],
    ).fetchall()
    return [
        Finding(
            "HW_2032",
            f'the stream waits for the slot "{standby}" of synchronized_standby_slots, '
            + ("which nobody reads" if there else "which does not exist"),
            "start that standby; or take it out by ALTER SYSTEM SET synchronized_standby_slots, and pg_reload_conf()",
        )
        for standby, there in rows
    ]


# A slot is made in a walsender, which waits for one transaction after the other. pg_locks shows the locks of everybody;
# of what others do, pg_stat_activity shows little to a role without the rights of pg_read_all_stats
_HELD_UP = r"""
with waiting as (
    select l.pid, l.transactionid, l.relation, case s.slot_name when %(slot)s then 'slot' else 'comparison' end as what
    from pg_replication_slots s join pg_locks l on l.pid = s.active_pid
    where s.slot_name in (%(slot)s, %(temporary)s) and not l.granted
      and l.waitstart < clock_timestamp() - %(patience)s::interval
    union all
    select l.pid, l.transactionid, l.relation, l.relation::regclass::text
    from pg_stat_activity a join pg_locks l on l.pid = a.pid
    where a.application_name = %(readers)s and a.datname = current_database() and l.locktype = 'relation'
      and not l.granted and l.waitstart < clock_timestamp() - %(patience)s::interval
), holding as (
    select distinct w.what, b.pid, p.gid, p.prepared, coalesce(p.owner::text, a.usename, a.backend_type) as role,
           coalesce(p.database, a.datname)::text as database, a.state, a.xact_start,
           substring(regexp_replace(a.query, '^(\s|--[^\n]*\n|/\*.*?\*/)+', '') from '^[A-Za-z]+') as command
    from waiting w cross join lateral unnest(pg_blocking_pids(w.pid)) b(pid)
      left join pg_stat_activity a on a.pid = b.pid
      left join pg_prepared_xacts p on b.pid = 0 and (p.transaction = w.transactionid or exists (
        select from pg_locks h where h.pid is null and h.granted and h.relation = w.relation
          and h.virtualtransaction = '-1/' || p.transaction))
)
select what, pid, gid, role, database, state, upper(command) as command,
       extract(epoch from coalesce(prepared, xact_start))::float8 as since
from holding order by since, what, pid, gid limit 20
"""
_WOULD_HOLD_UP = r"""
select 'start' as what, 0 as pid, gid::text as gid, owner::text as role, database::text as database,
       null as state, null as command, extract(epoch from prepared)::float8 as since
from pg_prepared_xacts where prepared < clock_timestamp() - %(old)s::interval
union all
select 'start', pid, null, coalesce(usename, backend_type), datname::text, state, null,
       extract(epoch from xact_start)::float8
from pg_stat_activity where backend_xid is not null and xact_start < clock_timestamp() - %(old)s::interval
order by since limit 20
"""
_OLD = "1 min"
_PATIENCE = "1 s"
"""Transactions that are shorter are waited for without a word."""

_COMMAND = re.compile(
    "ALTER|ANALYZE|BEGIN|CALL|CLUSTER|COMMENT|COPY|CREATE|DELETE|DO|DROP|EXECUTE|FETCH|GRANT|INSERT|LOCK|MERGE|REFRESH"
    "|REINDEX|RELEASE|REVOKE|SAVEPOINT|SELECT|SET|TRUNCATE|UPDATE|VACUUM|VALUES|WITH"
)


@dataclass(frozen=True, slots=True)
class _Holder:
    """An open transaction that we wait for, of a session or prepared under a `gid`. `what` waits: the slot, a
    comparison, or reading the table of that name. `state` is None where our rights don't show it."""

    what: str
    pid: int
    gid: str | None
    role: str | None
    database: str | None
    state: str | None
    command: str | None
    since: float | None


def held_up(conn: psycopg.Connection, name: str) -> list[Finding]:
    """Open transactions that making a slot, a comparison or the reading of a table waits for. `name` is our slot's:
    while there is none, those that are open for long, and that making one would wait for."""
    asked = {
        "slot": name, "temporary": temporary_slot_name(name), "readers": READERS, "patience": _PATIENCE, "old": _OLD,
    }  # fmt: skip
    with conn.cursor(row_factory=class_row(_Holder)) as cursor:
        query = _WOULD_HOLD_UP if slot_status(conn, name) is None else _HELD_UP
        holders = cursor.execute(query, asked).fetchall()
    return [_holding(conn, holder) for holder in holders]


_WAITING = {
    "start": "a start without a replication slot",
    "slot": "the new replication slot",
    "comparison": "the comparison with the source",
}


def _holding(conn: psycopg.Connection, holder: _Holder) -> Finding:
    where = f"role {holder.role}, database {holder.database}"
    if holder.gid is not None:
        gid = sql.Literal(holder.gid).as_string(conn)
        whose = f"the prepared transaction {gid} ({where})"
        statement = f"ROLLBACK PREPARED {gid}"
        fix = f"run COMMIT PREPARED {gid} or {statement} in database {holder.database}, as role {holder.role}"
    else:
        whose = f"the open transaction of pid {holder.pid} ({where}, {_doing(conn, holder)})"
        statement = f"SELECT pg_terminate_backend({holder.pid})"
        fix = f"have it committed or rolled back, or run {statement}"
    what = f"{_WAITING.get(holder.what, f'reading {holder.what}')} waits for {whose}"
    urgent = holder.what not in {"start", "comparison"}
    # What is told of a session depends on its last statement, and on rights that we may be given meanwhile
    about = f"{holder.what}: {statement}"
    return Finding("HW_2033", what, fix, fatal=urgent, sql=(statement,), since=holder.since, about=about)


def _doing(conn: psycopg.Connection, holder: _Holder) -> str:
    """The state of a session and the kind of its statement, never the statement."""
    if holder.state is None:
        return f"what it does and since when is not shown to us: GRANT pg_read_all_stats TO {sql_name(conn.info.user)}"
    if holder.command is None or _COMMAND.fullmatch(holder.command) is None:
        return holder.state
    return f"{holder.state}, {'in' if holder.state == 'active' else 'last'} {holder.command}"


# what is set for the database wins, but only sessions that begin later show it
_READ_ONLY = """
select coalesce(
  (select bool_or(c ~* '=(on|t.*|y.*|1)$') from pg_db_role_setting s, unnest(s.setconfig) c
   where s.setrole = 0 and s.setdatabase = (select oid from pg_database where datname = current_database())
     and c ~* '^default_transaction_read_only='),
  exists (select from pg_settings where name = 'default_transaction_read_only' and setting = 'on'
            and source in ('configuration file', 'command line', 'environment variable')))
"""


def _read_only(conn: psycopg.Connection) -> list[Finding]:
    """Whether the database was made to refuse writes. Sessions that began before may still write."""
    if conn.execute(_READ_ONLY).fetchall() == [(False,)]:
        return []
    what = "the database is read-only for your application and for devices: default_transaction_read_only is on"
    fix = "hosts set it when a disk is full: free or add space, and have the host reset it, or run " + WRITABLE
    fix = fix.format(database=sql_name(conn.info.dbname))
    return [Finding("HW_2034", what, fix, fatal=False)]


_LET_GO = (
    "start Headwater; or stop commits from waiting: ALTER SYSTEM SET synchronous_standby_names = '' and"
    " SELECT pg_reload_conf(); a first start and a lost slot need that"
)


def _commits_wait_for(conn: psycopg.Connection, name: str) -> bool:
    row = conn.execute("select current_setting('synchronous_standby_names')").fetchone()
    return row is not None and re.search(rf"(?<!\w){name}(?!\w)", row[0], re.IGNORECASE) is not None


def _budget(slot: SlotHealth) -> list[Finding]:
    if slot.limit is None or slot.wal_status == "lost":
        return []
    megabytes = slot.limit // 1048576
    fix = (
        "find out why the stream is slow or stands (`headwater source status`), or run"
        f" ALTER SYSTEM SET max_slot_wal_keep_size = '{2 * megabytes}MB' and SELECT pg_reload_conf()"
    )
    if slot.wal_status == "unreserved" or slot.left == 0:
        what = "the slot is lost at the source's next checkpoint, unless the stream catches up before"
        return [Finding("HW_2021", what, fix)]
    if slot.left is not None and 2 * slot.left <= slot.limit:
        what = f"more than half of the {megabytes} MB of log that the slot may hold is used up"
        return [Finding("HW_2021", what, fix, fatal=False)]
    return []


def _age(slot: SlotHealth) -> list[Finding]:
    if 2 * slot.xmin_age < slot.xmin_limit:
        return []
    what = (
        "the slot has kept the source from vacuuming its catalog for half as many transactions as"
        " autovacuum_freeze_max_age allows"
    )
    fix = "find what holds the stream up: a transaction that is open for long (pg_stat_activity), or Headwater itself"
    return [Finding("HW_2022", what, fix, fatal=False)]
