"""Connections to a source: their settings, and the errors that a failed connection means.

Snapshot and stream get the same text for a value only if both sessions format alike. So each connection has the pinned
settings of `headwater.decode.settings` from its start-up packet on. Poolers do not pass them on, and are refused.
"""

from __future__ import annotations

import ctypes
import re
import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Literal, LiteralString, NamedTuple, TypeVar

import psycopg
from msgspec import Meta
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq.misc import find_libpq_full_path
from psycopg.rows import TupleRow

from headwater.decode.settings import settings_options, statements_for
from headwater.errors import HeadwaterError
from headwater.tls import pem_file, root_certificates, why_untrusted
from headwater_rules.propose.sql import identifier

Waited = TypeVar("Waited")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

_ASKED_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """One source database and how to reach it. Certificates and keys are PEM text; `connect_timeout` is in seconds.

    Rules name the tables by `tag`. Sources with one tag are its shards, each with a name. Picklable: a Spark executor
    connects with the same settings. `login_in` is where the config gives the login, for messages.
    """

    host: str
    database: str
    user: str
    password: str = field(default="", repr=False)
    port: int = 5432
    tag: Annotated[str, Meta()] = "default"
    shard: Annotated[str | None, Meta()] = None
    sslmode: str = "verify-full"
    cacert: str | None = field(default=None, repr=False)
    client_certificate: str | None = field(default=None, repr=False)
    client_private_key: str | None = field(default=None, repr=False)
    connect_timeout: int = 20
    publications: Annotated[tuple[str, ...], Meta()] = ("headwater",)
    slot_prefix: Annotated[str, Meta(extra={"key": "slot_name_prefix"})] = "headwater_"
    heartbeat_seconds: Annotated[int, Meta(ge=5, le=60, extra={"key": "heartbeat_interval_seconds"})] = 60
    on_apply_error: Annotated[Literal["skip", "stop"], Meta()] = "skip"  # a transaction that can't be applied
    memory_bytes: int = 64 << 20  # of rows that bulk work or the stream have in memory; see `batch_bytes`
    debug_api: Annotated[bool, Meta()] = False  # operators may read it by SQL
    silence_seconds: float = 60.0  # a server that does not answer for so long is taken for lost
    login_in: str = "replication.connections"

    def is_called(self, name: str) -> bool:
        """Whether a name in an option, a setting or a request means this source: its own, or its tag, which means all
        shards."""
        return name in {self.name, self.tag}

    @property
    def written_tag(self) -> str:
        """What rules write before the names of its tables: nothing for the default source."""
        return "" if self.tag == "default" else self.tag

    @property
    def name(self) -> str:
        """What the store, commands and messages call this source. Unique."""
        return self.tag if self.shard is None else f"{self.tag}/{self.shard}"

    @property
    def address(self) -> str:
        """Host, port and database, for messages; no credentials."""
        return f"{self.host}:{self.port}/{self.database}"

    @property
    def batch_bytes(self) -> int:
        """How many bytes of rows to receive, load or write at once. Several such batches are in memory at a time: what
        was received, what it is compared with, and the result."""
        return self.memory_bytes // 4


def shared_publications(source: SourceSettings, other: SourceSettings) -> list[str]:
    """The publications that both name: if they are one database, the tables in these are followed twice."""
    return sorted({*source.publications} & {*other.publications})


def of_each(sources: Sequence[Asked], ask: Callable[[Asked], Answer]) -> list[Answer]:
    """What `ask` returns for each source, in their order. Several are asked at the same time: some may not answer for
    seconds. Raises the first error that `ask` raises."""
    if len(sources) < 2:
        return [ask(source) for source in sources]
    with ThreadPoolExecutor(min(len(sources), _ASKED_AT_ONCE)) as pool:
        return list(pool.map(ask, sources))


class SourceUnreachableError(HeadwaterError):
    """The source did not answer, or can't serve us now; the same call may succeed later."""

    code = "HW_2001"


class SourceRefusedError(HeadwaterError):
    """The source refused, for a reason that waiting does not change."""

    code = "HW_2002"


