"""However rows came to the store, one by one from the stream or all at once by bulk work: buckets hold the same."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import headwater.pipeline.snapshot as snapshots
from headwater.bulk.contract import ReprocessJob, ReprocessTable, SnapshotJob, SnapshotTable
from headwater.decode.copytext import join_cells
from headwater.decode.types import TypeCatalog
from headwater.oplog.change import (
    UNCHANGED,
    Cells,
    Column,
    Delete,
    Insert,
    Relation,
    ReplicaIdentity,
    RowChange,
    Update,
)
from headwater.oplog.lsn import Lsn
from headwater.oplog.row_id import content_id
from headwater.pipeline.reprocess import ReprocessTask
from headwater.pipeline.snapshot import CountedCopies, Partition, SnapshotTask
from headwater.replication.stream.fold import Fold, IncompleteRows
from headwater.replication.tables.live import LiveContext, LiveTable
from headwater.source.catalog.published import PublishedTable
from headwater.source.catalog.read import Leaf
from headwater.source.connect import SourceSettings
from headwater.storage.address import PostgresAddress, StoreAddress
from headwater.storage.contract.parts import BulkRecord
from headwater.storage.contract.store import ReplicationProgress, SourceState
from headwater.storage.contract.versions import Origin
from headwater.storage.open import open_store
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import SyncPlan
from headwater_rules.results import SyncRequest
from headwater_rules.versions import definitions_of, without
from tests.support.fix_headwater import read_bucket
from tests.support.fix_stores import NewAddress
from tests.support.store_checker import problems

Row = tuple[str | None, ...]
Held = dict[str, dict[str, Counter[tuple[str, str, str, int]]]]
"""By user and bucket: output table, id, data and checksum of each row that stands there."""

TAG = "default"
_PIECE = 60  # bytes: about a row
WORDS = ("a", "b", "c")
IDENTITIES = {"key": ReplicaIdentity.DEFAULT, "full": ReplicaIdentity.FULL, "nothing": ReplicaIdentity.NOTHING}

MINE = """
  mine:
    query: SELECT * FROM notes WHERE owner = auth.user_id()
"""
MORE = """
  bodies:
    query: SELECT body, n FROM notes WHERE body = auth.user_id() AND n > 2
  related:
    query: SELECT owner, n FROM notes WHERE owner IN (SELECT body FROM notes WHERE owner = auth.user_id())
