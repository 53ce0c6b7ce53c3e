"""Checks the source: reach, rights, settings, slots, log, publication against rules, clocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import psycopg

from headwater.cli.doctor.result import Level, Result, of_error, of_finding, ok
from headwater.cli.source.status import StoreState, standing_of, store_findings
from headwater.config.errors import ConfigError
from headwater.config.model import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.insight.words import count
from headwater.replication.health.model import State
from headwater.replication.health.standing import Standing, ask_log_end
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.checks import source_findings
from headwater.source.readiness.finding import span
from headwater.source.readiness.health import slot_findings, slot_health
from headwater.source.slot import slot_name
from headwater.source.upload.prepare import check_uploads
from headwater.source.upload.settings import UploadSettings
from headwater_rules.plan import TablePattern

_TOLERATED = 60.0
"""Seconds by which the clock of a token's issuer may differ."""

_NOTICED = 2.0


def check_source(
    config: ServiceConfig, kept: StoreState | None, tables: Sequence[TablePattern] | None
) -> Iterator[Result]:
    """Everything about the source. What the store knows of it, its slot and the served tables, comes first."""
    try:
        settings = config.source()
    except ConfigError as error:
        yield Result("source", Level.FAIL, "no source is configured", error.issues[0].fix)
        return
    kept_tables = kept.patterns if kept else ()
    try:
        with connect(settings, application_name="headwater doctor") as conn, source_errors(settings):
            yield from _of_connection(conn, settings)
            named = tuple(dict.fromkeys((*kept_tables, *(tables or ()))))
            served = named if named or tables is not None else None
            name = kept.slot if kept else slot_name(settings)
            findings = [
                *source_findings(conn, settings, served, kept.deciding if kept else ()),
                *slot_findings(conn, name, slot_health(conn, name)),
                *store_findings(conn, config, kept),
            ]
            yield from (of_finding("source", each) for each in findings)
            if not any(each.fatal for each in findings):
                yield ok("source", "settings, rights, slots, replica identities and publication are as needed")
            yield from _log_limits(conn)
            yield from _standing(standing_of(config, kept, ask_log_end(conn)))
    except HeadwaterError as error:
        yield of_error("source", error)
        yield from _standing(standing_of(config, kept, None))


def _standing(found: Standing) -> Iterator[Result]:
    """Whether rows flow, and how far the store is behind. Nothing where no replicator has run yet."""
    if found.at is None:
        return
    missing = "how much the store lacks is not known"
    if found.lag_bytes is not None:
        missing = f"{found.lag_bytes:,} bytes of the source's log are not in the store"
    fix = "see `headwater source status`"
    if found.cause is not None:
        what = f"replication was held up {span(time.time() - found.cause.at)} ago: {found.why or found.cause}"
        yield Result("replica", Level.FAIL, what, fix)
        return
    what = f"replication is {found.state.value}{found.why and f' ({found.why})'}, and {missing}"
    if found.state is State.UNKNOWN:
        yield Result("replica", Level.FAIL, what, f"{fix}, and the log of the replicator")
    elif found.state is State.STOPPED:
        yield Result("replica", Level.WARN, what, "start Headwater")
    elif found.state is State.WAITING:
        yield Result("replica", Level.WARN, what, fix)
    else:
        yield ok("replica", what)


def check_upload(settings: UploadSettings | None) -> Iterator[Result]:
    """Whether what devices may write can be written: tried as an upload does it."""
    if settings is None:
        return
    findings = check_uploads(settings)
    yield from (of_finding("uploads", each) for each in findings)
    if not any(each.fatal for each in findings):
        tables = count(len(settings.tables), "table")
        yield ok("uploads", f"tried as {settings.login.user}, who becomes {settings.role}: {tables} can be written")


def _of_connection(conn: psycopg.Connection, settings: SourceSettings) -> Iterator[Result]:
    before = time.time()
    ((at, version),) = conn.execute(
        "select extract(epoch from clock_timestamp())::float8, current_setting('server_version')"
    ).fetchall()
    after = time.time()
    took = after - before
    kept_from_others = "encrypted" if conn.pgconn.ssl_in_use else "not encrypted"
    yield ok("source", f"{settings.address}: Postgres {version}, {took * 1000:.1f} ms away, {kept_from_others}")
    off = max(0.0, abs(at - (before + after) / 2) - took / 2)
    fix = "have this machine and the database's set their clocks by NTP"
    what = f"the clocks of this machine and the database differ by {off:.1f} s"
    if off > _TOLERATED:
        yield Result("clock", Level.FAIL, f"{what}: tokens that are made by the one's are refused here", fix)
    elif off > _NOTICED:
        yield Result("clock", Level.WARN, f"{what}: what metrics call lag is wrong by as much", fix)
    else:
        yield ok("clock", "the clocks of this machine and the database agree")


def _log_limits(conn: psycopg.Connection) -> Iterator[Result]:
    """How much log a slot may hold back, and for how long."""
    settings: dict[str, int] = dict(
        conn.execute(
            "select name, setting::int8 from pg_settings"
            " where name in ('max_slot_wal_keep_size', 'idle_replication_slot_timeout', 'wal_sender_timeout')"
        ).fetchall()
    )
    kept = settings.get("max_slot_wal_keep_size", -1)
    if kept < 0:
        what = "while Headwater does not run, the source keeps all log, until its disk is full"
        fix = "watch the disk, or run ALTER SYSTEM SET max_slot_wal_keep_size = '50GB' and SELECT pg_reload_conf()"
        yield Result("log", Level.WARN, what, fix)
    else:
        yield ok("log", f"the source keeps up to {kept:,} MB of log for Headwater")
    if settings.get("idle_replication_slot_timeout", 0) > 0:
        what = "the source drops slots that nobody has read for some time (idle_replication_slot_timeout)"
        fix = "run ALTER SYSTEM SET idle_replication_slot_timeout = 0 and SELECT pg_reload_conf(), or restart in time"
        yield Result("log", Level.WARN, what, fix)
