"""Which plans the stream is followed by: those of all versions whose row sides must stay up to date.

These are the active version, the one in processing, and versions that were stopped a little while ago, so that a
rollback to one of these is immediate.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from headwater.storage.backend import Store
from headwater.storage.contract.store import Lease
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleErrors
from headwater_rules.plan import SyncPlan, TablePattern
from headwater_rules.versions import only, sides

_log = logging.getLogger(__name__)

RETIRED_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class InUse:
    """The plans to follow, no row side in two of them, and the obsolete row sides, which none of them has."""

    plans: tuple[SyncPlan, ...]
    obsolete: tuple[str, ...]


def deploy_file(store: Store, yaml: str) -> None:
    """Deploy the service's sync config file, unless the file did not change: a version that was deployed by command
    since stays."""
    from_file = [version for version in store.versions() if version.origin is Origin.FILE]
    if not from_file or from_file[-1].yaml != yaml:
        store.deploy(yaml, Origin.FILE)


def newest(store: Store) -> ConfigVersion | None:
    """The version in processing, else the active one."""
    return in_state(store, VersionState.PROCESSING) or in_state(store, VersionState.ACTIVE)


def in_state(store: Store, state: VersionState) -> ConfigVersion | None:
    """The newest version in a state."""
    found = [version for version in store.versions() if version.state is state]
    return found[-1] if found else None


def in_use(store: Store, keep_seconds: float) -> InUse:
    """What to follow now. Versions that were stopped less than `keep_seconds` ago are included."""
    complete = store.complete_sides()
    plans: list[SyncPlan] = []
    covered: set[str] = set()
    for version in sorted(store.versions(), key=lambda v: (v.state is not VersionState.ACTIVE, -v.id)):
        recent = version.state is VersionState.STOPPED and time.time() - version.stopped < keep_seconds
        if version.state is not VersionState.ACTIVE and not (recent and version.activated):
            continue
        plan = _compiled(version)
        if plan is None:
            continue
        if version.state is not VersionState.ACTIVE:
            plan = _kept(plan, complete, covered)
        plans.append(plan)
        covered |= sides(plan).keys()
    processing = in_state(store, VersionState.PROCESSING)
    coming = None if processing is None else _compiled(processing)
    wanted = set() if coming is None else sides(coming).keys()
    if coming is not None:  # row sides that are complete already must stay so until its deploy begins
        plans.append(_kept(coming, complete, covered))
    obsolete = {*complete, *store.unfinished_sides()} - covered - wanted
    return InUse(tuple(plans), tuple(sorted(obsolete)))


def _kept(plan: SyncPlan, complete: Mapping[str, str], covered: Collection[str]) -> SyncPlan:
    """The plan with only those row sides that are complete and in no other plan."""
    names = [name for name, digest in sides(plan).items() if complete.get(name) == digest and name not in covered]
    return only(plan, names)


def forget_half_built(store: Store, lease: Lease) -> None:
    """Begin to remove row sides that an interrupted deploy left. Their buckets are gone after this step, so no row can
    change unnoticed in them while they are not followed."""
    active = in_state(store, VersionState.ACTIVE)
    served = set() if active is None else sides(plan_of(active.yaml)).keys()
    left = sorted({*store.unfinished_sides()} - served)
    if left:
        store.retire(lease, left, RETIRED_AT_ONCE)


@lru_cache(maxsize=16)
def plan_of(yaml: str) -> SyncPlan:
    """The plan of a sync config. Cached, since it is needed several times a second. Raises RuleErrors."""
    return compile_config(yaml).plan


def tables_named(store: Store) -> tuple[TablePattern, ...]:
    """The tables that the active version and the one in processing name."""
    versions = (in_state(store, VersionState.ACTIVE), in_state(store, VersionState.PROCESSING))
    plans = [plan for version in versions if version is not None and (plan := _compiled(version)) is not None]
    return tuple(dict.fromkeys(pattern for plan in plans for pattern in plan.tables()))


def _compiled(version: ConfigVersion) -> SyncPlan | None:
    try:
        return plan_of(version.yaml)
    except RuleErrors as error:
        _log.warning("version %d of the sync config does not compile any more: %s", version.id, error)
        return None
