"""Deploys a source's part of a version of the sync config, while the stream is followed and the former version is
served.

From the start, the stream is evaluated by the plans of both versions. Definitions that are not complete are evaluated
over the current rows on Spark, and the result is taken in page by page, without rows that the stream wrote meanwhile:
those are right already. Tables that the store does not have are read from the source by a re-sync. Then the version
becomes active, unless other sources are not done with their parts yet: the last of them activates it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from headwater.bulk.contract import JobKind, ReprocessJob, ReprocessTable
from headwater.replication.computed import computed_tables
from headwater.replication.jobs.job import Background, Job, JobContext, JobOutcome, Steps, types_of
from headwater.replication.jobs.refresh import Refresh
from headwater.replication.jobs.resync import Resync, ResyncRequest
from headwater.replication.versions import (
    RETIRED_AT_ONCE,
    check_readers,
    in_use,
    needed_for,
    part_of,
    to_refresh,
    waiting_note,
)
from headwater.storage.contract.parts import BulkOutcome
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import StoredTable
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import check_names, definitions_of, tables_of, without

_log = logging.getLogger(__name__)


class Deploy(Job):
    """Deploys one version. Raises SyncConfigError when its text does not compile, or when another definition has the
    name of one of its own; ComputedTableError when rows of a computed table can't be made what it is to serve. Until it
    is `prepared`, failed attempts do not count in which the source can't be reached."""

    kind = JobKind.DEPLOY

    def __init__(self, context: JobContext, version: ConfigVersion, keep_seconds: float) -> None:
        super().__init__(context)
        self._version = version
        self._keep_seconds = keep_seconds
        self._reason = ResyncReason(Cause.NEW_IN_VERSION, str(version.id))
        self._pages = (0, 0)  # taken in, and in total
        self._resync: Resync | None = None
        self._refresh: Refresh | None = None
        self._joined = ""
        self.prepared = False

    def describe(self) -> str:
        if self._resync is not None:
            return f"new tables: {self._resync.describe()}"
        if self._refresh is not None:
            return self._refresh.describe()
        if self._joined:
            return self._joined
        taken, pages = self._pages
        return f"took in {taken:,} of {pages:,} pages of rows" if pages else f"evaluated {self._progress}"

    def _run(self) -> Steps[JobOutcome]:
        context, started = self._context, time.time()
        plan, needed = part_of(self._version.yaml, context.tag), needed_for(self._version.yaml, context.peers)
        used = in_use(context.store, context.source, self._keep_seconds)
        while context.store.retire(context.lease, used.obsolete, RETIRED_AT_ONCE):
            pass  # the version may need definitions that are being removed: they have to begin empty
        check_names(plan, context.store.known_definitions())
        complete = context.store.complete_definitions(context.name)
        missing = {name: digest for name, digest in definitions_of(plan).items() if name not in complete}
        yield from self._recompute(used.plans)
        context.store.begin_definitions(context.lease, missing)
        context.stream.joined.begin(missing)
        known = list(context.all_stored().values())
        new = self._create_tables(plan)
        context.follow([*used.plans, plan])
        with context.staging():
            try:
                outcome = yield from self._reprocess(plan, missing, known)
                yield from self._fill(plan, new)
                yield from self._compute([*used.plans, plan])
                yield from self._evaluate_joined(plan, missing)
            finally:
                context.stream.recording.watch(())
            others = () if self._version.state is VersionState.ACTIVE else self._others_to_refresh()
            waiting = context.store.activate(context.lease, self._version.id, needed, others)
            if waiting is None:
                _log.info("version %d of the sync config was cancelled or replaced meanwhile", self._version.id)
                return JobOutcome(follow=True)
        active = not waiting or self._version.state is VersionState.ACTIVE
        _log.info(
            "version %d of the sync config %s", self._version.id, "is active" if active else waiting_note(waiting)
        )
        if outcome.tasks:
            rows, ops = sum(part.rows for part in outcome.parts), sum(part.ops for part in outcome.parts)
            context.record(JobKind.REPROCESS, started, outcome.application, tasks=outcome.tasks, rows=rows, ops=ops)
        return JobOutcome(follow=True)

    def _create_tables(self, plan: SyncPlan) -> frozenset[int]:
        """Create tables that no version before has named. Returns their oids, and those of tables that an interrupted
        deploy has created."""
        stored = self._context.stored()
        wanted = self._context.published([plan])
        new = [(table.relation, table.shape) for oid, table in wanted.items() if oid not in stored]
        self._context.store.create_tables(self._context.lease, self._context.name, new, self._reason)
        unfilled = {oid for oid, table in stored.items() if table.has(Cause.NEW_IN_VERSION)}
        return frozenset(relation.oid for relation, _ in new) | unfilled

    def _reprocess(self, plan: SyncPlan, missing: Collection[str], known: Sequence[StoredTable]) -> Steps[BulkOutcome]:
        """Evaluate the missing definitions over the current rows, and take the result in."""
        context = self._context
        patterns = tables_of(plan, missing)
        read = [t for t in known if any(p.matches(context.tag, t.relation.schema, t.relation.name) for p in patterns)]
        tables = [ReprocessTable(table, *context.places(table.id)) for table in read]
        tables = [table for table in tables if table.ranges]
        if not missing or not tables:
            self.prepared = True
            return BulkOutcome((), "", 0)
        written = context.stream.recording.watch([table.stored.id for table in tables])
        job = ReprocessJob(
            source_name=context.name,
            tables=tuple(tables),
            plan=without(plan, definitions_of(plan).keys() - missing),
            types=types_of(context.connection, [table.stored for table in tables]),
            keys=context.store.keys(),
            store=context.store.address,
            directory=context.store.staging_directory(context.lease),
            now=context.stream.job_time([plan]),
            batch_bytes=context.source.batch_bytes,
        )
        self.prepared = True
        evaluate = partial(context.bulk.reprocess, job, self._report, self._closed)
        outcome = yield from Background(evaluate, JobKind.REPROCESS).steps()
        for problem in [problem for part in outcome.parts for problem in part.refused]:
            _log.error("%s", problem)
        yield from self._take_in(outcome, written)
        return outcome

    def _take_in(self, outcome: BulkOutcome, written: Mapping[int, Collection[str]]) -> Steps[None]:
        pages = [(part, page) for part in outcome.parts for page in range(part.pages)]
        store, lease = self._context.store, self._context.lease
        for number, (part, page) in enumerate(pages):
            self._pages = number, len(pages)
            yield
            if any(table.id == part.table for table in self._context.all_stored().values()):
                store.take_page(lease, part, page, written.get(part.table, ()))
            # else truncated since: the rows of its new generation were evaluated by both plans
        self._pages = 0, 0

    def _recompute(self, plans: Sequence[SyncPlan]) -> Steps[None]:
        """Refresh computed tables whose rows must not be served by the version as they are, by `plans`: the version's
        own definitions are evaluated after that. Raises ComputedTableError."""
        context, yaml = self._context, self._version.yaml
        if self._version.state is VersionState.ACTIVE:
            return
        edited = to_refresh(context.store, yaml, context.name, context.tag)
        for table in edited:
            check_readers(context.store, yaml, table)
        for table in edited:
            self._refresh = Refresh(context, plans, table, demanded=True)
            yield from self._refresh.steps
            self._refresh = None

    def _others_to_refresh(self) -> list[str]:
        context, yaml = self._context, self._version.yaml
        others = ((name, tag) for name, tag in context.peers.items() if name != context.name)
        return [name for name, tag in others if to_refresh(context.store, yaml, name, tag)]

    def _compute(self, plans: Sequence[SyncPlan]) -> Steps[None]:
        """Compute new computed tables for the first time. One that can't be computed does not hold the version up."""
        there = {table.relation.name for table in self._context.all_stored().values() if table.computed}
        for name, table in computed_tables(plans).items():
            if name not in there:
                self._refresh = Refresh(self._context, plans, table)
                yield from self._refresh.steps
                self._refresh = None

    def _evaluate_joined(self, plan: SyncPlan, missing: Collection[str]) -> Steps[None]:
        """Wait until all rows are evaluated with those that they are joined to, which were not there before."""
        joined = self._context.stream.joined
        self._context.stream.take_in_joined([join.lookup.name for join in plan.joins], tables_of(plan, missing))
        while joined.is_busy:  # the stream evaluates them between two steps
            self._joined = joined.describe()
            yield
        self._joined = ""

    def _fill(self, plan: SyncPlan, new: frozenset[int]) -> Steps[None]:
        """Read new tables from the source."""
        while new:
            stored = self._context.stored()
            # Locked tables stay marked, and do not hold the version up
            new -= self._context.locked([stored[oid] for oid in new & stored.keys()])
            if not new:
                return
            self._resync = Resync(self._context, ResyncRequest((plan,), self._reason, new))
            outcome = yield from self._resync.steps
            self._resync = None
            new = (outcome.changed or frozenset()) & self._context.stored().keys()  # compared once more
            yield
