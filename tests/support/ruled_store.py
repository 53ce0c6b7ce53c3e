"""A store that holds rows of source tables under a sync config, without a source, and its service config."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from headwater.bulk.bound_table import bind
from headwater.cli.config import load_config
from headwater.config import ConfigSource
from headwater.decode.copytext import join_cells
from headwater.decode.types import TypeCatalog
from headwater.oplog.change import Column, Relation, ReplicaIdentity
from headwater.oplog.lsn import Lsn
from headwater.oplog.transform import Buckets, DraftOp, decode_memberships, encode_memberships
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.store import ReplicationProgress, SourceState, StoredTable
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.flush import Flush
from headwater_rules.compiler.compile import compile_config
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import definitions_of, without
from tests.support.ruled_configs import LISTS, TODOS, USERS

SOURCE = "default"
TEXT, INTEGER = 25, 23
EMBEDDED = "{type: sqlite, path: ./store}"

Rows = Sequence[Sequence[str | None]]

_owners = itertools.count(1)


class RuledStore:
    """Does what a replicator would with versions: evaluates current rows, then activates. `folder` has a service
    config, whose source nobody can reach."""

    def __init__(self, folder: Path, storage: str = EMBEDDED) -> None:
        self.folder = folder
        write_config(folder, storage)
        self.store = open_store(
            load_config(ConfigSource(path=folder / "headwater.yaml"), {}, folder).storage
        ).open_writer()
        self.lease = self.store.acquire(SOURCE, f"ruled-store:{next(_owners)}", 600.0)
        self.store.move_source(self.lease, SourceState(SOURCE, Lsn(100), "slot", "1", 1))
        self._rows: dict[int, Rows] = {}
        self._lsn = 100

    def fill(self) -> None:
        """Lists of some users, who are members of their own lists; to-dos in these lists."""
        lists = [[f"l{i}", f"u{i % USERS}", f"name {i}"] for i in range(LISTS)]
        members = [[f"m{i}", f"l{i}", f"u{i % USERS}", "1"] for i in range(LISTS)]
        todos = [[f"t{i}", f"l{i % LISTS}", f"título {i} {'é' * 40}", str(i % 2)] for i in range(TODOS)]
        self.create("lists", {"id": TEXT, "owner": TEXT, "name": TEXT}, lists)
        self.create("members", {"id": TEXT, "list_id": TEXT, "user_id": TEXT, "active": INTEGER}, members)
        self.create("todos", {"id": TEXT, "list_id": TEXT, "title": TEXT, "done": INTEGER}, todos)

    def create(self, name: str, columns: Mapping[str, int], rows: Rows, schema: str = "public") -> None:
        """A table with the types of its columns, of which the first is its key, and all rows that it will have."""
        described = tuple(Column(column, oid, -1, number == 0) for number, (column, oid) in enumerate(columns.items()))
        oid = 16_400 + len(self._rows)
        relation = Relation(oid, schema, name, ReplicaIdentity.DEFAULT, described)
        (table,) = self.store.create_tables(self.lease, SOURCE, [(relation, "shape")], None)
        self._rows[table.id] = rows
        flush = self.store.begin(self.lease)
        flush.put_rows(table.id, [CurrentRow(str(row[0]), 0, join_cells(row), "", None) for row in rows])
        self._commit(flush)

    def serve(self, yaml: str, origin: Origin = Origin.FILE) -> ConfigVersion:
        """Deploy a sync config and do all that it needs to be served."""
        self.store.deploy(yaml, origin)
        return self.process()

    def process(self) -> ConfigVersion:
        """Do all that the version needs that somebody has deployed."""
        (version,) = [each for each in self.store.versions() if each.state is VersionState.PROCESSING]
        plan = compile_config(version.yaml).plan
        new = without(plan, self.store.complete_definitions(SOURCE))
        flush = self.store.begin(self.lease)
        for table in self.store.tables(SOURCE):
            self._evaluate(flush, new, table)
        self._commit(flush)
        self.store.activate(self.lease, version.id, {SOURCE: definitions_of(plan)})
        return version

    def fail(self, note: str) -> None:
        """Give up the version that is being processed."""
        (version,) = [each for each in self.store.versions() if each.state is VersionState.PROCESSING]
        self.store.mark_version(self.lease, version.id, VersionState.FAILED, note)

    def close(self) -> None:
        self.store.release(self.lease)
        self.store.close()

    def _evaluate(self, flush: Flush, plan: SyncPlan, table: StoredTable) -> None:
        relation, rows = table.relation, self._rows[table.id]
        bound = bind([plan], SOURCE, relation, TypeCatalog(), table.id, self.store.keys())
        if bound is None:
            return
        transform = bound.transform
        current = flush.current(table.id, [str(row[0]) for row in rows])
        ops: list[DraftOp] = []
        buckets: Buckets = {}
        changed: list[CurrentRow] = []
        for row in rows:
            row_id = str(row[0])
            result = transform.evaluate(row, row_id)
            added = decode_memberships(transform.move("", None, row_id, result.puts, ops, buckets), row_id)
            members = [*decode_memberships(current[row_id].members, row_id), *added]
            changed.append(current[row_id]._replace(members=encode_memberships(members, row_id)))
            flush.replace_lookups(table.id, row_id, [*flush.lookup_entries(table.id, row_id), *result.lookups])
        flush.put_rows(table.id, changed)
        flush.append(ops, buckets)

    def _commit(self, flush: Flush) -> None:
        self._lsn += 10
        flush.commit(SOURCE, ReplicationProgress(Lsn(self._lsn)))


def write_config(folder: Path, storage: str = EMBEDDED) -> None:
    """A service config with this value of `storage`, and a source that nobody can reach."""
    (folder / "headwater.yaml").write_text(
        'replication: {connections: [{uri: "postgresql://app@127.0.0.1:1024/shop", sslmode: disable}]}\n'
        f"storage: {storage}\n"
    )
