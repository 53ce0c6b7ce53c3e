"""Runs bulk jobs beside the stream, one at a time, in steps between its flushes.

A job only writes while no flush of the stream is open, and in transactions of its own: neither sees half of what the
other does. Nothing about a running job has to survive a crash. What is to be done is read from the store (marks on
tables, a version in processing, open requests; see `JobQueue`), and a mark, version or request is only settled after
all of the job's work is stored. So when the replicator dies, or a job is closed half-way, work is lost but no duty: the
next look finds it and starts it again, and what is already right is not sent twice. An error of a job ends the job, not
the stream, unless it concerns the stream or the store: that one is raised, and following the source begins again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from headwater.bulk.contract import EngineError
from headwater.codes import Kind
from headwater.errors import HeadwaterError, MachineError, machine_errors
from headwater.replication.errors import SchemaChangedError, SourceReplacedError, StreamProtocolError
from headwater.replication.intervals import PollIntervals
from headwater.replication.jobs.asked import AskedResync
from headwater.replication.jobs.audit import Audit
from headwater.replication.jobs.deploy import Deploy
from headwater.replication.jobs.job import Job, JobContext, JobOutcome
from headwater.replication.jobs.refresh import RefreshSchedule
from headwater.replication.jobs.rekey import Rekey
from headwater.replication.jobs.resync import Resync, ResyncRequest
from headwater.replication.jobs.sampling import Sampling, SamplingSettings
from headwater.replication.requests import RequestKind
from headwater.replication.stream.failed import FailedTransactions
from headwater.replication.versions import (
    RETIRED_AT_ONCE,
    InUse,
    forget_half_built,
    in_state,
    in_use,
    part_of,
    progress_note,
    to_refresh,
    waiting_note,
    waits_for,
)
from headwater.source.connect import SourceUnreachableError
from headwater.source.rows.copy import TableChangedError
from headwater.source.rows.query import ComputedTableError
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.store import (
    BucketKeyTakenError,
    LeaseLostError,
    PartLostError,
    Request,
    RequestState,
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
)
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater_rules.errors import SyncConfigError
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import definitions_of

_log = logging.getLogger(__name__)

_THOROUGH_SECONDS = 5.0
_FIRST_UNSEEN_SECONDS = 60.0
_SHORTEST_PAUSE = 0.02
_WORTH_SECONDS = 0.005
_ATTEMPTS = 5
_GIVEN_UP_SECONDS = 60.0
_CHANGED_AT_MOST = 3


@dataclass(slots=True)
class QueuedJob:
    """A job and what asked for it: a version that is being deployed, a request, or neither. `reported` is the progress
    that was stored last, and `inbox` the store's change counter then."""

    job: Job
    version: ConfigVersion | None = None
    request: Request | None = None
    reported: str = ""
    inbox: int = -1

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the work when failed attempts are counted."""
        if self.version is not None:
            return "version", self.version.id
        return ("request", self.request.id) if self.request is not None else (self.job.kind, 0)


class JobQueue:
    """Reads from the store which job is next. In this order: new row ids after a change of replica identity,
    comparisons of marked tables, a deploy, and what commands asked for. With none of these, bucket definitions that no
    version needs any more are removed, and computed tables refreshed. All methods are called between flushes."""

    def __init__(self, context: JobContext, keep_seconds: float) -> None:
        self._context = context
        self._keep_seconds = keep_seconds
        self._inbox = -1
        self._due = True  # something ended or changed since the last look
        self._thorough = 0.0
        self._obsolete: tuple[str, ...] = ()
        self._postponed = 0.0
        self._refreshes = RefreshSchedule(context)

    def postpone_deploys(self, seconds: float) -> None:
        """Do other work before the next attempt to deploy a version."""
        self._postponed = time.monotonic() + seconds

    @property
    def removing(self) -> bool:
        """Whether definitions are being removed."""
        return bool(self._obsolete)

    def look_again(self) -> None:
        """Have the next `has_news` say yes."""
        self._due = True

    def has_news(self) -> bool:
        """Whether to call `next`: something was submitted, a job ended, or the last look is some seconds old. Commits
        wait for each look."""
        inbox = self._context.store.change_counter()
        waits = time.monotonic() < self._thorough + _THOROUGH_SECONDS and not self._refreshes.due()
        if inbox == self._inbox and not self._due and waits:
            return False
        self._inbox, self._due, self._thorough = inbox, False, time.monotonic()
        return True

    def plans(self) -> Sequence[SyncPlan]:
        """The plans of all versions whose definitions have to stay right."""
        return self._in_use().plans

    def _in_use(self) -> InUse:
        return in_use(self._context.store, self._context.source, self._keep_seconds)

    def next(self) -> QueuedJob | None:
        """The next job. None when there is none, or when a step without a job came first."""
        version = self._undeployed()
        stored = self._context.stored()
        waiting = next((table for table in stored.values() if table.has(Cause.REKEYED)), None)
        if waiting is not None:
            return QueuedJob(Rekey(self._context, self.plans(), waiting))
        marked = {oid: table.resync for oid, table in stored.items() if table.resync}
        if version is not None:  # its deploy fills these tables itself
            marked = {oid: why for oid, why in marked.items() if why.cause is not Cause.NEW_IN_VERSION}
        locked = self._context.locked([stored[oid] for oid in marked]) if marked else ()
        marked = {oid: why for oid, why in marked.items() if oid not in locked}
        unlocked = [stored[oid].id for oid, why in marked.items() if why.cause is Cause.LOCKED]
        if unlocked:
            self._follow_unlocked(unlocked)
            return None
        if marked:
            why = next(iter(marked.values()))
            verify = any(why.cause in {Cause.REDEFINED, Cause.REPLACED} for why in marked.values())
            request = ResyncRequest(tuple(self.plans()), why, frozenset(marked), verify=verify)
            return QueuedJob(Resync(self._context, request))
        if version is not None and self._postponed <= time.monotonic():
            _log.info("deploying version %d of the sync config", version.id)
            return QueuedJob(Deploy(self._context, version, self._keep_seconds), version=version, inbox=self._inbox)
        requests = self._context.store.open_requests(self._context.name)
        requests = [request for request in requests if request.kind != RequestKind.MOVE]  # those wait
        if requests:
            return self._take_request(requests[0])
        used = self._in_use()
        if used.obsolete:
            self.follow()
            return None
        refresh = self._refreshes.next(used.plans, self._waiting_part())
        return None if refresh is None else QueuedJob(refresh)

    def _follow_unlocked(self, tables: Sequence[int]) -> None:
        """Follow tables that are no longer locked, before they are compared."""
        self._context.store.mark_resync(self._context.lease, tables, ResyncReason(Cause.REPLACED))
        self.follow()
        self._due = True

    def _undeployed(self) -> ConfigVersion | None:
        """The version to deploy: one in processing that the source has a part to do in, or that nobody has, or else the
        active one, if the source lacks some of its definitions. That is so in a store that was imported without them,
        and where the version became active while the source was read for the first time."""
        store = self._context.store
        processing = in_state(store, VersionState.PROCESSING)
        if processing is not None:
            if not self._is_done(processing):
                return processing
            waiting = waits_for(store, processing.yaml, self._context.peers)
            if not waiting:  # who was waited for may have been removed
                return processing
            self._note_waiting(processing, waiting)
        active = in_state(store, VersionState.ACTIVE)
        return None if active is None or self._is_done(active) else active

    def _waiting_part(self) -> SyncPlan | None:
        """The source's part of a version that waits for other sources."""
        processing = in_state(self._context.store, VersionState.PROCESSING)
        done = processing is not None and self._is_done(processing)
        return part_of(processing.yaml, self._context.tag) if processing is not None and done else None

    def _is_done(self, version: ConfigVersion) -> bool:
        """Whether the source has done its part of a version."""
        try:
            needed = definitions_of(part_of(version.yaml, self._context.tag))
            if version.state is VersionState.PROCESSING and to_refresh(
                self._context.store, version.yaml, self._context.name, self._context.tag
            ):
                return False
        except SyncConfigError:
            return version.state is VersionState.ACTIVE  # its deploy fails and says why
        return needed.items() <= self._context.store.complete_definitions(self._context.name).items()

    def _note_waiting(self, version: ConfigVersion, waiting: Sequence[str]) -> None:
        """Have the version say whom it waits for, unless one of these says how far it is."""
        note = waiting_note(waiting)
        if version.note != note and not any(version.note.startswith(progress_note(name, "")) for name in waiting):
            self._context.store.mark_version(self._context.lease, version.id, VersionState.PROCESSING, note)

    # requests

    def _take_request(self, request: Request) -> QueuedJob | None:
        if request.kind == RequestKind.SKIP:  # the stream may not have come to the transaction again
            self._due = True
            FailedTransactions(self._context.source, self._context.store).take_requests(self._context.lease)
            return None
        try:
            wanted = self._resync_request(request)
        except (ValueError, KeyError, TypeError) as error:
            self.end_request(request, RequestState.FAILED, {"error": str(error)})
            return None
        self._context.store.update_request(self._context.lease, request.id, RequestState.RUNNING, progress="starting")
        job = (Audit if request.kind == RequestKind.AUDIT else AskedResync)(self._context, wanted)
        return QueuedJob(job, request=request, inbox=self._inbox)

    def _resync_request(self, request: Request) -> ResyncRequest:
        payload = orjson.loads(request.payload or "{}")
        names = payload.get("tables") or []
        by_name = {t.relation.qualified_name: oid for oid, t in self._context.all_stored().items()}
        names = [name if name in by_name or "." in name else f"public.{name}" for name in names]
        unknown = [name for name in names if name not in by_name]
        if unknown:
            known = ", ".join(sorted(by_name)) or "none"
            raise ValueError(f"no such table is replicated: {', '.join(unknown)}; there are: {known}")
        oids = frozenset(by_name[name] for name in names) if names else None
        plans = tuple(self.plans())
        if request.kind == RequestKind.RESYNC:
            return ResyncRequest(plans, ResyncReason(Cause.ASKED), oids, verify=True)
        if request.kind == RequestKind.AUDIT:
            repair = bool(payload.get("repair"))
            return ResyncRequest(plans, ResyncReason(Cause.AUDIT), oids, repair=repair, verify=True)
        raise ValueError(f"this version of headwater does not know the request {request.kind!r}")

    def end_request(self, request: Request, state: RequestState, result: dict[str, object]) -> None:
        self._due = True
        text = orjson.dumps(result).decode()
        self._context.store.update_request(self._context.lease, request.id, state, result=text)

    # what is followed

    def follow(self) -> None:
        """Follow the plans in use, with no deploy under way. Buckets of all other definitions are removed first: a
        version that wants such a definition again must not take it for complete, nor continue it."""
        store, lease = self._context.store, self._context.lease
        forget_half_built(store, lease, self._context.source)
        used = self._in_use()
        if used.obsolete:
            _log.info("removing %d definitions that no version of the sync config needs", len(used.obsolete))
            self._obsolete = used.obsolete
            self.remove_some()
        self._context.follow(used.plans)

    def remove_some(self) -> None:
        """Remove the next rows of obsolete definitions from their buckets."""
        if not self._context.store.retire(self._context.lease, self._obsolete, RETIRED_AT_ONCE):
            self._obsolete = ()
            self._due = True


