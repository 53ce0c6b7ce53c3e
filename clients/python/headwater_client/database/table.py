"""A synced table, with the methods of sqlite-utils' own `Table`."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import sqlite_utils.db

from headwater_client.errors import MissingExtraError, SchemaError

if TYPE_CHECKING:
    import pandas


class SyncedTable(sqlite_utils.db.Table):
    """A view that is written to like a table: each write shows at once, and is queued for upload.

    Its primary key is `id`, a text; a row that comes without one gets a new uuid. What changes a table's shape is not
    there: that is the schema's to say.
    """

    def exists(self) -> bool:
        return True

    @property
    def pks(self) -> list[str]:
        return ["id"]

    @property
    def use_rowid(self) -> bool:
        return False

    # What sqlite-utils takes to make a table is not taken here, so the signatures are narrower than its own
    def insert(  # type: ignore[override]
        self, record: Mapping[str, Any], pk: str = "id", *, replace: bool = False, ignore: bool = False, **others: Any
    ) -> SyncedTable:
        """Insert a row; `last_pk` is its id. With `replace` or `ignore` it may be there already."""
        return self.insert_all([record], pk, replace=replace, ignore=ignore, **others)

    def insert_all(  # type: ignore[override]
        self,
        records: Iterable[Mapping[str, Any]],
        pk: str = "id",
        *,
        replace: bool = False,
        ignore: bool = False,
        truncate: bool = False,
        upsert: bool = False,
        **others: Any,
    ) -> SyncedTable:
        """Insert rows in one transaction, which is also one for the upload.

        Raises `SchemaError` for another primary key, and for options of sqlite-utils that make or alter a table.
        """
        _check(self.name, pk, others)
        with self.db.atomic():
            if truncate:
                self.delete_where()
            for record in records:
                row = {"id": str(uuid.uuid4()), **record}
                self._write(row, replace=replace, ignore=ignore, upsert=upsert)
                self.last_pk = row["id"]
        return self

    def upsert(self, record: Mapping[str, Any], pk: str = "id", **others: Any) -> SyncedTable:  # type: ignore[override]
        """Update the row with this id, or insert it."""
        return self.insert_all([record], pk, upsert=True, **others)

    def upsert_all(  # type: ignore[override]
        self, records: Iterable[Mapping[str, Any]], pk: str = "id", **others: Any
    ) -> SyncedTable:
        """Update or insert rows, in one transaction."""
        return self.insert_all(records, pk, upsert=True, **others)

    def update(  # type: ignore[override]
        self,
        pk_values: Any,
        updates: Mapping[str, Any] | None = None,
        *,
        conversions: Mapping[str, str] | None = None,
        **others: Any,
    ) -> SyncedTable:
        """Change columns of a row. Raises sqlite-utils' `NotFoundError` where it is not there."""
        _check(self.name, "id", others)
        row_id = _one(pk_values)
        self.get(row_id)
        if updates:
            sets = ", ".join(f"{_quoted(name)} = {(conversions or {}).get(name, '?')}" for name in updates)
            values = [_plain(value) for value in updates.values()]
            with self.db.atomic():
                self.db.conn.execute(f"UPDATE {_quoted(self.name)} SET {sets} WHERE id = ?", [*values, row_id])
        self.last_pk = row_id
        return self

    def to_df(self, where: str | None = None, where_args: Sequence[Any] | None = None) -> pandas.DataFrame:
        """The rows as a pandas frame. Raises `MissingExtraError` without pandas."""
        return frame(self.rows_where(where, where_args), [column.name for column in self.columns])

    def _write(self, row: Mapping[str, Any], *, replace: bool, ignore: bool, upsert: bool) -> None:
        execute, name = self.db.conn.execute, _quoted(self.name)
        there = (upsert or ignore) and execute(f"SELECT 1 FROM {name} WHERE id = ?", (row["id"],)).fetchone()
        if there and ignore:
            return
        if there:
            changes = {column: value for column, value in row.items() if column != "id"}
            if changes:
                sets = ", ".join(f"{_quoted(column)} = ?" for column in changes)
                execute(f"UPDATE {name} SET {sets} WHERE id = ?", [*map(_plain, changes.values()), row["id"]])
            return
        columns, marks = ", ".join(map(_quoted, row)), ", ".join("?" * len(row))
        kind = "INSERT OR REPLACE" if replace else "INSERT"
        execute(f"{kind} INTO {name}({columns}) VALUES ({marks})", list(map(_plain, row.values())))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise SchemaError(f"{self.name} is made from the schema: change that, and open the file with it")

    create = transform = add_column = add_missing_columns = create_index = drop_index = drop = _refuse
    add_foreign_key = enable_fts = enable_counts = extract = lookup = m2m = duplicate = _refuse


def frame(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pandas.DataFrame:
    """Rows as a pandas frame. Raises `MissingExtraError` without pandas."""
    try:
        import pandas
    except ImportError:
        raise MissingExtraError("a frame", "pandas") from None
    return pandas.DataFrame(list(rows), columns=columns)


def _check(name: str, pk: str, others: Mapping[str, Any]) -> None:
    refused = [option for option, value in others.items() if value and option not in {"batch_size", "analyze"}]
    if pk != "id":
        refused.append(f"the primary key {pk}")
    if refused:
        raise SchemaError(f"{name} is made from the schema, which leaves no room for {', '.join(refused)}")


def _one(pk_values: Any) -> str:
    (row_id,) = pk_values if isinstance(pk_values, (list, tuple)) else (pk_values,)
    return str(row_id)


def _plain(value: Any) -> Any:
    return sqlite_utils.db.jsonify_if_needed(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