def conninfo(settings: SourceSettings, *, replication: bool = False, application_name: str = "headwater") -> str:
    """The libpq connection string with the pinned session settings; with `replication`, that of a walsender.

    Contains the password: for libpq only, never for a message.
    """
    options: dict[str, str | int] = {
        "host": settings.host,
        "port": settings.port,
        "dbname": settings.database,
        "user": settings.user,
        "sslmode": settings.sslmode,
        "connect_timeout": max(2, settings.connect_timeout),  # libpq treats 1 as 2
        "application_name": application_name,
        "client_encoding": "UTF8",
        # A commit must not wait for a synchronous standby, which may be Headwater itself
        "options": f"{settings_options()} -c synchronous_commit={_COMMIT}",
        "keepalives_idle": 40,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 60_000,  # no keepalives are sent while sent data is unacknowledged
        **_certificates(settings),
    }
    if settings.password:
        options["password"] = settings.password
    if replication:
        options["replication"] = "database"
        # A new slot waits for open transactions; and only the role that logs in need have the right to replicate
        options["options"] = f"{options['options']} -c lock_timeout=0 -c role=none"
    return make_conninfo("", **options)


_COMMIT = "local"  # nobody's default, so it also tells whether settings arrive


class _Connection(psycopg.Connection[TupleRow]):
    """Gives up after `patience` seconds on a server that does not answer, as behind a network that drops packets."""

    patience: float | None = None

    def wait(self, gen: PQGen[Waited], interval: float = 0.1, timeout: float | None = None) -> Waited:
        try:
            return super().wait(gen, interval, timeout or self.patience)
        except psycopg.OperationalError:
            if self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self.pgconn.finish()  # else closing would wait for the rest of the answer
            raise


def connect(
    settings: SourceSettings, *, application_name: str = "headwater", patient: bool = False
) -> psycopg.Connection:
    """An ordinary connection in autocommit mode. With `patient`, statements may wait for locks for any time. Raises
    SourceUnreachableError (try again) or SourceRefusedError (do not)."""
    with source_errors(settings):
        conn = _Connection.connect(conninfo(settings, application_name=application_name), autocommit=True)
        conn.patience = None if patient else settings.silence_seconds
        conn.prepare_threshold = None  # catalog queries are few
        try:
            for statement in statements_for(conn.info.server_version):
                conn.execute(statement)
            if conn.execute("select current_setting('synchronous_commit')").fetchone() != (_COMMIT,):
                raise pooler_error(settings)
        except BaseException:
            conn.close()
            raise
    return conn


_UNCHECKED = "SQL_ASCII"
_AS_IT_IS = f"set client_encoding = '{_UNCHECKED}'"


@contextmanager
def text_as_it_is(conn: psycopg.Connection) -> Iterator[None]:
    """Have a database whose text may be in any encoding send it all. In place of text that is not UTF-8, Postgres would
    send an error. Meanwhile psycopg can't encode statements or decode results."""
    if conn.info.parameter_status("server_encoding") != _UNCHECKED:
        yield
        return
    conn.execute(_AS_IT_IS)
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # the connection is lost, or the end of its transaction sets it back
            conn.execute("set client_encoding = 'UTF8'")


def plan_once(conn: psycopg.Connection) -> None:
    """Have the source keep the plans of all that is asked on this connection from now on: to plan a query of the
    catalog takes it several times as long as to run it. For connections that ask the same again."""
    conn.execute("set plan_cache_mode = force_generic_plan")
    conn.prepare_threshold = 0


def connect_to_watch(settings: SourceSettings, *, application_name: str) -> psycopg.Connection:
    """A connection that asks the same again and again, and gives up rather than wait for a lock. Raises what `connect`
    raises, and psycopg's errors."""
    conn = connect(settings, application_name=application_name)
    try:
        conn.execute("set lock_timeout = '2s'; set statement_timeout = '10s'")
        plan_once(conn)
    except BaseException:
        conn.close()
        raise
    return conn


_TRUSTED_SECONDS = 5.0  # a connection that was unused for longer is tested first


class SharedConnection:
    """One ordinary connection for the many short queries of one thread, opened and set up by `setup` when first needed
    and again after an error. Each connection costs the source a process that has to load much of the catalog."""

    def __init__(
        self, settings: SourceSettings, *, application_name: str = "headwater", setup: LiteralString = ""
    ) -> None:
        self._settings = settings
        self._name = application_name
        self._setup: LiteralString = setup
        self._conn: psycopg.Connection | None = None
        self._used = 0.0

    @contextmanager
    def use(self) -> Iterator[psycopg.Connection]:
        """The connection. Raises what `connect` raises."""
        if self._conn is not None and time.monotonic() - self._used > _TRUSTED_SECONDS:
            self._test(self._conn)
        try:
            if self._conn is None:
                self._conn = connect(self._settings, application_name=self._name)
                if self._setup:
                    self._conn.execute(self._setup)
            yield self._conn
        except psycopg.Error:
            self.close()
            raise
        self._used = time.monotonic()

    def _test(self, conn: psycopg.Connection) -> None:
        try:
            conn.execute("select 1")
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None


