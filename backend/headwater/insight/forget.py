"""A value removed from all that the store keeps, and a search that shows that it is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson

from headwater.bulk.contract import TableLockedError
from headwater.compaction.forgetting import BucketFindings, Forgetter, by_bucket, look
from headwater.errors import HeadwaterError, Kind
from headwater.insight.words import count
from headwater.source.catalog.published import published_tables
from headwater.source.connect import SourceSettings, connect
from headwater.source.rows.search import has_row, has_text
from headwater.storage.address import StoreAddress
from headwater.storage.backend import Store
from headwater.storage.contract.compaction import UpkeepStore
from headwater.storage.contract.forget import (
    ForgetStore,
    FoundText,
    Searched,
    SearchedFile,
    Sought,
    SoughtRow,
    SoughtText,
)
from headwater.storage.contract.store import Lease, LeaseHeldError, StoredTable
from headwater.storage.shared.common import process_owner

_LEASE_SECONDS = 600.0  # writing the files anew can take long, and nothing is renewed meanwhile
_LEASE_PATIENCE = 300.0
STREAM_PATIENCE = 15.0
_SAMPLES, _LEAST_SAMPLE = 500, 16


class StillHeldError(HeadwaterError):
    """The value can't be forgotten, because something still holds it."""

    code = "HW_8401"


class NotForgottenError(HeadwaterError):
    """The search afterwards found the value."""

    kind = Kind.RETRY
    code = "HW_8402"


class ForgetUsageError(HeadwaterError):
    """What was asked for can't be forgotten."""

    code = "HW_8403"


@dataclass(slots=True)
class Plan:
    """Where the store has what is to be forgotten. `orphans` are ops of no bucket; `samples` are texts of the versions
    of a row, by which the files are searched."""

    buckets: dict[int, BucketFindings] = field(default_factory=dict)
    named: frozenset[int] = frozenset()
    texts: list[FoundText] = field(default_factory=list)
    rows: int = 0
    orphans: int = 0
    samples: tuple[str, ...] = ()
    searched: Searched = field(default_factory=Searched)

    @property
    def places(self) -> int:
        erasable = sum(text.erasable for text in self.texts)
        return sum(found.left for found in self.buckets.values()) + erasable + len(self.named) + self.orphans

    def held(self, *, by_id: bool) -> list[str]:
        """What still needs the value, in words."""
        held = [f"a row of its table ({self.rows})"] if self.rows else []
        held += [
            f"{place_of(text)} ({text.count - text.erasable})"
            for text in self.texts
            if text.count > text.erasable and (text.table, text.column) != ("buckets", "name")
        ]
        for key, found in self.buckets.items():
            if found.standing and not by_id:
                held.append(f"a bucket of {found.definition}, in {count(found.standing, 'row')} that stand there")
            elif key in self.named and found.rows:
                held.append(f"the name of a bucket of {found.definition}, with {count(found.rows, 'row')} in it")
        return held


@dataclass(frozen=True, slots=True)
class Proof:
    """Where it was looked for in vain. Files can't be searched for a row of which no version was there."""

    searched: Searched
    files: tuple[SearchedFile, ...]
    searchable: bool


def tables_named(store: Store, tag: str, name: str | None) -> list[StoredTable]:
    """The table that is named, or all of a source. Raises ForgetUsageError."""
    tables = store.tables(tag)
    if name is None:
        return tables
    found = [table for table in tables if name in {_name(table), table.relation.name}]
    if len(found) != 1:
        known = ", ".join(sorted(map(_name, tables))) or "none"
        raise ForgetUsageError(f"no such table is replicated: {name}", f"there are: {known}", "name it with its schema")
    return found


def _name(table: StoredTable) -> str:
    return f"{table.relation.schema}.{table.relation.name}"


def what_is_sought(
    store: Store, tables: Sequence[StoredTable], row_id: str | None, text: str | None, *, id_too: bool
) -> Sought:
    """A text, or a row of the only one of the tables."""
    if text is not None:
        return SoughtText(text)
    assert row_id is not None
    others = {str(each.id) for each in store.tables(tables[0].source)} - {str(tables[0].id)}
    return SoughtRow(row_id, store.subkey_salt(), frozenset(others), id_too)


def check_source(source: SourceSettings, stored: Sequence[StoredTable], row_id: str | None, text: str | None) -> None:
    """Raises StillHeldError while the source has it in one of these tables, TableLockedError where it does not say.
    A table that is not published any more holds nothing for us."""
    names = {_name(table) for table in stored}
    with connect(source, application_name="headwater forget") as conn:
        for table in published_tables(conn, source.publications):
            if table.qualified_name not in names:
                continue
            if table.locked:
                raise TableLockedError("somebody keeps the table locked", table.qualified_name, "run it again later")
            if row_id is not None and has_row(conn, table, row_id):
                raise StillHeldError(
                    "the source still has the row", table.qualified_name, "delete it there first, then run it again"
                )
            if text is not None and has_text(conn, table, SoughtText(text).hints):
                raise StillHeldError(
                    "the source still has the text", table.qualified_name, "remove it there first, then run it again"
                )


