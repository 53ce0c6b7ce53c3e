"""`headwater doctor`: all checks, in the order in which a reader mends things."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import resource
import shutil
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path

import click
import psycopg

from headwater.api.auth.errors import JwksError
from headwater.api.auth.fetch import CHECK_ADDRESS, JwksClient
from headwater.api.auth.settings import ClientAuth
from headwater.api.http.server import AddressInUseError, bind, reachable_host
from headwater.cli.config import ServiceConfig, load_config
from headwater.cli.source.status import (
    StoredState,
    disk_findings,
    disk_of,
    hasty,
    read_store,
    standing_of,
    store_findings,
)
from headwater.cli.workers import answer_at, listening_at
from headwater.config import ConfigSource
from headwater.config.document import ConfigError
from headwater.embedded import how_to_add
from headwater.embedded.java import NoJavaError, java_home
from headwater.errors import HeadwaterError
from headwater.insight.words import count
from headwater.pipeline.settings import SparkSettings
from headwater.replication.status import ReplicationState, SourceStatus, ask_log_end
from headwater.source.catalog.schema import see_schema
from headwater.source.connect import SourceSettings, connect, source_errors
from headwater.source.readiness.checks import source_findings
from headwater.source.readiness.finding import Finding, span
from headwater.source.readiness.health import slot_findings, slot_health
from headwater.source.slot import slot_name
from headwater.source.upload.prepare import check_uploads
from headwater.source.upload.settings import UploadSettings
from headwater.storage.address import SqliteAddress
from headwater.storage.open import open_store
from headwater.storage.sql.stats import MissingRight
from headwater_rules.compiler.compile import compile_config, findings_in
from headwater_rules.errors import RuleCode, Severity, SyncConfigError
from headwater_rules.plan import TablePattern


class Level(StrEnum):
    """How bad it is: a FAIL keeps rows from devices, or will."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Result:
    """One thing that was looked at, and what to do about it unless it is OK. `sql` are statements to copy."""

    area: str
    level: Level
    what: str
    fix: str = ""
    sql: tuple[str, ...] = ()


def _ok(area: str, what: str) -> Result:
    return Result(area, Level.OK, what)


def _warn(area: str, what: str, fix: str) -> Result:
    return Result(area, Level.WARN, what, fix)


def _fail(area: str, what: str, fix: str, sql: tuple[str, ...] = ()) -> Result:
    return Result(area, Level.FAIL, what, fix, sql)


def _of_error(area: str, error: HeadwaterError) -> Result:
    where = f" ({error.where})" if error.where else ""
    return _fail(area, f"[{error.code}] {error.what}{where}", error.fix)


def _of_finding(area: str, finding: Finding) -> Result:
    level = Level.FAIL if finding.fatal else Level.WARN
    return Result(area, level, f"[{finding.code}] {finding.lasting}", finding.fix, finding.sql)


_SEE = "see docs/service-config.md"
_SEE_RULES = "see `headwater rules check`"


def check_config(
    configs: ConfigSource, environment: Mapping[str, str], directory: Path
) -> tuple[ServiceConfig | None, list[Result]]:
    """The service config, if it can be used."""
    try:
        config = load_config(configs, environment, directory)
    except ConfigError as error:
        return None, [
            _fail("config", f"{error.origin}: [{each.code}] {each.key or 'config'}: {each.what}", each.fix or _SEE)
            for each in error.issues
        ]
    found = [_fail("config", each, "correct it: until then, nothing leaves devices") for each in config.unread_lists]
    found += [_warn("config", each, _SEE) for each in config.warnings]
    return config, found or [_ok("config", "the service config is right")]


