"""Connections to a store in Postgres, and the translation of Postgres' errors."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import errors, pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from headwater.errors import HeadwaterError
from headwater.storage.address import PostgresAddress
from headwater.storage.contract.store import StoreBusyError, StoreError, StoreUnreachableError, sealed_error
from headwater.storage.shared.formats import NOTED, noted_format
from headwater.storage.sql.cursor import SEALED_MARK, DamagedValueError, DuplicateRowError, TableGoneError
from headwater.tls import pem_file, root_certificates, why_untrusted

FORMAT = 4
"""Of the tables: the number of the last script in `migrations`."""

BUSY_SECONDS = 30
_OLDEST = 140_000
_IDLE_CONNECTIONS = 16

_SETTINGS = {
    "jit": "off",
    # Every query uses an index. Outdated statistics of fast-growing tables would sometimes suggest otherwise
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",  # it would read a whole bucket to return its first thousand ops
    "lock_timeout": f"{BUSY_SECONDS}s",
    "statement_timeout": "0",
    # A writer whose machine died must not hold the store's lock for ever; one that waits for its source may wait
    "idle_in_transaction_session_timeout": "600s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "60s",  # no keepalives are sent while sent data is unacknowledged
    "default_transaction_isolation": r"read\ committed",
}

_KINDS: dict[type[psycopg.Error], type[StoreError]] = {
    errors.DataCorrupted: DamagedValueError,
    errors.CharacterNotInRepertoire: DamagedValueError,
    errors.UntranslatableCharacter: DamagedValueError,
    errors.UniqueViolation: DuplicateRowError,
}

READER = "reader"
_READER_SETTINGS = {
    # What a reader asks is planned once: planning a chunk's query for its values takes as long as the query, and comes
    # to the same plan. Not so for others, which filter by long lists and have limits.
    "plan_cache_mode": "force_generic_plan"
}

_NETWORK = {
    "connect_timeout": "20",
    # A server whose machine died says nothing: without these, a listener would wait for it for hours
    "keepalives_idle": "40",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


def connect(address: PostgresAddress, purpose: str = "store") -> psycopg.Connection:
    """A connection in autocommit mode whose unqualified names refer to the store's schema.

    Raises StoreError, also for a store of a newer format, and StoreUnreachableError when trying again may help.
    """
    connection = connect_bare(address, purpose)
    try:
        _check_server(connection, address)
        with postgres_errors(address):
            found_format(connection, address)
            # What a flush confirms to the source must survive a crash of the server, whatever the role's default
            ((plan, _),) = connection.execute(
                "select current_setting('enable_seqscan'), case current_setting('synchronous_commit')"
                " when 'off' then set_config('synchronous_commit', 'on', false) end"
            ).fetchall()
        if plan != _SETTINGS["enable_seqscan"]:
            raise StoreError(f"the store's database {_POOLED}", str(address), _DIRECTLY)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_bare(address: PostgresAddress, purpose: str = "store") -> psycopg.Connection:
    """A connection for which the server and the store are not looked at: the role may have no right to. Raises
    StoreError and StoreUnreachableError."""
    try:
        return psycopg.connect(_conninfo(address, purpose), autocommit=True)
    except psycopg.Error as error:
        raise explained(error, address) from error


def _conninfo(address: PostgresAddress, purpose: str) -> str:
    given = conninfo_to_dict(address.conninfo)
    settings = {**_SETTINGS, **(_READER_SETTINGS if purpose == READER else {}), "search_path": address.schema}
    options = " ".join([str(given.get("options") or ""), *(f"-c {name}={value}" for name, value in settings.items())])
    certificates = {name: pem_file(text) for name, text in address.pem}
    if "sslrootcert" not in {*given, *certificates}:
        authorities = root_certificates(str(given.get("sslmode") or ""), None)
        certificates |= {"sslrootcert": authorities} if authorities else {}
    ours = {
        "options": options.strip(),
        "client_encoding": "UTF8",
        "application_name": f"headwater {purpose}",
        **certificates,
    }
    return make_conninfo("", **{**_NETWORK, **given, **ours})


def _check_server(connection: psycopg.Connection, address: PostgresAddress) -> None:
    version = connection.info.server_version
    if version < _OLDEST:
        raise StoreError(
            f"the store's database is Postgres {version // 10_000}", str(address), "use Postgres 14 or newer"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"the store's database has the encoding {encoding}",
            str(address),
            "make one for it: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
        )


def found_format(connection: psycopg.Connection, address: PostgresAddress) -> int:
    """The store's format, 0 if there are no tables. Raises StoreError for a format that this version does not
    read."""
    # A query, because to_regclass may use a catalog snapshot from before the lock was taken
    there = "select 1 from pg_tables where schemaname = %s and tablename = 'meta'"
    if connection.execute(there, [address.schema]).fetchone() is None:
        return 0
    noted: dict[str, str] = dict(
        connection.execute("select key, value from meta where key in (%s, %s, %s)", NOTED).fetchall()
    )
    return noted_format(noted, FORMAT, str(address))


class Connections:
    """A pool of connections, safe to use from any thread; the last one returned is lent first."""

    def __init__(self, address: PostgresAddress, purpose: str) -> None:
        self._address = address
        self._purpose = purpose
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection] = []
        self._closed = False

    @contextmanager
    def lend(self) -> Iterator[psycopg.Connection]:
        """Lend a connection in autocommit mode. Translates Postgres' errors into ours."""
        connection = self._take()
        try:
            with postgres_errors(self._address):
                yield connection
        finally:
            self._give_back(connection)

    def _take(self) -> psycopg.Connection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return connect(self._address, self._purpose)
            if usable(connection):
                return connection
            connection.close()

    def _give_back(self, connection: psycopg.Connection) -> None:
        if connection.info.transaction_status == pq.TransactionStatus.IDLE:
            with self._lock:
                if not self._closed and len(self._idle) < _IDLE_CONNECTIONS:
                    self._idle.append(connection)
                    return
        connection.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def usable(connection: psycopg.Connection) -> bool:
    """Whether the server still holds an idle connection. If it has sent something unasked, it has closed it."""
    return not connection.closed and not readable([connection.fileno()], 0)


