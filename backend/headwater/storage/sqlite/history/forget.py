"""Finding and erasing values in the embedded store. See `storage.contract.forget`."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.forget import (
    FoundOp,
    FoundText,
    Searched,
    SearchedFile,
    UnerasedError,
    found_in_segment,
)
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.shared.control.erasures import ERASURES
from headwater.storage.shared.packing import unpacked
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import immediate, open_writer, sqlite_errors, use_own_disk
from headwater.storage.sqlite.control import lease as leases

_PATIENCE = 60.0  # seconds to wait for readers to release the write-ahead log

_SEGMENTS = """
select coalesce(b.id, 0), coalesce(s.first_op, 0), coalesce(s.sealed, 0), x.bodies from segment_blobs x
left join segments s on s.blob = x.id left join buckets b on b.id = x.bucket
"""


class SqliteForget:
    """See `storage.contract.forget.ForgetStore`. Also covers write checkpoints, which have their own file."""

    def __init__(self, address: SqliteAddress) -> None:
        self._directory = Path(address.directory)
        self._path = self._directory / "store.db"
        self._db = open_writer(self._path)
        writes = self._directory / "write_checkpoints.db"
        self._all = [self._db, *([open_writer(writes)] if writes.is_file() else [])]

    # searching

    def ops(self, hints: Sequence[str], searched: Searched) -> Iterator[FoundOp]:
        with sqlite_errors(self._path):
            searched.ops += self._number("select count(*) from ops")
            sql = (
                "select coalesce(b.id, 0), o.id, o.line from ops o left join buckets b on b.id = o.bucket"
                f" where {_has('o.line', hints)}"
            )
            for bucket, op_id, line in self._db.execute(sql, hints):
                yield FoundOp(as_int(bucket), as_int(op_id), str(line))
            for bucket, first, sealed, bodies in self._db.execute(_SEGMENTS):
                assert isinstance(bodies, bytes)
                content = unpacked(bodies)
                searched.segments += 1
                searched.segment_bytes += len(content)
                for op_id, op in found_in_segment(content, hints, as_int(first), bool(sealed)):
                    yield FoundOp(as_int(bucket), op_id, op)

    def texts(self, hints: Sequence[str], searched: Searched) -> list[FoundText]:
        found: list[FoundText] = []
        with sqlite_errors(self._path):
            for db in self._all:
                for table, column in _text_columns(db):
                    erasure = ERASURES.get((table, column))
                    condition = erasure.condition if erasure else "false"
                    sql = f"select count(*), coalesce(sum({condition}), 0) from {table} where {_has(column, hints)}"
                    count, erasable = (as_int(cell) for cell in db.execute(sql, hints).fetchall()[0])
                    searched.texts += 1
                    if count:
                        found.append(FoundText(table, column, count, erasable))
        return found

    def rows(self, table: int, row_id: str) -> int:
        with sqlite_errors(self._path):
            if not self._db.execute("select 1 from sqlite_master where name = ?", (f"rows_{table:d}",)).fetchall():
                return 0
            return self._number(f"select count(*) from rows_{table:d} where row_id = ?", row_id)

    def named_buckets(self, hints: Sequence[str]) -> list[int]:
        with sqlite_errors(self._path):
            rows = self._db.execute(f"select id from buckets where {_has('name', hints)}", hints)
            return [as_int(row[0]) for row in rows]

    def unpublished(self) -> bool:
        with sqlite_errors(self._path):
            staged = self._number(
                "select (select count(*) from tables where state = 'staged') + (select count(*) from staged_segments)"
                " + (select count(*) from staged_buckets)"
            )
        return bool(staged) or any((self._directory / "stage").glob("part-*"))

    def size(self) -> int:
        return sum(file.stat().st_size for file in self._files())

    # erasing

    def erase_texts(self, lease: Lease, hints: Sequence[str]) -> int:
        erased = 0
        for db in self._all:
            there = set(_text_columns(db))
            for (table, column), erasure in ERASURES.items():
                if (table, column) not in there:
                    continue
                with sqlite_errors(self._path), self._step(db, lease):
                    db.execute(f"{erasure.statement} where {_has(column, hints)} and {erasure.condition}", hints)
                    erased += db.changes()
        return erased

    @contextmanager
    def _step(self, db: apsw.Connection, lease: Lease) -> Iterator[None]:
        """A write transaction. The lease is in the store's own file."""
        with leases.holding(db, lease) if db is self._db else immediate(db):
            yield

    def drop_bucket(self, lease: Lease, bucket: int) -> None:
        with sqlite_errors(self._path), self._step(self._db, lease):
            self._db.execute("update state set retired = retired + 1")
            for sql in (
                "delete from segment_blobs where id in (select blob from segments where bucket = ?)",
                "delete from segments where bucket = ?",
                "delete from ops where bucket = ?",
                "delete from buckets where id = ?",
            ):
                self._db.execute(sql, (bucket,))

    def rewrite(self, say: Callable[[str], None]) -> None:
        for db in self._all:
            path = Path(db.filename)
            with sqlite_errors(path):
                say(f"rewriting {path.name}: no process can write to it until that is done")
                db.execute("pragma temp_store = file")
                use_own_disk(db)  # for a temporary copy
                db.execute("vacuum").fetchall()
                self._empty_log(db, path)
                free = as_int(db.execute("pragma freelist_count").fetchall()[0][0])
            if free:
                raise UnerasedError(
                    f"{free} free pages are left", str(path), "another process wrote to it; run it again"
                )

    def _empty_log(self, db: apsw.Connection, path: Path) -> None:
        """Empty the write-ahead log, which holds the old pages. Waits until no reader needs it."""
        deadline = time.monotonic() + _PATIENCE
        db.set_busy_timeout(2_000)
        try:
            while as_int(db.execute("pragma wal_checkpoint(truncate)").fetchall()[0][0]):
                if time.monotonic() > deadline:
                    raise UnerasedError(
                        "the write-ahead log can't be emptied: a process has been reading the store for too long",
                        f"{path}-wal",
                        "stop the processes that read the store, and run it again",
                    )
        finally:
            db.set_busy_timeout(30_000)

    def search_files(self, hints: Sequence[str]) -> list[SearchedFile]:
        return [_search(file, self._directory, hints) for file in self._files()]

    def _files(self) -> list[Path]:
        return sorted(file for file in self._directory.rglob("*") if file.is_file())

    def _number(self, sql: str, *bindings: str | int) -> int:
        return as_int(self._db.execute(sql, bindings).fetchall()[0][0])

    def close(self) -> None:
        for db in self._all:
            db.close()


