"""`headwater dev`: everything on this machine, from a Postgres with sample data to the demo app."""

from __future__ import annotations

import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import click
import psycopg
from psycopg import sql

from headwater.api.http.server import bind
from headwater.cli.init.run import proposed, source_at
from headwater.cli.signals import stop_on_signals
from headwater.cli.supervise import Child, supervise
from headwater.config.given import SYNC_B64, ConfigSource
from headwater.config.load import load_config
from headwater.dev.demo_files import DemoFiles, find_demo_files
from headwater.dev.ready import Address, database_session, own_tables_text, what_to_try, when_ready
from headwater.dev.sample import fill, is_filled, row_count
from headwater.dev.upload import make_policies, upload_section
from headwater.dev.workspace import Workspace, open_workspace
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.source.catalog.schema import read_outline
from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness.prepare import prepare
from headwater.source.slot import drop_unread_slot
from headwater.source.upload.prepare import prepare_uploads
from headwater_rules.compiler.compile import compile_config

_DATABASE = "demo"
_SLOTS = "select slot_name::text from pg_replication_slots where starts_with(slot_name, %s)"


class NothingToShowError(HeadwaterError):
    """Of the tables of one's own none can be shown."""

    code = "HW_8603"


_USER = "postgres"


def run(host: str, port: int, rows: int, keep: Path | None) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP. Port 0 chooses a free one; `keep` is a directory that is kept."""
    files, stop = find_demo_files(), _stop()
    with ExitStack() as stack:
        reserved, address = _reserve(stack, host, port)
        workspace = stack.enter_context(open_workspace(keep))
        server = EmbeddedPostgres(workspace.database)
        _say(f"starting Postgres {server.binaries.major}")
        stack.enter_context(server)
        source = SourceSettings("127.0.0.1", _DATABASE, _USER, port=server.port, sslmode="disable")
        if not _create_source(server, source, files, rows, lambda: not stop.is_set()):
            return
        workspace.write_config(source, files.rules, address.host, address.port, upload_section())
        config = load_config(ConfigSource(path=workspace.config), {}, workspace.root)
        prepare_uploads(config.uploads())
        reserved.close()
        dsn = f"postgresql://{_USER}@127.0.0.1:{server.port}/{_DATABASE}"
        session = database_session(dsn, server.binaries.bin_dir)
        text = what_to_try(address, session, files, workspace.root if keep else None)
        _serve(workspace, address, session, text, stop)
        _say("ending")


@dataclass(frozen=True, slots=True)
class OwnDatabase:
    """Somebody's own database: its URI, the table of users (None: the likeliest), and a sync config (None: what
    `headwater init` would propose)."""

    uri: str
    users: str | None = None
    rules: Path | None = None


def run_own(database: OwnDatabase, host: str, port: int) -> None:
    """Show what happens over a database of one's own, until a signal. In the end the slot and the publication that were
    made for it are dropped."""
    files, stop = replace(find_demo_files(), page="own.html"), _stop()
    with ExitStack() as stack:
        reserved, address = _reserve(stack, host, port)
        workspace = stack.enter_context(open_workspace(None))
        mark = f"headwater_dev_{secrets.token_hex(4)}"
        source = replace(source_at(database.uri, ask=False), publications=(mark,), slot_prefix=f"{mark}_")
        proposal = proposed(read_outline(source), source, database.users)
        rules = database.rules or workspace.rules
        if database.rules is None:
            rules.write_text(proposal.text, encoding="utf-8")
        if proposal.people is None:
            raise NothingToShowError("no table of users was found", source.address, "name it with --users TABLE")
        plan = compile_config(rules.read_text(encoding="utf-8")).plan
        if not plan.streams:
            raise NothingToShowError(
                "no table leads to a user", source.address, "write a sync config, and pass --rules"
            )
        workspace.write_config(source, rules, address.host, address.port, None)
        stack.callback(_remove, source, mark)
        _say(f"publishing the tables of {source.address} as {mark}")
        prepare(source, plan.tables())
        reserved.close()
        session = f"psql postgresql://{source.user}@{source.address}"
        text = own_tables_text(address, source.address, files, rules)
        _serve(workspace, address, session, text, stop, proposal.people)
        _say("ending")


def _stop() -> threading.Event:
    """An event that SIGTERM, SIGINT and SIGHUP set."""
    stop = threading.Event()
    stop_on_signals(stop)
    signal.signal(signal.SIGHUP, lambda *_: stop.set())
    return stop


def _reserve(stack: ExitStack, host: str, port: int) -> tuple[socket.socket, Address]:
    """Bind the port first, so that one in use is reported at once. Close it when the endpoint is about to bind it."""
    reserved = stack.enter_context(bind(host, port, "--port"))
    return reserved, Address(host, reserved.getsockname()[1])


def _remove(source: SourceSettings, mark: str) -> None:
    """Leave nothing in the database: a slot that stayed would keep its log. All that was made begins with `mark`."""
    try:
        with connect(source, application_name="headwater dev") as conn:
            slots = conn.execute(_SLOTS, [mark])
            for (slot,) in slots.fetchall():
                drop_unread_slot(conn, slot)
            conn.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(mark)))
    except (HeadwaterError, psycopg.Error) as error:
        _say(f"slots and a publication called {mark}… may have stayed ({type(error).__name__}): drop them")


def _create_source(
    server: EmbeddedPostgres,
    source: SourceSettings,
    files: DemoFiles,
    rows: int,
    keep_running: Callable[[], bool],
) -> bool:
    """Create the database with its tables, rows and publication. Returns False when stopped meanwhile."""
    with psycopg.connect(server.dsn(), autocommit=True) as conn:
        if conn.execute("select from pg_database where datname = %s", [_DATABASE]).fetchone() is None:
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(_DATABASE)))
    with psycopg.connect(server.dsn(_DATABASE), autocommit=True) as conn:
        started = time.monotonic()
        if is_filled(conn):
            _say("the sample data exists already")
        elif not fill(conn, rows, keep_running):
            return False
        else:
            _say(f"created {row_count(conn):,} rows of sample data in {time.monotonic() - started:.1f} s")
        make_policies(conn)
    prepare(source, compile_config(files.rules.read_text(encoding="utf-8")).plan.tables())
    return keep_running()


def _serve(
    workspace: Workspace, address: Address, session: str, text: str, stop: threading.Event, people: str | None = None
) -> None:
    """`people` is the table of users of a database that is not the demo's."""
    environment = {"SPARK_LOCAL_DIRS": str(workspace.scratch)}
    environment |= dict.fromkeys(SYNC_B64, "")  # use the demo's rules, whatever is set outside
    arguments = ["--config", str(workspace.config)]
    own = [] if people is None else ["--own", people]
    children = [
        Child("replicator", [sys.executable, "-m", "headwater", "replicate", *arguments], environment),
        Child(
            "endpoint",
            [sys.executable, "-m", "headwater.dev.serve", *arguments, "--session", session, *own],
            environment,
        ),
    ]
    _say("starting the replicator and the endpoint")
    announcer = threading.Thread(
        target=when_ready, args=(workspace.store, address, stop, lambda: click.echo(text)), name="announcer"
    )
    announcer.start()
    try:
        supervise(children, stop)
    finally:
        stop.set()
        announcer.join()


def _say(text: str) -> None:
    click.echo(f"headwater dev: {text}", err=True)
