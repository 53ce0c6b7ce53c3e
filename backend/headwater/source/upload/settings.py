"""Settings of uploads: the tables that devices may write to, the role to write as, and limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

import psycopg
from msgspec import Meta
from psycopg import pq, sql
from psycopg.conninfo import make_conninfo

from headwater.decode.settings import statements_for
from headwater.errors import HeadwaterError
from headwater.source.connect import SourceSettings, connection_error, conninfo
from headwater.source.upload.entries import Device

WAIT_SECONDS = 30
"""When a device is told to come again that waits until somebody mends something."""

_MB = {"unit": 1 << 20}


class Operation(Enum):
    """What a device may do to rows of a table."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


class Conflict(Enum):
    """What to do with a write whose row was changed since the device read it."""

    LAST_WRITE_WINS = "last_write_wins"
    REJECT_CHANGED = "reject_changed"
    FUNCTION = "function"


@dataclass(frozen=True, slots=True)
class TableRule:
    """One table that devices may write to. `columns` None allows all of them; `key` None is the primary key. With
    several key columns, a row's id on the device is their values joined by `separator`. `compare` are columns that
    previous values may name besides `columns`. `function` is the schema and name of the conflict function, given only
    with Conflict.FUNCTION. `skip_gone` ignores updates of rows that are gone, and `accept_zero_rows` says that a write
    which changes no row is done: a trigger or rule did something else.

    Of columns that the table does not have, those in `renamed` have the name beside theirs now; with `drop_unknown` the
    others are left out. A PUT that leaves out a column of `null_when_absent` sets it to null."""

    schema: str
    name: str
    columns: Annotated[frozenset[str] | None, Meta()] = None
    operations: frozenset[Operation] = frozenset(Operation)
    conflict: Conflict = Conflict.LAST_WRITE_WINS
    function: tuple[str, str] | None = None
    key: tuple[str, ...] | None = None
    separator: Annotated[str, Meta(extra={"key": "key_separator"})] = "/"
    row_security: Annotated[bool, Meta()] = True
    skip_gone: bool = False
    compare: Annotated[frozenset[str], Meta()] = frozenset()
    accept_zero_rows: bool = False
    drop_unknown: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
    null_when_absent: Annotated[frozenset[str], Meta()] = frozenset()

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """Where the rows of a client's table are written: to the only one of `sources`, by name, or to that one which
    `shards` has for a value: of a claim of the token, given as the path to it, or of a column of the row."""

    sources: tuple[str, ...]
    claim: tuple[str, ...] = ()
    column: str = ""
    shards: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UploadSettings:
    """Settings of uploads. `login` connects and keeps the records; each transaction then switches to `role` to write.
    `tables` has the rules by the client's name of a table. Timeouts are in seconds, limits are per process. At least
    the last `window` ops of a device, and all of the last `keep_days` days, are remembered, until the device has sent
    nothing for `forget_days`. For a device that waits until somebody mends something, the source is not asked again
    within `wait_seconds`.

    All this is of the first source. With several, `targets` has where each of the client's tables goes, `others` are
    the settings of the other sources, which have tables of their own, and `split` allows a transaction of several
    sources."""

    login: SourceSettings
    role: str
    tables: Mapping[str, TableRule] = field(default_factory=dict)
    search_path: Annotated[tuple[str, ...], Meta()] = ("public",)
    statement_timeout: Annotated[int, Meta(ge=1, le=60, extra={"key": "statement_timeout_seconds"})] = 15
    lock_timeout: Annotated[int, Meta(ge=1, le=60, extra={"key": "lock_timeout_seconds"})] = 5
    max_connections: Annotated[int, Meta(ge=1, le=1000)] = 8
    max_waiting: Annotated[int, Meta(ge=0)] = 100
    max_per_user: Annotated[int, Meta(ge=1)] = 4
    max_parked_per_user: Annotated[int, Meta(ge=1)] = 1000
    max_parked_bytes_per_user: Annotated[int, Meta(ge=1, extra={"key": "max_parked_mb_per_user", **_MB})] = 64 << 20
    max_devices_per_user: Annotated[int, Meta(ge=1)] = 10_000
    max_body_bytes: Annotated[int, Meta(ge=1, le=1024, extra={"key": "max_body_mb", **_MB})] = 8 << 20
    keep_days: Annotated[int, Meta(ge=1, le=3650)] = 7
    forget_days: Annotated[int, Meta(ge=1, le=3650)] = 180
    window: int = 10_000
    park_after_hours: Annotated[int, Meta(ge=0, le=24 * 3650)] = 24
    wait_seconds: int = WAIT_SECONDS
    targets: Mapping[str, UploadTarget] = field(default_factory=dict)
    others: tuple[UploadSettings, ...] = ()
    split: bool = False

    def by_source(self) -> Mapping[str, UploadSettings]:
        """The settings of each source that has tables, by its name."""
        return {each.login.name: each for each in (self, *self.others) if each.tables} or {self.login.name: self}


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


class UploadConnections:
    """At most `max_connections` connections, kept open for the next upload. Not thread-safe: use it in one event
    loop."""

    def __init__(self, settings: UploadSettings) -> None:
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.max_connections)
        self._idle: list[psycopg.AsyncConnection] = []

    @asynccontextmanager
    async def use(self) -> AsyncIterator[psycopg.AsyncConnection]:
        """Lend a connection without an open transaction; waits while all are in use. Raises SourceUnreachableError or
        SourceRefusedError when it has to connect and can't."""
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
    """Switch to the upload role, with the token's claims, until the open transaction ends. Raises HW_6121 when the
    role does not exist or the login may not switch to it."""
    try:
        await conn.execute(_BECOME, [device.claims, device.sub, settings.role])
    except (psycopg.errors.InvalidParameterValue, psycopg.errors.InsufficientPrivilege) as error:
        missing = isinstance(error, psycopg.errors.InvalidParameterValue)
        what = "there is no such role" if missing else f"the login {settings.login.user} may not become it"
        raise HeadwaterError(
            what, f"upload.role: {settings.role}", "run `headwater source prepare --upload`", code="HW_6121"
        ) from None
