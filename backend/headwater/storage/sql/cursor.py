"""The database access of everything that is not the live path: a cursor, and the dialect of its database."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from headwater.storage.contract.compaction import Piece
from headwater.storage.contract.parts import PlacedRow, Places, StagedPart
from headwater.storage.contract.store import Lease, StoreError, part_lost

Row = tuple[Any, ...]
"""A row as the driver returns it."""

Value = str | float | bytes | None | Sequence[str] | Sequence[int] | Sequence[str | bytes]
"""A value of a statement; lists are for `Dialect.among`."""

SEALED_MARK = "headwater-seal: "
"""How a database refuses to write to a sealed store; the seal's note follows."""


class TableGoneError(StoreError):
    """A table does not exist: the store is incomplete, or a background process dropped a table that is not needed."""


class DamagedValueError(StoreError):
    """The database itself found a page or a value damaged."""


class DuplicateRowError(StoreError):
    """A row has the key of another one."""


class Cursor(Protocol):
    """An open connection, used by one thread at a time. Statements mark values with `?`, or with `?1`, `?2` … to repeat
    them, and use only SQL that every database understands, or fragments of the dialect. Raises our errors."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def where(self) -> str:
        """Names the database in messages."""

    @property
    def closed(self) -> bool: ...

    def errors(self) -> AbstractContextManager[None]:
        """Turns the driver's errors into ours."""

    def rows(self, statement: str, *values: Value) -> list[Row]: ...

    def one(self, statement: str, *values: Value) -> Row | None:
        """The first row, None when there is none."""

    def execute(self, statement: str, *values: Value) -> int:
        """Returns the number of rows changed."""

    def execute_many(self, statement: str, values: Iterable[Sequence[Value]]) -> list[Row]:
        """Execute a statement once for each sequence of values. Returns all rows that it returned."""

    def script(self, text: str) -> None:
        """Execute a statement as it is, without values."""

    def has_table(self, name: str) -> bool: ...

    def stream(self, statement: str, *values: Value, at_once: int = 500) -> Iterator[Row]:
        """Rows of a result that may not fit in memory, fetched `at_once`. Nothing but reading is done meanwhile."""

    def transaction(self, lease: Lease | None = None) -> AbstractContextManager[None]:
        """A write transaction. That of a lease's holder checks the lease first and extends it at the end, so that a
        process that waited meanwhile does not find it expired; raises LeaseLostError."""

    def snapshot(self) -> AbstractContextManager[None]:
        """A transaction that only reads, and sees the store at one moment."""

    def sorting(self) -> AbstractContextManager[None]:
        """Meanwhile, indexes of large tables are created with little memory. Not within a transaction."""

    def notify(self) -> None:
        """Within a write transaction: wake readers at its commit."""

    def close(self) -> None: ...


class NamedBuckets(Protocol):
    """Reads `columns` of the buckets with these names, given with the hashes of the names, as far as they exist."""

    def __call__(self, db: Cursor, columns: str, names: Mapping[str, int]) -> list[Row]: ...


class PlacedRows(Protocol):
    """Reads current rows at places [first, end), in batches of at most `count` rows and about `batch_bytes`. Of
    `damaged` texts that can be read as bytes, gives what can be decoded."""

    def __call__(
        self, db: Cursor, table: int, first: int, end: int, *, count: int, batch_bytes: int, damaged: bool = False
    ) -> Iterator[list[PlacedRow]]: ...


@dataclass(frozen=True, slots=True)
class OpenPart:
    """A part of a bulk job (see `storage.sql.parts`) that statements can read: the names of its tables. `size` gives
    the numbers of rows and ops that its task wrote in a page, where the database can lose some of them."""

    part: StagedPart
    size: Callable[[int], Row | None] | None
    rows: str
    lookups: str
    buckets: str
    segments: str
    flips: str

    @property
    def current(self) -> str:
        """The table of the current rows that the part is for."""
        return f"rows_{self.part.table:d}"

    def check(self, page: int, rows: int, ops: int) -> None:
        """Raise PartLostError when a page does not hold what its task wrote."""
        if self.size is not None and self.size(page) != (rows, ops):
            raise part_lost("damaged", self.part.path)