def dial(settings: SourceSettings, application_name: str, *, replication: bool = False) -> pq.abc.PGconn:
    """A blocking connection of libpq, with `replication` to a walsender. The caller has to `finish` it. Raises
    the error for the SQLSTATE of the server, which connections of psycopg itself do not learn."""
    text = conninfo(settings, replication=replication, application_name=application_name)
    # Not PGconn.connect, which blocks all other threads while the server does not answer
    conn = pq.PGconn.connect_start(text.encode())
    _set_verbosity(conn, _VERBOSE)
    if not _polled(conn, settings.connect_timeout):
        message = "connection timeout expired"
        if conn.status == pq.ConnStatus.BAD:
            message = conn.error_message.decode(errors="replace").strip()
        conn.finish()
        raise _refusal(message, replication=replication)
    _set_verbosity(conn, _DEFAULT)
    for statement in statements_for(conn.server_version):
        conn.exec_(statement.encode())
    if conn.parameter_status(b"server_encoding") == _UNCHECKED.encode():
        conn.exec_(_AS_IT_IS.encode())
    return conn


def _polled(conn: pq.abc.PGconn, seconds: int) -> bool:
    """Connect. Returns False when that fails or takes longer."""
    deadline = time.monotonic() + max(2, seconds)
    while conn.status != pq.ConnStatus.BAD and time.monotonic() < deadline:
        state = conn.connect_poll()
        if state in {pq.PollingStatus.OK, pq.PollingStatus.FAILED}:
            return state == pq.PollingStatus.OK
        wait_for(conn, deadline - time.monotonic(), writing=state != pq.PollingStatus.READING)
    return False


