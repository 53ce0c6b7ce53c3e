"""Leases: the right to write what belongs to a source. Uses the database's clock, so that clocks of machines may
differ."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from headwater.storage.contract.compaction import LEASE as UPKEEP
from headwater.storage.contract.reader import Heard
from headwater.storage.contract.store import Lease, LeaseHeldError, LeaseLostError
from headwater.storage.shared.common import is_gone

_SESSIONS = "select pid, pid || ' ' || extract(epoch from backend_start) as name from pg_stat_activity"
"""The name of another role's session is null."""

_MISSED = 0.6
"""Of a lease that is held, more than this share is always left, since its holder extends it every third of its time."""

_TAKE = f"""
insert into leases as held (name, owner, epoch, expires_at)
values (%(name)s, %(owner)s, 1, clock_timestamp() + make_interval(secs => %(ttl)s))
on conflict (name) do update set owner = excluded.owner, epoch = held.epoch + 1, expires_at = excluded.expires_at,
    flushing = ''
    where held.expires_at <= clock_timestamp() or held.owner in (%(owner)s, %(gone)s)
        or (held.expires_at <= clock_timestamp() + make_interval(secs => %(missed)s) and held.flushing <> ''
            and not exists (select 1 from ({_SESSIONS}) s where coalesce(s.name = held.flushing,
                held.flushing like s.pid || ' %%')))
returning epoch
"""

_HEARD = f"""
select owner, expires_at > clock_timestamp(),
       expires_at > '-infinity' and flushing <> '' and exists (select 1 from ({_SESSIONS}) s
           where coalesce(s.name = flushing, flushing like s.pid || ' %%')),
       extract(epoch from clock_timestamp()), coalesce((select value from meta where key = %(told)s), '')
from leases where name = %(name)s
"""

_EXTEND = """
update leases set expires_at = clock_timestamp() + make_interval(secs => %s) where name = %s and epoch = %s
returning epoch
"""


def acquire(connection: psycopg.Connection, name: str, owner: str, ttl: float) -> Lease:
    """See the contract. A lease of a dead process is taken over at once on its own machine; elsewhere when it was not
    extended in time and the session that its holder writes in is gone; else when it expires."""
    row = connection.execute("select owner, flushing from leases where name = %s", [name]).fetchone()
    holder, flushing = (owner, "") if row is None else row
    gone = holder if is_gone(holder) else owner
    taken = connection.execute(
        _TAKE, {"name": name, "owner": owner, "ttl": ttl, "missed": ttl * _MISSED, "gone": gone}
    ).fetchone()
    if taken is None:
        raise LeaseHeldError(
            f"another replicator is running ({holder})", f"source {name}", "stop it, or wait until it ends"
        )
    # The former holder's open transaction would fail, and if its machine died, would go on holding the store's lock
    with contextlib.suppress(errors.InsufficientPrivilege):
        connection.execute(f"select pg_terminate_backend(pid) from ({_SESSIONS}) s where name = %s", [flushing])
    return Lease(name, owner, int(taken[0]), ttl)


def note_session(connection: psycopg.Connection, lease: Lease) -> None:
    """Record that this session writes under the lease."""
    connection.execute(
        f"update leases set flushing = s.name from ({_SESSIONS}) s where s.pid = pg_backend_pid()"
        " and leases.name = %s and epoch = %s",
        [lease.name, lease.epoch],
    )


def check(connection: psycopg.Connection, lease: Lease) -> None:
    """Raise LeaseLostError when the lease is no longer ours."""
    checking(connection, lease)()


def checking(connection: psycopg.Connection, lease: Lease) -> Callable[[], None]:
    """Begin to check, in a pipeline. Once it was sent, the returned function does what `check` does."""
    return _held(connection.execute("select epoch from leases where name = %s", [lease.name]), lease)


def _held(answer: psycopg.Cursor, lease: Lease) -> Callable[[], None]:
    def verify() -> None:
        row = answer.fetchone()
        if row is None or row[0] != lease.epoch:
            raise lost(lease)

    return verify


def lost(lease: Lease) -> LeaseLostError:
    return LeaseLostError("another replicator took over", f"source {lease.name}", "nothing was lost")


def extend(connection: psycopg.Connection, lease: Lease) -> None:
    """Check the lease and extend it from now. No other process can take it until the commit."""
    extending(connection, lease)()


def extending(connection: psycopg.Connection, lease: Lease) -> Callable[[], None]:
    """Begin to extend, in a pipeline. Once it was sent, the returned function raises LeaseLostError if the lease is no
    longer ours."""
    return _held(connection.execute(_EXTEND, [lease.ttl, lease.name, lease.epoch]), lease)


@contextmanager
def holding(connection: psycopg.Connection, lease: Lease) -> Iterator[None]:
    """A transaction of the lease's holder. Extends the lease at its end."""
    with connection.transaction():
        check(connection, lease)
        yield
        extend(connection, lease)


def release(connection: psycopg.Connection, lease: Lease) -> None:
    """Give the lease back if it is still ours. Its epoch is kept, so that epochs never repeat."""
    connection.execute(
        "update leases set expires_at = '-infinity' where name = %s and epoch = %s", [lease.name, lease.epoch]
    )


def tell(connection: psycopg.Connection, lease: Lease, text: str) -> None:
    """See the contract."""
    with holding(connection, lease):
        connection.execute(
            "insert into meta values (%s, extract(epoch from clock_timestamp()) || ' ' || %s)"
            " on conflict (key) do update set value = excluded.value",
            [_told(lease.name), text],
        )


def heard(connection: psycopg.Connection, name: str) -> Heard:
    """What the lease's holder, or its last one, has told. One that did not extend its lease, and whose session is gone,
    has ended or is cut off from the store: it does nothing for us."""
    row = connection.execute(_HEARD, {"name": name, "told": _told(name)}).fetchone()
    if row is None:
        return Heard()
    owner, held, connected, now, value = row
    told_at, _, text = value.partition(" ")
    runs = False if is_gone(owner) else True if held else connected
    return Heard(text, max(0.0, float(now) - float(told_at)) if told_at else 0.0, runs)


def is_held(connection: psycopg.Connection) -> bool:
    """Whether any replicator holds an unexpired lease, or runs."""
    rows = connection.execute("select name from leases where name <> %s", [UPKEEP]).fetchall()
    return any(heard(connection, name).runs for (name,) in rows)


def _told(name: str) -> str:
    return f"told {name}"