UNWANTED = """
select name from definitions group by name
having sum(case when state in ('retiring', 'retired') then 0 else 1 end) = 0"""
"""The definitions that no source keeps."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The SQL in which the databases differ. Fragments with `{}` are formatted with a column or a value, those with
    `{table}` with the id of a table generation."""

    # clocks, locks and sessions
    now: str
    """Seconds since 1970."""
    clock: str
    """The same, in the type of `leases.expires_at`."""
    clock_after: str
    """The clock in `{}` seconds."""
    clock_zero: str
    """A time that has passed."""
    for_update: str
    sessions: str
    """The sessions of a database server, which leases name; empty for the embedded store."""
    change_counter: str
    """The query for the number that grows with each submitted request or version."""
    raise_change_counter: str
    plan_bulk: str
    """Has the planner expect statements that read whole tables."""

    # values and keys
    among: str
    """A condition that a value is in the list `?`."""
    contains: str
    """A condition that column `{}` contains the text `?`."""
    as_bytes: str
    """Column `{}` as bytes, even if it is damaged text."""
    place: str
    """The column with a current row's place."""
    stored_row_id: Callable[[str], str]
    """A row id as it is indexed."""
    op_key: str
    """The columns that identify an op."""
    segment_key: str
    """The column that identifies a segment of a bucket."""
    segments_after: str
    """A condition for segments `s` of bucket `?1` with ops after `?2`."""
    write_key: str
    """The column that identifies a write checkpoint."""
    stored_write_key: Callable[[str], str | bytes]
    clients_of: str
    """A condition for write checkpoints `w` of the clients of user `?1`."""

    named_buckets: NamedBuckets
    lookups_under: Callable[[Cursor, Sequence[str]], list[Row]]
    """Reads (key, output) of current lookups under some keys."""
    outputs_under: Callable[[Cursor, Sequence[int], Sequence[str], int], list[Row]]
    """Reads (key, output) of lookups of some tables under some keys, of each key at most so many."""
    has_key: str
    """A condition that a lookup `l` has the key `?1`."""

    # table generations
    create_rows: str
    index_rows: tuple[str, ...]
    drop_generation: tuple[str, ...]
    row_columns: str
    """Columns of current rows, without the place."""
    whole_row_id: str
    """The id of a row of table `{}`, which is indexed by a shorter one if it is long."""
    placed_rows: PlacedRows
    place_ranges: Callable[[Cursor, int, int], Places]
    hot_pieces: Callable[[Cursor, int, int, int], list[Piece]]
    """Cuts the hot tail of a bucket from one op up to another into pieces of limited size."""
    archived_state: str
    """The query for `storage.contract.archive.ArchivedState`."""
    retire_lookups: str
    strip_members: str

    # bulk jobs
    open_part: Callable[[Cursor, StagedPart], AbstractContextManager[OpenPart]]
    """Opens what a task wrote. Raises PartLostError when it is missing."""
    stage_part: Callable[[Cursor, Lease, OpenPart], None]
    """Takes over a whole part, in short transactions. Nothing of it is visible."""
    take_lookups: str
    """Takes over lookups `p` of a part that satisfy `{condition}`."""
    staged_for: str
    """A condition for what is staged for the generations `{}`."""

    # statistics
    join_all: str
    """A join that reads all of the first table."""
    live_memberships: str
    large_rows: str
    table_sizes: str
    file_sizes: Callable[[Cursor, Mapping[str, int]], tuple[int, int]]
    """Bytes that are free in the files, and of all files, given those of the tables."""

    # searching, sealing
    text_columns: str
    """Every column that can hold text, except ops, which are searched separately, and what bulk tasks write."""
    staged: str
    """Whether a bulk job has left staged data."""
    lock_leases: str
    seal: tuple[tuple[str, str], ...]
    """Statements that make a table refuse writes with `{message}`."""
    unseal: tuple[str, ...]


_MARK = re.compile(r"\?(\d*)|%")


@lru_cache(maxsize=1000)
def named(statement: str) -> bytes:
    """The statement with its values marked as `%(1)s`, `%(2)s` …, as psycopg wants it."""
    largest = 0

    def mark(found: re.Match[str]) -> str:
        nonlocal largest
        if found[0] == "%":
            return "%%"
        number = int(found[1] or largest + 1)
        largest = max(largest, number)
        return f"%({number})s"

    return _MARK.sub(mark, statement).encode()
