"""Notes every change that is made through the admin API: who, when, what."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Protocol, runtime_checkable

import msgspec
from msgspec import Meta, Struct

from headwater.api.admin.route import PREFIX, AdminSettings
from headwater.api.studio.tokens import Operator
from headwater.errors import HeadwaterError
from headwater.telemetry.log_facts import log_extra

_OURS = "/headwater/v1/"
_LONGEST = 200

log = logging.getLogger(__name__)


@runtime_checkable
class Outcome(Protocol):
    """An answer that knows what the request has changed."""

    def changed(self) -> Mapping[str, object] | None:
        """Facts to note beside those of the request; None if nothing was changed."""


class ChangeResponse(Struct, frozen=True):
    """A change made through the admin API. `at` is in seconds since 1970. `who` is empty where the token has no name.
    `what` is the path of the request, of ours without what all have in common. `detail` has its fields, except long
    ones."""

    id: int
    at: float
    who: str
    role: str
    what: str
    detail: Mapping[str, object]


class ChangesRequest(Struct, frozen=True):
    """How many changes to list, and the id of the one before which to begin."""

    before: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    limit: Annotated[int, Meta(ge=1, le=500)] = 50


class ChangesResponse(Struct, frozen=True):
    """Changes, newest first. `more` says whether there are older ones."""

    changes: tuple[ChangeResponse, ...]
    more: bool


class ChangeLog:
    """Notes changes in the store and in the log, and lists them."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def note(self, operator: Operator, path: str, argument: object, answer: object) -> None:
        """Note what a request did that was answered. A store that can't be written now keeps no answer back: the log
        has the change."""
        outcome = answer.changed() if isinstance(answer, Outcome) else {}
        if outcome is None:
            return
        detail = {**_short(msgspec.to_builtins(argument)), **outcome}
        what = path.removeprefix(PREFIX).removeprefix(_OURS).lstrip("/")
        told = msgspec.json.encode(detail).decode()
        facts = {"operator": operator.name, "role": operator.role.value, "what": what, "detail": told}
        log.info("an operator changed something", extra=log_extra(facts))
        try:
            with self._settings.store() as store:
                store.note_change(operator.name, operator.role.value, what, told)
        except HeadwaterError as error:
            log.warning("the change is in the log alone: %s", error)

    def changes(self, request: ChangesRequest) -> ChangesResponse:
        """List the changes that were made through the admin API, newest first."""
        with self._settings.store() as store:
            found = store.changes(request.before, request.limit + 1)
        shown = tuple(
            ChangeResponse(each.id, each.at, each.who, each.role, each.what, msgspec.json.decode(each.detail))
            for each in found[: request.limit]
        )
        return ChangesResponse(shown, len(found) > request.limit)


def _short(fields: object) -> dict[str, object]:
    """The fields that say something in short. Of lists there are numbers alone: the arguments of a statement, for
    example, are nobody else's business."""
    if not isinstance(fields, dict):
        return {}
    found: dict[str, object] = {}
    for name, value in fields.items():
        match value:
            case None | False | "" | [] | ():
                pass
            case str() if len(value) > _LONGEST:
                found[name] = f"{len(value):,} characters"
            case dict():
                found[name] = _short(value)
            case list() | tuple():
                numbers = all(isinstance(each, int) for each in value) and len(value) <= _LONGEST
                found[name] = value if numbers else f"{len(value):,} values"
            case _:
                found[name] = value
    return found
