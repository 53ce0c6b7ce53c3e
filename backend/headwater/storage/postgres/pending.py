"""Statements whose results nobody needs, sent together with the next one whose result is needed: a round trip to the
store's server takes longer than most statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

MOST_CHARACTERS = 1 << 20
"""Of what is kept back. More is sent at once."""


Statement = str | sql.SQL | sql.Composed


class Pending:
    """Belongs to one connection and one transaction. Errors of a statement come with whatever sends it."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._db = connection
        self._statements: list[tuple[Statement, Sequence[object]]] = []
        self._characters = 0

    def add(self, query: Statement, parameters: Sequence[object], characters: int) -> None:
        """Keep a statement back that has about so many characters."""
        self._statements.append((query, parameters))
        self._characters += characters
        if self._characters > MOST_CHARACTERS:
            self.send()

    def send(self) -> None:
        """Send what was kept back."""
        if self._statements:
            with self.together():
                pass

    def ask(self, query: Statement, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query, which sees all that was added before it."""
        if not self._statements:
            return self._db.execute(query, parameters).fetchall()
        with self.together() as connection:
            cursor = connection.execute(query, parameters)
        return cursor.fetchall()

    @contextmanager
    def together(self) -> Iterator[psycopg.Connection]:
        """Send what was kept back and all that is executed here in one round trip. Results can be fetched afterwards;
        fetched earlier, each takes a round trip."""
        kept, self._statements, self._characters = self._statements, [], 0
        with self._db.pipeline():
            for query, parameters in kept:
                self._db.execute(query, parameters)
            yield self._db
