"""`headwater source move`: looks whether another database can take a source's place, and lets the service follow it."""

from __future__ import annotations

import click
import psycopg

from headwater.cli.config import ServiceConfig
from headwater.cli.databases import moved_to
from headwater.cli.existing_store import existing_store
from headwater.cli.progress import BulkProgressDisplay
from headwater.errors import HeadwaterError
from headwater.insight.moved import MovedTable, moved_tables
from headwater.insight.words import count
from headwater.oplog.lsn import format_lsn
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.moved_source import DatabaseIdentity, accepted
from headwater.replication.own_slot import slot_note
from headwater.replication.requests import RequestKind
from headwater.replication.versions import deciding_in, in_use, tables_named
from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness.checks import source_findings
from headwater.source.readiness.prepare import missing_sql, sql_block
from headwater.source.slot import end_of_log
from headwater.storage.contract.store import SourceState
from headwater.storage.contract.versions import KEEP_STOPPED_SECONDS
from headwater.storage.sql.writer import StoreWriter

_MOST = 0.1
"""The share of rows that may differ without being accepted."""


def move(
    config: ServiceConfig, name: str, uri: str | None, bulk: BulkJobs, *, check: bool, accept_differences: bool
) -> int:
    """Check the database at the URI, or the one that the config has, and unless `check` allow the service to follow it
    in place of the former one. Returns the exit code: 1 when it is not allowed. Raises what reading the databases
    raises, and HW_8203 when there is nothing to move."""
    old = _named(config, name)
    new = old if uri is None else moved_to(old, uri)
    with existing_store(config) as store, connect(new, application_name="headwater move") as conn:
        state = store.source_state(old.name)
        if state is None:
            raise HeadwaterError(
                f"the store has nothing of {name} yet", new.address, "start the service", code="HW_8203"
            )
        here, note = DatabaseIdentity.of(conn), slot_note(old.name, store)
        if here.system_id == state.system_id and note.database in {0, here.oid}:
            fix = "name the database to move to with --to"
            raise HeadwaterError(f"{name} is followed in that database already", new.address, fix, code="HW_8203")
        click.echo(f"1. rights and settings of {new.address}")
        usable = _check_server(conn, new, store)
        if usable:
            click.echo("2. tables and rows, compared with what the service has")
        plans = in_use(store, old, KEEP_STOPPED_SECONDS).plans
        same = usable and _check_tables(moved_tables(conn, new, store, plans, bulk, BulkProgressDisplay()))
        if uri is not None:
            click.echo(f"3. what is still written to {old.address}")
            _show_writers(old, state)
        if not usable or not (same or accept_differences):
            click.echo(_refusal(usable=usable), err=True)
            return 1
        if check:
            click.echo("nothing was changed; run it without --check to go on")
            return 0
        if not accepted(store, old.name, here):
            store.submit(RequestKind.MOVE, old.name, here.encoded())
        click.echo(f"\nthe service may follow {name} in {new.address} from now on")
        if uri is not None:
            _show_next(old, new, state)
    return 0


def _named(config: ServiceConfig, name: str) -> SourceSettings:
    found = config.chosen([name])
    if len(found) > 1:
        names = ", ".join(source.name for source in found)
        raise HeadwaterError(f"{name} are several sources", names, "name one of them", code="HW_8203")
    return found[0]


def _check_server(conn: psycopg.Connection, new: SourceSettings, store: StoreWriter) -> bool:
    findings = source_findings(conn, new, tables_named(store, new.tag), deciding_in(store, new.tag))
    for finding in findings:
        click.echo(f"   {'problem' if finding.fatal else 'note'}: {finding}")
    if not any(finding.fatal for finding in findings):
        click.echo("   nothing is missing")
        return True
    statements = missing_sql(new, tables_named(store, new.tag), append_only=True)
    if statements:
        click.echo(f"   run there:\n{sql_block(statements)}")
    return False


def _check_tables(tables: list[MovedTable]) -> bool:
    """Show how the tables differ. Returns whether that can be accepted without being told so."""
    rows, differ = sum(table.rows for table in tables), sum(table.differ for table in tables)
    for table in tables:
        if table.problem:
            click.echo(f"   problem: {table.name}, of {count(table.rows, 'row')}, {table.problem}")
        elif table.differ or table.note:
            told = [f"{table.differ:,} of {count(table.rows, 'row')} differ"] * bool(table.differ)
            click.echo(f"   {table.name}: {'; '.join([*told, *[table.note] * bool(table.note)])}")
    click.echo(f"   compared {count(len(tables), 'table')} of {count(rows, 'row')}: {differ or 'none'} differ")
    return not any(table.problem for table in tables) and all(
        table.differ <= max(_MOST * table.rows, _FEW) for table in tables
    )


_FEW = 10


def _show_writers(old: SourceSettings, state: SourceState) -> None:
    try:
        with connect(old, application_name="headwater move") as conn:
            end = end_of_log(conn)
            sessions = conn.execute(_SESSIONS).fetchall()
    except HeadwaterError as error:
        click.echo(f"   it can't be asked: {error}")
        return
    behind = end - state.lsn
    click.echo(f"   the service has read it up to {format_lsn(state.lsn)}, {max(behind, 0):,} bytes behind its end")
    for user, application, number in sessions:
        click.echo(f"   {count(number, 'session')} of {user}" + (f" ({application})" if application else ""))
    if not sessions:
        click.echo("   nobody else is connected to it")


# What a session is may be hidden from our role: it counts all the same
_SESSIONS = """
select usename::text, application_name, count(*) from pg_stat_activity
where datname = current_database() and coalesce(backend_type, 'client backend') = 'client backend'
  and usename is not null and application_name not like 'headwater%'
group by 1, 2 order by 1, 2
"""


def _refusal(*, usable: bool) -> str:
    if not usable:
        return "not allowed: the problems have to be mended first"
    return (
        "not allowed: these differences would be sent to devices, or taken from them. Load the data first, correct the"
        " address, or pass --accept-differences"
    )


def _show_next(old: SourceSettings, new: SourceSettings, state: SourceState) -> None:
    click.echo(f"""
next:
  - end all writes to {old.address}, and let your own replication to the new one finish
  - write the new address into the service config, at the connection {old.name} (or its uri):
      hostname: {new.host}
      port: {new.port}
      database: {new.database}
      username: {new.user}
  - restart the service: it makes a slot there and compares once more, while devices sync
  - send your app's writes to {new.address}
  - when `headwater source status` shows no problem, in the old one:
      SELECT pg_drop_replication_slot('{state.slot}')""")
