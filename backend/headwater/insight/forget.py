"""Removes a value from everything that the store keeps, and searches the store to prove that it is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

from headwater.compaction.bucket import BucketFindings, Forgetter, by_bucket, classify
from headwater.decode.copytext import key_cells, split_line
from headwater.errors import HeadwaterError
from headwater.insight.words import count
from headwater.oplog.row_id import RowIdentity
from headwater.source.catalog.published import published_tables
from headwater.source.connect import SourceSettings, connect
from headwater.source.rows.fetch import has_row, has_text
from headwater.source.rows.query import ComputedResult, ResultReader
from headwater.storage.address import StoreAddress
from headwater.storage.contract.store import Lease, LeaseHeldError, StoredTable
from headwater.storage.sql.compaction import CompactionStore
from headwater.storage.sql.forget import (
    ForgetStore,
    ForgetTarget,
    FoundText,
    RowTarget,
    Searched,
    TextTarget,
)
from headwater.storage.sql.leases import process_owner
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import ComputedTable

_LEASE_SECONDS = 600.0  # rewriting the files can take long, and the lease is not renewed meanwhile
_LEASE_PATIENCE = 300.0
STREAM_PATIENCE = 15.0


@dataclass(slots=True)
class ForgetPlan:
    """Where the store holds what is to be forgotten. `orphans` are ops of no bucket."""

    buckets: dict[int, BucketFindings] = field(default_factory=dict)
    named: frozenset[int] = frozenset()
    texts: list[FoundText] = field(default_factory=list)
    rows: int = 0
    orphans: int = 0
    searched: Searched = field(default_factory=Searched)

    @property
    def places(self) -> int:
        erasable = sum(text.erasable for text in self.texts)
        return sum(found.left for found in self.buckets.values()) + erasable + len(self.named) + self.orphans

    def held(self, *, by_id: bool) -> list[str]:
        """Descriptions of what still needs the value."""
        held = [f"a row of its table ({self.rows})"] if self.rows else []
        held += [
            f"{place_of(text)} ({text.count - text.erasable})"
            for text in self.texts
            if text.count > text.erasable and (text.table, text.column) != ("buckets", "name")
        ]
        for key, found in self.buckets.items():
            if found.standing and not by_id:
                held.append(f"a bucket of {found.definition}, in {count(found.standing, 'current row')}")
            elif key in self.named and found.rows:
                held.append(f"the name of a bucket of {found.definition}, with {count(found.rows, 'row')} in it")
        return held


def tables_named(store: StoreWriter, tag: str, name: str | None) -> list[StoredTable]:
    """The named table, or all tables of a source. Raises HW_8403."""
    tables = store.all_tables(tag)
    if name is None:
        return tables
    found = [table for table in tables if name in {table.relation.qualified_name, table.relation.name}]
    if len(found) != 1:
        known = ", ".join(sorted(table.relation.qualified_name for table in tables)) or "none"
        what, fix = f"table {name} is not replicated", "write it with its schema"
        raise HeadwaterError(what, f"replicated: {known}", fix, code="HW_8403")
    return found


def search_target(
    store: StoreWriter, tables: Sequence[StoredTable], row_id: str | None, text: str | None, *, id_too: bool
) -> ForgetTarget:
    """What to search for: a text, or a row of the only table in `tables`."""
    if text is not None:
        return TextTarget(text)
    assert row_id is not None
    others = {str(each.id) for source in store.sources() for each in store.all_tables(source)} - {str(tables[0].id)}
    return RowTarget(row_id, store.keys(), frozenset(others), id_too)


def check_source(source: SourceSettings, stored: Sequence[StoredTable], row_id: str | None, text: str | None) -> None:
    """Raise HW_8401 when one of these tables in the source holds the value, and HW_2302 when a lock
    prevents the check. Tables that are no longer published are not checked."""
    names = {table.relation.qualified_name for table in stored}
    with connect(source, application_name="headwater forget") as conn:
        for table in published_tables(conn, source.publications):
            if table.qualified_name not in names:
                continue
            if table.locked:
                raise HeadwaterError(
                    "another session keeps the table locked", table.qualified_name, "run it again later", code="HW_2302"
                )
            held = fix = ""
            if row_id is not None and has_row(conn, table, row_id):
                held, fix = "the row", "delete it there first, then run it again"
            elif text is not None and has_text(conn, table, TextTarget(text).hints):
                held, fix = "the text", "remove it there first, then run it again"
            if held:
                raise HeadwaterError(f"the source still has {held}", table.qualified_name, fix, code="HW_8401")


def check_computed(
    source: SourceSettings,
    stored: Sequence[StoredTable],
    computed: Sequence[ComputedTable],
    spark: Callable[[ComputedTable], ComputedResult],
    row_id: str | None,
    text: str | None,
) -> None:
    """Raise HW_8401 when the result of a computed table's query, of those that are `stored`, holds the value; `spark`
    gives the results of queries that the source does not run. Raises ComputedTableError where a query can't be asked,
    EngineError or NoJavaError where Spark can't."""
    names = {table.relation.name for table in stored if table.computed}
    for table in computed:
        if table.name not in names:
            continue
        result = spark(table) if table.spark else ResultReader(source, table, threading.Event())
        if _result_has(result, source.batch_bytes, row_id, text):
            held = "the row" if text is None else "the text"
            fix = "change what it is computed from first, then run it again"
            raise HeadwaterError(f"the source still has {held}", f"computed table {table.name}", fix, code="HW_8401")