def check_rules(config: ServiceConfig) -> tuple[Sequence[TablePattern] | None, list[Result]]:
    """The tables that the sync config names; None when there is none in a file."""
    if config.sync_config is None:
        return None, [_ok("rules", "no sync config in a file: it is deployed by `headwater rules deploy`")]
    where = config.sync_config.origin
    try:
        text = config.sync_text()
        compiled = compile_config(text)
    except ConfigError as error:
        return None, [_fail("rules", str(error), "write the file, or correct sync_config.path")]
    except SyncConfigError as errors:
        fix = config.sync_config.checked_by
        return None, [_fail("rules", f"{where}: {each.message}", fix) for each in errors.errors]
    seen = see_schema(config.sources, text)
    found = [
        Result(
            "rules",
            Level.FAIL if each.severity is Severity.FATAL else Level.WARN,
            f"{where}: [{each.code.value}] {each.message}",
            each.suggestion or _SEE_RULES,
        )
        for each in findings_in(text, seen.schema, allow_missing=config.sync_config.allow_missing)
        if each.code is not RuleCode.NOT_SENT  # the check of the source reports it, once for each table
    ]
    right = _ok("rules", f"{where}: {count(len(compiled.plan.streams), 'stream')}; {seen.note}")
    return compiled.plan.tables(), found or [right]


def check_keys(auth: ClientAuth) -> Iterator[Result]:
    """Whether a token can be accepted at all, and whether published keys can be fetched."""
    if not auth.keys and not auth.addresses:
        fix = "set client_auth.jwks, client_auth.jwks_uri or client_auth.supabase"
        yield _fail("tokens", "no keys of tokens are configured: every device is refused", fix)
        return
    own = (*(each.audience for each in auth.keys), *(each.audience for each in auth.addresses))
    if not auth.audience and not auth.issuers and not all(own):
        fix = "set client_auth.audience to what your tokens have as `aud`"
        yield _fail("tokens", "no audience is configured: every token is refused", fix)
    if auth.keys:
        yield _ok("tokens", f"{count(len(auth.keys), 'key')} in the config")
    for address in auth.addresses:
        try:
            found = asyncio.run(JwksClient(address, auth.rules).fetch())
        except JwksError as error:
            yield _of_error("tokens", JwksError(error.what, error.where, CHECK_ADDRESS))
            continue
        if found.keys:
            yield _ok("tokens", f"{count(len(found.keys), 'key')} at {address.shown}")
        else:
            why = f": {'; '.join(found.ignored)}" if found.ignored else ""
            yield _fail("tokens", f"no usable key at {address.shown}{why}", "publish a public signing key")


def check_store(config: ServiceConfig) -> tuple[StoredState | None, list[Result]]:
    """What the store records, if there is one."""
    found = [*_disk(config)]
    try:
        store = open_store(config.storage)
        if config.sources:
            for source in config.sources:
                store.raise_if_published(source.publications)
        lacking = [_fail("store", each.what, _mended(each), each.sql) for each in store.missing_rights()]
        if lacking:
            return None, [*found, *lacking]
        if not store.exists():
            return None, [*found, _ok("store", f"{config.storage}: none yet, and the first start may create it")]
        if (older := store.older_format()) is not None:
            fix = "start this version when no older one has to use the store any more"
            what = f"{config.storage}: format {older}, the next start upgrades it"
            return None, [*found, _warn("store", what, fix)]
        note = store.seal_note()
        if note is not None:
            fix = "use the store that it was exported to, or run `headwater store unseal`"
            return None, [*found, _fail("store", f"{config.storage} is sealed: {note}", fix)]
        kept = read_store(config.by_source()[0]) if config.sources else None
    except HeadwaterError as error:
        return None, [*found, _of_error("store", error)]
    found.append(_ok("store", f"{config.storage}: can be read, in a format of this version"))
    return kept, found


def _disk(config: ServiceConfig) -> Iterator[Result]:
    if not isinstance(config.storage, SqliteAddress):
        return
    findings = disk_findings(config)
    yield from (_of_finding("disk", each) for each in findings)
    if not findings:
        free = shutil.disk_usage(disk_of(config.storage)).free
        yield _ok("disk", f"{free / 1e9:,.1f} GB are free on the disk of the store, which can be written")


def _mended(lacking: MissingRight) -> str:
    if lacking.sql:
        return f"run {'; '.join(lacking.sql)} as the owner of the database"
    return "give the user that Headwater runs as the right to write there, or set storage.path"


_TOLERATED = 60.0
"""Seconds by which the clock of a token's issuer may differ."""

_NOTICED = 2.0


