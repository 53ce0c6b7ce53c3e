"""Comparisons that commands ask for: of streamed tables, and of computed tables with the results of their queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from headwater.replication.computed import computed_tables, refresh_states
from headwater.replication.jobs.job import Job, JobContext, JobOutcome, Steps
from headwater.replication.jobs.refresh import Refresh
from headwater.replication.jobs.resync import Resync, ResyncRequest


class AskedResync(Job):
    """Compares the tables of the request, and makes them what the source has."""

    def __init__(self, context: JobContext, request: ResyncRequest) -> None:
        super().__init__(context)
        self._request = request
        self._resync = Resync(context, request)
        self.kind = self._resync.kind

    def describe(self) -> str:
        return self._resync.describe()

    def tables_changed(self, oids: frozenset[int]) -> bool:
        return self._resync.tables_changed(oids)

    def _run(self) -> Steps[JobOutcome]:
        outcome = yield from self._resync.steps
        if outcome.result is None:
            return outcome
        computed = yield from compare_computed(self._context, self._request)
        result = {**outcome.result, "computed": computed}
        return JobOutcome(outcome.follow, outcome.changed, outcome.equal, result)


def compare_computed(context: JobContext, request: ResyncRequest) -> Steps[Sequence[dict[str, object]]]:
    """Compare the computed tables of the request with the results of their queries, each as of a snapshot of its own,
    and refresh them where the request is to repair. Returns what was seen of each, and as of which LSN its rows were
    before: a table that is refreshed by clock differs in what was committed since."""
    found = list[dict[str, object]]()
    defined, before = computed_tables(request.plans), refresh_states(context.store, context.name)
    for oid, stored in context.all_stored().items():
        table = defined.get(stored.relation.name) if stored.computed else None
        if table is None or (request.oids is not None and oid not in request.oids):
            continue
        refresh = Refresh(context, request.plans, table, look_only=not request.repair)
        yield from refresh.steps
        rows_as_of = before[table.name].lsn if table.name in before else ""
        found.append({**asdict(refresh.looked), "rows_as_of": rows_as_of})
    return found
