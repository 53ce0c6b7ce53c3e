"""The command `headwater-client`: a device on the command line."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar, get_args

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from headwater_client.cli import show
from headwater_client.cli.diagnose import diagnose as findings
from headwater_client.cli.files import Failed, found_schema, open_existing, read_schema
from headwater_client.database.connector import DownloadConnector, UploadConnector
from headwater_client.database.database import Database
from headwater_client.errors import ClientError
from headwater_client.storage import buckets
from headwater_client.storage.app_tables import kinds_without_table
from headwater_client.sync.options import ConnectOptions, TransportKind
from headwater_client.version import VERSION

_LOOK_SECONDS = 0.1

F = TypeVar("F", bound=Callable[..., Any])


def _of_file(command: F) -> F:
    """Every command is about a file, which may be encrypted."""
    key = click.option("--key", envvar="HEADWATER_CLIENT_KEY", help="of an encrypted file [HEADWATER_CLIENT_KEY]")
    path = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
    return path(key(command))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(VERSION, prog_name="headwater-client")
def main() -> None:
    """A local SQLite file that syncs with Headwater, or another server of the PowerSync protocol."""
    logging.getLogger("headwater_client").addHandler(logging.NullHandler())  # `sync` tells what is logged, too


@main.command()
@_of_file
@click.option("--endpoint", required=True, envvar="HEADWATER_CLIENT_ENDPOINT", help="URL of the server")
@click.option("--token", required=True, envvar="HEADWATER_CLIENT_TOKEN", help="or in HEADWATER_CLIENT_TOKEN")
@click.option(
    "--schema", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON: tables, columns, types"
)
@click.option("--once", is_flag=True, help="end after the first complete sync")
@click.option("--upload", is_flag=True, help="send local writes to POST /upload of the server")
@click.option(
    "--parameter",
    "-p",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="for the sync config; a JSON value, or text",
)
@click.option(
    "--stream",
    "-s",
    "wanted",
    multiple=True,
    metavar="NAME[={…}]",
    help="subscribe to a stream, with parameters as JSON",
)
@click.option("--transport", type=click.Choice(get_args(TransportKind)), default="http", show_default=True)
@click.option("--timeout", type=float, help="seconds until the first sync must be complete")
def sync(  # noqa: PLR0913, PLR0917 - one for each option
    file: Path, key: str | None, endpoint: str, token: str, schema: Path | None, once: bool, upload: bool,
    parameters: tuple[str, ...], wanted: tuple[str, ...], transport: TransportKind, timeout: float | None,
) -> None:  # fmt: skip
    """Sync FILE, which is made if it is not there. Goes on until Ctrl-C.

    Without a schema, the tables are made from the rows that come.
    """
    try:
        given, left_out = (None, []) if schema is None else read_schema(schema)
        _tell_left_out(left_out)
        with Database(file, given, key=key) as database:
            for name, of_stream in map(_stream, wanted):
                database.subscribe(name, of_stream)
            before = database.status.last_synced_at
            options = ConnectOptions(parameters=dict(map(_parameter, parameters)), transport=transport)
            database.connect((UploadConnector if upload else DownloadConnector)(endpoint, token), options)
            _sync_once(database, before, timeout)
            tables = _Tables(database) if schema is None else None
            if tables is not None:
                tables.make()
            if once:
                _wait_uploaded(database, upload, timeout)
                return
            _report_until_interrupted(database, tables)
    except ClientError as error:
        raise Failed.of(error) from error


@main.command()
@_of_file
@click.argument("sql")
@click.argument("args", nargs=-1)
@click.option("--format", "kind", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
def query(file: Path, key: str | None, sql: str, args: tuple[str, ...], kind: show.Format) -> None:
    """Print what SQL gives, with ARGS for its question marks. Writes are queued for upload."""
    with open_existing(file, key) as database:
        try:
            with database.atomic():
                found = database.rows(sql, args)
        except database.conn.Error as error:
            raise Failed(str(error)) from error
    show.print_rows(found, kind)


@main.command()
@_of_file
@click.argument("sql")
@click.argument("args", nargs=-1)
@click.option(
    "--format", "kind", type=click.Choice(["table", "json", "csv"]), help="default: a table, and JSON into a pipe"
)
@click.option("--count", type=int, help="end after so many results")
def watch(
    file: Path, key: str | None, sql: str, args: tuple[str, ...], kind: show.Format | None, count: int | None
) -> None:
    """Show what SQL gives, anew whenever a sync or another program changes it. Ends with Ctrl-C.

    As JSON each result is a line, a list of rows; as CSV it begins with its header and ends with an empty line.
    """
    kind = kind or ("table" if show.console.is_terminal else "json")
    with open_existing(file, key) as database, ExitStack() as stack:
        live = stack.enter_context(Live(console=show.console, auto_refresh=False)) if kind == "table" else None
        try:
            for number, found in enumerate(database.watch(sql, args), 1):
                if live is None:
                    show.print_result(found, kind)
                else:
                    heading = Text(f"{sql}  ({time.strftime('%H:%M:%S')}, {len(found)} rows)")
                    live.update(Group(heading, show.as_table(found)), refresh=True)
                if number == count:
                    return
        except database.conn.Error as error:
            raise Failed(str(error)) from error
        except KeyboardInterrupt:
            pass


@main.command()
@_of_file
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def status(file: Path, key: str | None, as_json: bool) -> None:
    """Tell what FILE has, when it last synced, and what waits."""
    with open_existing(file, key) as database:
        state = database.status
        tables = {name: database[name].count for name in database.synced_names}
        stored = buckets.stored(database.conn)
        facts: dict[str, Any] = {
            "client_id": database.client_id,
            "last_synced_at": show.moment(state.last_synced_at),
            "priorities": {
                str(each.priority): show.moment(each.last_synced_at)
                for each in state.synced
                if each.priority is not None
            },
            "buckets": len(stored),
            "operations": sum(each.count_at_last + each.count_since_last for each in stored),
            "uploads_waiting": database.uploads_waiting,
            "streams": {
                f"{each.key.name} {each.key.params}": "active" if each.active else "asked for" for each in state.streams
            },
            "tables": tables,
        }
    if as_json:
        show.click_echo(json.dumps(facts))
    else:
        show.console.print(
            show.as_table([{"": name.replace("_", " "), " ": _told(value)} for name, value in facts.items()])
        )


@main.command()
@_of_file
def diagnose(file: Path, key: str | None) -> None:
    """Check that FILE agrees with itself; ends with 1 if it does not."""
    with open_existing(file, key) as database:
        found = list(findings(database.conn))
    for each in found:
        mark = {True: "[green]ok[/]", False: "[red]wrong[/]", None: " "}[each.fine]
        show.console.print(f"{mark:>18} {each.name}: ", end="")
        show.console.print(each.told, markup=False, highlight=False)
    if any(each.fine is False for each in found):
        raise SystemExit(1)


def _sync_once(database: Database, before: float | None, timeout: float | None) -> None:
    """Wait for a complete sync after that of `before`. Errors on the way are told, and tried again by the device."""
    deadline = None if timeout is None else time.monotonic() + timeout
    told: str | None = None
    with show.progress_bar() as bar:
        task = bar.add_task("first sync" if before is None else "sync", total=None)
        while database.status.last_synced_at == before:
            state = database.status
            progress, error = state.progress(), state.download_error or state.upload_error
            if progress is not None:
                bar.update(task, completed=progress.downloaded, total=progress.total)
            if error is not None and str(error) != told:
                told = str(error)
                show.errors.print(told, markup=False)
            if deadline is not None and time.monotonic() > deadline:
                raise Failed(
                    f"no complete sync within {timeout:g} s" + (f"; the last error was {told}" if told else "")
                )
            time.sleep(_LOOK_SECONDS)
    show.errors.print(f"synced at {show.moment(database.status.last_synced_at)}")


class _Tables:
    """Makes tables from the rows that come, for who gave no schema: also those of a stream that is subscribed later."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looked_at: float | None = None
        self._known: set[str] = set()

    def make(self) -> None:
        """Make what is missing, if there was a sync since this was called last."""
        synced_at = self._database.status.last_synced_at
        if synced_at == self._looked_at:
            return
        self._looked_at = synced_at
        connection, present = self._database.conn, self._database.synced_names
        kinds = [kind for kind in kinds_without_table(connection) if kind not in self._known]
        self._known |= set(kinds)
        found, left_out = found_schema(connection, kinds, present)
        self._database.add_tables(found)
        if found.views or not present:
            show.errors.print(f"made tables from the rows that came: {', '.join(found.views) or 'none'}")
        _tell_left_out(left_out)