def _has(column: str, hints: Sequence[str]) -> str:
    """A condition with the hints as its values, numbered so that the condition can be repeated."""
    return "(" + " or ".join(f"instr({column}, ?{number})" for number in range(1, len(hints) + 1)) + ")"


def _text_columns(db: apsw.Connection) -> list[tuple[str, str]]:
    """Every column that can hold text, except ops, which are searched separately."""
    sql = (
        "select m.name, c.name from sqlite_master m, pragma_table_info(m.name) c"
        " where m.type = 'table' and m.name not like 'sqlite%' and c.type in ('TEXT', 'ANY', '') and m.name <> 'ops'"
        " order by m.name, c.cid"
    )
    return [(str(table), str(column)) for table, column in db.execute(sql)]


def _search(file: Path, directory: Path, hints: Sequence[str]) -> SearchedFile:
    name = str(file.relative_to(directory))
    try:
        size = file.stat().st_size
        if not size:
            return SearchedFile(name, 0, False)
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return SearchedFile(name, size, any(content.find(hint.encode()) >= 0 for hint in hints))
    except FileNotFoundError:
        return SearchedFile(name, 0, False)  # a reader's file, removed by now
    except OSError as error:
        raise StoreError(f"a file of the store can't be read: {error.strerror}", str(file)) from error
