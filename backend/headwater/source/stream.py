"""The replication stream of a slot, over libpq: receives batches of messages, which it does not decode, and reports
positions.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from psycopg import pq

from headwater.decode.pgoutput import Payload
from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn, format_lsn
from headwater.source.connect import SourceSettings, connect, source_errors, wait_for
from headwater.source.slot import SlotBusyError, SlotLostError, replication_connection, walsender

_log = logging.getLogger(__name__)

BATCH = 5_000

_NAP = 0.002  # seconds; libpq gives about 16 kB a call, so waking up for each packet costs more than it gains
_ASKED_SECONDS = 5  # how long another connection may take, over which to ask for a silent server
_POSTGRES_EPOCH = 946_684_800
_STATUS = struct.Struct("!cQQQqB")
_XLOGDATA, _HEADER = ord("w"), 25
_MESSAGE, _PREFIX_AT, _PREFIX = ord("M"), 10, b"headwater\0"
_KEPT, _KEPT_SECONDS = 64 << 20, 60.0
_LARGE = 1 << 20  # bytes from which on a message is not copied


class StreamError(HeadwaterError):
    """The stream broke. A new one continues from the store's position."""

    code = "PSYNC_S1120"


class UndecodableError(StreamError):
    """Postgres can't decode its own log, by a fault of its own or since the log is damaged."""


class SilentError(StreamError):
    """The server does not answer, and nothing shows that it is at work."""


@dataclass(frozen=True, slots=True)
class Received:
    """Messages in order, without their headers, and their `size` in bytes. `position` is how far the server has read
    its log for this stream. `idle`: no more messages were waiting."""

    payloads: list[Payload]
    size: int
    position: Lsn
    idle: bool