def wait_for(conn: pq.abc.PGconn, seconds: float, *, writing: bool = False) -> bool:
    """Wait at most so long until there is something to read from a connection, or until it takes more. Returns whether
    that is so. Unlike `select`, it takes any descriptor: a process that follows a hundred sources has over a
    thousand."""
    poll = select.poll()
    poll.register(conn.socket, select.POLLOUT if writing else select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


_DEFAULT, _VERBOSE = 1, 2  # of libpq's PGVerbosity


def _set_verbosity(conn: pq.abc.PGconn, verbosity: int) -> None:
    """PQsetErrorVerbosity, which psycopg does not wrap, of the libpq that psycopg uses."""
    path = find_libpq_full_path() if pq.__impl__ == "python" else sys.modules[pq.PGconn.__module__].__file__
    call = ctypes.CDLL(path).PQsetErrorVerbosity
    call.argtypes = [ctypes.c_void_p, ctypes.c_int]
    call(conn.pgconn_ptr, verbosity)  # type: ignore[attr-defined]  # which psycopg documents for this use


_SAID_BY_SERVER = re.compile(r" failed: [^:]+:  ")
_VERBOSELY = re.compile(r":  ([0-9A-Z]{5}): (.*)")
_LOCATION = re.compile(r":  (\w+), \w+\.c:\d+$", re.MULTILINE)
_WAL_SENDER = "a WAL sender"


class _Refusal(psycopg.OperationalError):
    """A refusal of the server with its SQLSTATE, and the function of Postgres that it came from: one state stands for
    several causes, and the words may be in any language."""

    def __init__(self, text: str, sqlstate: str, routine: str) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate
        self.routine = routine


def _refusal(message: str, *, replication: bool) -> psycopg.Error:
    found, location = _VERBOSELY.search(message), _LOCATION.search(message)
    if found is None:
        return psycopg.OperationalError(message)  # of libpq, which has no SQLSTATE
    routine = location[1] if location else ""
    return _Refusal(found[2], found[1], _WAL_SENDER if replication and routine == "InitProcess" else routine)


def _routine(error: Exception) -> str:
    if isinstance(error, _Refusal):
        return error.routine
    return (error.diag.source_function if isinstance(error, psycopg.Error) else None) or ""


def connection_error(settings: SourceSettings, error: Exception) -> HeadwaterError:
    """The error of ours for a failed connection or statement: `error` is psycopg's, or any with libpq's message."""
    text = " ".join(str(error).split()).removeprefix("connection failed: ")
    state = getattr(error, "sqlstate", None)
    if isinstance(error, psycopg.DataError):  # its message quotes the value
        return _error(SourceUnreachableError, settings, f"answers with an error: {state}", "see the source's log")
    if re.search("unsupported startup parameter", text):
        return pooler_error(settings)
    if re.search("certificate verify failed", text):
        return _untrusted(settings)
    if (cause := next((each for each in _CAUSES if each.words and re.search(each.words, text)), None)) is not None:
        return cause.error(settings, text if cause.passes else "")
    if state is None and _SAID_BY_SERVER.search(str(error)):  # in another language, or something rare
        return _asked_again(settings, text)
    first = (error.diag.message_primary if isinstance(error, psycopg.Error) else None) or text
    return _unreachable(settings, text) if state is None else _of_state(settings, state, _routine(error), first)


def _of_state(settings: SourceSettings, state: str, routine: str, first: str) -> HeadwaterError:
    """The error for a SQLSTATE, from this function of Postgres, whose message begins with this line."""
    if state == _READ_ONLY:
        return _takes_no_writes(settings, first)
    if (cause := _BY_STATE.get(f"{state} {routine}") or _BY_STATE.get(state)) is not None:
        return cause.error(settings, first)
    if state.startswith(_GONE):
        return _unreachable(settings, first)
    return _error(SourceUnreachableError, settings, f"answers with an error: {first}", "see the source's log")


def _error(kind: type[HeadwaterError], settings: SourceSettings, what: str, fix: str) -> HeadwaterError:
    """An error about this source, in whose `fix` {user}, {database} and {login_in} stand for its own."""
    names = {"user": sql_name(settings.user), "database": sql_name(settings.database), "login_in": settings.login_in}
    return kind(f"the source database {what}", settings.address, fix.format(**names))


def sql_name(name: str) -> str:
    """A name as SQL needs it, for statements that people copy: quoted only where it has to be."""
    return identifier(name)


def _takes_no_writes(settings: SourceSettings, text: str) -> HeadwaterError:
    """A standby refuses writes with the same words as a database that was made read-only, so it is asked what it is."""
    standby = None
    with suppress(HeadwaterError, psycopg.Error), connect(settings) as conn:
        standby = conn.execute("select pg_is_in_recovery()").fetchall()[0][0]
    if standby:
        return _STANDBY.error(settings, text)
    what, fix = f"is read-only, though it is no standby: {text}", _FULL_DISK
    if standby is None:
        what, fix = f"is read-only: {text}", f"if it is a standby, {_PRIMARY}; else, {_FULL_DISK}"
    return _error(SourceUnreachableError, settings, what, fix)


def _unreachable(settings: SourceSettings, text: str) -> HeadwaterError:
    fix = "check that Postgres runs there, and hostname, port and firewall in replication.connections"
    return _error(SourceUnreachableError, settings, f"cannot be reached: {text}", fix)


def _asked_again(settings: SourceSettings, text: str) -> HeadwaterError:
    """The error for what a server said to a connection that was not told the SQLSTATE: connects once more for it."""
    try:
        dial(settings, "headwater").finish()
    except psycopg.Error as error:
        if error.sqlstate is not None:
            return connection_error(settings, error)
    return _unreachable(settings, text)


def pooler_error(settings: SourceSettings) -> SourceRefusedError:
    """A connection pooler answers in place of Postgres."""
    known = known_pooler(settings.host, settings.port, settings.user)
    return SourceRefusedError(
        f"{known.name if known else 'a connection pooler'} answers, which passes on neither replication nor settings",
        settings.address,
        f"connect to Postgres itself: {known.direct if known else 'its own host and port, not those of the pooler'}",
    )


def _untrusted(settings: SourceSettings) -> HeadwaterError:
    why = why_untrusted(settings.host, settings.port, settings.cacert)
    fix = "renew the certificate of the server, or set this machine's clock" if _OUTDATED.search(why) else _AUTHORITY
    what = f"shows a certificate that is not trusted here{f': {why}' if why else ''}"
    return _error(SourceRefusedError, settings, what, fix)


_OUTDATED = re.compile("expired|not yet valid")
_AUTHORITY = (
    "put the certificate of the authority into cacert in replication.connections (`headwater init`: end the URI in"
    " ?sslrootcert=FILE); hosting companies publish it, see docs/service-config.md"
)


@contextmanager
def source_errors(settings: SourceSettings) -> Iterator[None]:
    """Turn psycopg's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise connection_error(settings, error) from error


class _Cause(NamedTuple):
    """Why a source refuses, or fails for now (`passes`): the English `words` and the `state` that say so (a SQLSTATE,
    with or without the function of Postgres that it comes from), what it means, and the remedy."""

    words: str
    what: str
    fix: str
    state: str = ""
    passes: bool = False

    def error(self, settings: SourceSettings, said: str = "") -> HeadwaterError:
        kind = SourceUnreachableError if self.passes else SourceRefusedError
        return _error(kind, settings, f"{self.what}: {said}" if said else self.what, self.fix)


_PRIMARY = "set hostname in replication.connections to the primary"
_STANDBY = _Cause("recovery is in progress|during recovery", "is a standby", f"promote it, or {_PRIMARY}", passes=True)
WRITABLE = "BEGIN READ WRITE; ALTER DATABASE {database} SET default_transaction_read_only = off; COMMIT"
"""These statements work in a session that is read-only, too, and where the setting is the server's."""
_FULL_DISK = (
    f"hosting companies set default_transaction_read_only when a disk is full: free or add space, and run {WRITABLE}"
)

# What libpq says itself is not translated. What a server says may be: of that, the words only make the text better, and
# SQLSTATEs lead to the same decisions
_CAUSES = (
    _Cause(
        "password authentication failed",
        "rejects user name or password",
        "set username and password in {login_in}; a new password: ALTER ROLE {user} PASSWORD '…'",
        "28P01",
    ),
    _Cause("no password supplied", "asks for a password and none is configured", "set password in {login_in}"),
    _Cause(
        "no pg_hba.conf entry|pg_hba.conf rejects",
        "lets in nobody with this host, user, database and encryption, by its pg_hba.conf",
        "let user {user} into database {database} by a line of pg_hba.conf, and reload it; or change sslmode",
        "28000 ClientAuthentication",
    ),
    _Cause(
        "server does not support SSL",
        "speaks no TLS, and sslmode asks for it",
        "set sslmode: disable in replication.connections, or ssl = on at the server",
    ),
    _Cause(
        "could not read root certificate file",
        "can't be verified: cacert is no certificate",
        "put the text of the PEM file into cacert in replication.connections, with its BEGIN and END lines",
    ),
    _Cause(
        "does not match host name",
        "shows a certificate for another host name",
        "use the certificate's host name, or sslmode: verify-ca with cacert",
    ),
    _Cause("unrecognized configuration parameter", "is older than Postgres 14", "upgrade it to 14 or newer"),
    _Cause(
        "must be superuser or replication role to start walsender|permission denied to start WAL sender",
        "does not let this role replicate",
        "ALTER ROLE {user} REPLICATION",
    ),
    _Cause(
        "permission denied for database",
        "does not let this role connect",
        "GRANT CONNECT ON DATABASE {database} TO {user}",
    ),
    _Cause(
        "permission denied for",
        "does not let this role read what it has to",
        "GRANT to {user} what `headwater source status` names",
    ),
    _Cause(
        "would be affected by row-level security",
        "hides rows from this role by row-level security",
        "ALTER ROLE {user} BYPASSRLS",
    ),
    _Cause("is not permitted to log in", "does not let this role log in", "ALTER ROLE {user} LOGIN"),
    _Cause(
        'role ".*" does not exist',
        "has no such role",
        "CREATE ROLE {user} LOGIN REPLICATION PASSWORD '…', or set username in {login_in}",
    ),
    _Cause(
        'database ".*" does not exist',
        "does not have the database",
        "set database in replication.connections (now: {database})",
        "3D000",
    ),
    _Cause(
        "",
        "does not let this role log in",
        "see that the role {user} exists and may LOGIN, and that pg_hba.conf has a line for it and this host",
        "28000",
    ),
    _Cause(
        "",
        "does not let this role log in",
        "see that the role exists, and run ALTER ROLE {user} LOGIN",
        "28000 InitializeSessionUserId",
    ),
    _Cause(
        "",
        "does not give this role a right that it needs",
        "GRANT to {user} what `headwater source status` names; to replicate, ALTER ROLE {user} REPLICATION",
        "42501",
    ),
    _Cause(
        "No space left on device",
        "has no room left on its disk",
        "free space on the source's disk",
        "53100",
        passes=True,
    ),
    _Cause(
        "too many connections for role",
        "allows this role no more connections",
        "end sessions of {user} (pg_stat_activity), or run ALTER ROLE {user} CONNECTION LIMIT -1",
        "53300 InitializeSessionUserId",
        passes=True,
    ),
    _Cause(
        "too many connections for database",
        "allows no more connections to this database",
        "end sessions of database {database} (pg_stat_activity), or run ALTER DATABASE {database} CONNECTION LIMIT -1",
        "53300 CheckMyDatabase",
        passes=True,
    ),
    _Cause(
        "exceeds max_wal_senders",
        "has all its WAL senders in use",
        "end what need not replicate (pg_stat_replication);"
        " or ALTER SYSTEM SET max_wal_senders = …, and restart Postgres",
        f"53300 {_WAL_SENDER}",
        passes=True,
    ),
    _Cause(
        "too many clients already|connection slots are reserved",
        "has no connection to spare",
        "end idle connections (pg_stat_activity), or run ALTER SYSTEM SET max_connections = … and restart Postgres",
        "53300",
        passes=True,
    ),
    _Cause(
        "database system is (starting|shutting|not yet|not accepting|in recovery)",
        "is starting or shutting down",
        "wait for it, or see its log",
        "57P03",
        passes=True,
    ),
    _STANDBY,
)
_BY_STATE = {cause.state: cause for cause in _CAUSES if cause.state}
_READ_ONLY = "25006"
_GONE = ("08", "57P")
"""SQLSTATEs of a connection that the server ended."""


def _certificates(settings: SourceSettings) -> dict[str, str]:
    if settings.sslmode == "disable":
        return {}
    files = {
        "sslrootcert": root_certificates(settings.sslmode, settings.cacert),
        "sslcert": settings.client_certificate and pem_file(settings.client_certificate),
        "sslkey": settings.client_private_key and pem_file(settings.client_private_key),
    }
    return {name: path for name, path in files.items() if path}


@dataclass(frozen=True, slots=True)
class Pooler:
    """A pooler's name, and how to reach the same database without it."""

    name: str
    direct: str


_IPV6 = "which is reached by IPv6, or by IPv4 with that add-on"
_RDS = r"[^.]+\.(?:endpoint\.)?proxy-[a-z0-9]+"
_AMAZON = r"(\.[^.]+\.rds\.amazonaws\.com|\.rds\.[^.]+\.amazonaws\.com\.cn)"  # China has them the other way round

# the host, the port where that tells it from the database's own, the name, and how to reach the database itself
_POOLERS = (
    (r"db\.[a-z0-9]+\.supabase\.co", 6543, "Supabase's pooler", f"{{0}}, port 5432, {_IPV6}"),
    (r"(ep-[a-z0-9-]+)-pooler(\..+\.neon\.tech)", None, "Neon's pooler", "{1}{2}"),
    (_RDS + _AMAZON, None, "RDS Proxy", "the instance, NAME.ID{1}, or with Aurora the writer, NAME.cluster-ID{1}"),
    (r".*\.postgres\.database\.azure\.com", 6432, "Azure's PgBouncer", "{0}, port 5432"),
    (r".*\.db\.ondigitalocean\.com", 25061, "DigitalOcean's connection pool", "{0}, port 25060"),
    (r".*\.db\.postgresbridge\.com", 5431, "Crunchy Bridge's PgBouncer", "{0}, port 5432"),
)


def known_pooler(host: str, port: int, user: str) -> Pooler | None:
    """The pooler that a hosting company runs at this address, None if none is known to."""
    host = host.lower().rstrip(".")
    if host.endswith(".pooler.supabase.com"):
        role, _, project = user.rpartition(".")  # the pooler finds the project by the user's name
        direct = f"db.{project if role else 'PROJECT'}.supabase.co"
        return Pooler("Supabase's pooler", f"{direct}, port 5432, user {role or user}, {_IPV6}")
    for pattern, pooled, name, direct in _POOLERS:
        if (found := re.fullmatch(pattern, host)) and pooled in {None, port}:
            return Pooler(name, direct.format(host, *found.groups()))
    return None
