"""Reads the end of the sources' logs, for write checkpoints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import LiteralString

import psycopg

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source.connect import SourceSettings, SourceUnreachableError, connection_error, conninfo

ANSWER_SECONDS = 10.0
"""How long a source may take to answer, a new connection included."""

IDLE_SECONDS = 300.0
"""After this long without a request, the connection to a source is closed."""

# The commit of a transaction with nothing but a message is not flushed, and a walsender only sends what is flushed. An
# idle server flushes after up to 200 ms, so we make it flush.
_PING_FROM_17: LiteralString = "select pg_logical_emit_message(false, 'headwater', 'ping', true)"
_PING: LiteralString = "select pg_logical_emit_message(false, 'headwater', 'ping'), pg_current_xact_id()"


def ping_statement(server_version: int) -> LiteralString:
    """SQL that writes a record to the log and flushes it, so that even an idle stream passes what was before."""
    return _PING_FROM_17 if server_version >= 17_00_00 else _PING


class UnknownHeadError(HeadwaterError):
    """One of several sources, `source`, does not say where its log ends."""

    code = "HW_6007"

    def __init__(self, source: str, cause: HeadwaterError) -> None:
        super().__init__(f"source {source}: {cause.what}", cause.where, cause.fix)
        self.args = (source, cause)  # what pickle replays
        self.source = source


class SourceHead:
    """At most one connection per source, opened when it is needed, and closed when it has been unused for some minutes.
    For one event loop."""

    def __init__(self, sources: Sequence[SourceSettings]) -> None:
        self._links = {settings.name: _Link(settings) for settings in sources}

    async def advance_past(self, sources: Collection[str] | None = None) -> Mapping[str, Lsn]:
        """By source, a position that is not before the commit of any transaction from before the call: of all sources,
        or of those named. Writes a record beyond it, so that even an idle stream passes it. Raises UnknownHeadError if
        one of them does not answer; where there is only one source at all, SourceUnreachableError or
        SourceRefusedError."""
        names = [name for name in self._links if sources is None or name in sources]
        answers = await asyncio.gather(*(self._links[name].advance() for name in names), return_exceptions=True)
        positions = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, HeadwaterError) and len(self._links) > 1:
                raise UnknownHeadError(name, answer) from answer
            if isinstance(answer, BaseException):
                raise answer
            positions[name] = answer
        return positions

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()


class _Link:
    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._conn: psycopg.AsyncConnection | None = None
        self._lock = asyncio.Lock()
        self._used = 0.0
        self._closing: asyncio.Task[None] | None = None

    async def advance(self) -> Lsn:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._lock:
                position = await self._advance()
        except TimeoutError:
            await self._disconnect()
            raise SourceUnreachableError(
                f"the source database did not answer within {ANSWER_SECONDS:.0f} s",
                self._settings.address,
                "check that Postgres runs there and is not overloaded",
            ) from None
        self._used = time.monotonic()
        if self._closing is None:
            self._closing = asyncio.create_task(self._close_unused())
        return position

    async def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            await asyncio.wait([self._closing])
        await self._disconnect()

    async def _close_unused(self) -> None:
        try:
            while (rest := self._used + IDLE_SECONDS - time.monotonic()) > 0:  # noqa: ASYNC110 - a time is awaited
                await asyncio.sleep(rest)
            async with self._lock:
                await self._disconnect()
        finally:
            self._closing = None

    async def _disconnect(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()

    async def _advance(self) -> Lsn:
        if self._conn is not None:
            try:
                return await _head(self._conn)
            except psycopg.OperationalError:
                await self._disconnect()  # lost since its last use: connect once more
        try:
            self._conn = await self._connect()
            return await _head(self._conn)
        except psycopg.Error as error:
            await self._disconnect()
            raise await asyncio.to_thread(connection_error, self._settings, error) from error

    async def _connect(self) -> psycopg.AsyncConnection:
        text = conninfo(self._settings, application_name="headwater api")
        return await psycopg.AsyncConnection.connect(text, autocommit=True, prepare_threshold=None)


async def _head(conn: psycopg.AsyncConnection) -> Lsn:
    """Read the position, then write the message, in one round trip."""
    ping = ping_statement(conn.info.server_version)
    async with conn.pipeline():
        position = await conn.execute("select pg_current_wal_insert_lsn()::text")
        await conn.execute(ping)
    row = await position.fetchone()
    assert row is not None
    return parse_lsn(row[0])
