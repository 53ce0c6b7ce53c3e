"""Runs bulk jobs beside the stream, one at a time, in steps between its flushes.

A job only writes while no flush of the stream is open, and in transactions of its own: neither sees half of what the
other does. Nothing about a running job has to survive a crash. What is to be done is read from the store (marks on
tables, a version in processing, open requests; see `jobs.agenda`), and a mark, version or request is only settled after
all of the job's work is stored. So when the replicator dies, or a job is closed half-way, work is lost but no duty: the
next look finds it and begins it again, and what is already right is not sent twice. An error of a job ends the job, not
the stream, unless it concerns the stream or the store: that one is raised, and following the source begins again.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from headwater.bulk.contract import EngineError, TableChangedError
from headwater.codes import Kind
from headwater.errors import HeadwaterError, MachineError, machine_errors
from headwater.replication.errors import ProtocolError, SchemaChangedError, SourceReplacedError
from headwater.replication.jobs.agenda import Agenda, Task
from headwater.replication.jobs.context import JobContext
from headwater.replication.pace import Pace
from headwater.replication.sampling.audit import Sampling, SamplingSettings
from headwater.replication.versions import in_state
from headwater.storage.contract.requests import RequestState
from headwater.storage.contract.store import (
    BucketKeyTakenError,
    LeaseLostError,
    PartLostError,
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
)
from headwater.storage.contract.versions import VersionState
from headwater_rules.errors import RuleErrors

_log = logging.getLogger(__name__)

_SHORTEST_PAUSE = 0.02
_WORTH_SECONDS = 0.005
_ATTEMPTS = 5
_GIVEN_UP_SECONDS = 60.0
_CHANGED_AT_MOST = 3


class JobScheduler:
    """Runs the jobs of one source. All methods are called between flushes."""

    def __init__(self, context: JobContext, keep_seconds: float, sampling: SamplingSettings, pace: Pace) -> None:
        self._context = context
        self._pace = pace
        self._agenda = Agenda(context, keep_seconds)
        self._current: Task | None = None
        self._looked = 0.0
        self._not_before = 0.0
        self._worked = False  # whether the last step did work, rather than only look for some
        self._failures: dict[tuple[str, int], int] = {}
        self._engine_losses = 0
        self._changed: Counter[int] = Counter()  # by oid, how many comparisons in a row had to leave a table
        self._sampling = Sampling(context, sampling)

    @property
    def busy(self) -> bool:
        """Whether the next step has work to do."""
        return self._current is not None or self._agenda.removing

    @property
    def patience(self) -> float:
        """Seconds that the stream may be silent before `step` is to be called."""
        if self.busy:
            return 0.0 if self._worked else _SHORTEST_PAUSE
        return min(max(self._sampling.pause, _SHORTEST_PAUSE), self._pace.work)

    def step(self) -> None:
        """Do a bit of the work. Raises errors of the stream and of the store, and those that a person has to fix."""
        started = time.monotonic()
        self._step()
        self._worked = time.monotonic() - started > _WORTH_SECONDS

    def _step(self) -> None:
        if self._current is not None:
            self._continue(self._current)
        elif self._agenda.removing:
            self._agenda.remove_some()
        elif time.monotonic() >= max(self._looked + self._pace.work, self._not_before):
            self._looked = time.monotonic()
            if self._agenda.has_news():
                self._current = self._agenda.next()
            if self.busy:
                self._sampling.close()
        if not self.busy and self._sampling.pause <= 0:
            self._sample()

    def _sample(self) -> None:
        """With nothing else to do, run a slice of the sampling audit, and repair what it found."""
        self._sampling.step(self._agenda.plans)
        job = self._sampling.repair(self._agenda.plans)
        if job is not None:
            self._sampling.close()
            self._current = Task(job)

    def close(self) -> None:
        """Close the current job; it is begun again at the next look."""
        self._sampling.close()
        self._agenda.look_again()
        if self._current is not None:
            self._current.job.close()
            self._current = None

    def look_soon(self) -> None:
        """Look for work with the next step."""
        self._agenda.look_again()
        self._looked = 0.0

    def tables_changed(self, oids: frozenset[int]) -> None:
        """The catalog describes these tables differently now: the current job leaves them out, or is begun again."""
        self._sampling.close()
        self.look_soon()
        self._not_before = 0.0
        if self._current is not None and not self._current.job.tables_changed(oids):
            self.close()

    # the current job

    def _continue(self, task: Task) -> None:
        try:
            with machine_errors():
                finished = task.job.step()
        except RuleErrors as error:
            self._give_up(task, str(error))
            return
        except EngineError as error:
            self._begin_again(task, error)
            return
        except HeadwaterError as error:
            if isinstance(error, _ABOUT_THE_STREAM) or error.kind not in {Kind.RETRY, Kind.RESYNC}:
                self.close()
                raise
            self._try_again(task, error)
            return
        if finished:
            self._finish(task)
        elif self._context.stream.settled:  # else a merge waits for the stream, in an open flush
            self._report(task)

    def _report(self, task: Task) -> None:
        """Store the progress now and then, for the command that waits for it."""
        progress = self._context.bulk.preparing() or task.job.describe()
        if progress == task.reported or time.monotonic() < self._looked + self._pace.work:
            return
        self._looked = time.monotonic()
        self._store_progress(task, progress)

    def _store_progress(self, task: Task, progress: str) -> None:
        task.reported = progress
        store, lease = self._context.store, self._context.lease
        if task.request is not None:
            store.update_request(lease, task.request.id, RequestState.RUNNING, progress=progress)
        elif task.version is not None and task.version.state is VersionState.PROCESSING:
            present = in_state(store, VersionState.PROCESSING)
            if present is None or present.id != task.version.id:
                _log.info("version %d of the sync config was replaced before it became active", task.version.id)
                self.close()
                self._agenda.follow()
                return
            store.mark_version(lease, task.version.id, VersionState.PROCESSING, progress)

    def _finish(self, task: Task) -> None:
        task.job.close()
        self._failures.pop(task.key, None)
        self._engine_losses = 0
        self._current = None
        self.look_soon()  # a job often leaves work for another, such as a comparison
        ending = task.job.finish()
        if ending.changed is not None:
            self._note_changed(ending.changed)
        if ending.follow:
            self._agenda.follow()
        self._context.stream.caught_up(ending.equal)
        if task.request is not None and (result := task.job.result()) is not None:
            self._agenda.end_request(task.request, RequestState.DONE, result)

    def _note_changed(self, oids: frozenset[int]) -> None:
        """Have the catalog read again before tables that a comparison could not finish are compared again. Raises
        SchemaChangedError when that does not help: a stream that is read again describes every table again."""
        self._changed = Counter({oid: self._changed[oid] + 1 for oid in oids})
        if any(times >= _CHANGED_AT_MOST for times in self._changed.values()):
            raise SchemaChangedError("the stream describes a table differently than the catalog", self._context.tag)
        if oids:
            self._context.stream.look_again()
            self._not_before = time.monotonic() + self._pace.again

    def _begin_again(self, task: Task, error: EngineError) -> None:
        """Begin the job again after a pause. A missing engine never fails a request or a version."""
        pause = min(self._pace.retry * 2 ** min(self._engine_losses, 10), _GIVEN_UP_SECONDS)
        self._engine_losses += 1
        _log.warning("%s; trying again in %.0f s", error, pause)
        self._store_progress(task, f"waits {pause:.0f} s before it begins again: {error}")
        self.close()
        self._not_before = time.monotonic() + pause

    def _try_again(self, task: Task, error: HeadwaterError) -> None:
        if not isinstance(error, _PASSING):
            self._failures[task.key] = self._failures.get(task.key, 0) + 1
        if self._failures.get(task.key, 0) >= _ATTEMPTS:
            self._give_up(task, str(error))
            return
        changed = isinstance(error, TableChangedError)
        pause = self._pace.again if changed else self._pace.retry
        _log.log(logging.INFO if changed else logging.WARNING, "%s; trying again in %.0f s", error, pause)
        self.close()
        self._context.stream.look_again()
        self._not_before = time.monotonic() + pause

    def _give_up(self, task: Task, why: str) -> None:
        _log.error("given up: %s", why)
        self.close()
        self._failures.clear()
        if task.request is not None:
            self._agenda.end_request(task.request, RequestState.FAILED, {"error": why})
        elif task.version is not None:
            self._context.store.mark_version(self._context.lease, task.version.id, VersionState.FAILED, why)
            self._agenda.follow()
        else:  # it comes again with the next look
            self._not_before = time.monotonic() + _GIVEN_UP_SECONDS


_ABOUT_THE_STREAM = (
    StoreError,
    StoreBusyError,
    StoreUnreachableError,
    LeaseLostError,
    SchemaChangedError,
    ProtocolError,
    SourceReplacedError,
    BucketKeyTakenError,  # the stream, by which comparisons merge, has to learn the new keys
)
"""Errors that concern the stream or the store. They end the attempt to follow the source, not only the job."""

_PASSING = (MachineError, PartLostError)
"""Errors of this machine and its disk. The job is tried again until they are gone; no version or request fails."""
