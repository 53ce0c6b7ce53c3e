"""Notifies the processes that read the store of a commit, using LISTEN on a separate connection in a thread.

The thread turns notifications into bytes on a pipe, whose descriptor stays the same when the connection is replaced.
"""

from __future__ import annotations

import contextlib
import os
import threading

import psycopg
from psycopg import sql

from headwater.errors import HeadwaterError
from headwater.storage.address import PostgresAddress
from headwater.storage.postgres.connection import connect, readable

_LONGEST_PAUSE = 10.0


class NotifyListener:
    """See `storage.contract.reader.Listener`."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._readable, self._wake = os.pipe()
        self._stopping, self._stop = os.pipe()
        for end in (self._readable, self._wake):
            os.set_blocking(end, False)
        try:
            connection = self._listen()
        except BaseException:
            self._close_pipes()
            raise
        self._thread = threading.Thread(target=self._follow, args=(connection,), name="store listener", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        return self._readable

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._readable, 4096):
                pass

    def close(self) -> None:
        os.write(self._stop, b"x")
        self._thread.join()
        self._close_pipes()

    def _close_pipes(self) -> None:
        for end in (self._readable, self._wake, self._stopping, self._stop):
            os.close(end)

    def _listen(self) -> psycopg.Connection:
        connection = connect(self._address, "listener")
        connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._address.schema)))
        return connection

    def _follow(self, connection: psycopg.Connection) -> None:
        pause = 0.1
        current: psycopg.Connection | None = connection
        while True:
            if current is not None:
                if not self._pass_on(current):
                    return
                current = None
                continue
            if readable([self._stopping], pause):
                return
            pause = min(pause * 2, _LONGEST_PAUSE)
            with contextlib.suppress(HeadwaterError, psycopg.Error):
                current = self._listen()
                pause = 0.1
                self._tell()  # notifications may have been missed

    def _pass_on(self, connection: psycopg.Connection) -> bool:
        """Pass notifications on until the connection breaks (returns True) or the listener is closed (False)."""
        with contextlib.closing(connection):
            try:
                while True:
                    if self._stopping in readable([connection.fileno(), self._stopping], None):
                        return False
                    connection.pgconn.consume_input()
                    notified = False
                    while connection.pgconn.notifies() is not None:
                        notified = True
                    if notified:
                        self._tell()
            except psycopg.Error:
                return True

    def _tell(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe is readable anyway
            os.write(self._wake, b"x")
