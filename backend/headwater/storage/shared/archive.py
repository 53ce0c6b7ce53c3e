"""Dumping and loading a store; see `storage.contract.archive`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from headwater.storage.contract.archive import DATASETS, ArchivedState, ArchiveError, Dump, Row
from headwater.storage.shared.common import as_int, batched
from headwater.storage.sql.cursor import Cursor
from headwater.storage.sql.tables import index_rows

_BATCH_ROWS = 5_000
_BATCH_BYTES = 8 << 20
_FETCHED = 1_000

_ACTIVE = "tables where state = 'active'"
_STATEMENTS = {
    "tables": f"select {', '.join(DATASETS['tables'])} from {_ACTIVE}",
    "segments": (
        "select s.bucket, s.first_op, s.last_op, cast(s.sealed as integer), b.size, b.checksum, b.bodies"
        " from segments s join segment_blobs b on b.id = s.blob"
    ),
}
_OF_TABLES = {
    "rows": "select {table}, r.{place}, {row_id}, r.layout, r.line, r.members, r.subkey from rows_{table} r",
    "lookups": (
        "select l.key, l.table_id, coalesce({row_id}, l.row_id), l.output"
        " from lookups l left join rows_{table} r on r.row_id = l.row_id where l.table_id = {table}"
    ),
    "flips": (
        "select f.table_id, coalesce({row_id}, f.row_id), f.at"
        " from flips f left join rows_{table} r on r.row_id = f.row_id where f.table_id = {table}"
    ),
}
_USED = ("versions", "sources", "tables", "buckets", "leases")


def dump(db: Cursor) -> Dump:
    """See `Store.dump`. Within a snapshot."""
    tables = _active_tables(db)
    state = ArchivedState(*db.rows(db.dialect.archived_state)[0])
    return Dump(state, _count_rows(db, tables), _dump_batches(db, tables))


def _active_tables(db: Cursor) -> list[int]:
    """The generations of source tables that are dumped: those that are in use."""
    return [table for (table,) in db.rows(f"select id from {_ACTIVE} order by id")]


def _count_rows(db: Cursor, tables: Sequence[int]) -> dict[str, int]:
    """The rows of each dataset."""
    sources = {dataset: [dataset] for dataset in DATASETS}
    sources["tables"] = [_ACTIVE]
    sources["rows"] = [f"rows_{table:d}" for table in tables]
    for each in ("lookups", "flips"):
        sources[each] = [f"{each} where table_id = {table:d}" for table in tables]
    return {
        dataset: sum(db.rows(f"select count(*) from {each}")[0][0] for each in parts)
        for dataset, parts in sources.items()
    }


def _dump_batches(db: Cursor, tables: Sequence[int]) -> Iterator[tuple[str, Sequence[Row]]]:
    names = {"place": db.dialect.place, "row_id": db.dialect.whole_row_id.format("r")}
    for dataset, columns in DATASETS.items():
        if dataset in _OF_TABLES:
            each = [_OF_TABLES[dataset].format(table=table, **names) for table in tables]
        else:
            each = [_STATEMENTS.get(dataset, f"select {', '.join(columns)} from {dataset}")]
        for statement in each:
            for rows in batched(db.stream(statement, at_once=_FETCHED), _size, _BATCH_ROWS, _BATCH_BYTES):
                yield dataset, rows


def _size(row: Row) -> int:
    return sum(len(cell) for cell in row if isinstance(cell, str | bytes))


def used_tables(db: Cursor, schema: str = "") -> list[str]:
    """The tables that show that a store was ever used. Merely created, it has no rows in them."""
    return [table for table in _USED if db.rows(f"select 1 from {schema}{table} limit 1")]


class Load(ABC):
    """A store being built where no process sees it, over a cursor on what there is of it."""

    def __init__(self, db: Cursor) -> None:
        self._db = db
        self._last_blob = 0

    def add(self, dataset: str, rows: Sequence[Row]) -> None:
        """Add rows of a dataset. Durable with `finish`."""
        columns = tuple(DATASETS[dataset])
        with self._db.transaction():
            match dataset:
                case "tables":
                    self._insert("tables", (*columns, "state"), [(*row, "active") for row in rows])
                    for row in rows:
                        self._db.execute(self._db.dialect.create_rows.format(table=as_int(row[0])))
                case "rows":
                    by_table: dict[int, list[Row]] = {}
                    for table, *row in rows:
                        by_table.setdefault(as_int(table), []).append(row)
                    for table, its_rows in by_table.items():
                        self._insert_rows(f"rows_{table:d}", its_rows)
                case "segments":
                    blobs = list(enumerate(rows, self._last_blob + 1))
                    self._last_blob += len(blobs)
                    self._insert(
                        "segment_blobs",
                        ("id", "bucket", "size", "checksum", "bodies"),
                        [(blob, bucket, *content) for blob, (bucket, _, _, _, *content) in blobs],
                    )
                    self._insert(
                        "segments",
                        ("blob", "bucket", "first_op", "last_op", "sealed"),
                        [(blob, *row[:4]) for blob, row in blobs],
                    )
                case _:
                    self._insert(dataset, columns, rows)

    @abstractmethod
    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        """Insert rows, ids included."""

    @abstractmethod
    def _insert_rows(self, table: str, rows: Sequence[Row]) -> None:
        """Insert current rows: place, row_id, layout, line, members, subkey."""

    @abstractmethod
    def _set_ids(self, db: Cursor, state: ArchivedState) -> None:
        """Set the secret, and the next ids."""

    def _complete(self, db: Cursor, state: ArchivedState, counts: Mapping[str, int], where: str) -> None:
        """Index and check what was added."""
        tables = _active_tables(db)
        with db.sorting(), db.transaction():
            db.execute("update state set next_op = ?1 where next_op < ?1", state.next_op)
            db.execute("update state set checkpoint = ?, config = ?", state.checkpoint, state.config)
            db.execute("update write_state set seq = ?", state.last_write)
            self._set_ids(db, state)
            for table in tables:
                index_rows(db, table)
        for dataset, count in _count_rows(db, tables).items():
            if count != counts.get(dataset, 0):
                raise ArchiveError(
                    f"{count} of {counts.get(dataset, 0)} rows of {dataset} were imported", where, "import it again"
                )

    @abstractmethod
    def finish(self, state: ArchivedState, counts: Mapping[str, int]) -> None:
        """Check that it holds `counts` rows of each dataset, and move it into place in one step. Raises ArchiveError
        when the counts differ, and StoreNotEmptyError when another process has created a store there meanwhile."""

    @abstractmethod
    def discard(self) -> None:
        """Delete what exists of it, unless it was moved into place."""
