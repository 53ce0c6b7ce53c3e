"""Which job is next: in this order, new row ids after a change of replica identity, comparisons of marked tables, a
deploy, and what commands asked for. With none of these, row sides that no version needs any more are removed."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from headwater.replication.jobs.audit import Audit
from headwater.replication.jobs.context import JobContext
from headwater.replication.jobs.deploy import Deploy
from headwater.replication.jobs.job import Job
from headwater.replication.jobs.rekey import Rekey
from headwater.replication.jobs.resync import Order, Resync
from headwater.replication.requests import RequestKind
from headwater.replication.stream.intake import FailedTransactions
from headwater.replication.versions import RETIRED_AT_ONCE, forget_half_built, in_state, in_use, plan_of
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater_rules.errors import RuleErrors
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import sides

_log = logging.getLogger(__name__)

_THOROUGH_SECONDS = 5.0


@dataclass(slots=True)
class Task:
    """A job and what asked for it: a version that is being deployed, a request, or neither. `reported` is the progress
    that was stored last."""

    job: Job
    version: ConfigVersion | None = None
    request: Request | None = None
    reported: str = ""

    @property
    def key(self) -> tuple[str, int]:
        """Identifies the work when failed attempts are counted."""
        if self.version is not None:
            return "version", self.version.id
        return ("request", self.request.id) if self.request is not None else (self.job.kind, 0)


class Agenda:
    """Reads from the store what is to be done. All methods are called between flushes."""

    def __init__(self, context: JobContext, keep_seconds: float) -> None:
        self._context = context
        self._keep_seconds = keep_seconds
        self._inbox = -1
        self._due = True  # something ended or changed since the last look
        self._thorough = 0.0
        self._obsolete: tuple[str, ...] = ()

    @property
    def removing(self) -> bool:
        """Whether row sides are being removed."""
        return bool(self._obsolete)

    def look_again(self) -> None:
        """Have the next `has_news` say yes."""
        self._due = True

    def has_news(self) -> bool:
        """Whether to call `next`: something was submitted, a job ended, or the last look is some seconds old. Commits
        wait for each look."""
        inbox = self._context.store.inbox()
        if inbox == self._inbox and not self._due and time.monotonic() < self._thorough + _THOROUGH_SECONDS:
            return False
        self._inbox, self._due, self._thorough = inbox, False, time.monotonic()
        return True

    def plans(self) -> Sequence[SyncPlan]:
        """The plans of all versions whose row sides have to stay right."""
        return in_use(self._context.store, self._keep_seconds).plans

    def next(self) -> Task | None:
        """Begin the next job. None when there is none, or when a step without a job came first."""
        version = self._undeployed()
        stored = self._context.stored()
        waiting = next((table for table in stored.values() if table.has(Cause.REKEYED)), None)
        if waiting is not None:
            return Task(Rekey(self._context, self.plans(), waiting))
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
            return Task(Resync(self._context, Order(tuple(self.plans()), why, frozenset(marked), verify=verify)))
        if version is not None:
            return self._deploy(version)
        requests = self._context.store.open_requests(self._context.tag)
        if requests:
            return self._take_request(requests[0])
        if in_use(self._context.store, self._keep_seconds).obsolete:
            self.follow()
        return None

    def _follow_unlocked(self, tables: Sequence[int]) -> None:
        """Follow tables that are no longer locked, before they are compared."""
        self._context.store.mark_resync(self._context.lease, tables, ResyncReason(Cause.REPLACED))
        self._context.follow(self.plans())
        self._due = True

    def _undeployed(self) -> ConfigVersion | None:
        """The version to deploy: one in processing, or the active one of a store that was imported without its row
        sides."""
        store = self._context.store
        processing = in_state(store, VersionState.PROCESSING)
        if processing is not None:
            return processing
        active = in_state(store, VersionState.ACTIVE)
        if active is None:
            return None
        missing = sides(plan_of(active.yaml)).keys() - store.complete_sides().keys()
        return active if missing else None

    def _deploy(self, version: ConfigVersion) -> Task | None:
        _log.info("deploying version %d of the sync config", version.id)
        try:
            plan = plan_of(version.yaml)
            used = in_use(self._context.store, self._keep_seconds)
            while self._context.store.retire(self._context.lease, used.obsolete, RETIRED_AT_ONCE):
                pass  # the version may need row sides that are being removed: they have to begin empty
            return Task(Deploy(self._context, version, plan, used.plans), version=version)
        except RuleErrors as error:
            self._due = True
            self._context.store.mark_version(self._context.lease, version.id, VersionState.FAILED, str(error))
            return None

    # requests

    def _take_request(self, request: Request) -> Task | None:
        if request.kind == RequestKind.SKIP:  # the stream may not have come to the transaction again
            self._due = True
            FailedTransactions(self._context.source, self._context.store).take_requests(self._context.lease)
            return None
        try:
            order = self._order(request)
        except (ValueError, KeyError, TypeError) as error:
            self.end_request(request, RequestState.FAILED, {"error": str(error)})
            return None
        self._context.store.update_request(self._context.lease, request.id, RequestState.RUNNING, progress="starting")
        job = Audit(self._context, order) if request.kind == RequestKind.AUDIT else Resync(self._context, order)
        return Task(job, request=request)

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
        plans = tuple(self.plans())
        if request.kind == RequestKind.RESYNC:
            return Order(plans, ResyncReason(Cause.ASKED), oids, verify=True)
        if request.kind == RequestKind.AUDIT:
            repair = bool(payload.get("repair"))
            return Order(plans, ResyncReason(Cause.AUDIT), oids, repair=repair, verify=True)
        raise ValueError(f"this version of headwater does not know the request {request.kind!r}")

    def end_request(self, request: Request, state: RequestState, result: dict[str, object]) -> None:
        """Answer a request."""
        self._due = True
        text = orjson.dumps(result).decode()
        self._context.store.update_request(self._context.lease, request.id, state, result=text)

    # what is followed

    def follow(self) -> None:
        """Follow the plans in use, with no deploy under way. Buckets of all other row sides are removed first: a
        version that wants such a row side again must not take it for complete, nor continue it."""
        store, lease = self._context.store, self._context.lease
        forget_half_built(store, lease)
        used = in_use(store, self._keep_seconds)
        if used.obsolete:
            _log.info("removing %d row sides that no version of the sync config needs", len(used.obsolete))
            self._obsolete = used.obsolete
            self.remove_some()
        self._context.follow(used.plans)

    def remove_some(self) -> None:
        """Remove the next rows of obsolete row sides from their buckets."""
        if not self._context.store.retire(self._context.lease, self._obsolete, RETIRED_AT_ONCE):
            self._obsolete = ()
            self._due = True
