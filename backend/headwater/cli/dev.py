"""`headwater dev`: everything on this machine, from a Postgres with sample data to the demo app.

`python -m headwater.cli.dev --config FILE` is the endpoint with the demo's routes, which the command starts."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import click
import psycopg
from psycopg import sql

from headwater.api.admin.route import AdminSettings
from headwater.api.admin.rules import ExplainHandler
from headwater.api.auth.key_ring import KeyRing
from headwater.api.auth.verify import Verifier
from headwater.api.http.server import bind, reachable_host, serve_app
from headwater.cli.api import build
from headwater.cli.config import ServiceConfig, load_config
from headwater.cli.init.page import title_of
from headwater.cli.init.run import proposed, source_at
from headwater.cli.supervise import EXIT_STOP, Child, end_with_supervisor, stop_on_signals, supervise
from headwater.cli.watching import set_up_logging
from headwater.cli.workers import answer_at
from headwater.config import SYNC_B64, ConfigSource
from headwater.dev import DemoFiles, find_demo_files
from headwater.dev.routes import Backstage, Demo, StudioDoor, demo_routes
from headwater.dev.sample import UPLOAD, fill, is_filled, make_policies, row_count
from headwater.dev.trace import RuleText, Tracer
from headwater.dev.workspace import AUDIENCE, StudioLink, Workspace, WorkspaceError, open_workspace
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.source.catalog.schema import read_outline, read_schema
from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness.prepare import prepare
from headwater.source.slot import drop_unread_slot
from headwater.source.upload.prepare import prepare_uploads
from headwater.storage.address import SqliteAddress
from headwater.storage.contract.reader import StoreReader
from headwater.storage.open import open_store
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.client_schema import client_schema
from headwater_rules.propose.propose import propose

_PAUSE = 0.2
_ANSWER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Address:
    """The address that the demo listens on."""

    host: str
    port: int

    @property
    def origin(self) -> str:
        host = reachable_host(self.host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def answers(self) -> bool:
        """Whether the demo's page, or its placeholder, is served."""
        return answer_at(reachable_host(self.host), self.port, "/demo/", _ANSWER_SECONDS) is not None


def when_ready(store: Path, address: Address, stop: threading.Event, then: Callable[[], None]) -> None:
    """Call `then` once the page answers and the store has a checkpoint for devices, unless `stop` is set before."""
    with closing(open_store(SqliteAddress(str(store))).open_reader()) as reader:
        while not stop.is_set():
            if reader.newest() is not None and address.answers():
                then()
                return
            stop.wait(_PAUSE)


def own_tables_text(address: Address, database: str, files: DemoFiles, rules: Path, secret: str) -> str:
    """The text to print when a database of one's own is shown."""
    page = f"{address.origin}/demo/" + ("" if files.has_app else "   (not built yet: run `make install`)")
    return f"""
Ready.

  your tables     {page}
  studio          {studio_link(address, secret)}
  database        {database}
  sync config     {rules}

Change a row of theirs, in your app or by SQL, and see it arrive. Devices write nothing here.

Ctrl-C ends everything, and drops the slot and the publication that were made for it.
"""


def studio_link(address: Address, secret: str) -> str:
    """The link that signs in to the studio, for the text."""
    return f"{address.origin}/demo/studio?key={secret}   (signs you in; works once)"


def database_session(dsn: str, programs: Path) -> str:
    """The command that opens a database session, or only its address where there is no psql. `programs` is the
    directory of Postgres' programs, `dsn` a libpq URI."""
    psql = "psql" if shutil.which("psql") else shutil.which("psql", path=str(programs))
    return f"{shlex.quote(psql)} {shlex.quote(dsn)}" if psql else dsn


def what_to_try(address: Address, database: str, files: DemoFiles, kept: Path | None, secret: str) -> str:
    """The text to print when ready. `database` is how to open a session of the database."""
    app = f"{address.origin}/demo/" + ("" if files.has_app else "   (not built yet: run `make demo`)")
    end = "Ctrl-C ends everything" + (f"; {kept} stays." if kept else ", and leaves nothing behind.")
    return f"""
Ready.

  demo app        {app}
  studio          {studio_link(address, secret)}
  sync endpoint   {address.origin}   (tokens: {address.origin}/demo/token?user=ID, ids: {address.origin}/demo/users)
  Postgres        {database}
  sync rules      {files.rules}

Open the demo app beside a database session, and try:

  -- a to-do appears on both sides
  insert into todos (id, list_id, title)
    select gen_random_uuid(), id, 'Look at the sky' from lists where name = 'Weekend together';

  -- Ben loses the list with all that is in it; Ada keeps it
  delete from list_members m using lists l, users u
    where l.id = m.list_id and u.id = m.user_id and l.name = 'Weekend together' and u.name = 'Ben';

  -- and gets it back
  insert into list_members (id, list_id, user_id, role)
    select gen_random_uuid(), l.id, u.id, 'member' from lists l, users u
    where l.name = 'Weekend together' and u.name = 'Ben';

{end}
"""


_DATABASE = "demo"
_SLOTS = "select slot_name::text from pg_replication_slots where starts_with(slot_name, %s)"


_USER = "postgres"