class JobScheduler:
    """Runs the jobs of one source. All methods are called between flushes."""

    def __init__(
        self, context: JobContext, keep_seconds: float, sampling: SamplingSettings, intervals: PollIntervals
    ) -> None:
        self._context = context
        self._intervals = intervals
        self._queue = JobQueue(context, keep_seconds)
        self._current: QueuedJob | None = None
        self._looked = 0.0
        self._not_before = 0.0
        self._worked = False  # whether the last step did work, rather than only look for some
        self._failures: dict[tuple[str, int], int] = {}
        self._engine_losses = 0
        self._changed: Counter[int] = Counter()  # by oid, how many comparisons in a row had to leave a table
        self._sampling = Sampling(context, sampling)
        self._unseen_due = time.monotonic() + min(intervals.audit, _FIRST_UNSEEN_SECONDS)

    @property
    def busy(self) -> bool:
        """Whether the next step has work to do."""
        return self._current is not None or self._queue.removing

    @property
    def patience(self) -> float:
        """Seconds that the stream may be silent before `step` is to be called."""
        if self.busy:
            return 0.0 if self._worked else _SHORTEST_PAUSE
        return min(max(self._sampling.pause, _SHORTEST_PAUSE), self._intervals.work)

    def step(self) -> None:
        """Do a bit of the work. Raises errors of the stream and of the store, and those that a person has to fix."""
        self._mark_unseen()
        started = time.monotonic()
        self._step()
        self._worked = time.monotonic() - started > _WORTH_SECONDS

    def _step(self) -> None:
        if self._current is not None:
            self._continue(self._current)
        elif self._queue.removing:
            self._queue.remove_some()
        elif time.monotonic() >= max(self._looked + self._intervals.work, self._not_before):
            self._looked = time.monotonic()
            if self._queue.has_news():
                self._current = self._queue.next()
            if self.busy:
                self._sampling.close()
        if not self.busy and self._sampling.pause <= 0:
            self._sample()

    def _mark_unseen(self) -> None:
        """Now and then, mark tables to be compared of which only some changes are published."""
        if time.monotonic() < self._unseen_due:
            return
        self._unseen_due = time.monotonic() + self._intervals.audit
        published, stored = self._context.published(self._queue.plans()), self._context.stored()
        marked = [t.id for oid, t in stored.items() if oid in published and published[oid].unseen and not t.resync]
        if marked:
            self._context.store.mark_resync(self._context.lease, marked, ResyncReason(Cause.PARTLY_PUBLISHED))

    def _sample(self) -> None:
        """With nothing else to do, run a slice of the sampling audit, and repair what it found."""
        self._sampling.step(self._queue.plans)
        job = self._sampling.repair(self._queue.plans)
        if job is not None:
            self._sampling.close()
            self._current = QueuedJob(job)

    def close(self) -> None:
        """Close the current job; it is started again at the next look."""
        self._sampling.close()
        self._queue.look_again()
        if self._current is not None:
            self._current.job.close()
            self._current = None

    def look_soon(self) -> None:
        """Look for work with the next step."""
        self._queue.look_again()
        self._looked = 0.0

    def tables_changed(self, oids: frozenset[int]) -> None:
        """The catalog describes these tables differently now: the current job leaves them out, or is started again."""
        self._sampling.close()
        self.look_soon()
        self._not_before = 0.0
        if self._current is not None and not self._current.job.tables_changed(oids):
            self.close()

    # the current job

    def _continue(self, queued: QueuedJob) -> None:
        try:
            with machine_errors():
                outcome = queued.job.step()
        except (SyncConfigError, ComputedTableError) as error:
            self._give_up(queued, str(error), everywhere=True)
            return
        except EngineError as error:
            self._restart(queued, error)
            return
        except HeadwaterError as error:
            # A merge that failed half done must not be committed with what the stream brings next
            of_stream = isinstance(error, _ABOUT_THE_STREAM) or not self._context.stream.is_empty
            if of_stream or error.kind not in {Kind.RETRY, Kind.RESYNC}:
                self.close()
                raise
            self._try_again(queued, error)
            return
        if outcome is not None:
            self._finish(queued, outcome)
        elif self._context.stream.is_empty:  # else a merge waits for the stream, in an open flush
            self._report(queued)

    def _report(self, queued: QueuedJob) -> None:
        """Store the progress now and then, for the command that waits for it. Without progress, it is stored again when
        something was submitted: the version may have been cancelled or replaced, which ends its job."""
        if time.monotonic() < self._looked + self._intervals.work:
            return
        self._looked = time.monotonic()
        progress, inbox = self._context.bulk.preparing() or queued.job.describe(), self._context.store.change_counter()
        if (progress, inbox) != (queued.reported, queued.inbox):
            queued.inbox = inbox
            self._store_progress(queued, progress)

    def _store_progress(self, queued: QueuedJob, progress: str) -> None:
        queued.reported = progress
        store, lease = self._context.store, self._context.lease
        if queued.request is not None:
            store.update_request(lease, queued.request.id, RequestState.RUNNING, progress=progress)
        elif queued.version is not None and queued.version.state is VersionState.PROCESSING:
            present = in_state(store, VersionState.PROCESSING)
            if present is None or present.id != queued.version.id:
                _log.info("version %d of the sync config was cancelled or replaced meanwhile", queued.version.id)
                self.close()
                self._queue.follow()
                return
            note = progress if self._alone else progress_note(self._context.name, progress)
            store.mark_version(lease, queued.version.id, VersionState.PROCESSING, note)

    @property
    def _alone(self) -> bool:
        return len(self._context.peers) == 1

    def _finish(self, queued: QueuedJob, outcome: JobOutcome) -> None:
        self._failures.pop(queued.key, None)
        self._engine_losses = 0
        self._current = None
        self.look_soon()  # a job often leaves work for another, such as a comparison
        if outcome.changed is not None:
            self._note_changed(outcome.changed)
        if outcome.follow:
            self._queue.follow()
        self._context.stream.tables.caught_up(outcome.equal)
        if queued.request is not None and outcome.result is not None:
            self._queue.end_request(queued.request, RequestState.DONE, outcome.result)

    def _note_changed(self, oids: frozenset[int]) -> None:
        """Have the catalog read again before tables that a comparison could not finish are compared again. Raises
        SchemaChangedError when that does not help: a stream that is read again describes every table again."""
        self._changed = Counter({oid: self._changed[oid] + 1 for oid in oids})
        if any(times >= _CHANGED_AT_MOST for times in self._changed.values()):
            raise SchemaChangedError("the stream describes a table differently than the catalog", self._context.name)
        if oids:
            self._context.schema.hint()
            self._not_before = time.monotonic() + self._intervals.recheck

    def _restart(self, queued: QueuedJob, error: EngineError) -> None:
        """Start the job again after a pause. A missing engine never fails a request or a version."""
        pause = min(self._intervals.retry * 2 ** min(self._engine_losses, 10), _GIVEN_UP_SECONDS)
        self._engine_losses += 1
        _log.warning("%s; trying again in %.0f s", error, pause)
        self._store_progress(queued, f"waits {pause:.0f} s before it starts again: {error}")
        self.close()
        self._not_before = time.monotonic() + pause

    def _try_again(self, queued: QueuedJob, error: HeadwaterError) -> None:
        unprepared = isinstance(queued.job, Deploy) and not queued.job.prepared
        passes = isinstance(error, _PASSING) or (unprepared and isinstance(error, SourceUnreachableError))
        if not passes:
            self._failures[queued.key] = self._failures.get(queued.key, 0) + 1
        if self._failures.get(queued.key, 0) >= _ATTEMPTS:
            self._give_up(queued, str(error))
            return
        changed = isinstance(error, TableChangedError)
        pause = self._intervals.recheck if changed else self._intervals.retry
        _log.log(logging.INFO if changed else logging.WARNING, "%s; trying again in %.0f s", error, pause)
        self.close()
        self._context.schema.hint()
        self._not_before = time.monotonic() + pause

    def _give_up(self, queued: QueuedJob, why: str, *, everywhere: bool = False) -> None:
        """A version fails where its text is wrong `everywhere`. What one of several sources suffers does not undo the
        work of the others: it tries again later."""
        _log.error("given up: %s", why)
        self.close()
        self._failures.clear()
        if queued.request is not None:
            self._queue.end_request(queued.request, RequestState.FAILED, {"error": why})
        elif queued.version is not None and not (everywhere or self._alone):
            self._store_progress(queued, f"tries again in {_GIVEN_UP_SECONDS:.0f} s: {why}")
            self._queue.postpone_deploys(_GIVEN_UP_SECONDS)
        elif queued.version is not None:
            self._context.store.mark_version(self._context.lease, queued.version.id, VersionState.FAILED, why)
            self._queue.follow()
        else:  # it comes again with the next look
            self._not_before = time.monotonic() + _GIVEN_UP_SECONDS


_ABOUT_THE_STREAM = (
    StoreError,
    StoreBusyError,
    StoreUnreachableError,
    LeaseLostError,
    SchemaChangedError,
    StreamProtocolError,
    SourceReplacedError,
    BucketKeyTakenError,  # the stream, by which comparisons merge, has to learn the new keys
)
"""Errors that concern the stream or the store. They end the attempt to follow the source, not only the job."""

_PASSING = (MachineError, PartLostError)
"""Errors of this machine and its disk. The job is tried again until they are gone; no version or request fails."""
