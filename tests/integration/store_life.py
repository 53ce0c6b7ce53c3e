"""A store that is written to as a replicator, bulk jobs and compaction do, by a process that can die anywhere:
`python -m tests.integration.store_life ADDRESS SEED FAVOURITE`.

It follows the source on paper (`little_source`) from wherever the store stands. After each transaction of the store
that brought it further it says how far. What it does next is chance, its favourite more often than the rest.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing

from headwater.compaction.compactor import CompactionPass
from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.oplog.row_id import subkey_origin
from headwater.oplog.transform import Bucket, Buckets, RowKeys, decode_memberships, encode_memberships, row_ops
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.parts import BulkRecord, CurrentRow, StagedPart
from headwater.storage.contract.store import ReplicationProgress, SourceState
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.open import open_store
from headwater.storage.shared.compaction import CompactionPolicy
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.leases import process_owner
from headwater.storage.sql.parts import PartWriter
from headwater_rules.results import Put
from tests.integration.little_source import (
    DEFINITIONS,
    RELATION,
    SOURCE,
    entries,
    puts,
    rows_after,
    sides_of,
    some_config,
    transaction,
)

FAVOURITES = {
    "flush.before_totals": "flush",
    "flush.before_commit": "flush",
    "flush.after_commit": "flush",
    "stage.after_part": "snapshot",
    "publish.before_segments": "snapshot",
    "publish.before_commit": "snapshot",
    "publish.after_commit": "snapshot",
    "deploy.before_commit": "deploy",
    "page.before_commit": "work",
    "page.after_commit": "work",
    "activate.before_commit": "work",
    "activate.after_commit": "work",
    "retire.before_commit": "retire",
    "compact.before_commit": "compact",
    "compact.after_commit": "compact",
    "stage.after_page": "rekey",
    "replace.before_commit": "rekey",
}
"""By failpoint, what to do often so as to come by it soon."""

MIGRATION_POINTS = ("migrate.after_step", "migrate.before_commit")

LSN_EACH = 10
_STEPS = 2_000
_PAGE = 9
_RETIRED_AT_ONCE = 7


class Life:
    """One process's share of a store's history."""

    def __init__(self, address: StoreAddress, seed: int) -> None:
        self._address = address
        self._chance = random.Random(seed)
        self._store = open_store(address).open_writer()
        self._lease = self._store.acquire(SOURCE, process_owner(), 60.0)
        self._store.discard_staged(self._lease)
        self._pages: Iterator[tuple[StagedPart, int]] | None = None
        self._deploying: ConfigVersion | None = None
        self._written: set[str] = set()
        self._number = 0
        state = self._store.source_state(SOURCE)
        if state is None:
            self.snapshot()
        else:
            self._number = state.lsn // LSN_EACH
            self._forget_half_built()
        (self._table,) = [table.id for table in self._store.tables(SOURCE)]

    def live(self, favourite: str) -> None:
        """Go on for a while, whatever that is."""
        stream, config, compaction = [self.flush, self.work], [self.deploy, self.retire], [self.compact]
        steps = [*stream, *config, *compaction, self.snapshot, self.rekey]
        weights = [60, 40, 3, 10, 10, 2, 2]
        for _ in range(_STEPS):
            if self._chance.random() < 0.4:
                getattr(self, favourite)()
            else:
                self._chance.choices(steps, weights)[0]()

    # the stream

    def flush(self) -> None:
        """Bring a few transactions."""
        followed = self._followed()
        flush = self._store.begin(self._lease)
        upto = self._number + self._chance.randrange(1, 4)
        for number in range(self._number + 1, upto + 1):
            changes = transaction(number)
            if changes is None:
                self._table = flush.truncate(self._table, [name for name in followed if name in DEFINITIONS])
                continue
            for row_id, text in changes.items():
                self._change(flush, followed, row_id, text)
        flush.commit(SOURCE, ReplicationProgress(Lsn(upto * LSN_EACH), upto))
        self._reached(upto)

    def _change(self, flush: Flush, followed: list[str], row_id: str, text: str | None) -> None:
        before = flush.current(self._table, [row_id]).get(row_id)
        previous = decode_memberships(before.members, row_id) if before is not None else []
        given = [] if text is None else puts(followed, row_id, text)
        subkey = before and before.subkey
        ops, members = row_ops(previous, given, self._keys(row_id, subkey))
        if text is None:
            flush.delete_rows(self._table, [row_id])
            flush.replace_lookups(self._table, row_id, [])
        else:
            line = f"{row_id}\t{text}"
            flush.put_rows(self._table, [CurrentRow(row_id, 0, line, encode_memberships(members, row_id), subkey)])
            flush.replace_lookups(self._table, row_id, entries(followed, row_id, text))
        flush.append(ops, self._names(given))
        self._written.add(row_id)

    def _followed(self) -> list[str]:
        """Row sides that are complete, and those on their way."""
        deploying = sides_of(self._deploying.yaml) if self._deploying is not None else {}
        return sorted({*self._store.complete_definitions(SOURCE), *deploying, *sides_of(self._active())})

    def _keys(self, row_id: str, subkey: str | None = None) -> RowKeys:
        return RowKeys(self._table, row_id, self._store.keys(), subkey)

    def _reached(self, number: int) -> None:
        self._number = number
        print(f"reached {number}", flush=True)

    # a snapshot

    def snapshot(self) -> None:
        """Read the source anew, some transactions ahead."""
        self._give_up()
        store, lease = self._store, self._lease
        while store.retire(lease, (), _RETIRED_AT_ONCE):
            pass
        number = self._number + self._chance.randrange(1, 10)
        version = self._in_state(VersionState.PROCESSING) or self._in_state(VersionState.ACTIVE)
        version = version or store.deploy(some_config(self._chance), Origin.FILE)
        (staged,) = store.stage_tables(lease, SOURCE, [(RELATION, "print")])
        self._table = staged.id
        rows = rows_after(number)
        parts = [self._part(version, part, [row for row in rows.items() if int(row[0]) % 2 == part]) for part in (0, 1)]
        store.stage(lease, parts)
        state = SourceState(SOURCE, Lsn(number * LSN_EACH), "slot", "1", 1)
        record = BulkRecord("snapshot", SOURCE, "app", len(parts), len(rows), len(rows), 0.0, 1.0)
        store.publish(lease, state, [staged], version.id, sides_of(version.yaml), record)
        self._reached(number)

    def _part(self, version: ConfigVersion, number: int, rows: Iterable[tuple[str, str]]) -> StagedPart:
        named = list(sides_of(version.yaml))
        with open_store(self._address).open_part(self._table, number, str(self._chance.random())) as part:
            for row_id, text in rows:
                given = puts(named, row_id, text)
                ops, members = row_ops((), given, self._keys(row_id))
                row = CurrentRow(row_id, 0, f"{row_id}\t{text}", encode_memberships(members, row_id), None)
                part.write([row], [(row_id, entry) for entry in entries(named, row_id, text)], ops, self._names(given))
            return part.finish()

    # another generation of the table

    def rekey(self) -> None:
        """Put the rows into a new generation, as they are, unless a version is on its way."""
        if self._deploying is not None:
            return
        (staged,) = self._store.stage_tables(self._lease, SOURCE, [(RELATION, "print")], indexed=True)
        followed = self._followed()
        for number, (first, end) in enumerate(self._store.place_ranges(self._table, 25).ranges):
            with open_store(self._address).open_part(staged.id, number, str(self._chance.random())) as part:
                for batch in open_store(self._address).read_rows(self._table, first, end):
                    rows = [self._moved(placed.row) for placed in batch]
                    found = [(row.row_id, e) for row in rows for e in entries(followed, *row.line.split("\t"))]
                    part.write(rows, found, (), {})
                    part.end_page()
                finished = part.finish()
            assert all(self._store.stage_page(self._lease, finished, page) for page in range(finished.pages))
        assert self._store.replace_table(self._lease, self._table, staged, None)
        self._table = staged.id

    def _moved(self, row: CurrentRow) -> CurrentRow:
        return row._replace(subkey=row.subkey or subkey_origin(self._table, row.row_id))

    # versions

    def deploy(self) -> None:
        """Hand in another config, whether or not one is on its way."""
        self._store.deploy(some_config(self._chance), Origin.COMMAND)

    def work(self) -> None:
        """A bit of what the version on its way needs; when there is none, hand one in."""
        if self._deploying is None:
            self._begin_deploy()
        elif self._replaced(self._deploying):
            self._give_up()
        elif self._pages is not None:
            self._take_page(self._pages)
        else:
            self._store.activate(self._lease, self._deploying.id, {SOURCE: sides_of(self._deploying.yaml)})
            self._deploying = None

    def _begin_deploy(self) -> None:
        version = self._in_state(VersionState.PROCESSING)
        if version is None and sides_of(self._active()).keys() - self._store.complete_definitions(SOURCE).keys():
            version = self._in_state(VersionState.ACTIVE)
        if version is None:
            self.deploy()
            return
        while self._store.retire(self._lease, (), _RETIRED_AT_ONCE):
            pass
        complete = self._store.complete_definitions(SOURCE)
        missing = {name: digest for name, digest in sides_of(version.yaml).items() if name not in complete}
        self._store.begin_definitions(self._lease, missing)
        self._deploying = version
        self._written = set()
        parts = [
            self._additions(sorted(missing), number, first, end)
            for number, (first, end) in enumerate(self._store.place_ranges(self._table, 25).ranges)
        ]
        self._pages = iter([(part, page) for part in parts for page in range(part.pages)])

    def _additions(self, missing: list[str], number: int, first: int, end: int) -> StagedPart:
        with open_store(self._address).open_part(self._table, number, str(self._chance.random())) as part:
            in_page = 0
            for batch in open_store(self._address).read_rows(self._table, first, end):
                for row in (placed.row for placed in batch):
                    self._add(part, missing, row)
                    in_page += 1
                    if in_page % _PAGE == 0:
                        part.end_page()
            part.end_page()
            return part.finish()

    def _add(self, part: PartWriter, missing: list[str], row: CurrentRow) -> None:
        row_id, text = row.line.split("\t")
        there = {(member.bucket, member.table, member.id) for member in decode_memberships(row.members, row_id)}
        given = [
            p for p in puts(missing, row_id, text) if (self._store.keys().bucket(p.bucket), p.table, p.id) not in there
        ]
        found = [(row_id, entry) for entry in entries(missing, row_id, text)]
        if given or found:
            ops, members = row_ops((), given, self._keys(row_id, row.subkey))
            added = CurrentRow(row_id, 0, "", encode_memberships(members, row_id), row.subkey)
            part.write([added], found, ops, self._names(given))

    def _take_page(self, pages: Iterator[tuple[StagedPart, int]]) -> None:
        part, page = next(pages, (None, 0))
        if part is None:
            self._pages = None
        elif part.table == self._table:  # else the table was truncated since
            self._store.take_page(self._lease, part, page, self._written)

    def _replaced(self, version: ConfigVersion) -> bool:
        processing = self._in_state(VersionState.PROCESSING)
        return version.state is VersionState.PROCESSING and (processing is None or processing.id != version.id)

    def _give_up(self) -> None:
        self._deploying, self._pages = None, None
        self._store.discard_staged(self._lease)
        self._forget_half_built()

    def _forget_half_built(self) -> None:
        """What is not followed any more must not be there: from the first step on it is not."""
        unfinished = {*self._store.unfinished_definitions(SOURCE)} - sides_of(self._active()).keys()
        self._store.retire(self._lease, sorted(unfinished), _RETIRED_AT_ONCE)

    def retire(self) -> None:
        """Forget what no version needs, to the end, with flushes in between."""
        if self._deploying is not None:
            return
        wanted = {VersionState.ACTIVE, VersionState.PROCESSING}
        needed = {name for each in self._store.versions() if each.state in wanted for name in sides_of(each.yaml)}
        obsolete = sorted(self._store.complete_definitions(SOURCE).keys() - needed)
        while self._store.retire(self._lease, obsolete, _RETIRED_AT_ONCE):
            self.flush()

    def _active(self) -> str:
        active = self._in_state(VersionState.ACTIVE)
        return active.yaml if active is not None else ""

    def _in_state(self, state: VersionState) -> ConfigVersion | None:
        return next((version for version in self._store.versions() if version.state is state), None)

    # compaction

    def compact(self) -> None:
        """Shorten the histories of some buckets, for nothing or at a price."""
        with (
            closing(open_store(self._address).open_compaction()) as store,
            CompactionPass(store, process_owner(), lambda _: False) as work,
        ):
            buckets = store.buckets(OpId(0))
            for state in self._chance.sample(buckets, min(len(buckets), 2)):
                policy = CompactionPolicy(budget=self._chance.choice([0, 1 << 20]), least=1)
                work.bucket(state, store.checkpoint(), policy, finish=self._chance.random() < 0.5)

    def _names(self, given: Iterable[Put]) -> Buckets:
        keys = self._store.keys()
        return {put.bucket: Bucket(keys.bucket(put.bucket), put.bucket, DEFINITIONS[put.definition]) for put in given}


def write_address(address: StoreAddress) -> str:
    """An address as an argument of a process."""
    match address:
        case SqliteAddress():
            return json.dumps({"directory": address.directory})
        case PostgresAddress():
            return json.dumps({"conninfo": address.conninfo, "schema": address.schema})


def read_address(text: str) -> StoreAddress:
    """The inverse of `write_address`."""
    fields = json.loads(text)
    return SqliteAddress(**fields) if "directory" in fields else PostgresAddress(**fields)


if __name__ == "__main__":
    Life(read_address(sys.argv[1]), int(sys.argv[2])).live(sys.argv[3])