def readable(files: Sequence[int], seconds: float | None) -> list[int]:
    """The files that have data to be read, waiting for it at most `seconds`, or for ever."""
    poll = select.poll()  # select() is limited to 1,024 files
    for file in files:
        poll.register(file, select.POLLIN)
    return [file for file, _ in poll.poll(None if seconds is None else seconds * 1000)]


@contextmanager
def postgres_errors(address: PostgresAddress) -> Iterator[None]:
    """Turn psycopg's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise explained(error, address) from error


def explained(error: psycopg.Error, address: PostgresAddress) -> HeadwaterError:
    """Our error for one of Postgres'. Its message is included only where it can't contain a value."""
    where = str(address)
    match error:
        case _ if error.sqlstate == "HWSEA":
            return sealed_error(_words(error).removeprefix(SEALED_MARK), where)
        case errors.LockNotAvailable():
            return StoreBusyError("the store is locked by another process", where, "Headwater tries again")
        case errors.SerializationFailure() | errors.DeadlockDetected():
            return StoreBusyError("the store was changed by another process meanwhile", where, "Headwater tries again")
        case errors.DiskFull():
            return StoreError("the disk of the store's database is full", where, "free space on it; nothing was kept")
        case errors.InsufficientPrivilege():
            return StoreError(
                f"the store's database refuses: {_words(error)}", where, "let the role own the schema, or grant it that"
            )
        case errors.UndefinedTable():
            return TableGoneError(f"the store's tables are incomplete: {_words(error)}", where, "restore the schema")
        case errors.UndefinedColumn() | errors.InvalidSchemaName():
            return StoreError(f"the store's tables are incomplete: {_words(error)}", where, "restore the schema")
        case errors.ReadOnlySqlTransaction():
            return StoreUnreachableError(
                "the store's database is read-only",
                where,
                "connect to the primary if this is a standby; else its disk may be full: free space, and reset"
                " default_transaction_read_only",
            )
        case _ if error.sqlstate is None and isinstance(error, psycopg.OperationalError):
            return _connection_error(error, address)
        case psycopg.OperationalError():
            return StoreUnreachableError(
                f"the store's database failed: {_words(error)}", where, "Headwater tries again"
            )
        case _:
            words = f" {_words(error)}" if not isinstance(error, psycopg.DataError) else ""
            kind = _KINDS.get(type(error), StoreError)
            return kind(f"Postgres failed with {error.sqlstate}{words}", where, "see the log of the database")


def _words(error: psycopg.Error) -> str:
    return error.diag.message_primary or type(error).__name__


def _connection_error(error: psycopg.Error, address: PostgresAddress) -> HeadwaterError:
    where = str(address)
    # libpq reports no SQLSTATE while connecting, so its (untranslated) message has to be matched
    text = " ".join(str(error).split()).removeprefix("connection failed: ")
    if "certificate verify failed" in text:
        given = conninfo_to_dict(address.conninfo)
        why = why_untrusted(
            str(given.get("host")), int(given.get("port") or 5432), dict(address.pem).get("sslrootcert")
        )
        what = f"the store's database shows a certificate that is not trusted here{f': {why}' if why else ''}"
        return StoreError(what, where, "renew it if it is out of date, else set cacert in storage")
    for words, fix in _LIMITS:
        if words in text:
            return StoreUnreachableError(f"the store's database has no connection to spare: {text}", where, fix)
    for words, what, fix in _REFUSALS:
        if words in text:
            return StoreError(f"the store's database {what}", where, fix)
    return StoreUnreachableError(
        f"the store's database cannot be reached: {text}", where, "check hostname, port and firewall in storage"
    )


_LIMITS = (
    ("too many connections for role", "end sessions of the role, or run ALTER ROLE … CONNECTION LIMIT -1"),
    ("too many connections for database", "end sessions of it, or run ALTER DATABASE … CONNECTION LIMIT -1"),
    ("too many clients already", "end idle connections, or raise max_connections"),
    ("connection slots are reserved", "end idle connections, or raise max_connections"),
)
_POOLED = "is behind a connection pooler that drops settings"
_DIRECTLY = "connect to Postgres itself: its own host and port, not those of the pooler"
_REFUSALS = (
    ("password authentication failed", "rejects user name or password", "correct username and password in storage"),
    ("no password supplied", "asks for a password and none is configured", "set password in storage"),
    ("no pg_hba.conf entry", "has no pg_hba.conf entry for this host, user, database and encryption", "add one"),
    ("pg_hba.conf rejects", "rejects this host, user, database and encryption by pg_hba.conf", "correct that line"),
    ("server does not support SSL", "does not support TLS, but sslmode requires it", "set sslmode: disable in storage"),
    ("could not read root certificate file", "can't be verified: cacert is no certificate", "set the PEM file's text"),
    ("does not match host name", "has a certificate for another host name", "use that name, or sslmode: verify-ca"),
    ("unsupported startup parameter", _POOLED, _DIRECTLY),
    ("permission denied for database", "does not let this role connect", "GRANT CONNECT ON DATABASE … TO …"),
    ("is not permitted to log in", "does not let this role log in", "ALTER ROLE … LOGIN"),
    ('role "', "has no such role", "CREATE ROLE … LOGIN PASSWORD '…', or correct username in storage"),
    ('database "', "does not exist", "CREATE DATABASE …, or correct database in storage"),
)
