"""Which plans the stream is followed by: those of all versions whose definitions must stay up to date.

These are the active version, the one in processing, and versions that were stopped a little while ago, so that a
rollback to one of these is immediate.

Each source has its part of a plan: the definitions that read tables with its tag. It builds, follows and forgets these
alone; of a definition that reads tables of several sources, each writes its own rows. A version is served when all
sources that were followed before are done with their parts. One that was never followed holds no version up: its rows
appear when its first snapshot is published.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from headwater.replication.computed import RefreshState, computed_tables, definition_of, refresh_states
from headwater.source.connect import SourceSettings
from headwater.source.rows.query import fault
from headwater.storage.contract.store import Lease
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import SyncConfigError
from headwater_rules.plan import NO_RULES, ComputedTable, Deciding, SyncPlan, TablePattern
from headwater_rules.versions import definitions_of, of_tag, only, readers_of

_log = logging.getLogger(__name__)

RETIRED_AT_ONCE = 5_000
_NAMED = 5

Peers = Mapping[str, str]
"""All sources of the configuration: their tags, by name."""


@dataclass(frozen=True, slots=True)
class InUse:
    """The parts of plans that a source has to follow, no definition in two of them, and its obsolete definitions, which
    none of them has. Those that removed sources left become obsolete for any source."""

    plans: tuple[SyncPlan, ...]
    obsolete: tuple[str, ...]


FILE_KEY = "digest of the sync config file"
"""The key under which the store notes which text of the file was taken last."""

_FILE_OF = "sync config file {}"
"""The same for a source: which text the process that follows it had last."""


class ConfigFile:
    """The text of the service's sync config file. The first source of a process that can write to the store deploys
    it, and no other one: another process may have deployed a newer file when the next one can. `sources` are all that
    the process follows."""

    def __init__(self, yaml: str, sources: Collection[str] = ()) -> None:
        self._yaml = yaml
        self._sources = sources
        self._lock = threading.Lock()
        self._deployed = False
        self._before: str | None = None

    def begin(self, store: StoreWriter) -> None:
        """Note which text was taken last when the process began, which may then wait for long until it deploys its
        own."""
        with self._lock:
            if self._before is None:
                self._before = store.get_meta(FILE_KEY)

    def deploy(self, store: StoreWriter, lease: Lease) -> None:
        """See `deploy_file`. A text that another process deployed since ours began is newer, and stays. Does nothing
        after it has succeeded."""
        with self._lock:
            if self._deployed:
                return
            if self._before is None or store.get_meta(FILE_KEY) in {self._before, _digest(self._yaml)}:
                deploy_file(store, lease, self._yaml, self._sources)
            else:
                _log.warning(_NEWER)
                _note_own(store, lease, _digest(self._yaml), self._sources)  # a start with it again is no news either
            self._deployed = True


def deploy_file(store: StoreWriter, lease: Lease, yaml: str, sources: Collection[str] = ()) -> None:
    """Deploy the service's sync config file, unless the file did not change: a version that was deployed by command
    since stays, and so does a newer file of another process. `sources` are those of this process. Logs which version is
    served, and why."""
    ours = _digest(yaml)
    if not was_taken(store, yaml, sources):
        version = store.deploy(yaml, Origin.FILE)
        _log.info("the text of the sync config file is new: it is version %d", version.id)
    elif store.get_meta(FILE_KEY) not in {"", ours}:
        _log.warning(_NEWER)
        return
    store.set_meta(lease, FILE_KEY, ours)
    _note_own(store, lease, ours, sources)
    text = why_served(store)
    if text:
        _log.info("serving %s", text)


_NEWER = "the sync config file is as before, and another process has a newer one, which stays"


def _note_own(store: StoreWriter, lease: Lease, digest: str, sources: Collection[str]) -> None:
    """Note which text the process of these sources has."""
    for source in sources:
        if store.get_meta(_FILE_OF.format(source)) != digest:
            store.set_meta(lease, _FILE_OF.format(source), digest)


def was_taken(store: StoreWriter, yaml: str, sources: Collection[str] = ()) -> bool:
    """Whether the file did not change since it was taken last, so that a start does not deploy it. While processes of
    several sources are restarted with a newer file one after the other, one that has the former file still may be
    restarted, too: the file of `sources`, which it follows, did not change. Whoever goes back to a former file on
    purpose changes it."""
    noted, ours = store.get_meta(FILE_KEY), _digest(yaml)
    if not noted:
        return _taken_before(store.versions(), yaml)
    unchanged = bool(sources) and all(store.get_meta(_FILE_OF.format(source)) == ours for source in sources)
    return noted == ours or unchanged


def _taken_before(versions: Sequence[ConfigVersion], yaml: str) -> bool:
    """Whether a text was served from the file before, as far as a store tells that has no note of it: one that was
    imported, or is of an earlier version."""
    from_file = [version for version in versions if version.origin is Origin.FILE]
    if from_file and from_file[-1].yaml == yaml:
        return True
    now = next((version for version in versions if version.state is VersionState.ACTIVE), None)
    by_command = now is not None and now.origin is Origin.COMMAND
    return by_command and any(version.yaml == yaml for version in versions if now and version.id < now.id)


def why_served(store: StoreWriter) -> str:
    """Which version of the sync config is served and why, in words. Empty when none is."""
    active = in_state(store, VersionState.ACTIVE)
    if active is None:
        return ""
    noted = store.get_meta(FILE_KEY)
    if noted == _digest(active.yaml):
        return f"version {active.id} of the sync config, the text of its file"
    by_command = f"version {active.id} of the sync config, which a command deployed"
    if not noted:
        return by_command if active.origin is Origin.COMMAND else f"version {active.id} of the sync config"
    if active.origin is Origin.FILE:
        coming = in_state(store, VersionState.PROCESSING)
        if coming is not None:
            why = f" ({coming.note})" if coming.note else ""
            return f"version {active.id} of the sync config, until the present text of its file is ready{why}"
        return (
            f"version {active.id} of the sync config: the present text of its file failed (`headwater rules versions`)"
        )
    return f"{by_command}: it stays until its file changes, which has another text"


def _digest(yaml: str) -> str:
    return hashlib.sha256(yaml.encode()).hexdigest()


def in_state(store: StoreWriter, state: VersionState) -> ConfigVersion | None:
    """The newest version in a state."""
    found = [version for version in store.versions() if version.state is state]
    return found[-1] if found else None


def in_use(store: StoreWriter, source: SourceSettings, keep_seconds: float) -> InUse:
    """What a source has to follow now. Versions that were stopped less than `keep_seconds` ago are included."""
    complete = store.complete_definitions(source.name)
    left = {*store.left_definitions()}
    plans: list[SyncPlan] = []
    covered: set[str] = set()
    for version in sorted(store.versions(), key=lambda v: (v.state is not VersionState.ACTIVE, -v.id)):
        recent = version.state is VersionState.STOPPED and time.time() - version.stopped < keep_seconds
        if version.state is not VersionState.ACTIVE and not (recent and version.activated):
            continue
        if left:
            left -= _definitions_in(version)
        plan = _compiled(version, source.tag)
        if plan is None:
            continue
        if version.state is not VersionState.ACTIVE:
            plan = _kept(plan, complete, covered)
        plans.append(plan)
        covered |= definitions_of(plan).keys()
    processing = in_state(store, VersionState.PROCESSING)
    coming = None if processing is None else _compiled(processing, source.tag)
    wanted = set() if coming is None else definitions_of(coming).keys()
    if coming is not None:  # definitions that are complete already must stay so until its deploy begins
        plans.append(_kept(coming, complete, covered))
    if processing is not None and left:
        left -= _definitions_in(processing)
    obsolete = {*complete, *store.unfinished_definitions(source.name)} - covered - wanted | left
    return InUse(tuple(plans), tuple(sorted(obsolete)))


def _kept(plan: SyncPlan, complete: Mapping[str, str], covered: Collection[str]) -> SyncPlan:
    """The plan with only those definitions that are complete and in no other plan."""
    names = [
        name for name, digest in definitions_of(plan).items() if complete.get(name) == digest and name not in covered
    ]
    return only(plan, names)


def forget_half_built(store: StoreWriter, lease: Lease, source: SourceSettings) -> None:
    """Begin to remove definitions that an interrupted deploy of a source left. Their buckets are gone after this step,
    so no row can change unnoticed in them while they are not followed."""
    active = in_state(store, VersionState.ACTIVE)
    served = set() if active is None else definitions_of(part_of(active.yaml, source.tag)).keys()
    left = sorted({*store.unfinished_definitions(source.name)} - served)
    if left:
        store.retire(lease, left, RETIRED_AT_ONCE)


@lru_cache(maxsize=16)
def _plan_of(yaml: str) -> SyncPlan:
    return compile_config(yaml).plan


@lru_cache(maxsize=1_000)
def part_of(yaml: str, tag: str) -> SyncPlan:
    """What a sync config says of sources with this tag. Cached, since it is needed several times a second. Raises
    SyncConfigError."""
    return of_tag(_plan_of(yaml), tag)


def needed_for(yaml: str, peers: Peers) -> dict[str, dict[str, str]]:
    """The definitions (name to digest) that each source has to complete before a sync config can be served. Raises
    SyncConfigError."""
    return {name: definitions_of(part_of(yaml, tag)) for name, tag in peers.items()}


def waits_for(store: StoreWriter, yaml: str, peers: Peers) -> list[str]:
    """The sources that are not done with their part of a sync config, of those that were followed before."""
    waiting = {*store.waiting_for(needed_for(yaml, peers))}
    return [name for name, tag in peers.items() if name in waiting or to_refresh(store, yaml, name, tag)]


def to_refresh(store: StoreWriter, yaml: str, source: str, tag: str) -> list[ComputedTable]:
    """The computed tables of a source that have to be refreshed before a sync config is served: they have rows of
    another query, and more users would get them than now. Those from whom a sync config only takes a table away may
    have the rows that are there; who keeps it had them before."""
    tables = computed_tables([part_of(yaml, tag)])
    if not tables:
        return []
    states, served = refresh_states(store, source), _served_plan(store)
    there = {table.relation.name for table in store.all_tables(source) if table.computed}
    return [
        table
        for name, table in tables.items()
        if name in there and states.get(name, RefreshState(name)).of != definition_of(table)
        if not readers_of(_plan_of(yaml), table.pattern) < readers_of(served, table.pattern)
    ]


def check_readers(store: StoreWriter, yaml: str, table: ComputedTable) -> None:
    """Check that all who get rows of this table now are to get those of its edited query, too: between its refresh and
    the version, they do. Raises ComputedTableError."""
    if not readers_of(_served_plan(store), table.pattern) <= readers_of(_plan_of(yaml), table.pattern):
        what = "its query is edited, or not computed yet as edited before, and who gets its rows changes too"
        fix = "deploy one edit after the other, in the order that is safe, or give the table another name"
        raise fault(table, what, fix, "HW_2710")


def _served_plan(store: StoreWriter) -> SyncPlan:
    """What is served to users; nothing by a version that does not compile any more."""
    active = in_state(store, VersionState.ACTIVE)
    try:
        return NO_RULES if active is None else _plan_of(active.yaml)
    except SyncConfigError:
        return NO_RULES


def progress_note(source: str, progress: str) -> str:
    """What a version in processing says while a source of several is at work on it."""
    return f"source {source}: {progress}"


def waiting_note(sources: Sequence[str]) -> str:
    """What a version in processing says while it waits for sources."""
    if len(sources) == 1:
        return f"waits for source {sources[0]}"
    named, more = sources[:_NAMED], len(sources) - _NAMED
    return f"waits for the sources {', '.join(named)}{f' and {more} more' if more > 0 else ''}"


def to_read_by(store: StoreWriter, source: SourceSettings, peers: Peers) -> ConfigVersion | None:
    """The version by which a source is read as a whole: the one in processing where nobody else has a part to do in
    it, else the one that is served, if any is."""
    coming, active = in_state(store, VersionState.PROCESSING), in_state(store, VersionState.ACTIVE)
    if coming is None or active is None:
        return coming or active
    others = {name: tag for name, tag in peers.items() if name != source.name}
    wrong = _compiled(coming, source.tag) is None
    return active if wrong or waits_for(store, coming.yaml, others) else coming


def served_definitions(store: StoreWriter) -> frozenset[str]:
    """Names of the definitions of the version that is served, of all sources."""
    active = in_state(store, VersionState.ACTIVE)
    return frozenset() if active is None else _definitions_in(active)


def _definitions_in(version: ConfigVersion) -> frozenset[str]:
    """Names of the definitions of a version, of all sources."""
    try:
        return frozenset(definitions_of(_plan_of(version.yaml)))
    except SyncConfigError:
        return frozenset()


def tables_named(store: StoreWriter, tag: str) -> tuple[TablePattern, ...]:
    """The tables of sources with this tag that the active version and the one in processing name."""
    return tuple(
        dict.fromkeys(pattern for plan in _present(store, tag) for pattern in plan.tables() if pattern.of(tag))
    )


def computed_now(store: StoreWriter, tag: str) -> tuple[ComputedTable, ...]:
    """The computed tables of sources with this tag, by the queries of the active version and the one in processing."""
    return tuple(dict.fromkeys(table for plan in _present(store, tag) for table in plan.computed))


def deciding_in(store: StoreWriter, tag: str) -> Deciding:
    """What decides in these versions who gets which rows of sources with this tag."""
    found = (each for plan in _present(store, tag) for each in plan.deciding() if each[0].of(tag))
    return tuple(dict.fromkeys(found))


def _present(store: StoreWriter, tag: str) -> list[SyncPlan]:
    versions = (in_state(store, VersionState.ACTIVE), in_state(store, VersionState.PROCESSING))
    return [plan for version in versions if version is not None and (plan := _compiled(version, tag)) is not None]


def _compiled(version: ConfigVersion, tag: str) -> SyncPlan | None:
    try:
        return part_of(version.yaml, tag)
    except SyncConfigError as error:
        _log.warning("version %d of the sync config does not compile any more: %s", version.id, error)
        return None
