"""Exporting an embedded store; see `storage.contract.archive`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from headwater.storage.address import SqliteAddress
from headwater.storage.contract.archive import (
    DATASETS,
    ArchiveError,
    Dump,
    DumpPart,
    DumpView,
    Row,
    StoreState,
    bucket_parts,
    place_parts,
)
from headwater.storage.shared.values import as_int
from headwater.storage.sqlite.connection import open_reader, sqlite_errors
from headwater.storage.sqlite.control.seal import note as seal_note
from headwater.storage.sqlite.migrate import read_secret
from headwater.storage.sqlite.store import SqliteStore

_BATCH_ROWS = 5_000
_BATCH_BYTES = 8 << 20
_PAGES_A_STEP = -1  # all at once: with several steps, a busy writer would restart the copy for ever

_QUERIES = {
    "rows": "select {table:d}, id, row_id, layout, line, members, subkey from rows_{table:d} where id >= ? and id <= ?",
    "ops": "select bucket, id, line from ops where bucket >= ? and bucket <= ? order by bucket, id",
    "segments": (
        "select s.bucket, s.first_op, s.last_op, s.sealed, b.size, b.checksum, b.bodies"
        " from segments s join segment_blobs b on b.id = s.blob where s.bucket >= ? and s.bucket <= ?"
        " order by s.bucket, s.first_op"
    ),
    "lookups": "select key, table_id, row_id, output from lookups where table_id = {table:d}",
    "tables": "select id, source, layouts, fingerprint, resync, resync_detail from tables where state = 'active'",
}
_COUNTS = (
    "select 'ops', bucket, count(*) from ops group by bucket"
    " union all select 'segments', bucket, count(*) from segments group by bucket order by 1, 2"
)
_LARGE = ("rows", "ops", "segments", "lookups")


@contextmanager
def dump(address: SqliteAddress, scratch: Path) -> Iterator[Dump]:
    """See `Backend.dump`. Copies the store first, unless it is sealed."""
    source = Path(address.directory)
    if not (source / "store.db").is_file():
        raise ArchiveError("there is no store", str(source), "check storage.path")
    SqliteStore(source).close()  # upgrades its format
    frozen = source
    if seal_note(address) is None:
        frozen = scratch.resolve()
        frozen.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Write checkpoints last: one ahead of the copy is reached later, a missing one never
        for file in ("store.db", "write_checkpoints.db"):
            _copy(source / file, frozen / file)
    path = frozen / "store.db"
    with closing(open_reader(path)) as db, sqlite_errors(path):
        yield Dump(DumpView(SqliteAddress(str(frozen))), _state(db, frozen), tuple(_parts(db, frozen)))


def _copy(source: Path, target: Path) -> None:
    if not source.is_file():
        return
    with closing(open_reader(source)) as reader, closing(apsw.Connection(str(target))) as copy, sqlite_errors(source):
        with copy.backup("main", reader, "main") as backup:
            backup.step(_PAGES_A_STEP)
        copy.execute("pragma journal_mode = wal").fetchall()


def _state(db: apsw.Connection, directory: Path) -> StoreState:
    ((next_op, checkpoint, config),) = db.execute("select next_op, checkpoint, config from state").fetchall()
    ids = {str(name): as_int(seq) for name, seq in db.execute("select name, seq from sqlite_sequence")}
    writes = 0
    if (directory / "write_checkpoints.db").is_file():
        with closing(open_reader(directory / "write_checkpoints.db")) as other:
            writes = as_int(other.execute("select coalesce(max(seq), 0) from write_checkpoints").fetchall()[0][0])
    return StoreState(
        secret=read_secret(db).hex(),
        next_op=as_int(next_op),
        checkpoint=None if checkpoint is None else as_int(checkpoint),
        config=None if config is None else as_int(config),
        last_table=ids.get("tables", 0),
        last_version=ids.get("versions", 0),
        last_write=writes,
    )


def _parts(db: apsw.Connection, directory: Path) -> Iterator[DumpPart]:
    tables = [as_int(row[0]) for row in db.execute("select id from tables where state = 'active' order by id")]
    for table in tables:
        ((first, last, rows),) = db.execute(f"select min(id), max(id), count(*) from rows_{table:d}").fetchall()
        if rows:
            yield from place_parts(table, as_int(first), as_int(last), as_int(rows))
        ((lookups,),) = db.execute("select count(*) from lookups where table_id = ?", (table,)).fetchall()
        if lookups:
            yield DumpPart("lookups", as_int(lookups), table)
    yield from bucket_parts((str(name), as_int(key), as_int(count)) for name, key, count in db.execute(_COUNTS))
    for dataset in DATASETS:
        if dataset in _LARGE or (dataset == "write_checkpoints" and not (directory / f"{dataset}.db").is_file()):
            continue
        with closing(open_reader(directory / _file(dataset))) as other:
            rows = as_int(other.execute(f"select count(*) from {dataset}").fetchall()[0][0])
        if rows:
            yield DumpPart(dataset, rows)


def read_part(address: SqliteAddress, part: DumpPart) -> Iterator[list[Row]]:
    """See `Backend.read_part`."""
    path = Path(address.directory) / _file(part.dataset)
    query = _QUERIES.get(part.dataset, f"select {', '.join(DATASETS[part.dataset])} from {part.dataset}")
    bindings = (part.first, part.last) if part.is_range else ()
    with closing(open_reader(path)) as db, sqlite_errors(path):
        batch: list[Row] = []
        size = 0
        for row in db.execute(query.format(table=part.table), bindings):
            batch.append(row)
            size += sum(len(cell) for cell in row if isinstance(cell, str | bytes))
            if len(batch) >= _BATCH_ROWS or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def _file(dataset: str) -> str:
    return "write_checkpoints.db" if dataset == "write_checkpoints" else "store.db"
