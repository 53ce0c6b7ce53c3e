"""Applies one client transaction as one transaction of the source, or parks it whole as a dead letter."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import psycopg

from headwater.errors import HeadwaterError
from headwater.failpoints import passing
from headwater.source.upload import ledger
from headwater.source.upload.connections import Connections, become, begin
from headwater.source.upload.entries import ClientTransaction, Device, Entry, read_write
from headwater.source.upload.errors import PostgresRefused, Reason, Refused, TryLater
from headwater.source.upload.policies import apply_write, rule_for
from headwater.source.upload.settings import UploadSettings
from headwater.source.upload.shape import read_shapes

ATTEMPTS = 4
"""How often a transaction is tried that fails with a deadlock or serialization failure, before TryLater is raised."""

SECONDS = 60.0
"""Time limit of one attempt, including the wait for a connection and for locks."""

FORGET_AT_ONCE = 100
"""How many devices that send nothing any more are forgotten in one transaction."""

_FORGET_EVERY_SECONDS = 3600.0

_LOST_A_RACE = ("40001", "40P01")
_PASSING = ("08", "40", "53", "57", "58", "55P03", "55006", "25006", "XX001", "XX002")
"""SQLSTATEs of temporary failures that are not the upload's fault: connections, races, resources, operators, disks,
locks, standbys."""

_log = logging.getLogger(__name__)

Done = TypeVar("Done")


class Taken(Enum):
    """What became of a transaction."""

    APPLIED = "applied"
    KNOWN = "already_applied"
    PARKED = "parked"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a transaction. When it is parked, `letter` is the number of its dead letter and `reason` says
    why."""

    taken: Taken
    letter: int | None = None
    reason: Reason | None = None


class Uploads:
    """Applies uploaded transactions. Not thread-safe: use it in one event loop."""

    def __init__(self, settings: UploadSettings) -> None:
        self._settings = settings
        self._connections = Connections(settings)
        self._forgetting: asyncio.Task[None] | None = None
        self._forget_at = 0.0

    async def close(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.wait([self._forgetting])
        await self._connections.close()

    async def take(self, device: Device, transaction: ClientTransaction) -> Outcome:
        """Apply the transaction, or park it. Both are recorded, so sending the same transaction again changes nothing.

        Raises TryLater, TooManyLetters or SourceUnreachable when the device should send it again; NotPrepared,
        UnsafeRole, TableNotReady or SourceRefused when an operator has to fix something first. Then nothing was
        written.
        """
        self._forget_now_and_then()
        try:
            return await self.tried(lambda conn: self._apply(conn, device, transaction))
        except Refused as refusal:
            why = refusal
        letter = await self.tried(lambda conn: self._park(conn, device, transaction, why))
        if letter is None:
            return Outcome(Taken.KNOWN)
        return Outcome(Taken.PARKED, letter, why.reason)

    async def tried(self, work: Callable[[psycopg.AsyncConnection], Awaitable[Done]]) -> Done:
        """Run `work`, which must be one transaction. Run it again, up to ATTEMPTS times in all, after a deadlock, a
        serialization failure or the loss of its connection. Raises what `take` raises, and PostgresRefused."""
        attempt = 0
        while True:
            attempt += 1
            conn: psycopg.AsyncConnection | None = None
            try:
                async with asyncio.timeout(SECONDS), self._connections.use() as conn:
                    return await work(conn)
            except TimeoutError:
                raise TryLater(f"the upload took more than {SECONDS:.0f} s", fix=_SEND_AGAIN) from None
            except psycopg.Error as error:
                if not _passes(error):
                    raise refused_by_postgres(error) from None
                again = (conn is not None and conn.closed) or error.sqlstate in _LOST_A_RACE
                if attempt == ATTEMPTS or not again:
                    raise TryLater(f"the source can't apply it now: {_name(error)}", fix=_SEND_AGAIN) from None
            await asyncio.sleep(random.uniform(0, 0.02 * 2**attempt))

    async def _apply(self, conn: psycopg.AsyncConnection, device: Device, transaction: ClientTransaction) -> Outcome:
        async with conn.transaction():
            await begin(conn, self._settings)
            client = await ledger.open_client(conn, self._settings, device)
            known = await ledger.known(conn, client, transaction)
            if not known.new:
                reason = None if known.letter is None else await ledger.reason_of(conn, known.letter)
                return Outcome(Taken.KNOWN if reason is None else Taken.PARKED, known.letter, reason)
            await ledger.note(conn, self._settings, client, known.new)
            passing("upload.after_note")
            await write_all(conn, self._settings, device, known.new)
            passing("upload.before_commit")
        passing("upload.after_commit")
        return Outcome(Taken.APPLIED)

    async def _park(
        self, conn: psycopg.AsyncConnection, device: Device, transaction: ClientTransaction, refusal: Refused
    ) -> int | None:
        passing("upload.before_park")
        async with conn.transaction():
            await begin(conn, self._settings)
            letter = await ledger.park(conn, self._settings, device, transaction, refusal)
            passing("upload.before_park_commit")
        passing("upload.after_park_commit")
        return letter

    def _forget_now_and_then(self) -> None:
        if time.monotonic() >= self._forget_at and (self._forgetting is None or self._forgetting.done()):
            self._forget_at = time.monotonic() + _FORGET_EVERY_SECONDS
            self._forgetting = asyncio.create_task(self._forget())

    async def _forget(self) -> None:
        async def some(conn: psycopg.AsyncConnection) -> int:
            async with conn.transaction():
                await begin(conn, self._settings)
                return await ledger.forget_silent(conn, self._settings, FORGET_AT_ONCE)

        try:
            while await self.tried(some) == FORGET_AT_ONCE:
                pass
        except HeadwaterError as error:
            _log.warning("what is remembered of silent devices could not be deleted, which is tried again: %s", error)


_SEND_AGAIN = "send it again"


async def write_all(
    conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device, entries: Sequence[Entry]
) -> None:
    """Do the writes in order, as the device's user. Raises Refused with the op id of the entry that failed."""
    await become(conn, settings, device)
    ruled = []
    for entry in entries:
        with _naming(entry.op_id):
            write = read_write(entry)
            ruled.append((write, rule_for(settings.tables, write)))
    shapes = await read_shapes(conn, [rule for _, rule in ruled])
    for write, rule in ruled:
        with _naming(write.op_id):
            await apply_write(conn, shapes[rule], write)
        passing("upload.after_write")


@contextmanager
def _naming(op_id: int) -> Iterator[None]:
    try:
        yield
    except Refused as refusal:
        refusal.op_id = op_id
        raise
    except psycopg.Error as error:
        if _passes(error):
            raise
        raise refused_by_postgres(error, op_id) from None


def refused_by_postgres(error: psycopg.Error, op_id: int | None = None) -> PostgresRefused:
    """Turn an error of Postgres into PostgresRefused. Its `what` names only the condition; its `said` is Postgres' own
    message, which may contain a value of the row."""
    diag = error.diag
    names = (diag.schema_name, diag.table_name, diag.constraint_name or diag.column_name)
    return PostgresRefused(
        f"Postgres refused the write: {_name(error)}",
        ".".join(name for name in names if name),
        sqlstate=error.sqlstate or "",
        said=diag.message_primary or "",
        op_id=op_id,
    )


def _name(error: psycopg.Error) -> str:
    """The condition, such as `CheckViolation (23514)`. Never contains a value of the row."""
    state = f" ({error.sqlstate})" if error.sqlstate else ""
    return f"{type(error).__name__}{state}"


def _passes(error: psycopg.Error) -> bool:
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate.startswith(_PASSING) and error.sqlstate != "40002"
