"""How the command prints rows, the status of a device, and a download on its way."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from headwater_client.database.watch import Row

Format = Literal["table", "json", "csv"]

console = Console()
errors = Console(stderr=True)


def as_table(rows: Sequence[Row]) -> Table:
    """Rows to look at; texts are shown as they are, not as markup."""
    table = Table()
    for name in rows[0] if rows else ():
        table.add_column(_escaped(name))
    for row in rows:
        table.add_row(*(_escaped(_text(value)) for value in row.values()))
    return table


def print_rows(rows: Sequence[Row], kind: Format) -> None:
    if kind == "json":
        for row in rows:
            click_echo(json.dumps({name: _plain(value) for name, value in row.items()}, ensure_ascii=False))
    elif kind == "csv":
        writer = csv.writer(sys.stdout)
        if rows:
            writer.writerow(rows[0])
        writer.writerows([_plain(value) for value in row.values()] for row in rows)
    elif rows:
        console.print(as_table(rows))
    else:
        console.print("no rows")


def print_result(rows: Sequence[Row], kind: Format) -> None:
    """One result of many: a line of JSON, or CSV that an empty line ends. Whoever reads it has it at once."""
    if kind == "json":
        click_echo(
            json.dumps([{name: _plain(value) for name, value in row.items()} for row in rows], ensure_ascii=False)
        )
    else:
        print_rows(rows, kind)
        click_echo("")
    sys.stdout.flush()


def click_echo(text: str) -> None:
    """A line to stdout, as it is."""
    sys.stdout.write(text + "\n")


def progress_bar() -> Progress:
    """Shows how many operations have come."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=errors
    )


def moment(seconds: float | None) -> str:
    """A time in this machine's zone."""
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, timezone.utc).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _plain(value: Any) -> Any:
    return value.hex() if isinstance(value, bytes) else value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return f"x'{value.hex()}'" if isinstance(value, bytes) else str(value)


def _escaped(text: str) -> str:
    return text.replace("[", r"\[")