def check_source(
    config: ServiceConfig, kept: StoredState | None, tables: Sequence[TablePattern] | None
) -> Iterator[Result]:
    """Everything about the source. What the store knows of it, its slot and the served tables, comes first."""
    if not config.sources and config.unread_lists:
        return  # which was told
    try:
        settings = config.source()
    except ConfigError as error:
        yield _fail("source", "no source is configured", error.issues[0].fix)
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
            yield from (_of_finding("source", each) for each in findings)
            if not any(each.fatal for each in findings):
                yield _ok("source", "settings, rights, slots, replica identities and publication are as needed")
            yield from _log_limits(conn)
            yield from _standing(standing_of(config, kept, ask_log_end(conn)))
    except HeadwaterError as error:
        yield _of_error("source", error)
        yield from _standing(standing_of(config, kept, None))


def _standing(found: SourceStatus) -> Iterator[Result]:
    """Whether rows flow, and how far the store is behind. Nothing where no replicator has run yet."""
    if found.at is None:
        return
    missing = "how much the store lacks is not known"
    if found.lag_bytes is not None:
        missing = f"{found.lag_bytes:,} bytes of the source's log are not in the store"
    fix = "see `headwater source status`"
    if found.cause is not None:
        what = f"replication was held up {span(time.time() - found.cause.at)} ago: {found.why or found.cause}"
        yield _fail("replica", what, fix)
        return
    what = f"replication is {found.state.value}{found.why and f' ({found.why})'}, and {missing}"
    if found.state is ReplicationState.UNKNOWN:
        yield _fail("replica", what, f"{fix}, and the log of the replicator")
    elif found.state is ReplicationState.STOPPED:
        yield _warn("replica", what, "start Headwater")
    elif found.state is ReplicationState.WAITING:
        yield _warn("replica", what, fix)
    else:
        yield _ok("replica", what)


def check_upload(settings: UploadSettings | None) -> Iterator[Result]:
    """Whether what devices may write can be written: tried as an upload does it."""
    by_source = {} if settings is None else settings.by_source()
    for source, own in by_source.items():
        findings = check_uploads(own)
        results = [_of_finding("uploads", each) for each in findings]
        if not any(each.fatal for each in findings):
            tables = count(len(own.tables), "table")
            results.append(
                _ok("uploads", f"tried as {own.login.user}, who becomes {own.role}: {tables} can be written")
            )
        for each in results:
            yield each if len(by_source) == 1 else replace(each, what=f"{source}: {each.what}")


def _of_connection(conn: psycopg.Connection, settings: SourceSettings) -> Iterator[Result]:
    before = time.time()
    ((at, version),) = conn.execute(
        "select extract(epoch from clock_timestamp())::float8, current_setting('server_version')"
    ).fetchall()
    after = time.time()
    took = after - before
    kept_from_others = "encrypted" if conn.pgconn.ssl_in_use else "not encrypted"
    yield _ok("source", f"{settings.address}: Postgres {version}, {took * 1000:.1f} ms away, {kept_from_others}")
    off = max(0.0, abs(at - (before + after) / 2) - took / 2)
    fix = "have this machine and the database's set their clocks by NTP"
    what = f"the clocks of this machine and the database differ by {off:.1f} s"
    if off > _TOLERATED:
        yield _fail("clock", f"{what}: tokens that are made by the one's are refused here", fix)
    elif off > _NOTICED:
        yield _warn("clock", f"{what}: what metrics call lag is wrong by as much", fix)
    else:
        yield _ok("clock", "the clocks of this machine and the database agree")


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
        yield _warn("log", what, fix)
    else:
        yield _ok("log", f"the source keeps up to {kept:,} MB of log for Headwater")
    if settings.get("idle_replication_slot_timeout", 0) > 0:
        what = "the source drops slots that nobody has read for some time (idle_replication_slot_timeout)"
        fix = "run ALTER SYSTEM SET idle_replication_slot_timeout = 0 and SELECT pg_reload_conf(), or restart in time"
        yield _warn("log", what, fix)


_ANSWER_SECONDS = 3.0
_PROBE = {"ready", "started", "touched_at"}
_CODES = ("PSYNC_", "HW_")
_OTHER_FILES = 256


def check_spark(settings: SparkSettings) -> Iterator[Result]:
    """Whether bulk work can run from here. An endpoint alone needs none of it."""
    if importlib.util.find_spec("pyspark") is None:
        what = "Spark is not installed: enough for `headwater api`, not for `serve` and `replicate`"
        yield _warn("spark", what, how_to_add("spark"))
        return
    try:
        yield _ok("spark", f"Java in {java_home()}")
    except NoJavaError as error:
        yield _of_error("spark", error)
    if settings.master.startswith("spark://"):
        yield from map(_spark_master, settings.master.removeprefix("spark://").split(","))


