"""The command `headwater-client`: syncs a device's file, and shows and checks what is in it."""

from __future__ import annotations

import csv
import json
import logging
import math
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import click
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headwater_client.database.connector import DownloadConnector, UploadConnector
from headwater_client.database.database import Database
from headwater_client.database.watch import Row
from headwater_client.errors import ClientError, FileError
from headwater_client.schema import ColumnType, Schema, is_fit
from headwater_client.storage import buckets, uploads
from headwater_client.storage.layout import is_device_file, kinds_without_table, synced_tables
from headwater_client.sync.options import ConnectOptions, TransportKind
from headwater_client.version import VERSION

_TYPES: dict[str, ColumnType] = {"integer": "integer", "true": "integer", "false": "integer", "real": "real"}
_STEPS = 100_000
"""Of SQLite's machine: some milliseconds."""


def read_schema(path: Path) -> tuple[Schema, list[str]]:
    """The tables of a JSON file, `{"todos": {"title": "text"}}`, and names in it that no table or column can have."""
    try:
        tables: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    if not isinstance(tables, dict) or not all(isinstance(each, dict) for each in tables.values()):
        raise click.ClickException(f'{path} has to map tables to columns: {{"todos": {{"title": "text"}}}}')
    columns = {f"{table}.{column}": column for table, each in tables.items() if is_fit(table) for column in each}
    left_out = [table for table in tables if not is_fit(table)]
    left_out += [name for name, column in columns.items() if not is_fit(column) or column.lower() == "id"]
    fit = {
        table: {column: kind for column, kind in each.items() if f"{table}.{column}" not in left_out}
        for table, each in tables.items()
        if table not in left_out
    }
    return Schema.of(fit), left_out


@contextmanager
def open_existing(path: Path, key: str | None) -> Iterator[Database]:
    """The device of a file that is there. An error of SQLite's, as of the SQL that was given, ends the command."""
    if not path.exists():
        raise click.ClickException(f"{path} is not there: headwater-client sync makes it")
    if key is None:
        _check(path)
    with Database(path, key=key) as database:
        # While SQLite works, Python hears of Ctrl-C only where it is called
        database.conn.set_progress_handler(lambda: 0, _STEPS)
        try:
            yield database
        except database.conn.Error as error:
            raise click.ClickException(str(error)) from error


def _check(path: Path) -> None:
    """Look at the file without changing it. Raises `FileError`."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            if is_device_file(connection):
                return
    except sqlite3.Error as error:
        raise FileError(f"{path} cannot be opened as a SQLite file: {error}") from error
    raise FileError(f"{path} is not the file of a device")


def found_schema(
    connection: sqlite3.Connection, kinds: Iterable[str], present: Iterable[str]
) -> tuple[Schema, list[str]]:
    """The tables and columns that the downloaded rows of these kinds have, beside tables that are `present`. What no
    schema can name, or SQLite can't tell from another, is left out and named."""
    columns: dict[str, dict[str, ColumnType]] = {}
    called: dict[str, str] = {name.lower(): name for name in present}
    called_in: dict[str, dict[str, str]] = {}
    left_out: dict[str, None] = {}
    rows = connection.execute(
        "SELECT DISTINCT op.row_type, field.key, field.type FROM ps_oplog AS op, json_each(op.data) AS field"
        " WHERE op.row_type IN (SELECT value FROM json_each(?)) AND field.key != 'id' AND field.type != 'null'"
        " ORDER BY 1, 2, 3",
        [json.dumps(list(kinds))],
    )
    for table, column, kind in rows.fetchall():
        if not _has_name(called, table):
            left_out[table] = None
            continue
        known, this = columns.setdefault(table, {}), _TYPES.get(kind, "text")
        if _has_name(called_in.setdefault(table, {"id": "id"}), column):
            known[column] = this if known.get(column, this) == this else "text"
        else:
            left_out[f"{table}.{column}"] = None
    return Schema.of(columns), list(left_out)


