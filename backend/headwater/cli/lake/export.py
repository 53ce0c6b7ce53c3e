"""`headwater lake export`: runs its rounds, and says what they did."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import click

from headwater.cli.config import ServiceConfig
from headwater.cli.existing_store import store_of
from headwater.codes import Kind
from headwater.errors import HeadwaterError, machine_errors
from headwater.insight.words import count, size
from headwater.lake.directory import open_lake
from headwater.lake.export import Exporter, Round
from headwater.lake.manifest import LakeDirectoryError, Manifest

_LINE_SECONDS = 5.0


def run(
    config: ServiceConfig,
    stop: threading.Event,
    directory: str,
    *,
    every: int,
    snapshot_every: int,
    once: bool,
    reset: bool,
) -> None:
    """Export a round every so many seconds until `stop` is set, or one. What may succeed later is told and tried again,
    unless it is to be done `once`. Raises HW_8101, HW_4005 when `stop` was set before a single round was complete, and
    the errors of `lake.export` and `lake.directory`."""
    if "://" in directory:
        fix = "export to a local directory, and copy or mount that"
        raise LakeDirectoryError("it is not on this machine, where files can be renamed in one step", directory, fix)
    root, complete = Path(directory), False
    while not stop.is_set():
        try:
            store = store_of(config)
            with machine_errors(), store.open_history() as view:
                identity = view.state().store
            with machine_errors(), open_lake(root, identity, reset=reset) as lake:
                reset = False
                exporter = Exporter(store, lake, stop.is_set, _Progress())
                while not stop.is_set():
                    done = exporter.run_round(snapshot_every)
                    click.echo(_line(done, lake.manifest))
                    complete = done.complete
                    if once:
                        break
                    stop.wait(every)
        except HeadwaterError as error:
            if once or error.kind is not Kind.RETRY:
                raise
            click.echo(f"headwater: {error}", err=True)
            stop.wait(every)
        if once:
            break
    if once and not complete:
        fix = "run it again, which continues here"
        raise HeadwaterError("the export was stopped before it was complete", directory, fix, code="HW_4005")


class _Progress:
    """Tells now and then how far a long round is."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def __call__(self, manifest: Manifest) -> None:
        now = time.monotonic()
        if now - self._told >= _LINE_SECONDS:
            self._told = now
            click.echo(f"{_ops_of(manifest)} up to op {manifest.position}, more to come", err=True)


def _ops_of(manifest: Manifest) -> str:
    return count(sum(file.rows for path, file in manifest.files.items() if path.startswith("ops/")), "op")


def _line(done: Round, manifest: Manifest) -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    news = f"{count(done.ops, 'op')} added" if done.ops else "nothing new"
    if done.snapshot:
        last = manifest.snapshots[-1]
        rows, placed = manifest.files[last.rows].rows, manifest.files[last.buckets].rows
        news += f", snapshot of {count(rows, 'row')}, {placed:,} in buckets"
    whole = size(sum(file.bytes for file in manifest.files.values()))
    return f"{now} at op {manifest.checkpoint}: {news}; the lake has {_ops_of(manifest)}, {whole}"
