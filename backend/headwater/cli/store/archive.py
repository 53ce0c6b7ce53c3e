"""`headwater store export|import|unseal`: writes a whole store to files, and builds one from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click

from headwater.cli.progress import BulkProgressDisplay
from headwater.config.model import ServiceConfig
from headwater.pipeline.archive import export_store, import_store
from headwater.pipeline.archive_files import Manifest
from headwater.pipeline.spark.engine import SparkEngine
from headwater.pipeline.spark.session import Spark
from headwater.storage.open import open_backend


def export_to(config: ServiceConfig, directory: Path, *, seal: bool) -> None:
    """Export the store into a new directory, and print a summary."""
    with closing_spark(config) as spark:
        manifest = export_store(SparkEngine(spark), config.storage, directory, BulkProgressDisplay(), seal=seal)
    click.echo(f"exported {config.storage} to {directory}: {_contents(manifest)}")
    if seal:
        click.echo("the store is sealed: no process can write to it until `headwater store unseal`")


def import_from(config: ServiceConfig, directory: Path) -> None:
    """Build the store from a directory, and print a summary."""
    with closing_spark(config) as spark:
        manifest = import_store(SparkEngine(spark), directory, config.storage, BulkProgressDisplay())
    when = datetime.fromtimestamp(manifest.created, UTC).strftime("%Y-%m-%d %H:%M UTC")
    click.echo(f"imported {directory} to {config.storage}: {_contents(manifest)}, as of {when}")


def unseal(config: ServiceConfig) -> None:
    """Allow writes to the store again."""
    note = open_backend(config.storage).unseal()
    if note is None:
        click.echo(f"{config.storage} was not sealed")
    else:
        click.echo(f"{config.storage} is open again; it was {note}")
        click.echo("note: devices that synced with the store that replaced it may be ahead of this one", err=True)


@contextmanager
def closing_spark(config: ServiceConfig) -> Iterator[Spark]:
    """Spark as configured, started on demand and stopped at the end of the context."""
    spark = Spark(config.spark)
    try:
        yield spark
    finally:
        spark.stop()


def _contents(manifest: Manifest) -> str:
    counts = manifest.counts()
    size = sum(file.bytes for file in manifest.files)
    return (
        f"{counts['rows']:,} rows, {counts['buckets']:,} buckets up to op {manifest.state.checkpoint or 0}, "
        f"{len(manifest.files)} files, {size / 1e6:,.1f} MB"
    )
