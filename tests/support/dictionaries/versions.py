"""Versions of the sync config, row sides and requests: what `storage.shared.control` is to back ends that know SQL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import orjson

from headwater.storage.contract.parts import PlacedRow
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.requests import Request, RequestState
from headwater.storage.contract.revocations import Revocation, RevokedKind
from headwater.storage.contract.store import Lease, StoreError
from headwater.storage.contract.versions import ConfigVersion, Origin, OwnConfig, VersionState
from tests.support.dictionaries.kept import Kept
from tests.support.dictionaries.state import State

_STATES = VersionState


class Versions:
    """See `storage.contract.versions.VersionStore` and `storage.contract.requests.RequestStore`."""

    _kept: Kept

    def inbox(self) -> int:
        return self._kept.state.inbox

    def versions(self) -> list[ConfigVersion]:
        return list(self._kept.state.versions.values())

    def deploy(self, yaml: str, origin: Origin) -> ConfigVersion:
        with self._kept.changing() as state:
            processing = [version for version in state.versions.values() if version.state is _STATES.PROCESSING]
            active = [version for version in state.versions.values() if version.state is _STATES.ACTIVE]
            for newest in (processing or active)[:1]:
                if newest.yaml == yaml:
                    return newest
            for version in processing:
                _change(state, version.id, _STATES.STOPPED, "another version was deployed")
            state.inbox += 1
            state.last_version += 1
            new = ConfigVersion(state.last_version, yaml, _STATES.PROCESSING, origin, time.time(), 0.0, 0.0, "")
            state.versions[new.id] = new
            return new

    def revoke(self, kind: RevokedKind, value: str, seconds: float) -> Revocation:
        with self._kept.changing() as state:
            now = time.time()
            state.last_revocation += 1
            new = Revocation(state.last_revocation, kind, value, now, now + seconds)
            state.revocations = (*(each for each in state.revocations if each.until >= now), new)
            return new

    def activate(self, lease: Lease, version: int, sides: Mapping[str, str]) -> Checkpoint:
        with self._kept.changing(lease) as state:
            set_active(state, version, sides)
            state.move(lease.name, "[]", "[]")
        return state.told_checkpoint()

    def mark_version(self, lease: Lease, version: int, state: VersionState, note: str) -> None:
        with self._kept.changing(lease) as changed:
            if changed.versions[version].state is not _STATES.ACTIVE:
                _change(changed, version, state, note)

    def complete_sides(self) -> dict[str, str]:
        return complete_sides(self._kept.state)

    def begin_sides(self, lease: Lease, sides: Mapping[str, str]) -> None:
        with self._kept.changing(lease) as state:
            state.sides = {name: (digest, "building") for name, digest in sides.items()} | state.sides

    def unfinished_sides(self) -> list[str]:
        return sorted(name for name, (_, stage) in self._kept.state.sides.items() if stage != "complete")

    def retire(self, lease: Lease, sides: Sequence[str], limit: int) -> bool:
        with self._kept.changing(lease) as state:
            state.sides |= {name: (state.sides[name][0], "retiring") for name in sides if name in state.sides}
            going = {name for name, (_, stage) in state.sides.items() if stage == "retiring"}
            state.retired |= {key: bucket.name for key, bucket in state.buckets.items() if bucket.definition in going}
            state.buckets = {key: bucket for key, bucket in state.buckets.items() if key not in state.retired}
            if len(list(islice(_stripped(state, going), limit))) == limit:
                return True
            state.sides = {name: side for name, side in state.sides.items() if name not in going}
            state.retired = {}
            return False

    def submit(self, kind: str, source: str, payload: str) -> int:
        with self._kept.changing() as state:
            state.inbox += 1
            state.last_request += 1
            new = Request(state.last_request, kind, source, payload, RequestState.WAITING, "", "", time.time())
            state.requests[new.id] = new
            return new.id

    def request(self, request: int) -> Request | None:
        return self._kept.state.requests.get(request)

    def open_requests(self, source: str) -> list[Request]:
        found = [request for request in self._kept.state.requests.values() if request.source == source]
        return [request for request in found if request.state in {RequestState.WAITING, RequestState.RUNNING}]

    def update_request(
        self, lease: Lease, request: int, state: RequestState, *, progress: str = "", result: str = ""
    ) -> None:
        with self._kept.changing(lease) as changed:
            told = replace(changed.requests[request], state=state, progress=progress, result=result)
            changed.requests[request] = told


def set_active(state: State, number: int, sides: Mapping[str, str]) -> None:
    """Serve a version, with which these row sides are complete, and stop the one before."""
    if number not in state.versions:
        raise StoreError("the version is not there", f"version {number}", "see `headwater rules versions`")
    for version in list(state.versions.values()):
        if version.state is _STATES.ACTIVE and version.id != number:
            _change(state, version.id, _STATES.STOPPED, version.note)
    now = replace(state.versions[number], state=_STATES.ACTIVE, activated=time.time(), stopped=0.0, note="")
    state.versions[number], state.config = now, number
    state.sides |= {name: (digest, "complete") for name, digest in sides.items()}


def _change(state: State, number: int, to: VersionState, note: str) -> None:
    stopped = 0.0 if to is _STATES.PROCESSING else time.time()
    state.versions[number] = replace(state.versions[number], state=to, stopped=stopped, note=note)


def _stripped(state: State, going: set[str]) -> Iterator[None]:
    """Take lookups and memberships of row sides away, one after the other."""
    for table in state.active_tables().values():
        for row_id, entries in list(table.lookups.items()):
            kept = tuple(entry for entry in entries if entry.key.partition("[")[0] not in going)
            if kept != entries:
                yield table.lookups.update({row_id: kept})
        for place, row in list(table.rows.values()):
            members = orjson.loads(row.members or "[]")
            stay = [member for member in members if member[0] not in state.retired]
            if stay != members:
                text = orjson.dumps(stay).decode() if stay else ""
                yield table.rows.update({row.row_id: PlacedRow(place, row._replace(members=text))})


def complete_sides(state: State) -> dict[str, str]:
    """Name to digest."""
    return {name: digest for name, (digest, stage) in sorted(state.sides.items()) if stage == "complete"}


def served(state: State, own: OwnConfig | None) -> int | None:
    """The version that an endpoint serves, None when there is none."""
    if state.checkpoint is None or state.config is None:
        return None
    if own is None or state.versions[state.config].origin is not Origin.FILE:
        return state.config
    replaced = [
        version.id
        for version in state.versions.values()
        if (version.yaml, version.origin, version.state) == (own.yaml, Origin.FILE, _STATES.STOPPED)
        and version.activated > 0
        and version.stopped > time.time() - own.keep_seconds
    ]
    return replaced[-1] if replaced and own.complete(complete_sides(state)) else state.config