"""


def plan_of(streams: str, *, keyed: bool) -> tuple[str, SyncPlan]:
    """A sync config and its plan. Rows of a keyed table are known to devices by their ids."""
    streams = streams.replace("    query:", "    auto_subscribe: true\n    query:")
    yaml = "config: {edition: 3}\nstreams:" + (
        streams.replace("SELECT body,", "SELECT id, body,") if keyed else streams
    )
    yaml = yaml.replace("SELECT owner,", "SELECT id, owner,") if keyed else yaml
    return yaml, compile_config(yaml).plan


def relation_of(identity: ReplicaIdentity) -> Relation:
    keyed = identity is ReplicaIdentity.DEFAULT
    columns = [Column("owner", 25, -1, False), Column("body", 25, -1, False), Column("n", 23, -1, False)]
    return Relation(1, "public", "notes", identity, ((Column("id", 25, -1, True),) if keyed else ()) + tuple(columns))


# histories


class Step(NamedTuple):
    """What somebody does; `target` picks a row, and changes that make no sense are left out."""

    kind: str
    target: int
    row: tuple[str, str | None, int]
    keeps_body: bool


steps = st.builds(
    Step,
    st.sampled_from(["insert", "insert", "update", "update", "delete", "rename"]),
    st.integers(0, 7),
    st.tuples(st.sampled_from(WORDS), st.sampled_from([*WORDS, None, "tab\there", "\\N"]), st.integers(0, 5)),
    st.booleans(),
)


@dataclass
class Source:
    """A table in memory that tells of its changes as the stream does."""

    relation: Relation
    rows: list[Row] = field(default_factory=list)

    def does(self, step: Step) -> RowChange | None:
        """The change that a step comes to."""
        owner, body, n = step.row
        values: Row = (owner, body, str(n))
        if self.relation.identity is ReplicaIdentity.DEFAULT:
            return self._keyed(step, values)
        if step.kind == "insert" or self.relation.identity is ReplicaIdentity.NOTHING:
            self.rows.append(values)
            return Insert(self.relation, values)
        if not self.rows:
            return None
        old = self.rows.pop(step.target % len(self.rows))
        if step.kind == "delete":
            return Delete(self.relation, old, False)
        self.rows.append(values)
        return Update(self.relation, old, False, values)

    def _keyed(self, step: Step, values: Row) -> RowChange | None:
        row_id = f"r{step.target}"
        position = next((i for i, row in enumerate(self.rows) if row[0] == row_id), None)
        if position is None:
            if step.kind != "insert":
                return None
            self.rows.append((row_id, *values))
            return Insert(self.relation, (row_id, *values))
        old = self.rows.pop(position)
        key: Cells = (row_id, None, None, None)
        if step.kind == "delete":
            return Delete(self.relation, key, True)
        renamed = f"r{(step.target + 3) % 8}"
        taken = {row[0] for row in self.rows}
        if step.kind == "rename" and renamed not in taken:
            self.rows.append((renamed, *values))
            return Update(self.relation, key, True, (renamed, *values))
        body = old[2] if step.keeps_body else values[1]
        self.rows.append((row_id, values[0], body, values[2]))
        told = UNCHANGED if step.keeps_body else body
        return Update(self.relation, None, False, (row_id, values[0], told, values[2]))


# the ways into a store


class Place:
    """A store and the two ways of rows into it. All have the same secret, so that their checksums are the same."""

    def __init__(self, address: StoreAddress, relation: Relation) -> None:
        self.address = address
        self.relation = relation
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secrets, "token_bytes", bytes)
            self.store = open_store(address).open_writer()
        self.lease = self.store.acquire(TAG, "here:1", 600.0)
        self._lsn = 100

    def bulk(self, yaml: str, plan: SyncPlan, rows: Sequence[Row]) -> None:
        """As a snapshot does, in two parts, of rows that stand one after the other in the source."""
        version = self.store.deploy(yaml, Origin.FILE)
        (staged,) = self.store.stage_tables(self.lease, TAG, [(self.relation, "print")])
        leaf = Leaf(1, "public", "notes", 1, 2, len(rows))
        table = SnapshotTable(staged.id, PublishedTable(self.relation, (leaf,), None, "shape", "print"))
        settings_of_nobody = SourceSettings("nowhere", "nothing", "nobody")
        directory, keys = self.store.staging_directory(self.lease), self.store.keys()
        job = SnapshotJob(
            source=settings_of_nobody, snapshot="", tables=(table,), plan=plan, types=TypeCatalog(), keys=keys,
            store=self.store.address, directory=directory,
        )  # fmt: skip
        half = len(rows) // 2
        chunks = [[join_cells(row) for row in some] for some in (rows[:half], rows[half:])]
        before = Counter(content_id(line) for line in chunks[0])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshots, "read_lines", lambda _source, _name, part, _told: iter([chunks[part.first]]))
            parts = [
                SnapshotTask(
                    Partition(table.published, leaf, number, None, staged.id), CountedCopies(before if number else {})
                ).run(job, number, "0")
                for number in (0, 1)
            ]
        self.store.stage(self.lease, parts)
        state = SourceState(TAG, Lsn(self._lsn), "slot", "1", 1)
        record = BulkRecord("snapshot", TAG, "app", 2, len(rows), 0, 0.0, 1.0)
        self.store.publish(self.lease, state, [staged], version.id, definitions_of(plan), record)

    def live(self, plans: Sequence[SyncPlan], changes: Sequence[RowChange], written: dict[int, set[str]]) -> None:
        """As the stream does, some changes to a flush."""
        for start in range(0, len(changes), 4):
            table = self._live_table(plans)
            flush = self.store.begin(self.lease)
            fold = Fold(
                flush, IncompleteRows(), _PIECE, fill=_nobody_to_ask, defer_to_resync=_nobody_to_ask, written=written
            )
            fold.apply([(table, change) for change in changes[start : start + 4]])
            self._lsn += 10
            flush.commit(TAG, ReplicationProgress(Lsn(self._lsn), 1))

    def _live_table(self, plans: Sequence[SyncPlan]) -> LiveTable:
        (stored,) = self.store.tables(TAG)
        context = LiveContext(TAG, tuple(plans), TypeCatalog(), self.store.keys(), _PIECE)
        live = context.table(stored.id, stored.layouts)
        assert live is not None
        return live

    def reprocess(self, yaml: str, plan: SyncPlan, meanwhile: Sequence[RowChange]) -> None:
        """As a deploy does: what stored rows give, evaluated before changes that come before it is taken."""
        version = self.store.deploy(yaml, Origin.COMMAND)
        complete = self.store.complete_definitions(TAG)
        self.store.begin_definitions(
            self.lease, {name: digest for name, digest in definitions_of(plan).items() if name not in complete}
        )
        (stored,) = self.store.tables(TAG)
        ranges = self.store.place_ranges(stored.id, 3).ranges
        job = ReprocessJob(
            source_name=TAG,
            tables=(ReprocessTable(stored, tuple(ranges), 3),),
            plan=without(plan, definitions_of(plan).keys() & complete.keys()),
            types=TypeCatalog(),
            keys=self.store.keys(),
            store=self.store.address,
            directory=self.store.staging_directory(self.lease),
            batch_bytes=_PIECE,
        )
        written: dict[int, set[str]] = {stored.id: set()}
        parts = [ReprocessTask(stored, *places).run(job, number, "0") for number, places in enumerate(ranges)]
        self.live([plan], meanwhile, written)
        for part in parts:
            for page in range(part.pages):
                self.store.take_page(self.lease, part, page, written[stored.id])
        again = [ReprocessTask(stored, *places).run(job, number, "1") for number, places in enumerate(ranges)]
        assert sum(part.ops for part in again) == 0, "an attempt that was cut short is not repeated in what it did"
        self.store.activate(self.lease, version.id, {TAG: definitions_of(plan)})

    def held(self, plan: SyncPlan) -> Held:
        """What devices see. The store is whole."""
        self.store.close()
        assert problems(self.address) == []
        found: Held = {}
        with closing(open_store(self.address).open_reader()) as reader, reader.snapshot() as snapshot:
            assert snapshot is not None
            for user in WORDS:
                names = [b.name for b in resolve(plan, SyncRequest({"sub": user}), snapshot.lookups).buckets]
                totals = snapshot.totals(names)
                found[user] = {}
                for name in names:
                    model = read_bucket(reader, name, snapshot.checkpoint.op_id)
                    assert model.checksum == totals[name].checksum
                    found[user][name] = Counter(
                        (table, object_id, data, checksum)
                        for (table, object_id, _), (_, data, checksum) in model.rows.items()
                    )
        return found


def _nobody_to_ask(*_: object) -> NoReturn:
    raise AssertionError("every value is in the stream or in the store")


def without_ids(held: Held) -> dict[str, dict[str, Counter[str]]]:
    """Just the data, where ids are chance."""
    return {
        user: {name: Counter(_data(rows.elements())) for name, rows in buckets.items()}
        for user, buckets in held.items()
    }


def _data(rows: Iterable[tuple[str, str, str, int]]) -> Iterable[str]:
    for _, _, data, _ in rows:
        yield json.dumps({key: value for key, value in json.loads(data).items() if key != "id"})


def compare(new_address: NewAddress, identity: ReplicaIdentity, history: Sequence[Step]) -> None:
    """The same history by three ways."""
    relation, keyed = relation_of(identity), identity is ReplicaIdentity.DEFAULT
    first, second = plan_of(MINE, keyed=keyed), plan_of(MINE + MORE, keyed=keyed)
    source = Source(relation)
    changes, states = [], [list[Row]()]
    for step in history:
        change = source.does(step)
        if change is not None:
            changes.append(change)
            states.append(list(source.rows))
    streamed = Place(new_address(), relation)
    streamed.bulk(*second, [])
    streamed.live([second[1]], changes, {})
    at_once = Place(new_address(), relation)
    at_once.bulk(*second, states[-1])
    reprocessed = Place(new_address(), relation)
    early, late = len(changes) // 3, 2 * len(changes) // 3
    reprocessed.bulk(*first, states[early])
    reprocessed.live([first[1]], changes[early:late], {})
    reprocessed.reprocess(*second, changes[late:])
    ways = [place.held(second[1]) for place in (streamed, at_once, reprocessed)]
    if identity is ReplicaIdentity.NOTHING:
        assert without_ids(ways[0]) == without_ids(ways[1]) == without_ids(ways[2])
    else:
        assert ways[0] == ways[1] == ways[2]
    mine = [rows for held in ways[0].values() for name, rows in held.items() if name.startswith("mine")]
    assert sum(rows.total() for rows in mine) == len(source.rows)


@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES)
def test_snapshot_stream_and_compare_lead_to_same_store(new_address: NewAddress, identity: ReplicaIdentity) -> None:
    few = isinstance(new_address(), PostgresAddress)

    @settings(max_examples=4 if few else 20, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(st.lists(steps, min_size=8, max_size=40))
    def holds(history: list[Step]) -> None:
        compare(new_address, identity, history)

    holds()
