"""Audits: comparisons of the source, the current rows and the histories that devices receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from headwater.api.admin.route import AdminSettings, InvalidAdminRequestError
from headwater.api.admin.rules import Text
from headwater.replication.requests import RequestKind
from headwater.source.connect import SourceSettings
from headwater.storage.contract.store import Request, RequestState
from headwater.storage.sql.writer import StoreWriter


class AuditsRequest(Struct, frozen=True):
    """How many audits to list."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 20


class AuditRequest(Struct, frozen=True):
    """Audit these tables, such as `public.todos`, or all; of all sources, or of `sources`, by name or tag. With
    `repair`, what differs is made equal, and devices are sent it."""

    sources: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    tables: Annotated[tuple[Text, ...], Meta(max_length=1000)] = ()
    repair: bool = False


class AuditResponse(Struct, frozen=True):
    """An audit of a source, asked for at `asked` (seconds since 1970). An empty `tables` means all. `state` is waiting,
    running, done or failed; `progress` says how far it is, and `result` what was found, or the `error`. `differs` is
    null until it is done."""

    id: int
    source: str
    asked: float
    tables: tuple[str, ...]
    repair: bool
    state: str
    progress: str
    differs: bool | None
    result: msgspec.Raw


class AuditsResponse(Struct, frozen=True):
    """Audits that were asked for, newest first. Those that are over are kept for a day."""

    audits: tuple[AuditResponse, ...]


class _Payload(Struct, frozen=True):
    tables: tuple[str, ...] = ()
    repair: bool = False


class _Found(Struct, frozen=True):
    """What of a result says that something differs."""

    differences: dict[str, int] = {}
    buckets: list[object] = []
    lookups: int = 0
    computed: list[_FoundOfComputed] = []


class _FoundOfComputed(Struct, frozen=True):
    problem: str | None = None
    differ: int = 0


class AuditsHandler:
    """Submits audits to the replicators, through the store, and tells of them."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def audits(self, request: AuditsRequest) -> AuditsResponse:
        """List the audits of the last day with what they found."""
        with self._settings.store() as store:
            return AuditsResponse(tuple(map(_response, store.recent_requests(RequestKind.AUDIT, request.limit))))

    def audit(self, request: AuditRequest) -> AuditsResponse:
        """Compare sources with the store, and the store with itself.

        The answer comes at once; GET tells the rest. The same audit that waits or runs is not asked for again."""
        sources = self._sources(request.sources)
        if request.tables and len(sources) > 1:
            raise InvalidAdminRequestError("tables of several sources are named", fix="name one of them in `sources`")
        payload = msgspec.json.encode({"tables": request.tables, "repair": request.repair}).decode()
        with self._settings.store() as store:
            numbers = [_submitted(store, source.name, payload) for source in sources]
            return AuditsResponse(tuple(_response(found) for each in numbers if (found := store.request(each))))

    def _sources(self, names: Sequence[str]) -> Sequence[SourceSettings]:
        self._settings.check_names(names)
        return [each for each in self._settings.sources if not names or any(each.is_called(name) for name in names)]


def _submitted(store: StoreWriter, source: str, payload: str) -> int:
    """The request, which may be there already."""
    for each in store.open_requests(source):
        if each.kind == RequestKind.AUDIT and each.payload == payload:
            return each.id
    return store.submit(RequestKind.AUDIT, source, payload)


def _response(request: Request) -> AuditResponse:
    payload = msgspec.json.decode(request.payload, type=_Payload)
    found = msgspec.json.decode(request.result, type=_Found) if request.state is RequestState.DONE else None
    return AuditResponse(
        request.id,
        request.source,
        request.created,
        payload.tables,
        payload.repair,
        request.state.value,
        request.progress,
        None if found is None else _differs(found),
        msgspec.Raw((request.result or "null").encode()),
    )


def _differs(found: _Found) -> bool:
    computed = any(each.problem or each.differ for each in found.computed)
    return bool(any(found.differences.values()) or found.buckets or found.lookups or computed)
