"""The replicator's side of a store, except for flushes and taking over results of bulk jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType

from headwater.failpoints import failpoint
from headwater.oplog.change import Relation
from headwater.oplog.keys import StoreKeys
from headwater.oplog.lsn import Lsn
from headwater.storage.address import StoreAddress
from headwater.storage.contract.parts import BulkRecord, Places, StagedPart, StagedTable
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.reason import ResyncReason
from headwater.storage.contract.store import (
    AdminChange,
    Lease,
    Request,
    RequestState,
    Revocation,
    RevokedKind,
    SourceState,
    StoredCase,
    StoredTable,
    StoreError,
)
from headwater.storage.contract.versions import (
    ConfigVersion,
    NewerVersionError,
    NotProcessingError,
    Origin,
    VersionState,
)
from headwater.storage.shared.common import op_floor
from headwater.storage.sql import bucket_keys, bulk, control, leases, ops, retire, write_checkpoints
from headwater.storage.sql import tables as generations
from headwater.storage.sql.cursor import Cursor, Row
from headwater.storage.sql.flush import Flush

_VERSION = "id, yaml, state, origin, created_at, activated_at, stopped_at, note, author, message"
_REQUEST = "id, kind, source, payload, state, progress, result, created_at"
_REQUESTS_KEPT_SECONDS = 86_400
_FORGOTTEN_AT_ONCE = 5_000


class StoreWriter(ABC):
    """The writing side of a store: of a replicator, with one thread and one lease per source, and of commands. Each
    database adds what its live path and bulk jobs need. Calls block."""

    @property
    @abstractmethod
    def address(self) -> StoreAddress: ...

    @abstractmethod
    def _work(self) -> AbstractContextManager[Cursor]:
        """A cursor for the replicator's thread."""

    @abstractmethod
    def _beside(self) -> AbstractContextManager[Cursor]:
        """A cursor for any thread, which no flush occupies."""

    @abstractmethod
    def _writes(self) -> AbstractContextManager[Cursor]:
        """A cursor for write checkpoints."""

    @abstractmethod
    def _sweep(self) -> None:
        """Have the rows of dropped table generations deleted, if they still are there."""

    # leases

    def acquire(self, name: str, owner: str, ttl: float) -> Lease:
        """Take the lease for `ttl` seconds if it is free, expired, ours, or held by a dead process. Raises
        LeaseHeldError."""
        with self._beside() as db:
            lease = leases.acquire(db, name, owner, ttl)
            # A store restored from a backup must continue above all ids given out since that backup
            now = db.rows(f"select {db.dialect.now}")[0][0]
            db.execute("update state set next_op = ?1 where next_op < ?1", op_floor(now))
            control.set_meta(db, leases.HELD_SINCE.format(name), str(now))
            return lease

    def renew(self, lease: Lease) -> None:
        """Extend the lease. Raises LeaseLostError when a newer one exists. May be called from another thread."""
        with self._beside() as db, db.transaction():
            leases.extend(db, lease)

    def release(self, lease: Lease) -> None:
        with self._beside() as db:
            leases.release(db, lease)

    # live replication

    @abstractmethod
    def begin(self, lease: Lease) -> Flush:
        """Begin a transaction under the lease. Raises LeaseLostError."""

    # reading

    def source_state(self, tag: str) -> SourceState | None:
        with self._work() as db:
            return generations.source_state(db, tag)

    def tables(self, tag: str) -> list[StoredTable]:
        """The active generations of the tables that a source streams."""
        return [table for table in self.all_tables(tag) if not table.computed]

    def all_tables(self, tag: str) -> list[StoredTable]:
        """The same, and those of its computed tables."""
        with self._work() as db:
            return generations.active(db, tag)

    def keys(self) -> StoreKeys:
        """Makes the keys and digests of the store as of now: a bucket may be moved later."""
        with self._work() as db:
            return bucket_keys.keys(db, control.secret(db))

    def bulk_records(self) -> list[BulkRecord]:
        with self._work() as db:
            return generations.bulk_records(db)

    def place_ranges(self, table: int, rows: int) -> Places:
        """Ranges of places that cover all rows of the table, about `rows` rows each."""
        with self._work() as db:
            return db.dialect.place_ranges(db, table, rows)

    def place_bounds(self, table: int) -> tuple[int, int] | None:
        """The first and the last place of the table's rows, None where there are none. Cheap, unlike `place_ranges`."""
        with self._work() as db:
            ends = (f"(select {end}({db.dialect.place}) from rows_{table:d})" for end in ("min", "max"))
            ((first, last),) = db.rows(f"select {', '.join(ends)}")
            return None if first is None else (first, last)

    # texts under a key, and how the replicator does

    @abstractmethod
    def report_status(self, lease: Lease, text: str) -> None:
        """Replace the text of `StoreReader.replicator_status`. Does not wait for an open flush, and where that can be,
        works while the store can't be written. May be called from another thread, but from one at a time."""

    def set_meta(self, lease: Lease, key: str, text: str) -> None:
        """Store a short text under a key, replacing the one before."""
        with self._work() as db, db.transaction(lease):
            control.set_meta(db, key, text)

    def get_meta(self, key: str) -> str:
        """The text under a key; empty when there is none."""
        with self._work() as db:
            return control.get_meta(db, key) or ""

    # bulk jobs

    @abstractmethod
    def _empty_staging(self, lease: Lease) -> None:
        """Delete what is in the staging directory of the lease's source."""

    @abstractmethod
    def staging_directory(self, lease: Lease) -> str:
        """A directory of this machine for the progress of a bulk job of a source; `discard_staged` empties it."""

    @abstractmethod
    def discard_staged(self, lease: Lease) -> None:
        """Delete what an unfinished bulk job of the lease's source left."""

    def tick(self, source: str) -> int:
        """The time at which rows of the source were evaluated last, in microseconds since 1970; 0 before."""
        with self._work() as db:
            return generations.tick(db, source)

    def move_tick(self, lease: Lease, source: str, now: int) -> int:
        """Let rows of the source be evaluated at `now`, or at the stored time if that is later. Returns which."""
        with self._work() as db, db.transaction(lease):
            generations.set_tick(db, source, now)
            return generations.tick(db, source)

    def next_flip(self, tables: Iterable[int]) -> int | None:
        """When the next row of these tables has to be evaluated again; None: not at all."""
        with self._work() as db:
            return generations.next_flip(db, tables)

    def tables_with_flips(self, source: str) -> set[int]:
        """The tables of the source of which some row has to be evaluated again some time."""
        with self._work() as db:
            return generations.tables_with_flips(db, source)

    def stage(self, lease: Lease, parts: Sequence[StagedPart]) -> None:
        """Take over parts, in short transactions. The work is proportional to their size; readers see nothing of it."""
        with self._work() as db:
            bulk.stage(db, lease, parts)

    def stage_page(self, lease: Lease, part: StagedPart, page: int) -> bool:
        """Take over rows and lookups of one page into an indexed generation, in one short transaction; readers see
        nothing of it. Does nothing and returns False when a row's id exists already."""
        with self._work() as db:
            return bulk.stage_page(db, lease, part, page)

    def take_page(self, lease: Lease, part: StagedPart, page: int, skip: Iterable[str]) -> Checkpoint:
        """Take over one page of a part of additions in one short transaction: number its ops, and add members and
        lookups to its rows. Leaves out the rows in `skip`, which changed or were deleted since the task read them."""
        with self._work() as db:
            bulk.take_page(db, lease, part, page, skip)
            return generations.checkpoint(db)

    def stage_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], *, indexed: bool = False
    ) -> list[StagedTable]:
        """Create generations, invisible until published, for relations and their fingerprints. Without an index, taking
        over whole parts is quicker; pages taken over while the stream runs need one."""
        with self._work() as db:
            with db.transaction(lease):
                staged = [
                    StagedTable(generations.create_generation(db, source, [relation], fingerprint, "staged"), relation)
                    for relation, fingerprint in tables
                ]
            if indexed:
                bulk.index_rows(db, lease, staged)
            return staged

    def publish(
        self,
        lease: Lease,
        state: SourceState,
        tables: Sequence[StagedTable],
        version: int,
        definitions: Mapping[str, str],
        record: BulkRecord,
        others: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> Checkpoint:
        """Replace all tables of the source by staged ones, in one short transaction: number the segments, clear what
        its buckets held before, and move the source to `state.lsn`. Its bucket `definitions` are complete with it, and
        `version` is served if it waits for none of the `others` (as with `activate`). Clients see all of it at the
        commit, or nothing. Holds the store's lock for a time in proportion to the number of buckets and segments, not
        of rows. Only from buckets that other sources have, too, does it remove the former rows one by one."""
        with self._work() as db:
            if not bulk.index_rows(db, lease, tables):
                raise StoreError("two rows of a bulk job have the same id", str(self.address))
            with bucket_keys.moving(db, lease), db.transaction(lease):
                if db.dialect.plan_bulk:
                    db.execute(db.dialect.plan_bulk)
                control.lock_definitions(db)
                next_op = ops.lock_state(db)
                failpoint("publish.before_segments")
                bucket_keys.refuse(bulk.taken_staged(db, tables))
                for table in generations.active(db, state.source):
                    next_op = retire.leave_shared(db, lease.name, table.id, next_op)
                    generations.drop_generation(db, table.id)
                ids = [table.id for table in tables]
                db.execute(f"update tables set state = 'active' where id {db.dialect.among}", ids)
                next_op = bulk.number(db, lease.name, tables, next_op)
                generations.set_source(db, state)
                # All rows are new, and nothing of theirs exists for other definitions
                former = "source = ? and state <> 'retired'"
                db.execute(f"update definitions set state = 'retiring' where {former}", lease.name)
                control.complete(db, lease.name, definitions)
                if control.may_follow(db, version) and not control.waiting_for(db, others):
                    control.set_active(db, version)
                ops.move_checkpoint(db, next_op, state.source, None, None)
                generations.record_job(db, record)
                db.notify()
                failpoint("publish.before_commit")
            failpoint("publish.after_commit")
            reached = generations.checkpoint(db)
        self._empty_staging(lease)
        self._sweep()
        return reached

    def replace_table(self, lease: Lease, table: int, staged: StagedTable, resync: ResyncReason | None) -> bool:
        """Replace an active generation by a staged one that holds its rows under other ids. The new one takes over the
        layouts and the fingerprint and is to be compared with the source for the reason `resync`. Writes no op. Does
        nothing and returns False when two of its rows have the same id, or the active generation is gone."""
        with self._work() as db:
            if not bulk.index_rows(db, lease, [staged]):
                return False
            with db.transaction(lease):
                if not generations.replace_active(db, table, staged.id, resync):
                    return False
                # Outputs of lookups may depend on the row id, so readers must read them again
                ops.move_checkpoint(db, ops.lock_state(db), lease.name, "[]", None)
                db.notify()
                failpoint("replace.before_commit")
        self._sweep()
        return True

    # tables

    def note_job(self, record: BulkRecord) -> None:
        with self._work() as db, db.transaction():
            generations.record_job(db, record)

    def create_tables(
        self, lease: Lease, source: str, tables: Sequence[tuple[Relation, str]], resync: ResyncReason | None
    ) -> list[StoredTable]:
        """Create empty active generations that a re-sync is to fill, with `resync` as its reason."""
        with self._work() as db, db.transaction(lease):
            made = {
                generations.create_active(db, source, [relation], fingerprint, resync)
                for relation, fingerprint in tables
            }
            return [table for table in generations.active(db, source) if table.id in made]

    def add_layout(self, lease: Lease, table: int, relation: Relation, fingerprint: str) -> StoredTable:
        """Add a layout that rows of the table are written in from now on. Existing rows keep theirs."""
        with self._work() as db, db.transaction(lease):
            return generations.add_layout(db, table, relation, fingerprint)

    def replace_layouts(self, lease: Lease, layouts: Mapping[int, Sequence[Relation]], fingerprint: str) -> None:
        """Describe the rows of these tables, by id, by layouts with other oids: as many as before, of the same
        columns."""
        with self._work() as db, db.transaction(lease):
            for table, known in layouts.items():
                generations.replace_layouts(db, table, known, fingerprint)

    def mark_resync(self, lease: Lease, tables: Sequence[int], reason: ResyncReason | None) -> None:
        """Record why tables are being compared with the source; None ends the comparison."""
        with self._work() as db, db.transaction(lease):
            generations.mark_resync(db, tables, reason)

    def drop_table(self, lease: Lease, table: int) -> None:
        """Delete a table none of whose rows is in any bucket."""
        with self._work() as db, db.transaction(lease):
            generations.drop_generation(db, table)
        self._sweep()

    def move_source(self, lease: Lease, state: SourceState) -> None:
        """Follow the source from another slot and position."""
        with self._work() as db, db.transaction(lease):
            generations.set_source(db, state)

    def rewind_write_checkpoints(self, tag: str, lsn: Lsn) -> None:
        """The source's log now ends at `lsn`, before where it once did: no write checkpoint waits for a later LSN."""
        with self._writes() as db:
            write_checkpoints.rewind(db, tag, lsn)

    def forget_source(self, lease: Lease, keep: Collection[str] = ()) -> None:
        """Forget a source none of whose rows is in any bucket: its tables, definitions, requests and notes. Neither a
        version nor a write checkpoint waits for it any more. The buckets of the definitions `keep` stay, empty, for
        devices that have yet to hear so, until any source retires them. After an interruption, it can be called
        again."""
        self.discard_staged(lease)
        with self._work() as db:
            held = db.rows("select name from definitions where source = ? and state <> 'retired'", lease.name)
        while self.retire(lease, [name for (name,) in held if name not in keep], _FORGOTTEN_AT_ONCE):
            pass
        with self._writes() as db:
            write_checkpoints.forget_source(db, lease.name)
        with self._work() as db, db.transaction(lease):
            control.lock_definitions(db)
            ops.lock_state(db)
            for table in generations.active(db, lease.name):
                generations.drop_generation(db, table.id)
            control.forget_source(db, lease.name)
            db.execute(db.dialect.raise_change_counter)  # a version may have waited for it
            db.notify()
        with self._writes() as db:  # those that came meanwhile
            write_checkpoints.forget_source(db, lease.name)
        self._sweep()

    # versions, requests and revocations: any process may submit them

    def change_counter(self) -> int:
        """A number that grows with each submitted request or version. Cheap, for polling."""
        with self._beside() as db:
            return int(db.rows(db.dialect.change_counter)[0][0])

    def versions(self) -> list[ConfigVersion]:
        """All versions, oldest first."""
        with self._beside() as db:
            return [_version(row) for row in db.rows(f"select {_VERSION} from versions order by id")]

    def deploy(
        self, yaml: str, origin: Origin, *, author: str = "", message: str = "", expected: int | None = None
    ) -> ConfigVersion:
        """Create a PROCESSING version and wake the replicator. Stops another version that is PROCESSING. If `yaml` is
        the text of the PROCESSING version, or of the ACTIVE one when nothing is PROCESSING, returns that version and
        creates none. Raises NewerVersionError if `expected` is given and is not the newest version."""
        with self._beside() as db:
            now = db.dialect.now
            with db.transaction():
                db.execute(db.dialect.raise_change_counter)
                newest = db.rows(
                    f"select {_VERSION} from versions where state in ('processing', 'active')"
                    " order by case state when 'processing' then 0 else 1 end limit 1"
                )
                if newest and newest[0][1] == yaml:
                    return _version(newest[0])
                ((last,),) = db.rows("select coalesce(max(id), 0) from versions")
                if expected not in {None, last}:
                    fix = "look at what it changes, and deploy again upon it"
                    raise NewerVersionError(f"version {last} was deployed meanwhile", str(self.address), fix)
                db.execute(
                    f"update versions set state = 'stopped', stopped_at = {now}, note = 'another version was deployed'"
                    " where state = 'processing'"
                )
                (version,) = db.rows(
                    "insert into versions (yaml, state, origin, created_at, author, message)"
                    f" values (?, 'processing', ?, {now}, ?, ?) returning {_VERSION}",
                    *(yaml, origin.value, author, message),
                )
                db.notify()
                failpoint("deploy.before_commit")
            return _version(version)

    def cancel(self, version: int, note: str) -> ConfigVersion:
        """Have a version that is PROCESSING end as FAILED with this note, and what was built for it removed. Raises
        NotProcessingError when it is not PROCESSING, maybe since it was served meanwhile."""
        with self._beside() as db, db.transaction():
            db.execute(db.dialect.raise_change_counter)
            failed = f"update versions set state = 'failed', stopped_at = {db.dialect.now}, note = ?"
            found = db.rows(f"{failed} where id = ? and state = 'processing' returning {_VERSION}", note, version)
            if not found:
                fix = "see `headwater rules versions`; to leave a served version, roll back"
                raise NotProcessingError(f"version {version} is not being processed", str(self.address), fix)
            db.notify()
        return _version(found[0])

    def activate(
        self, lease: Lease, version: int, needed: Mapping[str, Mapping[str, str]], waits_for: Collection[str] = ()
    ) -> list[str] | None:
        """Complete what a version needs of the lease's source. Serve it from now on and stop the one before, in one
        transaction that moves the checkpoint, if that was the last source that it waited for. `needed` has the bucket
        definitions (name to digest) by source. A source that was never followed is not waited for: what is there of
        it comes as with one that is added later. Those in `waits_for` are, in any case. Definitions that were complete
        before stay so until `retire`. Returns the sources that the version waits for, none once it is served; None when
        another version was deployed since."""
        with self._work() as db:
            with db.transaction(lease):
                op = ops.lock_state(db)
                wanted = "select 1 from versions where id = ? and state in ('processing', 'active')"
                if not db.rows(f"{wanted}{db.dialect.for_update}", version):
                    return None
                control.complete(db, lease.name, needed[lease.name])
                waiting = {*control.waiting_for(db, needed), *waits_for}
                if waiting:
                    return sorted(waiting)
                control.set_active(db, version)
                ops.move_checkpoint(db, op, lease.name, "[]", "[]")
                db.notify()
                failpoint("activate.before_commit")
            failpoint("activate.after_commit")
            return []

    def waiting_for(self, needed: Mapping[str, Mapping[str, str]]) -> list[str]:
        """The sources that `activate` would wait for."""
        with self._work() as db:
            return control.waiting_for(db, needed)

    def mark_version(self, lease: Lease, version: int, state: VersionState, note: str) -> None:
        """Set state and note of the version in processing: PROCESSING and how far, or STOPPED or FAILED and why. Does
        nothing when another version was deployed since."""
        with self._work() as db, db.transaction(lease):
            stopped = "0" if state is VersionState.PROCESSING else db.dialect.now
            change = f"update versions set state = ?, stopped_at = {stopped}, note = ?"
            db.execute(f"{change} where id = ? and state = 'processing'", state.value, note, version)

    def sources(self) -> list[str]:
        """The names of the sources that the store has anything of, in order: also of one of which nothing was read to
        the end."""
        with self._beside() as db:
            return control.known_sources(db)

    def is_followed(self, source: str) -> bool:
        """Whether a replicator follows a source, as far as is known."""
        with self._beside() as db:
            return leases.is_held(db, source)

    def definitions_of(self, source: str) -> tuple[frozenset[str], frozenset[str]]:
        """The names of the bucket definitions that a source has alone, and of those that others have, too."""
        with self._beside() as db:
            return control.definitions_of(db, source)

    def leave_others(self, lease: Lease, table: int, first: int, limit: int) -> int | None:
        """Remove rows of a table of the source, from the place `first` on and at most `limit`, from buckets that other
        sources have, too. Returns the place to go on from; None when that was all."""
        with self._work() as db:
            return retire.leave_others(db, lease, table, first, limit)

    def complete_definitions(self, source: str) -> dict[str, str]:
        """Bucket definitions (name to digest) of which all rows of a source are in the store and kept up to date."""
        with self._work() as db:
            return control.complete_definitions(db, source)

    def known_definitions(self) -> dict[str, str]:
        """Bucket definitions (name to digest) of any source that the store may hold something of."""
        with self._work() as db:
            return dict(db.rows("select name, min(digest) from definitions group by name order by name"))

    def left_definitions(self) -> list[str]:
        """Names of bucket definitions that removed sources left, see `forget_source`."""
        return list(self.complete_definitions(control.LEFT))

    def begin_definitions(self, lease: Lease, definitions: Mapping[str, str]) -> None:
        """Record bucket definitions that are about to be built, before anything of them is written."""
        again = "update set digest = excluded.digest, state = excluded.state where definitions.state = 'retired'"
        with self._work() as db, db.transaction(lease):
            control.lock_definitions(db)
            for name, digest in definitions.items():
                db.execute(f"{control.PUT_DEFINITION} {again}", lease.name, name, digest, "building")

    def unfinished_definitions(self, source: str) -> list[str]:
        """Names of a source's bucket definitions that are being built or removed, of which the store may hold
        something."""
        unfinished = "select name from definitions where source = ? and state in ('building', 'retiring') order by name"
        with self._work() as db:
            return [name for (name,) in db.rows(unfinished, source)]

    def retire(self, lease: Lease, definitions: Sequence[str], limit: int) -> bool:
        """Do one step of removing bucket definitions, which the source must not follow any more, or which removed
        sources left: they stop being complete, and the source's rows and lookups leave them, at most `limit` per call.
        Once no source keeps a definition, its buckets are deleted. Returns True while more is left."""
        with self._work() as db:
            return retire.retire(db, lease, definitions, limit)

    def submit(self, kind: str, source: str, payload: str) -> int:
        """Queue a request and wake the replicator of `source`. Returns the request's id."""
        with self._beside() as db, db.transaction():
            now = db.dialect.now
            db.execute(db.dialect.raise_change_counter)
            over = f"delete from requests where state in ('done', 'failed') and changed_at < {now} - ?"
            db.execute(over, _REQUESTS_KEPT_SECONDS)
            ((number,),) = db.rows(
                "insert into requests (kind, source, payload, state, created_at, changed_at)"
                f" values (?, ?, ?, 'waiting', {now}, {now}) returning id",
                *(kind, source, payload),
            )
            db.notify()
        return int(number)

    def request(self, request: int) -> Request | None:
        with self._beside() as db:
            found = db.one(f"select {_REQUEST} from requests where id = ?", request)
            return None if found is None else _request(found)

    def open_requests(self, source: str) -> list[Request]:
        """Requests of a source that are WAITING, or RUNNING under a replicator that died, oldest first."""
        with self._beside() as db:
            query = f"select {_REQUEST} from requests where source = ? and state in ('waiting', 'running') order by id"
            return [_request(row) for row in db.rows(query, source)]

    def recent_requests(self, kind: str, limit: int) -> list[Request]:
        """Requests of a kind, of all sources, newest first. Those that are over are kept for a day."""
        with self._beside() as db:
            query = f"select {_REQUEST} from requests where kind = ? order by id desc limit ?"
            return [_request(row) for row in db.rows(query, kind, limit)]

    def update_request(
        self, lease: Lease, request: int, state: RequestState, *, progress: str = "", result: str = ""
    ) -> None:
        """Set the state of a request, with its progress or result. Raises LeaseLostError."""
        with self._work() as db, db.transaction(lease):
            now = db.dialect.now
            change = f"update requests set state = ?, progress = ?, result = ?, changed_at = {now} where id = ?"
            db.execute(change, state.value, progress, result, request)

    def revoke(self, kind: RevokedKind, value: str, seconds: float) -> Revocation:
        """Keep a revocation for so long, and have readers look. Those that are over are forgotten."""
        with self._beside() as db, db.transaction():
            now = db.dialect.now
            db.execute(db.dialect.raise_change_counter)
            db.execute(f"delete from revocations where until < {now}")
            insert = f"insert into revocations (kind, value, since, until) values (?, ?, {now}, {now} + ?)"
            (found,) = db.rows(f"{insert} returning {control.REVOCATION}", kind.value, value, seconds)
            db.notify()
        return control.revocation(found)

    # what operators did and keep

    def note_change(self, who: str, role: str, what: str, detail: str) -> None:
        """Note a change that an operator made. The oldest are forgotten."""
        with self._beside() as db, db.transaction():
            control.note_change(db, who, role, what, detail)

    def changes(self, before: int | None, limit: int) -> list[AdminChange]:
        """The newest changes that operators made, before that with the id `before` if it is given."""
        with self._beside() as db:
            return control.changes(db, before, limit)

    def put_case(self, name: str, content: str, author: str) -> None:
        """Store a case, in place of another one with this name."""
        with self._beside() as db, db.transaction():
            control.put_case(db, name, content, author)

    def cases(self) -> list[StoredCase]:
        """All stored cases, by name."""
        with self._beside() as db:
            return control.cases(db)

    def delete_case(self, name: str) -> bool:
        """Delete a case. Returns whether there was one."""
        with self._beside() as db, db.transaction():
            return bool(db.execute("delete from cases where name = ?", name))

    @abstractmethod
    def close(self) -> None: ...


def _version(row: Row) -> ConfigVersion:
    number, yaml, state, origin, created, activated, stopped, *texts = row
    times = float(created), float(activated), float(stopped)
    return ConfigVersion(number, yaml, VersionState(state), Origin(origin), *times, *texts)


def _request(row: Row) -> Request:
    number, kind, source, payload, state, progress, result, created = row
    return Request(number, kind, source, payload, RequestState(state), progress, result, float(created))
