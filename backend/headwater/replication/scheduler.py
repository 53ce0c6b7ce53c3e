"""Bulk work beside the stream, one job at a time: deploys, what commands ask for, and forgetting what is obsolete."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import orjson

from headwater.bulk.contract import EngineError, TableChangedError
from headwater.errors import HeadwaterError, Kind, MachineError, machine_errors
from headwater.replication.errors import ProtocolError, SchemaChangedError, SourceReplacedError
from headwater.replication.jobs.audit import Audit
from headwater.replication.jobs.context import JobContext
from headwater.replication.jobs.deploy import Deploy
from headwater.replication.jobs.rekey import Rekey
from headwater.replication.jobs.resync import Order, Resync
from headwater.replication.pace import Pace
from headwater.replication.sampling.audit import Sampling, SamplingSettings
from headwater.replication.stream.intake import SKIP, FailedTransactions
from headwater.replication.versions import RETIRED_AT_ONCE, forget_half_built, in_state, in_use, plan_of
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.store import (
    LeaseLostError,
    PartLostError,
    StoreBusyError,
    StoreError,
    StoreUnreachableError,
)
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater_rules.errors import RuleErrors
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import sides

_log = logging.getLogger(__name__)

RESYNC, AUDIT = "resync", "audit"
"""Kinds of requests. Payload: `{"tables": ["public.todos", …]}`, all when empty; an audit may say `"repair": true`."""

_SHORTEST_PAUSE = 0.02
_WORTH_SECONDS = 0.005
_THOROUGH_SECONDS = 5.0
_ATTEMPTS = 5
_GIVEN_UP_SECONDS = 60.0
_LEFT_AT_MOST = 3


class Job(Protocol):
    """Work that is done a bit at a time, between flushes."""

    def step(self) -> bool: ...

    def describe(self) -> str: ...

    def close(self) -> None: ...


class _Asked:
    """A job and who wants it: a version on its way, or a request."""

    def __init__(self, job: Job, version: ConfigVersion | None, request: Request | None) -> None:
        self.job = job
        self.version = version
        self.request = request
        self.told = ""

    @property
    def key(self) -> tuple[str, int]:
        """What tells it from other work when attempts are counted."""
        if self.version is not None:
            return "version", self.version.id
        return ("request", self.request.id) if self.request is not None else (type(self.job).__name__, 0)


class JobScheduler:
    """Decides what to do next. `step` is called whenever no flush is open."""

    def __init__(self, context: JobContext, keep_seconds: float, sampling: SamplingSettings, pace: Pace) -> None:
        self._context = context
        self._keep_seconds = keep_seconds
        self._pace = pace
        self._current: _Asked | None = None
        self._looked = 0.0
        self._not_before = 0.0
        self._inbox = -1
        self._ended = True
        self._thorough = 0.0
        self._worked = False  # in the last step, rather than only looked whether there was anything to do
        self._failures: dict[tuple[str, int], int] = {}
        self._engine_losses = 0
        self._left: Counter[int] = Counter()  # by oid, how many comparisons in a row had to leave a table
        self._retiring: tuple[str, ...] = ()
        self._sampling = Sampling(context, sampling)

    @property
    def busy(self) -> bool:
        """Whether there is something to do at once."""
        return self._current is not None or bool(self._retiring)

    @property
    def patience(self) -> float:
        """Seconds that the stream may be silent before `step` is to be called."""
        if self.busy:
            return 0.0 if self._worked else _SHORTEST_PAUSE
        return min(max(self._sampling.pause, _SHORTEST_PAUSE), self._pace.work)

    def step(self) -> None:
        """A bit of whatever is to be done."""
        started = time.monotonic()
        self._step()
        self._worked = time.monotonic() - started > _WORTH_SECONDS

    def _step(self) -> None:
        if self._current is not None:
            self._continue(self._current)
        elif self._retiring:
            self._retire()
        elif time.monotonic() >= max(self._looked + self._pace.work, self._not_before):
            self._looked = time.monotonic()
            if self._has_news():
                self._look()
            if self.busy:
                self._sampling.close()
        if not self.busy and self._sampling.pause <= 0:
            self._sample()

    def _has_news(self) -> bool:
        """Whether to look thoroughly: something was handed in, a job ended, or it is a while ago. Commits wait for
        each look."""
        inbox = self._context.store.inbox()
        if inbox == self._inbox and not self._ended and time.monotonic() < self._thorough + _THOROUGH_SECONDS:
            return False
        self._inbox, self._ended, self._thorough = inbox, False, time.monotonic()
        return True

    def _sample(self) -> None:
        """With nothing else to do, a slice of the sampling audit, and what it calls for."""
        self._sampling.step(self._plans)
        job = self._sampling.mend(self._plans)
        if job is not None:
            self._sampling.close()
            self._current = _Asked(job, None, None)

    def close(self) -> None:
        """Leave what is being done for the next time."""
        self._sampling.close()
        self._ended = True
        if self._current is not None:
            self._current.job.close()
            self._current = None

    def look_soon(self) -> None:
        """There may be something to do at once."""
        self._ended = True
        self._looked = 0.0

    def tables_changed(self, oids: frozenset[int]) -> None:
        """These tables are others now: what is being done with them is begun again, or left."""
        self._sampling.close()
        self.look_soon()
        self._not_before = 0.0
        job = None if self._current is None else self._current.job
        if isinstance(job, Resync):
            job.leave(oids)
        elif job is not None and not (isinstance(job, Rekey) and job.oid not in oids):
            self.close()

    # what is next

    def _look(self) -> None:
        version = self._undeployed()
        stored = self._context.stored()
        waiting = next((table for table in stored.values() if table.has(Cause.REKEYED)), None)
        if waiting is not None:
            self._current = _Asked(Rekey(self._context, self._plans(), waiting), None, None)
            return
        marked = {oid: table.resync for oid, table in stored.items() if table.resync}
        if version is not None:  # which fills its own tables
            marked = {oid: why for oid, why in marked.items() if why.cause is not Cause.NEW_IN_VERSION}
        locked = self._context.locked([stored[oid] for oid in marked]) if marked else ()
        marked = {oid: why for oid, why in marked.items() if oid not in locked}  # those wait by themselves
        unlocked = [stored[oid].id for oid, why in marked.items() if why.cause is Cause.LOCKED]
        if unlocked:
            self._take_up(unlocked)
            return
        if marked:
            why = next(iter(marked.values()))
            verify = any(why.cause in {Cause.REDEFINED, Cause.REPLACED} for why in marked.values())
            order = Order(tuple(self._plans()), why, frozenset(marked), verify=verify)
            self._current = _Asked(Resync(self._context, order), None, None)
            return
        if version is not None:
            self._begin_deploy(version)
            return
        requests = self._context.store.open_requests(self._context.tag)
        if requests:
            self._begin_request(requests[0])
            return
        if in_use(self._context.store, self._keep_seconds).obsolete:
            self._follow()

    def _take_up(self, tables: Sequence[int]) -> None:
        """Follow tables again that were locked, before they are compared."""
        self._context.store.mark_resync(self._context.lease, tables, ResyncReason(Cause.REPLACED))
        self._context.follow(self._plans())
        self._ended = True

    def _undeployed(self) -> ConfigVersion | None:
        """The version on its way; or the served one, if it came from a store that did not keep its row sides."""
        store = self._context.store
        processing = in_state(store, VersionState.PROCESSING)
        if processing is not None:
            return processing
        active = in_state(store, VersionState.ACTIVE)
        if active is None:
            return None
        missing = sides(plan_of(active.yaml)).keys() - store.complete_sides().keys()
        return active if missing else None

    def _plans(self) -> Sequence[SyncPlan]:
        return in_use(self._context.store, self._keep_seconds).plans

    def _begin_deploy(self, version: ConfigVersion) -> None:
        _log.info("deploying version %d of the sync config", version.id)
        try:
            plan = plan_of(version.yaml)
            used = in_use(self._context.store, self._keep_seconds)
            while self._context.store.retire(self._context.lease, used.obsolete, RETIRED_AT_ONCE):
                pass  # row sides that are on their way out may be needed anew: they begin from nothing
            self._current = _Asked(Deploy(self._context, version, plan, used.plans), version, None)
        except RuleErrors as error:
            self._ended = True
            self._context.store.mark_version(self._context.lease, version.id, VersionState.FAILED, str(error))

    def _begin_request(self, request: Request) -> None:
        if request.kind == SKIP:  # the stream may not have come to it again
            self._ended = True
            FailedTransactions(self._context.source, self._context.store).take_requests(self._context.lease)
            return
        try:
            order = self._order(request)
        except (ValueError, KeyError, TypeError) as error:
            self._end_request(request, RequestState.FAILED, {"error": str(error)})
            return
        self._context.store.update_request(self._context.lease, request.id, RequestState.RUNNING, progress="starting")
        job = Audit(self._context, order) if request.kind == AUDIT else Resync(self._context, order)
        self._current = _Asked(job, None, request)

    def _order(self, request: Request) -> Order:
        payload = orjson.loads(request.payload or "{}")
        names = payload.get("tables") or []
        stored = self._context.stored()
        by_name = {f"{t.relation.schema}.{t.relation.name}": oid for oid, t in stored.items()}
        unknown = [name for name in names if name not in by_name]
        if unknown:
            known = ", ".join(sorted(by_name)) or "none"
            raise ValueError(f"no such table is replicated: {', '.join(unknown)}; there are: {known}")
        oids = frozenset(by_name[name] for name in names) if names else None
        plans = tuple(self._plans())
        if request.kind == RESYNC:
            return Order(plans, ResyncReason(Cause.ASKED), oids, verify=True)
        if request.kind == AUDIT:
            repair = bool(payload.get("repair"))
            return Order(plans, ResyncReason(Cause.AUDIT), oids, repair=repair, verify=True)
        raise ValueError(f"this version of headwater knows no request {request.kind!r}")

    # the job at hand

    def _continue(self, asked: _Asked) -> None:
        try:
            with machine_errors():
                finished = asked.job.step()
        except RuleErrors as error:
            self._give_up(asked, str(error))
            return
        except EngineError as error:
            self._begin_again(asked, error)
            return
        except HeadwaterError as error:
            if isinstance(error, _ABOUT_THE_STREAM) or error.kind not in {Kind.RETRY, Kind.RESYNC}:
                self.close()
                raise
            self._try_again(asked, error)
            return
        if finished:
            self._finish(asked)
        elif self._context.applier.settled:  # else what was merged waits for the stream, in a flush that is open
            self._tell(asked)

    def _tell(self, asked: _Asked) -> None:
        """Progress, for the command that waits for it."""
        said = self._context.bulk.preparing() or asked.job.describe()
        if said == asked.told or time.monotonic() < self._looked + self._pace.work:
            return
        self._looked = time.monotonic()
        self._say(asked, said)

    def _say(self, asked: _Asked, said: str) -> None:
        asked.told = said
        store, lease = self._context.store, self._context.lease
        if asked.request is not None:
            store.update_request(lease, asked.request.id, RequestState.RUNNING, progress=said)
        elif asked.version is not None and asked.version.state is VersionState.PROCESSING:
            present = in_state(store, VersionState.PROCESSING)
            if present is None or present.id != asked.version.id:
                _log.info("version %d of the sync config was replaced on its way", asked.version.id)
                self.close()
                self._follow()
                return
            store.mark_version(lease, asked.version.id, VersionState.PROCESSING, said)

    def _finish(self, asked: _Asked) -> None:
        asked.job.close()
        self._failures.pop(asked.key, None)
        self._engine_losses = 0
        self._current = None
        self.look_soon()  # one often leaves something for the next, such as a comparison
        if isinstance(asked.job, Resync):
            asked.job.unmark()
            self._note_left(asked.job.left)
        if asked.version is not None or isinstance(asked.job, (Resync, Rekey)):
            self._follow()
        if isinstance(asked.job, Resync):
            self._context.applier.brought(asked.job.right)
        if asked.request is not None and isinstance(asked.job, (Resync, Audit)):
            self._answer(asked.request, asked.job)

    def _answer(self, request: Request, job: Resync | Audit) -> None:
        """Say what was found; not before all tables were looked at, those too that were altered meanwhile."""
        if not job.left & self._context.stored().keys():
            self._end_request(request, RequestState.DONE, job.result())

    def _note_left(self, oids: frozenset[int]) -> None:
        """Tables that a comparison had to leave are compared once the catalog was looked at again. Raises
        SchemaChangedError when the stream keeps telling of them what the catalog does not say: from the start on, it
        tells all tables anew."""
        self._left = Counter({oid: self._left[oid] + 1 for oid in oids})
        if any(times >= _LEFT_AT_MOST for times in self._left.values()):
            raise SchemaChangedError("the stream tells of a table in another form than the catalog", self._context.tag)
        if oids:
            self._context.applier.look_again()
            self._not_before = time.monotonic() + self._pace.again

    def _end_request(self, request: Request, state: RequestState, result: dict[str, object]) -> None:
        self._ended = True
        text = orjson.dumps(result).decode()
        self._context.store.update_request(self._context.lease, request.id, state, result=text)

    def _begin_again(self, asked: _Asked, error: EngineError) -> None:
        """However often what runs bulk jobs is not there, no job is given up for it, least of all a version."""
        pause = min(self._pace.retry * 2 ** min(self._engine_losses, 10), _GIVEN_UP_SECONDS)
        self._engine_losses += 1
        _log.warning("%s; trying again in %.0f s", error, pause)
        self._say(asked, f"waits {pause:.0f} s before it begins again: {error}")
        self.close()
        self._not_before = time.monotonic() + pause

    def _try_again(self, asked: _Asked, error: HeadwaterError) -> None:
        if not isinstance(error, _OF_THE_MACHINE):
            self._failures[asked.key] = self._failures.get(asked.key, 0) + 1
        if self._failures.get(asked.key, 0) >= _ATTEMPTS:
            self._give_up(asked, str(error))
            return
        changed = isinstance(error, TableChangedError)
        pause = self._pace.again if changed else self._pace.retry
        _log.log(logging.INFO if changed else logging.WARNING, "%s; trying again in %.0f s", error, pause)
        self.close()
        self._context.applier.look_again()
        self._not_before = time.monotonic() + pause

    def _give_up(self, asked: _Asked, why: str) -> None:
        _log.error("given up: %s", why)
        self.close()
        self._failures.clear()
        self._not_before = time.monotonic() + _GIVEN_UP_SECONDS
        if asked.request is not None:
            self._end_request(asked.request, RequestState.FAILED, {"error": why})
        elif asked.version is not None:
            self._context.store.mark_version(self._context.lease, asked.version.id, VersionState.FAILED, why)
            self._follow()

    def _follow(self) -> None:
        """With no deploy at hand: follow what is in use. The buckets of all other row sides go before that, for what
        is not followed must not be taken for complete, or gone on with, by a version that wants it again."""
        store, lease = self._context.store, self._context.lease
        forget_half_built(store, lease)
        used = in_use(store, self._keep_seconds)
        if used.obsolete:
            _log.info("forgetting %d row sides that no version of the sync config needs", len(used.obsolete))
            self._retiring = used.obsolete
            self._retire()
        self._context.follow(used.plans)

    def _retire(self) -> None:
        if not self._context.store.retire(self._context.lease, self._retiring, RETIRED_AT_ONCE):
            self._retiring = ()
            self._ended = True


_ABOUT_THE_STREAM = (
    StoreError,
    StoreBusyError,
    StoreUnreachableError,
    LeaseLostError,
    SchemaChangedError,
    ProtocolError,
    SourceReplacedError,
)
"""Errors of the store and of the stream, which whoever runs the stream has to see."""

_OF_THE_MACHINE = (MachineError, PartLostError)
"""Errors that no work can help, however often it is tried: they are waited out, and no version fails of them."""