def _has_name(called: dict[str, str], name: str) -> bool:
    """Whether it may have its name beside the others, which are kept by how SQLite tells them apart."""
    return is_fit(name) and called.setdefault(name.lower(), name) == name


Format = Literal["table", "json", "csv"]

console = Console()
stderr = Console(stderr=True)


def as_table(rows: Sequence[Row]) -> Table:
    """Rows to look at; texts are shown as they are, not as markup."""
    table = Table()
    for name in rows[0] if rows else ():
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    return table


def print_rows(rows: Sequence[Row], kind: Format) -> None:
    if kind == "json":
        for row in rows:
            click.echo(_as_json(row))
    elif kind == "csv":
        writer = csv.writer(sys.stdout)
        if rows:
            writer.writerow(rows[0])
        writer.writerows([each.hex() if isinstance(each, bytes) else each for each in row.values()] for row in rows)
    elif rows:
        console.print(as_table(rows))
    else:
        console.print("no rows")


def print_result(rows: Sequence[Row], kind: Format) -> None:
    """One result of many: a line of JSON, or CSV that an empty line ends. Whoever reads it has it at once."""
    if kind == "json":
        click.echo(_as_json(rows))
    else:
        print_rows(rows, kind)
        click.echo("")


def progress_bar() -> Progress:
    """Shows how many operations have come."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=stderr
    )


def moment(seconds: float | None) -> str:
    """A time in this machine's zone."""
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=bytes.hex)


def _text(value: object) -> Text:
    return Text("" if value is None else f"x'{value.hex()}'" if isinstance(value, bytes) else str(value))


_MASK = 2**32 - 1


@dataclass(frozen=True)
class FileCheck:
    """One thing that was looked at: what it is, and whether it is as it should be (None: nothing can be wrong)."""

    name: str
    detail: str
    fine: bool | None = None


