"""Connections for uploads: as many as are allowed at once, kept for the next upload. Never one that replicates."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from headwater.source.connect import connection_error, conninfo
from headwater.source.upload.entries import Device
from headwater.source.upload.errors import UnsafeRole
from headwater.source.upload.settings import UploadSettings

IDLE_SECONDS = 60
"""After which Postgres ends a transaction that we do nothing in, because we hang or the network does."""

# For this transaction only, so that nothing one upload does reaches the next.
_SETTINGS = """
select set_config('role', 'none', true), set_config('search_path', %s, true), set_config('row_security', 'on', true),
       set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true),
       set_config('IntervalStyle', 'postgres', true), set_config('standard_conforming_strings', 'on', true),
       set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true),
       set_config('idle_in_transaction_session_timeout', %s, true)
"""

_BECOME = """
select set_config('request.jwt.claims', %s, true), set_config('request.jwt.claim.sub', %s, true),
       set_config('role', %s, true)
"""


class Connections:
    """For one event loop."""

    def __init__(self, settings: UploadSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_connections)
        self._idle: list[psycopg.AsyncConnection] = []

    @asynccontextmanager
    async def use(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """A connection outside of any transaction. Raises SourceUnreachable or SourceRefused."""
        async with self._slots:
            conn = self._idle.pop() if self._idle else await self._connect()
            try:
                yield conn
            finally:
                if conn.pgconn.transaction_status == pq.TransactionStatus.IDLE:
                    self._idle.append(conn)
                else:
                    lost = conn.closed
                    await conn.close()
                    if lost:  # and so may be all that were idle
                        await self.close()

    async def close(self) -> None:
        """Close those that nobody uses."""
        idle, self._idle = self._idle, []
        for conn in idle:
            await conn.close()

    async def _connect(self) -> psycopg.AsyncConnection:
        # The server's own synchronous_commit: what a device was told is applied has to be where the owner wants it
        text = make_conninfo(conninfo(self._settings.login, application_name="headwater upload"), options="")
        try:
            conn = await psycopg.AsyncConnection.connect(text, autocommit=True, prepare_threshold=None)
        except psycopg.Error as error:
            raise connection_error(self._settings.login, error) from error
        await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        return conn


async def begin(conn: psycopg.AsyncConnection, settings: UploadSettings) -> None:
    """Pin what the rest of the open transaction depends on."""
    path = ", ".join([sql.Identifier(name).as_string(conn) for name in settings.search_path])
    timeouts = [f"{settings.statement_timeout}s", f"{settings.lock_timeout}s", f"{IDLE_SECONDS}s"]
    # Named last, or temporary tables would be found before all others
    await conn.execute(_SETTINGS, [f"{path}, pg_temp" if path else "pg_temp", *timeouts])


async def become(conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device) -> None:
    """Take the role and the token's claims on until the open transaction ends. Raises UnsafeRole."""
    try:
        await conn.execute(_BECOME, [device.claims, device.sub, settings.role])
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
        missing = isinstance(error, psycopg.errors.InvalidParameterValue)
        what = "there is no such role" if missing else f"the login {settings.login.user} may not become it"
        raise UnsafeRole(what, f"upload.role: {settings.role}", "run `headwater source prepare --upload`") from None