def _spark_master(address: str) -> Result:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), _ANSWER_SECONDS).close()
    except (OSError, ValueError) as error:
        fix = "start it, or correct spark.master"
        return _fail("spark", f"the Spark master at {address} does not answer: {error}", fix)
    return _ok("spark", f"the Spark master at {address} answers")


def check_ports(config: ServiceConfig, *, running: bool) -> Iterator[Result]:
    """Whether each port is free, or a Headwater answers there: this one, if its store has a replicator that is
    `running`."""
    for host, port, setting in listening_at(config):
        yield _port(host, port, setting, running=running)


def _port(host: str, port: int, setting: str, *, running: bool) -> Result:
    try:
        bind(host, port, setting).close()
    except AddressInUseError as error:
        if _is_ours(reachable_host(host), port):
            if running:
                return _ok("ports", f"{port}: a Headwater answers there")
            fix = f"stop it if it serves something else, or set another {setting}"
            return _warn("ports", f"{port}: a Headwater already answers there", fix)
        return _of_error("ports", error)
    return _ok("ports", f"{port} is free")


def _is_ours(host: str, port: int) -> bool:
    """Whether probes or metrics of a Headwater are answered there."""
    probe = answer_at(host, port, "/probes/startup", _ANSWER_SECONDS)
    if not probe:
        return False
    try:
        answer = json.loads(probe)
        if {*answer} >= _PROBE:
            return True
        return str(answer["error"]["code"]).startswith(_CODES)  # where no probes are served
    except (ValueError, TypeError, KeyError):
        return b"\nheadwater_" in (answer_at(host, port, "/metrics", _ANSWER_SECONDS) or b"")


def check_files(config: ServiceConfig) -> Iterator[Result]:
    """Each connection of a device is an open file."""
    wanted = config.api.http.max_connections + _OTHER_FILES
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        what = f"a process may open {hard:,} files, and the configured connections need {wanted:,}"
        yield _warn("machine", what, "raise it (ulimit -Hn), or set api.http.max_connections lower")
    else:
        yield _ok("machine", "a process may open as many files as the configured connections need")


def run(configs: ConfigSource, *, as_json: bool = False) -> int:
    """Look at everything and print it. Returns the exit code."""
    results = []
    for each in _results(configs):
        results.append(each)
        if not as_json:
            _print(each)
    counts = {level: sum(each.level is level for each in results) for level in Level}
    if as_json:
        click.echo(json.dumps({"ok": not counts[Level.FAIL], "results": [asdict(each) for each in results]}, indent=2))
    else:
        click.echo(", ".join(f"{count} {level}" for level, count in counts.items()))
    return 1 if counts[Level.FAIL] else 0


def _results(configs: ConfigSource) -> Iterator[Result]:
    config, found = check_config(configs, os.environ, Path.cwd())
    yield from found
    if config is None:
        yield from check_spark(SparkSettings())
        return
    config = hasty(config)
    yield from _of_service(
        config if configs.source is None else replace(config, sources=config.chosen([configs.source]))
    )


def _of_service(config: ServiceConfig) -> Iterator[Result]:
    tables, found = check_rules(config)
    yield from found
    yield from check_keys(config.auth)
    kept, found = check_store(config)
    yield from found
    running = False
    for number, one in enumerate(config.by_source() if config.sources else [config]):
        own = kept if number == 0 or kept is None else read_store(one)
        for each in check_source(one, own, tables):
            yield each if len(config.sources) < 2 else replace(each, what=f"{one.source().name}: {each.what}")
        running |= own is not None and standing_of(one, own, None).state is not ReplicationState.STOPPED
    yield from check_upload(config.upload)
    yield from check_spark(config.spark)
    yield from check_ports(config, running=running)
    yield from check_files(config)


def _print(result: Result) -> None:
    click.echo(f"{result.level.value:<5} {result.area:<8} {result.what}")
    if result.level is not Level.OK and result.fix:
        click.echo(f"{'':<15}-> {result.fix}")