def run(host: str, port: int, rows: int, keep: Path | None) -> None:
    """Run until SIGTERM, SIGINT or SIGHUP. Port 0 chooses a free one; `keep` is a directory that is kept."""
    files, stop = find_demo_files(), stop_on_signals(signal.SIGHUP)
    with ExitStack() as stack:
        reserved, address = _reserve(stack, host, port)
        workspace = stack.enter_context(open_workspace(keep))
        server = EmbeddedPostgres(workspace.database)
        _say(f"starting Postgres {server.binaries.major}")
        stack.enter_context(server)
        source = SourceSettings("127.0.0.1", _DATABASE, _USER, port=server.port, sslmode="disable")
        if not _create_source(server, source, files, rows, lambda: not stop.is_set()):
            return
        workspace.write_config(source, files.rules, address.host, address.port, UPLOAD)
        config = load_config(ConfigSource(path=workspace.config), {}, workspace.root)
        prepare_uploads(config.uploads())
        reserved.close()
        dsn = f"postgresql://{_USER}@127.0.0.1:{server.port}/{_DATABASE}"
        session = database_session(dsn, server.binaries.bin_dir)
        text = what_to_try(address, session, files, workspace.root if keep else None, workspace.link.make())
        _serve(workspace, address, session, text, stop)
        _say("ending")


def run_own(uri: str, users: str | None, given: Path | None, host: str, port: int) -> None:
    """Show what happens over a database of one's own, until a signal. In the end the slot and the publication that were
    made for it are dropped. `users` is the table of users, by default the likeliest; `given` is the sync config, by
    default what `headwater init` would propose."""
    files, stop = replace(find_demo_files(), page="own.html"), stop_on_signals(signal.SIGHUP)
    with ExitStack() as stack:
        reserved, address = _reserve(stack, host, port)
        workspace = stack.enter_context(open_workspace(None))
        mark = f"headwater_dev_{secrets.token_hex(4)}"
        source = replace(source_at(uri, ask=False), publications=(mark,), slot_prefix=f"{mark}_")
        proposal = proposed(read_outline(source), source.address, users)
        rules = given or workspace.rules
        if given is None:
            rules.write_text(proposal.text, encoding="utf-8")
        if proposal.people is None:
            raise HeadwaterError(
                "no table of users was found", source.address, "name it with --users TABLE", code="HW_8603"
            )
        plan = compile_config(rules.read_text(encoding="utf-8")).plan
        if not plan.streams:
            raise HeadwaterError(
                "no table leads to a user", source.address, "write a sync config, and pass --rules", code="HW_8603"
            )
        workspace.write_config(source, rules, address.host, address.port, None)
        stack.callback(_remove, source, mark)
        _say(f"publishing the tables of {source.address} as {mark}")
        prepare(source, plan.tables(), computed=plan.computed)
        reserved.close()
        session = f"psql postgresql://{source.user}@{source.address}"
        text = own_tables_text(address, source.address, files, rules, workspace.link.make())
        _serve(workspace, address, session, text, stop, proposal.people)
        _say("ending")


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
    plan = compile_config(files.rules.read_text(encoding="utf-8")).plan
    prepare(source, plan.tables(), computed=plan.computed)
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
            [sys.executable, "-m", "headwater.cli.dev", *arguments, "--session", session, *own],
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


@click.command()
@click.option("--config", type=click.Path(path_type=Path), required=True)
@click.option("--session", required=True, help="How a person opens a database session.")
@click.option("--own", metavar="TABLE", help="The table of users of a database that is not the demo's.")
def main(config: Path, session: str, own: str | None) -> None:
    """Serve the demo that CONFIG describes, until SIGTERM or SIGINT."""
    end_with_supervisor()
    try:
        _serve_demo(config, session, own)
    except HeadwaterError as error:
        click.echo(f"headwater: {error}", err=True)
        raise SystemExit(EXIT_STOP) from None


def _serve_demo(path: Path, session: str, own: str | None) -> None:
    config = load_config(ConfigSource(path=path), os.environ, Path.cwd())
    set_up_logging(config.logging.level, config.logging.format)
    files = find_demo_files() if own is None else replace(find_demo_files(), page="own.html")
    demo = Demo(config.source(), config.auth.keys[0], AUDIENCE) if own is None else _own(config, own)
    with closing(open_store(config.storage).open_reader()) as reader:
        routes = [
            *_backstage(config, reader, files, session).routes(),
            *StudioDoor(StudioLink(path), config.api.tokens).routes(),
            *demo_routes(demo, files),
        ]
        serve_app(build(config, routes), [bind(config.host, config.port)])


def _own(config: ServiceConfig, named: str) -> Demo:
    source = config.source()
    people = propose(read_outline(source), named).users
    if people is None:
        raise WorkspaceError("the table of users is gone", named, "start headwater dev again")
    schema = client_schema(compile_config(config.sync_text()).plan, read_schema(source))
    tables = {table.name: {each.name: each.type.value for each in table.columns} for table in schema.tables}
    title, order = title_of(people.table), (people.subject,)
    return Demo(source, config.auth.keys[0], AUDIENCE, people.table.own_place, people.subject, title, order, tables)


def _backstage(config: ServiceConfig, reader: StoreReader, files: DemoFiles, session: str) -> Backstage:
    limits, rules = config.api.parameters.requests, RuleText(config.sync_text())
    return Backstage(
        Verifier(KeyRing(config.auth.keys), frozenset({AUDIENCE})),
        Tracer(reader, config.storage, config.source(), limits, rules, has_notes=files.page == "index.html"),
        ExplainHandler(AdminSettings((), config.storage, config.sources), reader),
        rules,
        files.rules.name if files.page == "index.html" else "sync.yaml",
        session,
    )


if __name__ == "__main__":
    main()
