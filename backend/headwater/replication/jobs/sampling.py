"""The sampling audit: checks everything in the store slowly, again and again.

A cycle looks up every key of the source in the store, then reads the history of every bucket, and last every current
row, which it compares with the rules, its lookups, the source and its buckets. What changed meanwhile is checked again;
what is still wrong then is damage: it is logged and, unless `repair` is off, repaired.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import msgspec
import orjson

from headwater.bulk.contract import BrokenLookups
from headwater.errors import HeadwaterError
from headwater.oplog.keys import StoreKeys
from headwater.replication.errors import BROKEN_BUCKET, BROKEN_LOOKUPS, BROKEN_ROWS
from headwater.replication.jobs.audit import NO_END, Rebuild, repair_lookups
from headwater.replication.jobs.job import JobContext
from headwater.replication.jobs.resync import Resync, ResyncRequest
from headwater.replication.jobs.sampling_checks import BucketWalk, NotCompared, Probing, Sums, wrong_rows
from headwater.replication.tables.live import LiveTable
from headwater.source.catalog.published import PublishedTable
from headwater.source.readiness.finding import Finding
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import LeaseLostError
from headwater.storage.open import open_store
from headwater.storage.sql.verify import ALL_KEYS, Definitions, VerifyReader
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import definitions_of

_log = logging.getLogger(__name__)

_KEPT_FINDINGS = 100
_GATHER_SECONDS = 3.0
_LONGEST_STEP = 0.01  # seconds that the stream waits, give or take a slice
_REPAIRED_AT_MOST = 3
_TURN_SECONDS = 900  # after which another source checks the buckets that several share, from its next cycle on


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How fast the sampling audit is. It checks at most `rate` ops and rows per second, and uses at most `share` of a
    processor; `slice` is how many it checks at once. A cycle begins `rest` seconds after the last one ended, the first
    `delay` seconds after the start. Without `repair`, damage is only logged."""

    enabled: bool = True
    rate: float = 2_000.0
    share: float = 0.02
    slice: int = 200
    rest: float = 60.0
    delay: float = 60.0
    repair: bool = True


@dataclass(frozen=True, slots=True)
class Damage:
    """What the sampling audit found broken; `at` in seconds since 1970."""

    at: float
    what: str
    problem: str


@dataclass(frozen=True, slots=True)
class SamplingResults:
    """How many cycles of a source's sampling audit have ended, when the last one did (in seconds since 1970), and the
    last findings, newest last. Tables in `left_out` were not compared with the source in the last cycle."""

    cycles: int = 0
    ended: float = 0.0
    findings: tuple[Damage, ...] = ()
    left_out: Mapping[str, NotCompared] = field(default_factory=dict)


def sampling_results(store: StoreWriter, tag: str) -> SamplingResults:
    """The stored results of a source's sampling audit; fields that an earlier version did not store have their
    defaults."""
    text = store.get_meta(f"sampling {tag}") or "{}"
    return msgspec.json.decode(text, type=SamplingResults)


def sampling_findings(store: StoreWriter, tag: str) -> tuple[Finding, ...]:
    """Tables that the source refuses to read as the sampling audit does."""
    known = sampling_results(store, tag)
    return tuple(
        Finding(
            "HW_2045",
            f"the sampling audit can't compare {table} with the source: {reason.why}",
            "run `headwater audit` now and then, which reads the table as a whole",
            fatal=False,
        )
        for table, reason in known.left_out.items()
        if reason.failed
    )


@dataclass(slots=True)
class _Repairs:
    """What to repair: buckets by key, tables by oid, lookups by row. `since` is when the first was found."""

    buckets: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    lookups: list[BrokenLookups] = field(default_factory=list)
    since: float = 0.0

    def note(self) -> None:
        """Called before a bucket or table is added."""
        if not self.buckets and not self.tables:
            self.since = time.monotonic()


