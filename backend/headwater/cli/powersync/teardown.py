"""`headwater test-connection`: checks whether the source can be replicated from this machine with this config."""

from __future__ import annotations

import time
from contextlib import closing

import click

from headwater.cli.config import ServiceConfig
from headwater.errors import HeadwaterError
from headwater.replication.own_slot import slot_note
from headwater.source.connect import SourceSettings, connect
from headwater.source.readiness.checks import source_findings
from headwater.source.slot import drop_unread_slot, slot_status
from headwater.storage.contract.store import Lease, LeaseHeldError
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater.storage.store import Store


def test_connections(config: ServiceConfig) -> int:
    """Connect to each source and print its problems. Returns the exit code: 1 when a problem prevents replication.
    Raises SourceUnreachableError."""
    ready = True
    for source in config.chosen(()):
        with connect(source, application_name="headwater test-connection") as conn:
            findings = source_findings(conn, source, ())
        for finding in findings:
            click.echo(f"{'error' if finding.fatal else 'warning'}: {finding}")
        fatal = any(finding.fatal for finding in findings)
        click.echo(f"{source.address}: {'not ready' if fatal else 'ready to be replicated'}")
        ready = ready and not fatal
    return 0 if ready else 1


WORD = "TEARDOWN"

WAIT_SECONDS = 120.0
"""How long to wait for running replicators to stop."""

_AGAIN_SECONDS = 1.0


def teardown(config: ServiceConfig, word: str, *, wait_seconds: float = WAIT_SECONDS) -> None:
    """Drop the store's own slots in all sources, then the store; publications and triggers stay. The store is only
    removed when all slots are dropped. Raises PSYNC_S0102, LeaseHeldError and HW_8106."""
    if word != WORD:
        fix = f"this permanently removes the slots and the store; to confirm: headwater teardown {WORD}"
        raise HeadwaterError("the teardown is not confirmed", word, fix, code="PSYNC_S0102")
    store = open_store(config.storage)
    if not store.exists():
        click.echo(f"there is no store at {config.storage}")
        return
    deadline = time.monotonic() + wait_seconds
    for source in config.sources:
        _drop_slot(store, source, deadline)
    store.remove()
    click.echo(f"removed the store at {config.storage}")


def _drop_slot(store: Store, source: SourceSettings, deadline: float) -> None:
    with closing(store.open_writer()) as writer:
        lease = _acquire(writer, source, deadline)
        try:
            name = slot_note(source.name, writer).name
            with connect(source, application_name="headwater teardown") as conn:
                status = slot_status(conn, name) if name else None
                if status is not None and status.database == conn.info.dbname:
                    drop_unread_slot(conn, name)
                    if slot_status(conn, name) is not None:
                        fix = "stop the process that reads it, then run the teardown again"
                        raise HeadwaterError(f'the slot "{name}" is in use', source.address, fix, code="HW_8106")
                    click.echo(f'dropped the slot "{name}" of {source.address}')
        finally:
            writer.release(lease)


def _acquire(store: StoreWriter, source: SourceSettings, deadline: float) -> Lease:
    while True:
        try:
            return store.acquire(source.name, "teardown", 60.0)
        except LeaseHeldError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_SECONDS)
