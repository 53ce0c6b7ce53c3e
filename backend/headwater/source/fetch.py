"""Reading single rows from the source, where the stream left a TOASTed value out that nobody here has."""

from __future__ import annotations

import time
from collections.abc import Sequence

import psycopg
from psycopg import sql

from headwater.decode.copytext import split_line
from headwater.oplog.change import Cell, Relation
from headwater.oplog.lsn import Lsn, parse_lsn
from headwater.source.connect import SourceSettings, connect, connection_error
from headwater.source.generated import GeneratedValues
from headwater.source.head import ping_statement

_VISIBLE_SECONDS = 1.0
_VISIBLE_PAUSE = 0.005


class RowFetcher:
    """Fetches rows by key over one connection, made when first needed. `generated` computes what rows lack of theirs,
    over another: neither waits for the other's statement."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self.generated = GeneratedValues(settings)
        self._conn: psycopg.Connection | None = None

    def fetch(self, relation: Relation, cells: Sequence[Cell]) -> tuple[tuple[str | None, ...] | None, Lsn]:
        """The row as it is now (None when it is gone), and a position at or after everything that this saw.

        `cells` holds the key columns. Asks the source to log a message after that position, so that even an idle
        stream passes it.
        """
        try:
            return self._fetch(self._connection(), relation, cells)
        except psycopg.Error as error:
            self._disconnect()
            raise connection_error(self._settings, error) from error

    def wait_until_visible(self, xids: Sequence[int]) -> bool:
        """Wait until others see what these transactions did; False when that takes longer than _VISIBLE_SECONDS.

        A commit is in the stream a moment before others can see it. One that waits for a synchronous standby is so
        until then; the standby it waits for may even be this stream.
        """
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while self._unseen(xids):
            if time.monotonic() > deadline:
                return False
            time.sleep(_VISIBLE_PAUSE)
        return True

    def _unseen(self, xids: Sequence[int]) -> bool:
        # A transaction holds the lock on its own id until everybody sees it
        query = (
            "select exists (select from pg_locks where locktype = 'transactionid' and granted"
            " and transactionid = any(%s::text[]::xid[]))"
        )
        try:
            rows = self._connection().execute(query, [list(map(str, xids))]).fetchall()
        except psycopg.Error as error:
            self._disconnect()
            raise connection_error(self._settings, error) from error
        return rows == [(True,)]

    def _fetch(
        self, conn: psycopg.Connection, relation: Relation, cells: Sequence[Cell]
    ) -> tuple[tuple[str | None, ...] | None, Lsn]:
        condition = sql.SQL(" and ").join(
            sql.SQL("{} = {}").format(sql.Identifier(column.name), sql.Literal(cells[i]))
            for i, column in enumerate(relation.columns)
            if column.key
        )
        query = sql.SQL("copy (select {} from {} where {}) to stdout").format(
            sql.SQL(", ").join(sql.Identifier(column.name) for column in relation.columns),
            sql.Identifier(relation.schema, relation.name),
            condition,
        )
        with conn.cursor() as cursor:
            with cursor.copy(query) as copy:
                # Not splitlines: COPY leaves other separators of Unicode in a value as they are
                lines = b"".join(bytes(data) for data in copy).decode().split("\n")[:-1]
            cursor.execute("select pg_current_wal_insert_lsn()::text")
            (position,) = cursor.fetchall()[0]
            cursor.execute(ping_statement(conn.info.server_version))
        row = split_line(lines[0], len(relation.columns)) if lines else None
        return row, parse_lsn(position)

    def _connection(self) -> psycopg.Connection:
        if self._conn is None:
            self._conn = connect(self._settings, application_name="headwater fetch")
        return self._conn

    def close(self) -> None:
        self.generated.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
