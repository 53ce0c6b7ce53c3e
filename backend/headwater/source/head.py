"""Reads the end of the sources' logs, for write checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import LiteralString

import psycopg

from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source.connect import SourceSettings, SourceUnreachableError, connection_error, conninfo

ANSWER_SECONDS = 10.0
"""How long a source may take to answer, a new connection included."""

# The commit of a transaction with nothing but a message is not flushed, and a walsender only sends what is flushed. An
# idle server flushes after up to 200 ms, so we make it flush.
_PING_FROM_17: LiteralString = "select pg_logical_emit_message(false, 'headwater', 'ping', true)"
_PING: LiteralString = "select pg_logical_emit_message(false, 'headwater', 'ping'), pg_current_xact_id()"


def ping_statement(server_version: int) -> LiteralString:
    """SQL that writes a record to the log and flushes it, so that even an idle stream passes what was before."""
    return _PING_FROM_17 if server_version >= 17_00_00 else _PING


class SourceHead:
    """One connection per source, opened when first needed and again when lost. For one event loop."""

    def __init__(self, sources: Sequence[SourceSettings]) -> None:
        self._links = {settings.name: _Link(settings) for settings in sources}

    async def advance_past(self) -> Mapping[str, Lsn]:
        """By tag, a position that is not before the commit of any transaction from before the call. Writes a record
        beyond it, so that even an idle stream passes it. Raises SourceUnreachableError or SourceRefusedError."""
        positions = await asyncio.gather(*(link.advance() for link in self._links.values()))
        return dict(zip(self._links, positions, strict=True))

    async def close(self) -> None:
        for link in self._links.values():
            await link.close()


class _Link:
    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._conn: psycopg.AsyncConnection | None = None
        self._lock = asyncio.Lock()

    async def advance(self) -> Lsn:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self._lock:
                return await self._advance()
        except TimeoutError:
            await self.close()
            raise SourceUnreachableError(
                f"the source database did not answer within {ANSWER_SECONDS:.0f} s",
                self._settings.address,
                "check that Postgres runs there and is not overloaded",
            ) from None

    async def close(self) -> None:
        if self._conn is not None:
            await self._conn.close()
            self._conn = None

    async def _advance(self) -> Lsn:
        if self._conn is not None:
            try:
                return await _head(self._conn)
            except psycopg.OperationalError:
                await self.close()  # lost since its last use: connect once more
        try:
            self._conn = await self._connect()
            return await _head(self._conn)
        except psycopg.Error as error:
            await self.close()
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
