"""A pool of connections to the source for uploads, apart from those that replicate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from headwater.decode.settings import statements_for
from headwater.source.connect import connection_error, conninfo
from headwater.source.upload.entries import Device
from headwater.source.upload.errors import UnsafeRole
from headwater.source.upload.settings import UploadSettings

IDLE_SECONDS = 60
"""Postgres aborts an upload's transaction after this long without a statement: this process or the network hangs."""

# All settings are local to the transaction (true), so that no upload affects the next one.
_SETTINGS = """
select set_config('role', 'none', true), set_config('search_path', %s, true), set_config('row_security', 'on', true),
       set_config('TimeZone', 'UTC', true), set_config('DateStyle', 'ISO, YMD', true),
       set_config('IntervalStyle', 'postgres', true), set_config('standard_conforming_strings', 'on', true),
       set_config('lc_monetary', 'C', true),
       set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true),
       set_config('idle_in_transaction_session_timeout', %s, true)
"""

_LASTING = "set idle_session_timeout = 0"
"""Unused connections are kept; a role or database may have time-outs of its own."""

_BECOME = """
select set_config('request.jwt.claims', %s, true), set_config('request.jwt.claim.sub', %s, true),
       set_config('role', %s, true)
"""


class Connections:
    """At most `max_connections` connections, kept open for the next upload. Not thread-safe: use it in one event
    loop."""

    def __init__(self, settings: UploadSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_connections)
        self._idle: list[psycopg.AsyncConnection] = []

    @asynccontextmanager
    async def use(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """Lend a connection without an open transaction; waits while all are in use. Raises SourceUnreachable or
        SourceRefused when it has to connect and can't."""
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
                    if lost:  # the idle ones are probably lost too
                        await self.close()

    async def close(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, []
        for conn in idle:
            await conn.close()

    async def _connect(self) -> psycopg.AsyncConnection:
        # options="" keeps the server's synchronous_commit: what a device is told is applied must be as durable as the
        # owner of the database wants
        text = make_conninfo(conninfo(self._settings.login, application_name="headwater upload"), options="")
        try:
            conn = await psycopg.AsyncConnection.connect(text, autocommit=True, prepare_threshold=None)
            for statement in (_LASTING, *statements_for(conn.info.server_version)):
                await conn.execute(statement)
        except psycopg.Error as error:
            raise await asyncio.to_thread(connection_error, self._settings.login, error) from error
        await conn.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        return conn


async def begin(conn: psycopg.AsyncConnection, settings: UploadSettings) -> None:
    """Set search path, formats, time zone and timeouts for the rest of the open transaction."""
    path = ", ".join([sql.Identifier(name).as_string(conn) for name in settings.search_path])
    # The wait for a lock ends first: it passes, but what takes a statement too long does not
    lock_ms = min(settings.lock_timeout * 1000, settings.statement_timeout * 500)
    timeouts = [f"{settings.statement_timeout}s", f"{lock_ms}ms", f"{IDLE_SECONDS}s"]
    # If pg_temp were not named, Postgres would search it first, and temporary tables would hide real ones
    await conn.execute(_SETTINGS, [f"{path}, pg_temp" if path else "pg_temp", *timeouts])


async def become(conn: psycopg.AsyncConnection, settings: UploadSettings, device: Device) -> None:
    """Switch to the upload role, with the token's claims, until the open transaction ends. Raises UnsafeRole when the
    role does not exist or the login may not switch to it."""
    try:
        await conn.execute(_BECOME, [device.claims, device.sub, settings.role])
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
        missing = isinstance(error, psycopg.errors.InvalidParameterValue)
        what = "there is no such role" if missing else f"the login {settings.login.user} may not become it"
        raise UnsafeRole(what, f"upload.role: {settings.role}", "run `headwater source prepare --upload`") from None