class ReplicationStream:
    """An open stream. Use as a context manager; not for several threads.

    It is given up when the server says nothing for `patience` times `settings.silence_seconds`, unless its walsender is
    at work: Postgres may say nothing for hours while it decodes a large transaction of tables that are not published.
    """

    def __init__(
        self, settings: SourceSettings, slot: str, start: Lsn, publications: Sequence[str], patience: float = 1.0
    ) -> None:
        self._settings = settings
        self._conn = replication_connection(settings, slot)  # a name that synchronous_standby_names can hold
        self._position = start
        self._flushed = start
        self._asked = False
        self._reported_at = self._heard_at = time.monotonic()
        self._silence = settings.silence_seconds * patience
        self._waiting_since: float | None = None
        self._largest = 0  # of the messages so far, in bytes
        self._opened_at = time.monotonic()
        self._told = False  # whether the silence since `_heard_at` was logged
        try:
            self._start(slot, start, publications)
        except BaseException:
            self._conn.finish()
            raise

    def _start(self, slot: str, start: Lsn, publications: Sequence[str]) -> None:
        names = ",".join('"' + name.replace('"', '""') + '"' for name in publications).replace("'", "''")
        options = f"proto_version '1', publication_names '{names}', messages 'true'"
        result = self._conn.exec_(f'START_REPLICATION SLOT "{slot}" LOGICAL {format_lsn(start)} ({options})'.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._error(result)
        self._conn.nonblocking = 1

    def __enter__(self) -> ReplicationStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._conn.finish()

    @property
    def bloated(self) -> bool:
        """Whether to open another stream when there is time: libpq keeps a buffer as large as the largest message."""
        return self._largest > _KEPT and time.monotonic() - self._opened_at > _KEPT_SECONDS

    def receive(self, wait: float, *, more_expected: bool) -> Received:
        """What has arrived: up to about BATCH messages, of no more bytes than `batch_bytes` and a message. Waits at
        most `wait` seconds for the first.

        `more_expected`: a transaction is half received, so it pays to let packets gather. Raises StreamError, also
        when the server does not answer for too long; SlotLostError or SlotBusyError when it ends the stream.
        """
        payloads: list[Payload] = []
        byte_budget = self._drain(payloads, self._settings.batch_bytes)
        if byte_budget == self._settings.batch_bytes:
            if more_expected and not self._readable(0):
                time.sleep(_NAP)
            if self._readable(wait):
                self._consume()
                byte_budget = self._drain(payloads, byte_budget)
            else:
                self._check_silence()
        while len(payloads) < BATCH and byte_budget > 0 and self._readable(0):
            self._consume()
            byte_budget = self._drain(payloads, byte_budget)
        idle = len(payloads) < BATCH and byte_budget > 0
        return Received(payloads, self._settings.batch_bytes - byte_budget, self._position, idle=idle)

    def report(self, flushed: Lsn, *, force: bool = False) -> None:
        """Report the position up to which the store has everything, if it is new, if the server asks, or every ten
        seconds. Postgres may drop its log up to there."""
        now = time.monotonic()
        ask = self._waiting_since is None and now - self._heard_at > self._silence / 2
        if not (force or ask or self._asked or flushed > self._flushed or now - self._reported_at > 10):
            return
        self._flushed = max(self._flushed, flushed)
        written = max(self._position, self._flushed)
        micros = int((time.time() - _POSTGRES_EPOCH) * 1_000_000)
        self._conn.put_copy_data(_STATUS.pack(b"r", written, self._flushed, self._flushed, micros, ask))
        while self._conn.flush() == 1:
            wait_for(self._conn, 1.0, writing=True)
        self._asked = False
        self._reported_at = now
        if ask:
            self._waiting_since = now

    def _check_silence(self) -> None:
        """Raise SilentError if the server did not answer in time and is not at work. Called only when there is nothing
        to read, so an answer that came while we were busy has been read."""
        if self._waiting_since is None or time.monotonic() - self._waiting_since <= self._silence / 2:
            return
        trouble = self._trouble_of_walsender()
        if self._readable(0):
            return
        if trouble:
            what = f"the source did not answer for {self._silence:.0f} s, and {trouble}"
            raise SilentError(what, self._settings.address, "check the network to it; it is tried again")
        self._waiting_since = None  # ask again
        if not self._told:
            self._told = True
            _log.warning(
                "the source has sent nothing for %.0f s, but its walsender %d is at work: it is waited for, since"
                " Postgres has to decode a large transaction, published or not, before it sends more",
                time.monotonic() - self._heard_at,
                self._conn.backend_pid,
            )

    def _trouble_of_walsender(self) -> str:
        """What is wrong with the server's end of this stream, asked over another connection. Empty if it is at work."""
        hasty = replace(self._settings, connect_timeout=_ASKED_SECONDS)
        try:
            with connect(hasty, application_name="headwater silence") as conn, source_errors(hasty):
                found = walsender(conn, self._conn.backend_pid)
        except HeadwaterError as error:
            return f"can't be asked why: {error.what}"
        if found is None:
            return "its walsender has ended"
        if found.works is None:
            return f"what its walsender {found.pid} does can't be seen"
        return "" if found.works else f"its walsender {found.pid} waits for us: the network between loses what is sent"

    def _readable(self, wait: float) -> bool:
        return wait_for(self._conn, wait)

    def _consume(self) -> None:
        self._heard_at, self._waiting_since, self._told = time.monotonic(), None, False
        try:
            self._conn.consume_input()
        except Exception as error:
            what = "the connection to the source broke"
            raise StreamError(what, self._settings.address, "it is tried again") from error

    def _drain(self, payloads: list[Payload], byte_budget: int) -> int:
        """Take the messages that libpq has, up to `byte_budget` bytes. Returns what is left of it."""
        get, append = self._conn.get_copy_data, payloads.append
        while byte_budget > 0:
            size, data = get(1)
            if size > 0:
                if data[0] == _XLOGDATA:
                    byte_budget -= size
                    if size >= _LARGE:
                        self._largest = max(self._largest, size)
                    if data[_HEADER] == _MESSAGE and not _is_ours(data):
                        continue
                    append(bytes(data[_HEADER:]) if size < _LARGE else data[_HEADER:])
                else:
                    self._keepalive(bytes(data))
            elif size == 0:
                break
            else:
                raise self._ended()
        return byte_budget

    def _keepalive(self, data: bytes) -> None:
        self._position = Lsn(max(self._position, int.from_bytes(data[1:9], "big")))
        self._asked = self._asked or data[17] == 1

    def _ended(self) -> HeadwaterError:
        result = self._conn.get_result()
        if result is None:
            return StreamError("the stream broke: the server ended it", self._settings.address, "it is tried again")
        return self._error(result)

    def _error(self, result: pq.abc.PGresult) -> HeadwaterError:
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        said = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
        text = said.decode(errors="replace").strip().splitlines()
        where = self._settings.address
        first = text[0] if text else "the connection was closed"
        if state in _LOST:
            return SlotLostError(f"the slot can't be continued: {first}", where, "a new slot is created")
        if state == _BUSY:
            return SlotBusyError(f"another session reads the slot: {first}", where, "it is tried again")
        if state.startswith(_INTERNAL):
            fix = f"it is tried again; if Postgres fails {UNDECODABLE_TIMES} times, a new slot is created"
            return UndecodableError(f"Postgres can't decode its log: {first}", where, fix)
        return StreamError(f"the stream broke: {first}", where, "it is tried again")


def _is_ours(data: memoryview) -> bool:
    """Whether a logical message may be one of ours. Postgres sends those of all others too, however large they are."""
    start = _HEADER + _PREFIX_AT
    return len(data) < _LARGE and data[start : start + len(_PREFIX)] == _PREFIX


# A slot sees publications as they were at its position, so what is wrong with them there can't be repaired.
_LOST = {
    "42704",  # there is no such slot, or was no such publication
    "0A000",  # publications give one table different column lists
    "58P01",  # Postgres removed log that the slot needs, or lost a file of the slot
}
"""SQLSTATEs. That of a slot which Postgres invalidated, 55000, has other meanings: the next attempt sees in the catalog
that the slot is lost."""
_BUSY = "55006"
_INTERNAL = "XX"
UNDECODABLE_TIMES = 3
"""So often in a row, a failure of Postgres' own decoding does not pass: it has several known faults, such as `could not
map filenode to relation OID`."""