def findings_in(connection: sqlite3.Connection) -> Iterator[FileCheck]:
    """Look at the file in every way; a finding after the other."""
    (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
    yield FileCheck("SQLite", str(sound), sound == "ok")
    (size,) = connection.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
    yield FileCheck("size", f"{size / 1e6:,.1f} MB")
    (count, ops) = connection.execute("SELECT (SELECT count(*) FROM ps_buckets), count(*) FROM ps_oplog").fetchone()
    yield FileCheck("buckets", f"{count:,} with {ops:,} rows")
    if buckets.is_bulk(connection):
        yield FileCheck("download", "a large download is under way, so sums and rows are not compared")
    else:
        yield from _compared(connection)
    waiting = uploads.waiting(connection)
    yield FileCheck("upload queue", f"{waiting:,} local writes wait" if waiting else "empty")
    confirmed = uploads.confirmed(connection)
    yield FileCheck(
        "local writes", "confirmed by the server" if confirmed else "not confirmed: they hold back downloads"
    )
    untyped = connection.execute("SELECT type, count(*) FROM ps_untyped GROUP BY type ORDER BY type").fetchall()
    for kind, number in untyped:
        yield FileCheck("rows without a table", f"{number:,} of {kind}: the schema does not have it")


def _compared(connection: sqlite3.Connection) -> Iterator[FileCheck]:
    wrong = [
        name
        for name, kept, real in connection.execute(
            "SELECT name, op_checksum, (SELECT coalesce(sum(hash), 0) FROM ps_oplog WHERE bucket = each.id)"
            " FROM ps_buckets AS each"
        ).fetchall()
        if kept != real & _MASK
    ]
    yield FileCheck("checksums", f"wrong in {', '.join(wrong)}" if wrong else "right", not wrong)
    orphans = connection.execute(
        "SELECT count(*) FROM ps_oplog WHERE bucket NOT IN (SELECT id FROM ps_buckets)"
    ).fetchone()[0]
    yield FileCheck("rows without a bucket", f"{orphans:,}", orphans == 0)
    if uploads.confirmed(connection):
        for kind, table in sorted(synced_tables(connection).items()):
            yield _table(connection, kind, table)


def _table(connection: sqlite3.Connection, kind: str, table: str) -> FileCheck:
    """A table against the newest operation of each of its rows that was applied."""
    different = connection.execute(
        f"""
        WITH newest AS (
          SELECT op.row_id AS id, iif(max(op.op_id), op.data, NULL) AS data FROM ps_oplog AS op
          JOIN ps_buckets AS bucket ON bucket.id = op.bucket AND op.op_id <= bucket.last_applied_op
          WHERE op.row_type = :kind GROUP BY op.row_id)
        SELECT (SELECT count(*) FROM newest LEFT JOIN "{table}" AS shown USING (id) WHERE shown.data IS NOT newest.data)
             + (SELECT count(*) FROM "{table}" WHERE id NOT IN (SELECT id FROM newest))
        """,
        {"kind": kind},
    ).fetchone()[0]
    return FileCheck(f"table {kind}", f"{different:,} rows differ" if different else "as downloaded", different == 0)


_LOOK_SECONDS = 0.1

F = TypeVar("F", bound=Callable[..., Any])


def _of_file(command: F) -> F:
    """Every command is about a file, which may be encrypted."""
    key = click.option("--key", envvar="HEADWATER_CLIENT_KEY", help="of an encrypted file [HEADWATER_CLIENT_KEY]")
    path = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
    return path(key(command))


class _Commands(click.Group):
    """Prints an error of the package as one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(VERSION, prog_name="headwater-client")
def main() -> None:
    """A local SQLite file that syncs with Headwater, or another server of the PowerSync protocol."""
    logging.getLogger("headwater_client").addHandler(logging.NullHandler())  # `sync` prints what is logged, too


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
    seconds = math.inf if timeout is None else timeout
    given, left_out = (None, []) if schema is None else read_schema(schema)
    _print_left_out(left_out)
    with Database(file, given, key=key) as database:
        for name, of_stream in map(_stream, wanted):
            database.subscribe(name, of_stream)
        before = database.status.last_synced_at
        options = ConnectOptions(parameters=dict(map(_parameter, parameters)), transport=transport)
        database.connect((UploadConnector if upload else DownloadConnector)(endpoint, token), options)
        _sync_once(database, before, seconds)
        tables = _Tables(database) if schema is None else None
        if tables is not None:
            tables.make()
        if not once:
            _report_until_interrupted(database, tables)
        elif upload:
            _wait_uploaded(database, seconds)


@main.command()
@_of_file
@click.argument("sql")
@click.argument("args", nargs=-1)
@click.option("--format", "kind", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
def query(file: Path, key: str | None, sql: str, args: tuple[str, ...], kind: Format) -> None:
    """Print the rows of SQL, with ARGS for its question marks. Writes are queued for upload."""
    with open_existing(file, key) as database, database.atomic():
        found = database.rows(sql, args)
    print_rows(found, kind)


@main.command()
@_of_file
@click.argument("sql")
@click.argument("args", nargs=-1)
@click.option(
    "--format", "kind", type=click.Choice(["table", "json", "csv"]), help="default: a table, and JSON into a pipe"
)
@click.option("--count", type=int, help="end after so many results")
def watch(file: Path, key: str | None, sql: str, args: tuple[str, ...], kind: Format | None, count: int | None) -> None:
    """Show the rows of SQL, again whenever a sync or another program changes them. Ends with Ctrl-C.

    As JSON each result is a line, a list of rows; as CSV it begins with its header and ends with an empty line.
    """
    kind = kind or ("table" if console.is_terminal else "json")
    with open_existing(file, key) as database, ExitStack() as stack:
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if kind == "table" else None
        try:
            for number, found in enumerate(database.watch(sql, args), 1):
                if live is None:
                    print_result(found, kind)
                else:
                    heading = Text(f"{sql}  ({time.strftime('%H:%M:%S')}, {len(found)} rows)")
                    live.update(Group(heading, as_table(found)), refresh=True)
                if number == count:
                    return
        except KeyboardInterrupt:
            pass


@main.command()
@_of_file
@click.option("--json", "as_json", is_flag=True, help="print JSON")
def status(file: Path, key: str | None, as_json: bool) -> None:
    """Show what FILE holds, when it last synced, and what waits for upload."""
    with open_existing(file, key) as database:
        state = database.status
        stored = buckets.stored(database.conn)
        facts: dict[str, Any] = {
            "client_id": database.client_id,
            "last_synced_at": moment(state.last_synced_at),
            "priorities": {
                str(each.priority): moment(each.last_synced_at) for each in state.synced if each.priority is not None
            },
            "buckets": len(stored),
            "operations": sum(each.count_at_last + each.count_since_last for each in stored),
            "uploads_waiting": database.uploads_waiting,
            "streams": {
                f"{each.key.name} {each.key.params}": "active" if each.active else "requested" for each in state.streams
            },
            "tables": {name: database[name].count for name in database.synced_names},
        }
    if as_json:
        click.echo(json.dumps(facts))
    else:
        console.print(as_table([{"": name.replace("_", " "), " ": _lines(value)} for name, value in facts.items()]))


@main.command()
@_of_file
def diagnose(file: Path, key: str | None) -> None:
    """Check that FILE is consistent; exits with 1 if it is not."""
    with open_existing(file, key) as database:
        found = list(findings_in(database.conn))
    for each in found:
        mark = {True: "[green]ok[/]", False: "[red]wrong[/]", None: " "}[each.fine]
        console.print(f"{mark:>18} {each.name}: ", end="")
        console.print(each.detail, markup=False, highlight=False)
    if any(each.fine is False for each in found):
        raise SystemExit(1)


def _sync_once(database: Database, before: float | None, timeout: float) -> None:
    """Wait for a complete sync after that of `before`. Errors on the way are printed; the device tries again."""
    deadline = time.monotonic() + timeout
    printed: str | None = None
    with progress_bar() as bar:
        task = bar.add_task("first sync" if before is None else "sync", total=None)
        while database.status.last_synced_at == before:
            state = database.status
            progress, error = state.progress(), state.download_error or state.upload_error
            if progress is not None:
                bar.update(task, completed=progress.downloaded, total=progress.total)
            if error is not None and str(error) != printed:
                printed = str(error)
                stderr.print(printed, markup=False)
            if time.monotonic() > deadline:
                last = f"; the last error was {printed}" if printed else ""
                raise click.ClickException(f"no complete sync within {timeout:g} s{last}")
            time.sleep(_LOOK_SECONDS)
    stderr.print(f"synced at {moment(database.status.last_synced_at)}")


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
            stderr.print(f"made tables from the rows that came: {', '.join(found.views) or 'none'}")
        _print_left_out(left_out)


def _print_left_out(names: Sequence[str]) -> None:
    if names:
        stderr.print(f"left out, as no table can have these names: {', '.join(names)}", markup=False)


def _wait_uploaded(database: Database, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not database.confirmed():
        if time.monotonic() > deadline:
            raise click.ClickException(
                f"{database.uploads_waiting} local writes still wait; {database.status.upload_error or ''}"
            )
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
                stderr.print(f"{word}{f': {problem}' if problem else ''}", markup=False)
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        return


def _parameter(text: str) -> tuple[str, object]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.ClickException(f"{text!r} is not NAME=VALUE")
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
        raise click.ClickException(f"the parameters of {name} are not a JSON object: {value}")
    return name, found


def _lines(value: object) -> str:
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {each}" for name, each in value.items())
    return str(value)
