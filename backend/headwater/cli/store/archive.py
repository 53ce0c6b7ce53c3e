"""`headwater store export|import|unseal`: writes a whole store to a file, and builds one from it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from headwater.bulk.contract import BulkProgress
from headwater.cli.config import ServiceConfig
from headwater.cli.progress import BulkProgressDisplay
from headwater.storage.archive import ArchiveHeader, ReportRows, export_store, import_store
from headwater.storage.open import open_store


def export_to(config: ServiceConfig, file: Path, *, seal: bool) -> None:
    """Export the store to a new file, and print a summary."""
    header = export_store(config.storage, file, _display("export"), seal=seal)
    click.echo(f"exported {config.storage} to {file}: {_contents(header)}, {file.stat().st_size / 1e6:,.1f} MB")
    if seal:
        click.echo("the store is sealed: no process can write to it until `headwater store unseal`")


def import_from(config: ServiceConfig, file: Path) -> None:
    """Build the store from a file, and print a summary."""
    header = import_store(file, config.storage, _display("import"))
    when = datetime.fromtimestamp(header.created, UTC).strftime("%Y-%m-%d %H:%M UTC")
    click.echo(f"imported {file} to {config.storage}: {_contents(header)}, as of {when}")


def unseal(config: ServiceConfig) -> None:
    """Allow writes to the store again."""
    note = open_store(config.storage).unseal()
    if note is None:
        click.echo(f"{config.storage} was not sealed")
    else:
        click.echo(f"{config.storage} is open again; it was {note}")
        click.echo("note: devices that synced with the store that replaced it may be ahead of this one", err=True)


def _display(what: str) -> ReportRows:
    display = BulkProgressDisplay()
    return lambda rows, expected: display(BulkProgress(rows, expected, 0, 0, what, over=rows == expected))


def _contents(header: ArchiveHeader) -> str:
    counts = header.counts
    return f"{counts['rows']:,} rows, {counts['buckets']:,} buckets up to op {header.state.checkpoint or 0}"