def _result_has(result: ComputedResult, batch_bytes: int, row_id: str | None, text: str | None) -> bool:
    with closing(result):
        relation = result.open().relation
        identity, width = RowIdentity.of(relation), len(relation.columns)
        for line in chain.from_iterable(result.lines(relation, batch_bytes)):
            if row_id is not None and identity.key(key_cells(line, width, identity.columns)) == row_id:
                return True
            if text is not None and any(text in (cell or "") for cell in split_line(line, width)):
                return True
    return False


class Forgetting:
    """Finds and removes the value in the store, after the source has been checked. `table` is the table generation of
    the row to forget."""

    def __init__(
        self,
        address: StoreAddress,
        finder: ForgetStore,
        compaction: CompactionStore,
        target: ForgetTarget,
        table: int = 0,
    ) -> None:
        self._address = address
        self._finder = finder
        self._compaction = compaction
        self._target = target
        self._table = table

    @property
    def _by_id(self) -> bool:
        return isinstance(self._target, RowTarget)

    def remove(self, plan: ForgetPlan, say: Callable[[str], None]) -> None:
        """Carry out the plan. Calls `say` before each step that takes long. Holds the compaction lease, so that no
        other process rewrites history meanwhile."""
        lease = self._acquire()
        try:
            forgetter = Forgetter(self._compaction, lease, lambda seconds: time.sleep(max(0.01, 2 * seconds)))
            for bucket, found in plan.buckets.items():
                forgetter.rewrite(bucket, clear=bool(found.removes) or bucket in plan.named)
                if bucket in plan.named:
                    self._finder.drop_bucket(lease, bucket)
            if not self._by_id:
                self._finder.erase_texts(lease, self._target.hints)
            self._finder.files.rewrite(say)
        finally:
            self._compaction.release(lease)

    @property
    def files_size(self) -> int:
        """Bytes of the files to be rewritten."""
        return self._finder.files.size()

    def plan(self, on_wait: Callable[[], None]) -> ForgetPlan:
        """Find the value. The deletion in the source may not have reached the store yet: waits some seconds for it, and
        calls `on_wait` once. Raises HW_8401 and HW_8402."""
        deadline = time.monotonic() + STREAM_PATIENCE
        announced = False
        while True:
            plan = self._look()
            held = plan.held(by_id=self._by_id)
            if not held and not plan.orphans and not self._finder.unpublished():
                return plan
            if time.monotonic() > deadline:
                self._refuse(plan, held)
            if not announced:
                on_wait()
            announced = True
            time.sleep(0.5)

    def _refuse(self, plan: ForgetPlan, held: Sequence[str]) -> None:
        where = str(self._address)
        if held:
            raise HeadwaterError(
                f"the store still needs it: {'; '.join(held)}",
                where,
                "check that the service runs and has caught up (`headwater source status`); a table that it no longer "
                "follows is brought up to date by `headwater source resync`",
                code="HW_8401",
            )
        what = "ops of buckets that are being removed hold it" if plan.orphans else "a bulk job is running"
        fix = "wait until the service has finished that, then run it again"
        raise HeadwaterError(what, where, fix, code="HW_8402")

    def _look(self) -> ForgetPlan:
        hints = self._target.hints
        plan = ForgetPlan()
        found = [op for op in self._finder.ops(hints, plan.searched) if self._target.is_in(op.line)]
        plan.orphans = sum(not op.bucket for op in found)
        if not isinstance(self._target, RowTarget):
            plan.texts = self._finder.texts(hints, plan.searched)
            plan.named = frozenset(self._finder.named_buckets(hints))
        else:
            plan.rows = self._finder.rows(self._table, self._target.row_id)
        ids = by_bucket((op.bucket, op.op_id) for op in found if op.bucket)
        for bucket in sorted({*ids, *plan.named}):
            seen = classify(self._compaction, bucket, ids.get(bucket, set()))
            if seen is not None:
                plan.buckets[bucket] = seen
        return plan

    def _acquire(self) -> Lease:
        """Take the lease, waiting for background compaction, which never holds it for long."""
        deadline = time.monotonic() + _LEASE_PATIENCE
        while True:
            try:
                return self._compaction.acquire(process_owner(), _LEASE_SECONDS)
            except LeaseHeldError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def prove(self) -> Searched:
        """Search for the value again, and return what was searched. Raises HW_8402 when it is found."""
        plan = self._look()
        left = plan.places + len(plan.held(by_id=self._by_id))
        if left:
            raise HeadwaterError(
                f"it is still there: {count(left, 'place')}",
                str(self._address),
                "it was written again meanwhile, or is part of data that must stay; run it again with --dry-run",
                code="HW_8402",
            )
        return plan.searched


_PLACES = {
    "lookups": "lookups of a current row",
    "flushes": "records of what flushes touched",
    "requests": "requests of commands",
    "versions": "versions of the sync config",
    "write_checkpoints": "write checkpoints of devices",
    "tables": "descriptions of tables",
}


def place_of(text: FoundText) -> str:
    """A description of where a text is in a store."""
    if text.table.startswith("rows_"):
        return "current rows"
    return f"{_PLACES.get(text.table, text.table)} ({text.column})"
