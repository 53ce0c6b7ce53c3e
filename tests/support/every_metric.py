"""Every metric that the service exports, where all that may be absent is known."""

from __future__ import annotations

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from headwater.api.http.requests import RequestCounts
from headwater.api.metrics import EndpointCollector, SourceCollector, StoreSizes, reported_totals
from headwater.api.refusals import Refusals
from headwater.api.streams.traffic import Traffic
from headwater.oplog.lsn import Lsn
from headwater.replication.computed import RefreshState
from headwater.replication.meters import Flow
from headwater.replication.status import ReplicationState, ReplicatorHealth, SourceStatuses, Trouble, to_json
from headwater.source.connect import SourceSettings
from headwater.source.readiness.finding import Finding
from headwater.source.readiness.health import SlotHealth
from headwater.storage.contract.reader import ReplicatorStatus
from headwater.storage.sql.stats import Disk
from tests.support.memory_store import MemoryStore
from tests.support.waiting import wait_until

_SLOT = SlotHealth("slot", "reserved", active=True, behind=1, held=2, left=3, limit=4, xmin_age=5, xmin_limit=6)
_FLOW = Flow(read_at=3.0, asked_at=3.0, log_end=Lsn(9), stored=Lsn(5), caught_up_at=1.0, behind_since=2.0)
_HEALTH = ReplicatorHealth(
    ReplicationState.RETRYING,
    since=1.0,
    at=3.0,
    trouble=Trouble("HW_2001", "away", "", "", 2.0, 1),
    findings=(Finding("HW_2021", "half used up", "raise it"),),
    slot=_SLOT,
    looked_at=3.0,
    flow=_FLOW,
    computed=(RefreshState("totals", "digest", "0/1", 2.0, 0.1, 10, 1),),
)


class _Noting(MemoryStore):
    """A store in which a replicator tells how it stands."""

    def replicator_status(self, tag: str) -> ReplicatorStatus:
        return ReplicatorStatus(to_json(_HEALTH), 0.0, runs=True)


def collectors() -> list[Collector]:
    """Those of an endpoint beside a replicator, which has all there are."""
    sizes = StoreSizes(lambda: Disk(1, 1, 1, 1, 1, 1, 1))
    wait_until(lambda: sizes.known() is not None, "the sizes")
    refusals, requests = Refusals(), RequestCounts()
    source = SourceSettings("127.0.0.1", "app", "headwater")
    requests.expect(["/sync/stream"])
    unknown = {("public.notes", "note", "1.0"): 1}
    own = EndpointCollector(lambda: 0, Traffic(refusals), requests, refusals, lambda: unknown)
    return [own, SourceCollector(SourceStatuses(_Noting(), [source]), reported_totals, sizes)]


def families() -> list[Metric]:
    """All, each with a sample at least."""
    found = [family for each in collectors() for family in each.collect()]
    assert not [family.name for family in found if not family.samples]
    return found


def samples() -> dict[str, set[str]]:
    """The names of labels, by the name that is asked for: of a counter, that with `_total`."""
    return {sample.name: set(sample.labels) for family in families() for sample in family.samples}
