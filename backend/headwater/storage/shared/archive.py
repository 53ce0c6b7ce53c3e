"""What dumping and loading a store have in common in all back ends; see `storage.contract.archive`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from headwater.storage.contract.archive import DATASETS, ArchiveError, Row
from headwater.storage.shared.values import as_int

_BATCH_ROWS = 5_000
_BATCH_BYTES = 8 << 20

_ACTIVE = "tables where state = 'active'"
_STATEMENTS = {
    "tables": f"select {', '.join(DATASETS['tables'])} from {_ACTIVE}",
    "segments": (
        "select s.bucket, s.first_op, s.last_op, cast(s.sealed as integer), b.size, b.checksum, b.bodies"
        " from segments s join segment_blobs b on b.id = s.blob"
    ),
}
_OF_TABLES = ("rows", "lookups")
_USED = ("versions", "sources", "tables", "buckets", "leases")

Read = Callable[[str], Iterable[Row]]
"""Runs a statement on an open connection."""


def active_tables(read: Read) -> list[int]:
    """The generations of source tables that are dumped: those that are in use."""
    return [as_int(row[0]) for row in read(f"select id from {_ACTIVE} order by id")]


def count_rows(read: Read, tables: Sequence[int]) -> dict[str, int]:
    """The rows of each dataset."""
    sources = {dataset: [dataset] for dataset in DATASETS}
    sources["tables"] = [_ACTIVE]
    sources["rows"] = [f"rows_{table:d}" for table in tables]
    sources["lookups"] = [f"lookups where table_id = {table:d}" for table in tables]
    return {
        dataset: sum(as_int(row[0]) for each in parts for row in read(f"select count(*) from {each}"))
        for dataset, parts in sources.items()
    }


def check_counts(found: Mapping[str, int], expected: Mapping[str, int], where: str) -> None:
    """Raises ArchiveError when a loaded store does not hold the expected number of rows of each dataset."""
    for dataset, count in found.items():
        if count != expected.get(dataset, 0):
            raise ArchiveError(
                f"{count} of {expected.get(dataset, 0)} rows of {dataset} were imported", where, "import it again"
            )


def used_tables(read: Read, schema: str = "") -> list[str]:
    """The tables that show that a store was ever used. Merely created, it has no rows in them."""
    return [table for table in _USED if list(read(f"select 1 from {schema}{table} limit 1"))]


def dump_batches(
    read: Read, tables: Sequence[int], statements: Mapping[str, str]
) -> Iterator[tuple[str, Sequence[Row]]]:
    """See `Dump.batches`. `statements` are those of the back end for what belongs to a table, with `{0:d}` for its
    id."""
    for dataset, columns in DATASETS.items():
        if dataset in _OF_TABLES:
            each = [statements[dataset].format(table) for table in tables]
        else:
            each = [_STATEMENTS.get(dataset, f"select {', '.join(columns)} from {dataset}")]
        for statement in each:
            for rows in _batched(read(statement)):
                yield dataset, rows


def _batched(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
        if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class LoadedStore(Protocol):
    """An empty store that rows are loaded into."""

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        """Insert rows, ids included."""

    def create_rows(self, table: int) -> None:
        """Create the table of the current rows of a generation, without an index."""

    def insert_rows(self, table: int, rows: Iterable[Row]) -> None:
        """Insert current rows of a generation: place, row_id, layout, line, members, subkey."""


class Loader:
    """Loads batches of datasets; see `Load.add`."""

    def __init__(self, store: LoadedStore) -> None:
        self._store = store
        self._last_blob = 0

    def add(self, dataset: str, rows: Sequence[Row]) -> None:
        """See `Load.add`."""
        store, columns = self._store, tuple(DATASETS[dataset])
        match dataset:
            case "tables":
                store.insert("tables", (*columns, "state"), ((*row, "active") for row in rows))
                for row in rows:
                    store.create_rows(as_int(row[0]))
            case "rows":
                by_table: dict[int, list[Row]] = {}
                for row in rows:
                    by_table.setdefault(as_int(row[0]), []).append(row[1:])
                for table, its_rows in by_table.items():
                    store.insert_rows(table, its_rows)
            case "segments":
                blobs = list(enumerate(rows, self._last_blob + 1))
                self._last_blob += len(blobs)
                store.insert(
                    "segment_blobs",
                    ("id", "bucket", "size", "checksum", "bodies"),
                    [(blob, bucket, *content) for blob, (bucket, _, _, _, *content) in blobs],
                )
                store.insert(
                    "segments",
                    ("blob", "bucket", "first_op", "last_op", "sealed"),
                    [(blob, *row[:4]) for blob, row in blobs],
                )
            case _:
                store.insert(dataset, columns, rows)
