"""Leases: the right to write what belongs to a source. Uses the clock of the store's database, so that clocks of
machines may differ."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from headwater.storage.contract.store import Lease, LeaseHeldError, LeaseLostError, StoreError
from headwater.storage.sql.cursor import Cursor

_MISSED = 0.6
"""Of a lease that is held, more than this share is always left, since its holder extends it every third of its time."""

_TAKE = """
insert into leases as held (name, owner, epoch, expires_at) values (?1, ?2, 1, {expires})
on conflict (name) do update
    set owner = excluded.owner, epoch = held.epoch + 1, expires_at = excluded.expires_at{no_session}
    where held.expires_at <= {clock} or held.owner in (?2, ?4){cut_off}
returning epoch
"""

# The name of another role's session is null
_CUT_OFF = """ or (held.expires_at <= {missed} and held.flushing <> '' and not exists (
    select 1 from ({sessions}) s where coalesce(s.name = held.flushing, held.flushing like s.pid || ' %')))"""


HELD_SINCE = "lease {}"
"""The key under which the store notes when a lease was taken last, in seconds since 1970 by its clock."""


def process_owner() -> str:
    """Identifies this process as the owner of a lease."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_gone(owner: str) -> bool:
    """Whether the owner is a process of this machine that has ended. False when that can't be determined."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def acquire(db: Cursor, name: str, owner: str, ttl: float) -> Lease:
    """See `StoreWriter.acquire`. A lease of a dead process is taken over at once on its own machine; elsewhere when it
    was not extended in time and the session that its holder writes in is gone; else when it expires."""
    dialect = db.dialect
    flushing = "flushing" if dialect.sessions else "''"
    holder, session = db.one(f"select owner, {flushing} from leases where name = ?", name) or (owner, "")
    cut_off = ""
    if dialect.sessions:
        cut_off = _CUT_OFF.format(missed=dialect.clock_after.format("?5"), sessions=dialect.sessions)
    taking = _TAKE.format(
        clock=dialect.clock,
        expires=dialect.clock_after.format("?3"),
        no_session=", flushing = ''" if dialect.sessions else "",
        cut_off=cut_off,
    )
    missed = [ttl * _MISSED] if dialect.sessions else []
    taken = db.one(taking, name, owner, ttl, holder if is_gone(holder) else owner, *missed)
    if taken is None:
        raise LeaseHeldError(
            f"another replicator is running ({holder})", f"source {name}", "stop it, or wait until it ends"
        )
    if session:
        # The former holder's open transaction would fail, and if its machine died, would go on holding the store's lock
        with suppress(StoreError):  # we may lack the right to
            db.execute(f"select pg_terminate_backend(pid) from ({dialect.sessions}) s where name = ?", session)
    return Lease(name, owner, int(taken[0]), ttl)


def is_held(db: Cursor, name: str) -> bool:
    """Whether a lease is held, as far as is known."""
    holder = db.one(f"select owner from leases where name = ? and expires_at > {db.dialect.clock}", name)
    return holder is not None and not is_gone(holder[0])


CHECK = "select epoch from leases where name = ?"


def check(db: Cursor, lease: Lease) -> None:
    """Within a write transaction: raise LeaseLostError when the lease is no longer ours."""
    raise_unless_held(db.one(CHECK, lease.name), lease)


def raise_unless_held(row: tuple[int, ...] | None, lease: Lease) -> None:
    """Raise LeaseLostError unless `row` has the epoch of the lease."""
    if row is None or row[0] != lease.epoch:
        raise LeaseLostError("another replicator took over", f"source {lease.name}", "nothing was lost")


def extend(db: Cursor, lease: Lease) -> None:
    """Check the lease and extend it from now. No other process can take it until the commit."""
    extending = f"update leases set expires_at = {db.dialect.clock_after.format('?')} where name = ? and epoch = ?"
    raise_unless_held(db.one(f"{extending} returning epoch", lease.ttl, lease.name, lease.epoch), lease)


def release(db: Cursor, lease: Lease) -> None:
    """Give the lease back if it is still ours. Its epoch is kept, so that epochs never repeat."""
    statement = f"update leases set expires_at = {db.dialect.clock_zero} where name = ? and epoch = ?"
    db.execute(statement, lease.name, lease.epoch)
