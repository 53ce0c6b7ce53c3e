"""Makes small stores with the code of an earlier commit, and keeps them for tests of today's:

    git worktree add ../earlier COMMIT && cd ../earlier
    PYTHONPATH=backend:sync_rules:. CLONE/.venv/bin/python CLONE/tests/support/stores/keep.py CLONE/tests/support/stores

writes sqlite-FORMAT.zst, the file of an embedded store, and postgres-FORMAT.zst, what `pg_dump` says of one in a
Postgres. Beside each is a JSON file with what a device had. Imports are of that commit: this has to run there, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import zstandard

from headwater.bulk.bound_table import bind
from headwater.compaction.compactor import CompactionPass
from headwater.decode.copytext import join_cells
from headwater.decode.types import TypeCatalog
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.transform import Buckets, DraftOp
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import Lease, ReplicationProgress
from headwater.storage.open import open_store
from headwater.storage.postgres.connection import FORMAT as POSTGRES_FORMAT
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.writer import StoreWriter
from headwater.storage.sqlite.connection import FORMAT as SQLITE_FORMAT
from headwater_rules.compiler.compile import compile_config
from tests.support.ruled_store import EMBEDDED, SOURCE, TEXT, RuledStore

SCHEMA = "headwater"
YAML = """\
config:
  edition: 3
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes WHERE owner = auth.user_id()
"""
ROUNDS = 6
Notes = Mapping[str, tuple[str, str]]
"""Owners and texts by id."""
_NOTES = 40


def notes_after(rounds: int) -> Notes:
    """What there is after so many rounds of changes."""
    rows = {f"n{number}": (f"u{number % 2}", f"note {number}") for number in range(_NOTES)}
    for done in range(1, rounds + 1):
        for number in range(done, _NOTES, 4):
            rows[f"n{number}"] = (f"u{(number // 4 + done) % 2}", f"note {number}, change {done}")
        del rows[f"n{done + 20}"]
    return rows


def keep(folder: Path, address: StoreAddress, storage: str) -> dict[str, object]:
    """Make a store with a snapshot, changes, one compacted history, and changes since. Returns what a device has that
    has got everything."""
    made = RuledStore(folder, storage)
    first = [[key, *row] for key, row in notes_after(0).items()]
    made.create("notes", {"id": TEXT, "owner": TEXT, "text": TEXT}, first)
    made.serve(YAML)
    for number in range(1, ROUNDS):
        change(made.store, made.lease, notes_after(number - 1), notes_after(number))
    with (
        closing(open_store(address).open_compaction()) as store,
        CompactionPass(store, "keep", lambda _: False) as work,
    ):
        names = sorted(each.name for each in store.buckets(OpId(0)))
        compacted = next(each for each in store.buckets(OpId(0)) if each.name == names[0])
        work.bucket(compacted, store.checkpoint(), CompactionPolicy(budget=0, least=1), finish=True)
    change(made.store, made.lease, notes_after(ROUNDS - 1), notes_after(ROUNDS))
    made.close()
    with closing(open_store(address).open_reader()) as reader, reader.snapshot() as snapshot:
        assert snapshot is not None
        sums = {name: total.checksum for name, total in snapshot.totals(names).items()}
        return {"checkpoint": snapshot.checkpoint.op_id, "buckets": sums}


def change(store: StoreWriter, lease: Lease, before: Notes, after: Notes) -> None:
    """One flush that leads from these rows to those."""
    (table,) = store.tables(SOURCE)
    plan = compile_config(YAML).plan
    bound = bind([plan], SOURCE, table.relation, TypeCatalog(), table.id, store.keys())
    assert bound is not None
    transform = bound.transform
    flush = store.begin(lease)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    stored = flush.current(table.id, changed)
    ops: list[DraftOp] = []
    buckets: Buckets = {}
    for key in changed:
        old = stored.get(key)
        puts = transform.evaluate([key, *after[key]], key).puts if key in after else []
        members = transform.move(old.members if old else "", old and old.subkey, key, puts, ops, buckets)
        if key in after:
            flush.put_rows(table.id, [CurrentRow(key, 0, join_cells([key, *after[key]]), members, old and old.subkey)])
        else:
            flush.delete_rows(table.id, [key])
    flush.append(ops, buckets)
    state = store.source_state(SOURCE)
    assert state is not None
    flush.commit(SOURCE, ReplicationProgress(Lsn(state.lsn + 10)))


def _write(out: Path, name: str, stored: bytes, device: dict[str, object]) -> None:
    (out / f"{name}.zst").write_bytes(zstandard.compress(stored, 19))
    (out / f"{name}.json").write_text(json.dumps(device, indent=2) + "\n")


def main(out: Path) -> None:
    """Keep one of each back end."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        device = keep(folder, SqliteAddress(str(folder / "store")), EMBEDDED)
        _write(out, f"sqlite-{SQLITE_FORMAT}", (folder / "store" / "store.db").read_bytes(), device)
    with tempfile.TemporaryDirectory() as name, EmbeddedPostgres(Path(name) / "data") as server:
        uri = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        device = keep(Path(name), PostgresAddress(uri, SCHEMA), f'{{type: postgresql, uri: "{uri}", sslmode: disable}}')
        dump = ["pg_dump", "--inserts", "--no-owner", f"--schema={SCHEMA}", uri]
        said = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
        lines = [line for line in said.splitlines(keepends=True) if not line.startswith("\\")]  # those are for psql
        _write(out, f"postgres-{POSTGRES_FORMAT}", "".join(lines).encode(), device)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
