"""`headwater store forget`: a value removed from all that the store keeps, and a search that shows that it is gone."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field

import click
import orjson

from headwater.bulk.contract import TableLockedError
from headwater.cli.rules.store import existing_store
from headwater.cli.rules.words import count, size
from headwater.compaction.forgetting import BucketFindings, Forgetter, by_bucket, look
from headwater.config import ServiceConfig
from headwater.errors import HeadwaterError, Kind
from headwater.source.catalog import published_tables
from headwater.source.connect import connect
from headwater.source.search import has_row, has_text
from headwater.storage.address import PostgresAddress, StoreAddress
from headwater.storage.backend import Store
from headwater.storage.contract.compaction import UpkeepStore
from headwater.storage.contract.forget import (
    LEAST_TEXT,
    ForgetStore,
    FoundText,
    Searched,
    SearchedFile,
    Sought,
    SoughtRow,
    SoughtText,
)
from headwater.storage.contract.store import Lease, LeaseHeldError, StoredTable
from headwater.storage.open import open_backend
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
            f"{_place(text)} ({text.count - text.erasable})"
            for text in self.texts
            if text.count > text.erasable and (text.table, text.column) != ("buckets", "name")
        ]
        for key, found in self.buckets.items():
            if found.standing and not by_id:
                held.append(f"a bucket of {found.definition}, in {count(found.standing, 'row')} that stand there")
            elif key in self.named and found.rows:
                held.append(f"the name of a bucket of {found.definition}, with {count(found.rows, 'row')} in it")
        return held


def forget(
    config: ServiceConfig,
    table: str | None,
    row_id: str | None,
    text: str | None,
    *,
    id_too: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Forget a row of `table`, or a text ("-" reads it from the standard input). Raises StillHeldError while the source
    or a row that stands holds it, NotForgottenError when the store changed so much meanwhile that some is left."""
    if text == "-":
        text = sys.stdin.read().rstrip("\n")
    if text is not None and len(text) < LEAST_TEXT:
        raise ForgetUsageError(
            f"a text of fewer than {LEAST_TEXT} characters is found everywhere by chance",
            "--contains",
            "name more of it, or a row by --table and --id",
        )
    with existing_store(config) as store:
        stored = _tables(store, config.source().tag, table)
        _check_source(config, stored, row_id, text)
        sought = _sought(store, stored, row_id, text, id_too=id_too)
        backend = open_backend(store.address)
        with closing(backend.open_forget()) as finder, closing(backend.open_compaction()) as upkeep:
            generation = stored[0].id if row_id is not None else 0
            Forgetting(store.address, finder, upkeep, sought, generation).run(dry_run=dry_run, yes=yes)


def _tables(store: Store, tag: str, name: str | None) -> list[StoredTable]:
    """The table that is named, or all."""
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


def _sought(
    store: Store, tables: Sequence[StoredTable], row_id: str | None, text: str | None, *, id_too: bool
) -> Sought:
    if text is not None:
        return SoughtText(text)
    assert row_id is not None
    others = {str(each.id) for each in store.tables(tables[0].source)} - {str(tables[0].id)}
    return SoughtRow(row_id, store.subkey_salt(), frozenset(others), id_too)


def _check_source(config: ServiceConfig, stored: Sequence[StoredTable], row_id: str | None, text: str | None) -> None:
    """Raises StillHeldError. A table that is not published any more holds nothing for us."""
    names = {_name(table) for table in stored}
    with connect(config.source(), application_name="headwater forget") as conn:
        for table in published_tables(conn, config.source().publications):
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

    def run(self, *, dry_run: bool, yes: bool) -> None:
        """Say what is to be done, do it, and prove it."""
        plan = self._settled_plan()
        for line in _planned(plan, self._finder.size()):
            click.echo(line)
        if dry_run:
            click.echo("nothing was changed")
            return
        if not yes:
            click.confirm("Remove it for good?", abort=True)
        with self._lease() as lease:
            self._remove(plan, lease)
            self._finder.rewrite(click.echo)
        self._prove(plan.samples)

    # looking

    def _settled_plan(self) -> Plan:
        """The stream may still be on its way here with what was just deleted in the source."""
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
                click.echo("the service is not done with it yet; waiting for a moment", err=True)
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

    def _prove(self, samples: Sequence[str]) -> None:
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
        for line in _proof(plan.searched, files, searchable=bool(samples), where=self._address):
            click.echo(line)


