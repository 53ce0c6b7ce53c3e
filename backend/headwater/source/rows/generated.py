"""Computes generated columns, which the stream does not bring, in Postgres.

The expression is evaluated over the streamed values, one statement for many rows. No table is read, so the present
values of the rows do not matter. https://www.postgresql.org/docs/current/ddl-generated-columns.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from headwater.errors import HeadwaterError
from headwater.oplog.change import Relation
from headwater.source.connect import SharedConnection, SourceSettings, connection_error

Row = tuple[str | None, ...]

_BATCH_BYTES = 8 << 20
LOCK_TIMEOUT: Final = "set lock_timeout = '1s'"
"""For connections that the whole stream waits for."""


class NotComputedError(HeadwaterError):
    """Postgres refuses to evaluate the expression of a generated column."""

    code = "HW_2601"


class NotComputedLockedError(NotComputedError):
    """A generated column can't be computed while its table is locked."""

    code = "HW_2603"


class NotComputableError(NotComputedError):
    """The expression fails on the values of a row, which was written before the table was altered."""

    code = "HW_2602"


@dataclass(frozen=True, slots=True)
class _Plan:
    """The statement for one relation. `places` has, for each present column of the table, the position of its value in
    a row's cells; None where the expressions do not need it."""

    relation: Relation
    statement: bytes
    places: tuple[int | None, ...]


class GeneratedValues:
    """Computes over one connection, opened when first needed."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._shared = SharedConnection(settings, application_name="headwater generated columns", setup=LOCK_TIMEOUT)
        self._plans: dict[int, _Plan] = {}

    def compute(self, relation: Relation, rows: Sequence[Row]) -> list[Row]:
        """The values of the relation's generated columns for each of `rows`, whose cells are in its order.

        Raises NotComputedError when Postgres refuses, NotComputedLockedError while the table is locked,
        NotComputableError when the expression fails, and what `connection_error` makes of a lost connection."""
        with self._shared.use() as conn:
            try:
                return self._compute(conn, relation, rows)
            except NotComputedLockedError:
                raise
            except NotComputedError:
                self._plans.pop(relation.oid, None)  # the table may have other columns by now
            return self._compute(conn, relation, rows)

    def _compute(self, conn: psycopg.Connection, relation: Relation, rows: Sequence[Row]) -> list[Row]:
        try:
            plan = self._plan(conn, relation)
            return [row for batch in _batches(plan, rows) for row in _evaluated(conn, plan, batch)]
        except psycopg.errors.LockNotAvailable as error:
            name = relation.qualified_name
            raise NotComputedLockedError("a generated column can't be computed: the table is locked", name) from error
        except psycopg.OperationalError as error:
            self.close()
            raise connection_error(self._settings, error) from error
        except psycopg.Error as error:
            # The message of other errors can hold a value
            refused = isinstance(error, psycopg.errors.InsufficientPrivilege)
            why = str(error).split("\n")[0] if refused else f"SQLSTATE {error.sqlstate}"
            raise (NotComputedError if refused else NotComputableError)(
                f"a generated column can't be computed: {why}",
                relation.qualified_name,
                f"let role {self._settings.user} execute the functions of its expression" if refused else "",
            ) from error

    def _plan(self, conn: psycopg.Connection, relation: Relation) -> _Plan:
        plan = self._plans.get(relation.oid)
        if plan is None or plan.relation != relation:
            plan = self._plans[relation.oid] = _planned(conn, relation)
        return plan

    def close(self) -> None:
        self._plans.clear()
        self._shared.close()


def _planned(conn: psycopg.Connection, relation: Relation) -> _Plan:
    """Rows are sent as the table's row type, whose columns have the names, types and collations that the expressions
    were written for."""
    needed = {name for column in relation.columns if column.generated for name in column.generated.inputs}
    at = {column.name: place for place, column in enumerate(relation.columns) if column.name in needed}
    rows = conn.execute(
        """select c.oid::regclass::text, array(
               select a.attname::text from pg_attribute a
               where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum)
           from pg_class c where c.oid = %s""",
        [relation.oid],
    ).fetchall()
    if not rows or not at.keys() <= set(rows[0][1]):
        raise NotComputedError(
            "a generated column can't be computed: its table has other columns by now",
            relation.qualified_name,
            "the catalog is read again",
        )
    ((table, names),) = rows
    expressions = ", ".join(f"({column.generated.expression})" for column in relation.columns if column.generated)
    statement = f"select {expressions} from unnest($1::{table}[]) as {sql.Identifier('the row').as_string(conn)}"
    return _Plan(relation, statement.encode(), tuple(at.get(name) for name in names))


def _batches(plan: _Plan, rows: Sequence[Row]) -> Iterator[list[str]]:
    """The rows as elements of an array literal, in batches of limited size."""
    batch, length = list[str](), 0
    for row in rows:
        cells = ["" if place is None else _quoted(row[place]) for place in plan.places]
        element = _quoted(f"({','.join(cells)})")
        batch.append(element)
        length += len(element)
        if length >= _BATCH_BYTES:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _quoted(cell: str | None) -> str:
    """A cell as an element of a row or array literal. Null is an empty element of a row."""
    return "" if cell is None else '"' + cell.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _evaluated(conn: psycopg.Connection, plan: _Plan, batch: Sequence[str]) -> list[Row]:
    with psycopg.RawCursor(conn) as cursor:
        cursor.execute(plan.statement, [f"{{{','.join(batch)}}}"])
        result = cursor.pgresult
        if result is None:
            return []
        # The text format, as in COPY and the stream
        return [
            tuple(None if value is None else value.decode() for value in cells)
            for cells in (
                [result.get_value(row, column) for column in range(result.nfields)] for row in range(result.ntuples)
            )
        ]
