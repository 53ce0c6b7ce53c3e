"""Applies one client transaction as one transaction of the source, or parks it whole as a dead letter."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import psycopg

from headwater.errors import HeadwaterError
from headwater.failpoints import failpoint
from headwater.source.upload import ledger
from headwater.source.upload.entries import ClientTransaction, Device, Entry, Write, read_write
from headwater.source.upload.errors import (
    Held,
    Mender,
    Reason,
    UploadBlockedError,
    UploadRefusedError,
    UploadRetryError,
    WriteTimeoutError,
    mender_of,
    name_of,
    refused_by_postgres,
)
from headwater.source.upload.policies import apply_writes, naming, rule_for
from headwater.source.upload.settings import UploadConnections, UploadSettings, become, begin
from headwater.source.upload.shape import TableShape, read_shapes
from headwater.source.upload.statements import shown, unknown_names
from headwater.source.upload.targets import raise_unless_here

ATTEMPTS = 4
"""How often a transaction is tried that fails with a deadlock or serialization failure, before UploadRetryError is
raised."""

SECONDS = 60.0
"""Time limit of the writes of one transaction, and of all that one attempt waits for before."""

MOST_UNKNOWN = 200
"""How many columns that tables lack, and versions of apps, are counted apart: devices choose what they are called."""

FORGET_AT_ONCE = 100
"""How many devices that send nothing any more are forgotten in one transaction."""

_FORGET_EVERY_SECONDS = 3600.0

_LOST_A_RACE = ("40001", "40P01")
_TIME_OUTS = ("55P03", "57014")
_UNIQUE = "23505"
_log = logging.getLogger(__name__)

Done = TypeVar("Done")


class Taken(Enum):
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


class SlowTables:
    """Tables whose writes ran into a time limit, as those to a locked table do. While two or more users have met that
    and nobody got through since, one transaction at a time tries again, so that others have the connections."""

    def __init__(self) -> None:
        self._held_up: dict[str, set[str]] = {}
        self._trying: set[str] = set()

    @contextmanager
    def turn(self, user_id: str, tables: Collection[str]) -> Iterator[None]:
        """Write to these tables while the context is open. Raises UploadRetryError when another transaction tries
        already."""
        slow = {name for name in tables if len(self._held_up.get(name, ())) > 1}
        if taken := slow & self._trying:
            raise UploadRetryError(f"others wait already to write to {min(taken)}", fix=_SEND_AGAIN)
        self._trying |= slow
        try:
            yield
        except HeadwaterError as error:
            if isinstance(error, WriteTimeoutError) or (isinstance(error, UploadRetryError) and error.held_up):
                for name in tables:
                    self._held_up.setdefault(name, set()).add(user_id)
            elif isinstance(error, UploadRefusedError):
                self._through(tables)
            raise
        else:
            self._through(tables)
        finally:
            self._trying -= slow

    def _through(self, tables: Iterable[str]) -> None:
        for name in tables:
            self._held_up.pop(name, None)


class Uploads:
    """Applies uploaded transactions. Not thread-safe: use it in one event loop."""

    def __init__(self, settings: UploadSettings) -> None:
        self._settings = settings
        self._connections = UploadConnections(settings)
        self._slow = SlowTables()
        self._unknown: Counter[tuple[str, str, str]] = Counter()
        self._forgetting: asyncio.Task[None] | None = None
        self._forget_at = 0.0

    def unknown_columns(self) -> Mapping[tuple[str, str, str], int]:
        """How many writes named a column that the table lacks, and that was left out or renamed: by table, column and
        version of the app. Safe to call from any thread."""
        return self._unknown.copy()

    async def close(self) -> None:
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.wait([self._forgetting])
        await self._connections.close()

    async def take(self, device: Device, transaction: ClientTransaction) -> Outcome:
        """Apply the transaction, or park it. Both are recorded, so sending the same transaction again changes nothing.

        Raises UploadRetryError, WriteTimeoutError, HW_6124 or SourceUnreachableError when the device should send it
        again; UploadBlockedError, HW_6120, HW_6121 or SourceRefusedError when somebody has to mend something first.
        Then nothing was written.
        """
        self._forget_now_and_then()
        types = [entry.fields.get("type") for entry in transaction.entries]
        tables = {name for name in types if isinstance(name, str) and name in self._settings.tables}
        try:
            with self._slow.turn(device.sub, tables):
                return await self._applied(device, transaction)
        except UploadRefusedError as refusal:
            why = refusal
        if isinstance(why, UploadBlockedError) and not await self._waited(device, transaction, why):
            raise why
        letter = await self.tried(lambda conn: self._park(conn, device, transaction, why))
        if letter is None:
            return Outcome(Taken.KNOWN)
        return Outcome(Taken.PARKED, letter, why.reason)

    async def apply(self, device: Device, transaction: ClientTransaction) -> None:
        """Apply the transaction, unless that was done before, and park nothing. Raises UploadRefusedError when it can't
        be applied, or waits as a dead letter already, or what `take` raises."""
        outcome = await self._applied(device, transaction)
        if outcome.reason is not None:
            what = f"it waits as dead letter {outcome.letter} of {self._settings.login.name}, too"
            raise UploadRefusedError(what, fix="retry or discard that one first", code=outcome.reason.code)

    async def _applied(self, device: Device, transaction: ClientTransaction) -> Outcome:
        try:
            return await self.tried(lambda conn: self._apply(conn, device, transaction))
        except UploadRefusedError as refusal:
            if refusal.sqlstate != _UNIQUE:
                raise
        # another device may have inserted the row just now, and then this is an update
        return await self.tried(lambda conn: self._apply(conn, device, transaction))

    async def tried(self, work: Callable[[psycopg.AsyncConnection], Awaitable[Done]]) -> Done:
        """Run `work`, which must be one transaction. Run it again, up to ATTEMPTS times in all, after a deadlock, a
        serialization failure or the loss of its connection. Raises what `take` raises, and HW_6117."""
        attempt = 0
        while True:
            attempt += 1
            conn: psycopg.AsyncConnection | None = None
            try:
                async with asyncio.timeout(2 * SECONDS), self._connections.use() as conn:
                    return await work(conn)
            except TimeoutError:
                raise UploadRetryError(f"the upload took more than {2 * SECONDS:.0f} s", fix=_SEND_AGAIN) from None
            except psycopg.Error as error:
                if mender_of(error) is not Mender.NOBODY:
                    raise refused_by_postgres(error) from None
                again = (conn is not None and conn.closed) or error.sqlstate in _LOST_A_RACE
                if attempt == ATTEMPTS or not again:
                    later = UploadRetryError(f"the source can't apply it now: {name_of(error)}", fix=_SEND_AGAIN)
                    later.held_up = error.sqlstate in _TIME_OUTS
                    raise later from None
            await asyncio.sleep(random.uniform(0, 0.02 * 2**attempt))

    async def in_transaction(self, work: Callable[[psycopg.AsyncConnection], Awaitable[Done]]) -> Done:
        """Like `tried`, for work in a transaction that has the settings of uploads."""

        async def begun(conn: psycopg.AsyncConnection) -> Done:
            async with conn.transaction():
                await begin(conn, self._settings)
                return await work(conn)

        return await self.tried(begun)

    async def _apply(self, conn: psycopg.AsyncConnection, device: Device, transaction: ClientTransaction) -> Outcome:
        async with _limited(self._settings.statement_timeout), conn.transaction():
            await begin(conn, self._settings)
            client = await ledger.open_client(conn, self._settings, device)
            known = await ledger.known(conn, client, transaction)
            if not known.new:
                reason = None if known.letter is None else await ledger.reason_of(conn, known.letter)
                return Outcome(Taken.KNOWN if reason is None else Taken.PARKED, known.letter, reason)
            await ledger.note(conn, self._settings, client, known.new)
            failpoint("upload.after_note")
            try:
                async with asyncio.timeout(SECONDS):
                    writes = await write_all(conn, self._settings, device, known.new)
            except TimeoutError:
                raise _too_slow(f"the writes of the transaction take more than {SECONDS:.0f} s") from None
            failpoint("upload.before_commit")
        failpoint("upload.after_commit")
        self._count_unknown(device, writes)
        return Outcome(Taken.APPLIED)

    def _count_unknown(self, device: Device, writes: Sequence[tuple[TableShape, Write]]) -> None:
        for shape, write in writes:
            for name in unknown_names(shape, write.data):
                key = (shape.rule.qualified_name, shown(name), device.app_version)
                has_room = key in self._unknown or len(self._unknown) < MOST_UNKNOWN
                self._unknown[key if has_room else ("other", "other", "other")] += 1

    async def _park(
        self, conn: psycopg.AsyncConnection, device: Device, transaction: ClientTransaction, refusal: UploadRefusedError
    ) -> int | None:
        failpoint("upload.before_park")
        async with conn.transaction():
            await begin(conn, self._settings)
            letter = await ledger.park(conn, self._settings, device, transaction, refusal)
            failpoint("upload.before_park_commit")
        failpoint("upload.after_park_commit")
        return letter

    async def _waited(self, device: Device, transaction: ClientTransaction, cause: UploadBlockedError) -> bool:
        """Record that a transaction waits. Returns whether it has waited long enough."""

        async def hold(conn: psycopg.AsyncConnection) -> Held:
            client = await ledger.open_client(conn, self._settings, device)
            return await ledger.hold(conn, self._settings, client, device, transaction, cause)

        return cause.is_over(await self.in_transaction(hold), self._settings.park_after_hours)

    def _forget_now_and_then(self) -> None:
        if time.monotonic() >= self._forget_at and (self._forgetting is None or self._forgetting.done()):
            self._forget_at = time.monotonic() + _FORGET_EVERY_SECONDS
            self._forgetting = asyncio.create_task(self._forget())

    async def _forget(self) -> None:
        def some(conn: psycopg.AsyncConnection) -> Awaitable[int]:
            return ledger.forget_silent(conn, self._settings, FORGET_AT_ONCE)

        try:
            while await self.in_transaction(some) == FORGET_AT_ONCE:
                pass
        except HeadwaterError as error:
            _log.warning("what is remembered of silent devices could not be deleted, which is tried again: %s", error)


_SEND_AGAIN = "send it again"


@asynccontextmanager
async def _limited(seconds: int) -> AsyncIterator[None]:
    """Raise WriteTimeoutError where Postgres ends a statement for its time limit. It says the same of one that somebody
    else ended, which passes."""
    began = time.monotonic()
    try:
        yield
    except psycopg.errors.QueryCanceled:
        if time.monotonic() - began < seconds:
            raise
        raise _too_slow(f"a statement of the transaction takes more than {seconds} s") from None


def _too_slow(what: str) -> WriteTimeoutError:
    fix = "have the app write less in one transaction, or look which trigger or policy takes so long"
    return WriteTimeoutError(what, fix=fix, seconds=SECONDS)


async def write_all(
    conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device, entries: Sequence[Entry]
) -> Sequence[tuple[TableShape, Write]]:
    """Do the writes in order, as the device's user, and return them with their tables. Raises UploadRefusedError with
    the op id of the entry that failed."""
    await become(conn, settings, device)
    ruled = []
    for entry in entries:
        with naming(entry.op_id):
            write = read_write(entry)
            raise_unless_here(settings, device, entry)
            ruled.append((write, rule_for(settings.tables, write)))
    shapes = await read_shapes(conn, [rule for _, rule in ruled])
    writes = [(shapes[rule], write) for write, rule in ruled]
    await apply_writes(conn, writes)
    return writes