def _samples(ops: Sequence[str]) -> tuple[str, ...]:
    """The data of PUTs as they stand in ops: texts long enough to be found in files by no chance."""
    found = dict.fromkeys(
        orjson.dumps(data).decode()[1:-1] for op in ops if (data := orjson.loads(op).get("data")) is not None
    )
    return tuple(data for data in found if len(data) >= _LEAST_SAMPLE)[:_SAMPLES]


# words


_PLACES = {
    "lookups": "lookups of a row that stands",
    "flushes": "records of what flushes touched",
    "requests": "requests of commands",
    "versions": "versions of the sync config",
    "write_checkpoints": "write checkpoints of devices",
    "tables": "descriptions of tables",
}


def _place(text: FoundText) -> str:
    if text.table.startswith("rows_"):
        return "rows that stand"
    return f"{_PLACES.get(text.table, text.table)} ({text.column})"


def _planned(plan: Plan, store_size: int) -> Iterator[str]:
    found = [each for each in plan.buckets.values() if each.left]
    overruled, removes = sum(each.overruled for each in found), sum(each.removes for each in found)
    if not plan.places:
        yield "nothing that the store can still read has it"
    if overruled:
        yield f"{count(overruled, 'op')} in {count(len(found), 'bucket')}: emptied, ids and checksums stay"
    if removes:
        again, again_bytes = sum(each.again for each in found), sum(each.again_bytes for each in found)
        yield (
            f"{count(removes, 'removal')} to take out: everything before becomes one CLEAR; "
            f"{count(again, 'row')} ({size(again_bytes)}) standing there are put again, and devices download them again"
        )
    if plan.named:
        yield f"{count(len(plan.named), 'bucket')} named by it and empty: removed"
    for text in plan.texts:
        if text.erasable:
            yield f"{_place(text)}: {text.erasable:,} erased"
    yield f"then the store's files ({size(store_size)}) are written anew; nobody can write to them while that takes"


def _proof(
    searched: Searched, files: Sequence[SearchedFile], *, searchable: bool, where: StoreAddress
) -> Iterator[str]:
    yield "it is gone. Searched, and not found in:"
    yield f"  {count(searched.ops, 'op')} as single lines"
    yield f"  {count(searched.segments, 'segment')}, {size(searched.segment_bytes)} once decompressed"
    if searched.texts:
        yield f"  {count(searched.texts, 'column')} of text: rows, lookups, names, records"
    for file in files:
        yield f"  the bytes of {file.name}, {file.size:,}"
    if not searchable:
        yield "  (no version of the row was there, so there was nothing to look for in the bytes of files)"
    elif not files:
        yield "  (the bytes of the database's files were not searched: its role may not read them)"
    yield "Out of reach, and for you to see to:"
    for place in _OUT_OF_REACH_POSTGRES if isinstance(where, PostgresAddress) else _OUT_OF_REACH:
        yield f"  {place}"


_ALWAYS_OUT_OF_REACH = (
    "backups and exports of the store, and copies of its disk",
    "devices that are offline: they drop it when they sync next",
    "logs, and what other programs read from the op log",
    "the memory of running processes, until they end",
    "the source's own files, write-ahead log and backups",
)
_OUT_OF_REACH = (
    *_ALWAYS_OUT_OF_REACH,
    "blocks that the file system has freed: only the disk's encryption or trimming helps",
)
_OUT_OF_REACH_POSTGRES = (
    *_ALWAYS_OUT_OF_REACH,
    "the write-ahead log, replicas and archives of the store's Postgres, and blocks that its file system has freed",
)
