"""Leases: the right to write what belongs to a source."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from headwater.storage.contract.compaction import LEASE as UPKEEP
from headwater.storage.contract.reader import Heard
from headwater.storage.contract.store import Lease, LeaseHeldError, LeaseLostError
from headwater.storage.shared.common import is_gone
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import immediate
from headwater.storage.sqlite.control import told


def acquire(connection: apsw.Connection, name: str, owner: str, ttl: float) -> Lease:
    """See the contract. The store is on one machine, so a lease of a dead process is taken over at once."""
    with immediate(connection):
        row = connection.execute("select owner, epoch, expires_at from leases where name = ?", (name,)).fetchone()
        epoch = 1
        if row is not None:
            holder, held_epoch, expires_at = str(row[0]), int(row[1]), float(row[2])
            if holder != owner and expires_at > time.time() and not is_gone(holder):
                raise LeaseHeldError(
                    f"another replicator is running ({holder})", f"source {name}", "stop it, or wait until it ends"
                )
            epoch = held_epoch + 1
        connection.execute(
            "insert or replace into leases (name, owner, epoch, expires_at) values (?, ?, ?, ?)",
            (name, owner, epoch, time.time() + ttl),
        )
    return Lease(name, owner, epoch, ttl)


def check(connection: apsw.Connection, lease: Lease) -> None:
    """Within a write transaction: raise LeaseLostError when the lease is no longer ours."""
    row = connection.execute("select epoch from leases where name = ?", (lease.name,)).fetchone()
    if row is None or row[0] != lease.epoch:
        raise LeaseLostError("another replicator took over", f"source {lease.name}", "nothing was lost")


def extend(connection: apsw.Connection, lease: Lease) -> None:
    """Within a write transaction: check the lease and extend it from now."""
    check(connection, lease)
    connection.execute("update leases set expires_at = ? where name = ?", (time.time() + lease.ttl, lease.name))


@contextmanager
def holding(connection: apsw.Connection, lease: Lease) -> Iterator[None]:
    """A write transaction of the lease's holder. Extends the lease at its end, so that a process that waited for
    SQLite's lock meanwhile does not find it expired."""
    with immediate(connection):
        check(connection, lease)
        yield
        extend(connection, lease)


def release(connection: apsw.Connection, lease: Lease) -> None:
    """Give the lease back if it is still ours. Its epoch is kept, so that epochs never repeat."""
    with immediate(connection):
        connection.execute("update leases set expires_at = 0 where name = ? and epoch = ?", (lease.name, lease.epoch))


def heard(connection: apsw.Connection, directory: Path, name: str) -> Heard:
    """What the lease's holder, or its last one, has told. A holder that has not told anything yet is taken to run while
    its lease lasts."""
    row = connection.execute("select owner, epoch, expires_at from leases where name = ?", (name,)).fetchone()
    if row is None:
        return Heard()
    owner, epoch, expires_at = str(row[0]), as_int(row[1]), float(row[2] or 0)
    return told.heard(directory, name, epoch) or Heard(runs=expires_at > time.time() and not is_gone(owner))


def is_held(connection: apsw.Connection, directory: Path) -> bool:
    """Whether any replicator holds an unexpired lease, or runs."""
    rows = connection.execute("select name, expires_at > ? from leases where name <> ?", (time.time(), UPKEEP))
    return any(held or heard(connection, directory, str(name)).runs for name, held in rows.fetchall())