class Forgetting:
    """What is done once the source has been asked. `table` is the generation of the table whose row is sought."""

    def __init__(
        self, address: StoreAddress, finder: ForgetStore, upkeep: UpkeepStore, sought: Sought, table: int = 0
    ) -> None:
        self._address = address
        self._finder = finder
        self._upkeep = upkeep
        self._sought = sought
        self._table = table

    @property
    def _by_id(self) -> bool:
        return isinstance(self._sought, SoughtRow)

    def remove(self, plan: Plan, say: Callable[[str], None]) -> None:
        """Do what is planned, and tell of each step that takes long."""
        with self._lease() as lease:
            self._remove(plan, lease)
            self._finder.rewrite(say)

    @property
    def files_size(self) -> int:
        """Bytes of the files that are to be written anew."""
        return self._finder.size()

    # looking

    def plan(self, on_wait: Callable[[], None]) -> Plan:
        """Where it is. The stream may still be on its way here with what was just deleted in the source: `on_wait` is
        told once that this is waited for. Raises StillHeldError and NotForgottenError."""
        deadline = time.monotonic() + STREAM_PATIENCE
        told = False
        while True:
            plan = self._look()
            held = plan.held(by_id=self._by_id)
            if not held and not plan.orphans and not self._finder.unpublished():
                return plan
            if time.monotonic() > deadline:
                self._refuse(plan, held)
            if not told:
                on_wait()
            told = True
            time.sleep(0.5)

    def _refuse(self, plan: Plan, held: Sequence[str]) -> None:
        where = str(self._address)
        if held:
            raise StillHeldError(
                f"the store still needs it: {'; '.join(held)}",
                where,
                "see that the service runs and has caught up (`headwater source status`); a table that it no longer "
                "follows is brought up to date by `headwater source resync`",
            )
        what = "ops of buckets that are being removed have it" if plan.orphans else "a bulk job is under way"
        raise NotForgottenError(what, where, "wait until the service is done with that, then run it again")

    def _look(self) -> Plan:
        hints = self._sought.hints
        plan = Plan()
        found = [op for op in self._finder.ops(hints, plan.searched) if self._sought.is_in(op.line)]
        plan.orphans = sum(not op.bucket for op in found)
        if not isinstance(self._sought, SoughtRow):
            plan.texts = self._finder.texts(hints, plan.searched)
            plan.named = frozenset(self._finder.named_buckets(hints))
            plan.samples = hints
        else:
            plan.rows = self._finder.rows(self._table, self._sought.row_id)
            plan.samples = _samples([op.line for op in found])
        ids = by_bucket((op.bucket, op.op_id) for op in found if op.bucket)
        for bucket in sorted({*ids, *plan.named}):
            seen = look(self._upkeep, bucket, ids.get(bucket, set()))
            if seen is not None:
                plan.buckets[bucket] = seen
        return plan

    # removing

    @contextmanager
    def _lease(self) -> Iterator[Lease]:
        """No one else may rewrite history meanwhile."""
        lease = self._acquire()
        try:
            yield lease
        finally:
            self._upkeep.release(lease)

    def _acquire(self) -> Lease:
        """Background compaction never holds the lease for long."""
        deadline = time.monotonic() + _LEASE_PATIENCE
        while True:
            try:
                return self._upkeep.acquire(process_owner(), _LEASE_SECONDS)
            except LeaseHeldError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _remove(self, plan: Plan, lease: Lease) -> None:
        forgetter = Forgetter(self._upkeep, lease, lambda seconds: time.sleep(max(0.01, 2 * seconds)))
        for bucket, found in plan.buckets.items():
            forgetter.rewrite(bucket, clear=bool(found.removes) or bucket in plan.named)
            if bucket in plan.named:
                self._finder.drop_bucket(lease, bucket)
        if not self._by_id:
            self._finder.erase_texts(lease, self._sought.hints)

    # proving

    def prove(self, samples: Sequence[str]) -> Proof:
        """Search for it again, in the files too by `samples` of it. Raises NotForgottenError when it is found."""
        plan = self._look()
        left = plan.places + len(plan.held(by_id=self._by_id))
        files = self._finder.search_files(samples) if samples else []
        with_it = [file.name for file in files if file.found]
        if left or with_it:
            places = [*([count(left, "place")] if left else []), *with_it]
            raise NotForgottenError(
                f"it is still there: {', '.join(places)}",
                str(self._address),
                "somebody wrote it meanwhile, or it is part of what must stay; run it again with --dry-run",
            )
        return Proof(plan.searched, tuple(files), bool(samples))


def _samples(ops: Sequence[str]) -> tuple[str, ...]:
    """The data of PUTs as they stand in ops: texts long enough to be found in files by no chance."""
    found = dict.fromkeys(
        orjson.dumps(data).decode()[1:-1] for op in ops if (data := orjson.loads(op).get("data")) is not None
    )
    return tuple(data for data in found if len(data) >= _LEAST_SAMPLE)[:_SAMPLES]


_PLACES = {
    "lookups": "lookups of a row that stands",
    "flushes": "records of what flushes touched",
    "requests": "requests of commands",
    "versions": "versions of the sync config",
    "write_checkpoints": "write checkpoints of devices",
    "tables": "descriptions of tables",
}


def place_of(text: FoundText) -> str:
    """Where a text stands in a store, in words."""
    if text.table.startswith("rows_"):
        return "rows that stand"
    return f"{_PLACES.get(text.table, text.table)} ({text.column})"