def _tell_left_out(names: Sequence[str]) -> None:
    if names:
        show.errors.print(f"left out, as no table can have these names: {', '.join(names)}", markup=False)


def _wait_uploaded(database: Database, upload: bool, timeout: float | None) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    while upload and not database.confirmed():
        if deadline is not None and time.monotonic() > deadline:
            raise Failed(f"{database.uploads_waiting} local writes still wait; {database.status.upload_error or ''}")
        time.sleep(_LOOK_SECONDS)


def _report_until_interrupted(database: Database, tables: _Tables | None) -> None:
    said: object = None
    try:
        while True:
            if tables is not None:
                tables.make()
            state = database.status
            now = (state.connected, state.download_error, state.upload_error)
            if now != said:
                said = now
                word = "connected" if state.connected else "not connected"
                problem = state.download_error or state.upload_error
                show.errors.print(f"{word}{f': {problem}' if problem else ''}", markup=False)
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return


def _parameter(text: str) -> tuple[str, object]:
    name, sign, value = text.partition("=")
    if not sign:
        raise Failed(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _stream(text: str) -> tuple[str, Mapping[str, Any] | None]:
    name, sign, value = text.partition("=")
    if not sign:
        return name, None
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failed(f"the parameters of {name} are not a JSON object: {value}")
    return name, found


def _told(value: object) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {each}" for name, each in value.items())
    return str(value)