class Sampling:
    """All methods are called between flushes: `step` when there is no other bulk work, then `repair`."""

    def __init__(self, context: JobContext, settings: SamplingSettings) -> None:
        self._context = context
        self._settings = settings
        self._not_before = time.monotonic() + settings.delay
        self._cycle: Iterator[int] | None = None
        self._open = ExitStack()
        self._reader: VerifyReader | None = None
        self._probing = Probing(context)
        self._suspects: frozenset[int] = frozenset()
        self._repairs = _Repairs()
        self._repaired = Counter[Hashable]()
        self._noted: set[Hashable] = set()  # in this cycle

    @property
    def pause(self) -> float:
        """Seconds until `step` and `repair` are to be called."""
        if not self._settings.enabled:
            return math.inf
        if self._repairs.lookups:
            return 0.0
        moment = self._not_before
        if self._repairs.tables or self._repairs.buckets:
            moment = min(moment, self._gathered)
        return moment - time.monotonic()

    @property
    def _gathered(self) -> float:
        """When to repair what was found, on the monotonic clock."""
        return 0.0 if self._cycle is None else self._repairs.since + _GATHER_SECONDS

    def step(self, plans: Callable[[], Sequence[SyncPlan]]) -> None:
        """Check some slices, if it is time."""
        if time.monotonic() < self._not_before:
            return
        if self._cycle is None:
            if not self._built():
                self._not_before = time.monotonic() + self._settings.rest
                return
            self._cycle = self._run(tuple(plans()))
        started = time.monotonic()
        try:
            while (looked_at := next(self._cycle, None)) is not None:
                now = time.monotonic()
                pause = max(looked_at / self._settings.rate, (now - started) * (1 / self._settings.share - 1))
                self._not_before = started + pause
                if not looked_at or now < self._not_before or now > started + _LONGEST_STEP:
                    break
        except LeaseLostError:
            raise
        except HeadwaterError as error:  # the stream and other jobs raise it too, if it is serious
            _log.warning("the sampling audit pauses: %s", error)
            looked_at = None
        if self._reader is not None:
            self._reader.release()
        if looked_at is None:
            self.close()
            self._not_before = started + self._settings.rest

    def repair(self, plans: Callable[[], Sequence[SyncPlan]]) -> Rebuild | Resync | None:
        """Repair what was found. Returns a job for repairs that take longer: one for all that is found within some
        seconds, since damage seldom comes alone."""
        wanted = self._repairs
        if wanted.lookups:
            lookups, wanted.lookups = wanted.lookups, []
            repair_lookups(self._context, lookups)
        if time.monotonic() < self._gathered:
            return None
        if wanted.tables:
            oids, wanted.tables = frozenset(wanted.tables), set()
            wanted.buckets.clear()  # repaired rows may be all they need; else they are found again
            return Resync(self._context, ResyncRequest(tuple(plans()), ResyncReason(Cause.SAMPLED), oids, verify=True))
        if wanted.buckets:
            keys, wanted.buckets = wanted.buckets, set()
            return Rebuild(self._context, plans(), keys)
        return None

    def close(self) -> None:
        """Abort the cycle; the next one begins from the start."""
        self._cycle = None
        self._reader = None
        self._open.close()
        self._probing.close()

    def _built(self) -> bool:
        """Whether all rows are in the buckets by which the stream is followed. While a deploy waits to be tried again,
        they are not: the stream is followed by its plan already."""
        followed = {name for plan in self._context.stream.tables.context.plans for name in definitions_of(plan)}
        return followed <= self._context.store.complete_definitions(self._context.name).keys()

    # a cycle

    def _run(self, plans: tuple[SyncPlan, ...]) -> Iterator[int]:
        """Yields how many ops and rows were checked, slice by slice."""
        self._noted.clear()
        self._probing.begin()
        reader = self._reader = self._open.enter_context(open_store(self._context.store.address).open_verify())
        keys = self._context.store.keys()
        sums = Sums(keys, self._suspects, reader.retired())
        turn = int(time.time() // _TURN_SECONDS)
        checked = reader.definitions(self._context.name, turn=turn)
        generations = self._generations(reader)
        for live, table in self._tables(plans):
            missing = yield from self._probing.missing_rows(live, table, self._settings.slice)
            self._rows_broken(live, missing, "missing in the store")
        yield from self._buckets(reader, keys, sums, checked, turn)
        yield from self._rows(reader, sums, plans, checked.sources)
        reader.renew()
        if self._generations(reader) == generations:
            verdict = sums.judge(reader)
            self._suspects = verdict.suspects
            for key, name, problem in verdict.broken:
                self._bucket_broken(key, name, problem)
        known = sampling_results(self._context.store, self._context.name)
        left_out = dict(self._probing.left_out)
        self._note(replace(known, cycles=known.cycles + 1, ended=time.time(), left_out=left_out))

    def _generations(self, reader: VerifyReader) -> list[int]:
        """All tables that may have rows in buckets of the source. A source may come to share them at any time."""
        return reader.tables(reader.definitions(self._context.name).sources)

    def _buckets(
        self, reader: VerifyReader, keys: StoreKeys, sums: Sums, checked: Definitions, turn: int
    ) -> Iterator[int]:
        looked_at = first = 0
        while True:
            reader.renew()
            heads = reader.heads(first, ALL_KEYS[1])
            head = next((head for head in heads if head.definition not in checked.foreign), None)
            if head is None:
                yield looked_at
                return
            first = head.key + 1
            if head.definition not in checked.own:  # it may be new
                checked = reader.definitions(self._context.name, turn=turn)
                if head.definition in checked.foreign:
                    continue
            walk = BucketWalk(head, keys, sums.parts(head.key))
            while not walk.take(reader, self._settings.slice - looked_at):
                yield self._settings.slice
                looked_at = 0
                reader.renew()
            looked_at += walk.last_taken
            if walk.problem:
                self._bucket_broken(head.key, head.name, walk.problem)
            elif walk.whole:
                sums.add_history(head, walk)
            if looked_at >= self._settings.slice:
                yield looked_at
                looked_at = 0

    def _rows(
        self, reader: VerifyReader, sums: Sums, plans: tuple[SyncPlan, ...], sources: Collection[str]
    ) -> Iterator[int]:
        ours = {live.id: (live, table) for live, table in self._tables(plans)}
        own = {table.id for table in self._context.all_stored().values()}
        reader.renew()
        for table_id in reader.tables(sources):
            live, table = ours.get(table_id, (None, None))
            position = 0
            while True:
                reader.renew()
                batch = next(reader.rows(table_id, position, NO_END), [])[: self._settings.slice]
                if not batch:
                    break
                position = batch[-1].place + 1
                sums.add_rows(table_id, [row for _, row in batch], own=table_id in own)
                if live is not None and table is not None and self._context.stream.table(live.relation.oid) == live:
                    stream = self._context.stream
                    misplaced, astray = wrong_rows(live, plans, reader, batch, stream.time.now, stream.joined.lookups)
                    if stream.joined.waits(live.id):
                        misplaced, astray = [], []  # they are about to be evaluated
                    reader.release()
                    self._rows_broken(live, misplaced, "not in the buckets that the rules give them")
                    self._lookups_broken(live, astray)
                    other = yield from self._probing.other_rows(live, table, [row.row_id for _, row in batch])
                    self._rows_broken(live, other, "not as the source has them")
                yield len(batch)

    def _tables(self, plans: Sequence[SyncPlan]) -> list[tuple[LiveTable, PublishedTable]]:
        """The followed tables that should be equal to the source: not those that are compared or partly published."""
        published = self._context.published(plans).values()
        compared = {oid for oid, table in self._context.stored().items() if table.resync}
        sure = [table for table in published if not table.unseen and table.relation.oid not in compared]
        pairs = [(self._context.stream.table(table.relation.oid), table) for table in sure]
        return [(live, table) for live, table in pairs if live is not None and live.relation == table.relation]

    # what is broken

    def _bucket_broken(self, key: int, name: str, problem: str) -> None:
        if self._report(BROKEN_BUCKET, f"bucket {name or key}", problem, key):
            self._repairs.note()
            self._repairs.buckets.add(key)

    def _rows_broken(self, live: LiveTable, row_ids: Sequence[str], problem: str) -> None:
        if not row_ids:
            return
        named = ", ".join(sorted(row_ids)[:5]) + (", …" if len(row_ids) > 5 else "")
        if self._report(BROKEN_ROWS, f"{live.name}, rows {named}", problem, (live.name, problem)):
            self._repairs.note()
            self._repairs.tables.add(live.relation.oid)

    def _lookups_broken(self, live: LiveTable, row_ids: Sequence[str]) -> None:
        if not row_ids:
            return
        what, problem = f"{live.name}, {len(row_ids)} rows", "other lookups than the rules give them"
        if self._report(BROKEN_LOOKUPS, what, problem, (live.name, "lookups")):
            self._repairs.lookups += [BrokenLookups(live.id, row_id) for row_id in row_ids]

    def _report(self, code: str, what: str, problem: str, subject: Hashable) -> bool:
        """Report damage. Returns whether to repair it: what breaks again and again has a cause that a repair does not
        remove."""
        _log.error("[%s] the sampling audit found damage: %s: %s", code, what, problem)
        known = sampling_results(self._context.store, self._context.name)
        found = (*known.findings, Damage(time.time(), what, problem))[-_KEPT_FINDINGS:]
        self._note(replace(known, findings=found))
        if subject not in self._noted:
            self._noted.add(subject)
            self._repaired[subject] += 1
            if self._repaired[subject] == _REPAIRED_AT_MOST + 1:
                _log.error("[HW_5305] repaired %d times and broken again: check disk and memory", _REPAIRED_AT_MOST)
        return self._settings.repair and self._repaired[subject] <= _REPAIRED_AT_MOST

    def _note(self, known: SamplingResults) -> None:
        self._context.store.set_meta(
            self._context.lease, f"sampling {self._context.name}", orjson.dumps(known).decode()
        )
