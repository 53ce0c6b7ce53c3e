"""What a sync config would do that is being written: to one client, to the service, and to stored cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from headwater.api.admin.route import (
    NOT_FOUND,
    TOO_LARGE,
    AdminSettings,
    Deadline,
    InvalidAdminRequestError,
    Nothing,
)
from headwater.api.admin.rules import ClientRequest, Text, current_rows, request_of
from headwater.api.admin.versions import compiled, in_state
from headwater.api.errors import ApiError
from headwater.api.studio.tokens import Operator
from headwater.insight.compare import (
    BucketsCompared,
    ClientRows,
    ComparisonTooLargeError,
    RowCompared,
    TableCompared,
    client_rows,
    compare_client,
)
from headwater.insight.cost import DefinitionCost, cost
from headwater.storage.contract.store import StoredCase
from headwater.storage.contract.versions import VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.describe.explain import explain, explanation_lines
from headwater_rules.plan import NO_RULES, SyncPlan

_WIDTH = 100


class CompareRequest(Struct, frozen=True):
    """A sync config and a client. With `table`, a table on devices, its rows that differ are listed: all, or those with
    one kind of `change`."""

    content: str
    client: ClientRequest
    table: Text | None = None
    change: Literal["gained", "lost", "changed"] | None = None
    offset: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    limit: Annotated[int, Meta(ge=0, le=500)] = 50


class CompareResponse(Struct, frozen=True):
    """What the client gets by the version that is served, and would get by the sync config. `plan` tells in words what
    the sync config does. `more` says whether there are `rows` after these. `note` is of the comparison, `warnings` are
    of the client's request, and of rows that can't be compared for certain."""

    tables: tuple[TableCompared, ...]
    buckets: BucketsCompared
    plan: tuple[str, ...]
    rows: tuple[RowCompared, ...] | None
    more: bool
    note: str
    warnings: tuple[str, ...]


class CostRequest(Struct, frozen=True):
    """The text of a sync config."""

    content: str


class Renamed(Struct, frozen=True):
    """A definition that has the same rows under another name, since its stream was renamed: devices download them
    again."""

    before: str
    now: str


class DevicesCost(Struct, frozen=True):
    """The devices that are connected, those whose buckets change, and what these download in all, about: rows, and
    bytes of JSON."""

    connected: int
    affected: int
    rows: int
    bytes: int


class CostResponse(Struct, frozen=True):
    """What serving a sync config costs. `definitions` are those that change. About `rows_evaluated` rows of the store
    are evaluated, in about `seconds` going by former bulk jobs (null if there was none), and `space_bytes` of JSON are
    added to the store, before compression."""

    same: bool
    rows_evaluated: int
    definitions: tuple[DefinitionCost, ...]
    renamed: tuple[Renamed, ...]
    devices: DevicesCost
    seconds: float | None
    space_bytes: int
    note: str


class Expected(Struct, frozen=True, omit_defaults=True):
    """What a client is to have of a table: so many `rows`, those with the ids in `has`, and none of those in
    `lacks`."""

    rows: Annotated[int, Meta(ge=0)] | None = None
    has: tuple[Text, ...] = ()
    lacks: tuple[Text, ...] = ()


class CaseRequest(Struct, frozen=True):
    """A client that sync configs are tried with, and what it is to get, by table on devices."""

    name: Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
    client: ClientRequest
    expect: Mapping[str, Expected] | None = None


class CaseResponse(Struct, frozen=True):
    """A stored case, and who stored it when, in seconds since 1970."""

    name: str
    client: ClientRequest
    expect: Mapping[str, Expected] | None
    updated: float
    author: str


class CasesResponse(Struct, frozen=True):
    """The stored cases, by name."""

    cases: tuple[CaseResponse, ...]


class StoreCaseRequest(Struct, frozen=True):
    """A case to store, in place of another one with its name."""

    case: CaseRequest


class DeleteCaseRequest(Struct, frozen=True):
    """The name of a case."""

    name: Text


class RunCasesRequest(Struct, frozen=True):
    """A sync config, and the names of cases; all of them by default."""

    content: str
    names: tuple[Text, ...] | None = None


class CaseResult(Struct, frozen=True):
    """Whether a case passes, what is wrong if not, and how many rows its client would have by table."""

    name: str
    passed: bool
    failures: tuple[str, ...]
    rows: Mapping[str, int]


class CaseResults(Struct, frozen=True):
    """The results of cases, by name."""

    results: tuple[CaseResult, ...]


MOST_CASES, MOST_OF_CASE = 200, 64 * 1024
"""How many cases are kept, and how many characters each may have: a list of all is one answer."""


class TrialHandler:
    """Tries sync configs. Deploys nothing."""

    def __init__(self, settings: AdminSettings, users: Callable[[], Sequence[str]]) -> None:
        self._settings = settings
        self._users = users

    def compare(self, request: CompareRequest) -> CompareResponse:
        """Compare what a client gets now with what it would get by a sync config."""
        plan = compiled(request.content).plan
        deadline = Deadline("headwater rules preview")
        with self._settings.store() as store, closing(open_store(self._settings.storage).open_reader()) as reader:
            served, name = served_plan(store)
            try:
                found = compare_client(
                    current_rows(self._settings, store, (), deadline),
                    reader,
                    (served, plan),
                    request_of(request.client),
                    self._settings.limits,
                    request.table,
                )
            except ComparisonTooLargeError as error:
                raise ApiError(error.what, fix=error.fix, code=TOO_LARGE) from None
        rows = found.rows
        if rows is not None and request.change is not None:
            rows = tuple(row for row in rows if row.change.value == request.change)
        end = request.offset + request.limit
        return CompareResponse(
            found.tables,
            found.buckets,
            tuple(line for line in explanation_lines(explain(plan), _WIDTH) if line),
            None if rows is None else rows[request.offset : end],
            rows is not None and len(rows) > end,
            f"compared with {name}, over the rows in the store",
            found.notes,
        )

    def cost(self, request: CostRequest) -> CostResponse:
        """Estimate what serving a sync config costs: what is evaluated and stored, and what devices download."""
        new = compiled(request.content)
        deadline = Deadline("headwater rules diff")
        users = self._users()
        with self._settings.store() as store, closing(open_store(self._settings.storage).open_reader()) as reader:
            served, name = served_plan(store)
            current = current_rows(self._settings, store, (), deadline)
            found = cost(current, reader, served, new, users, self._settings.limits)
        return CostResponse(
            found.same,
            found.rows_evaluated,
            found.definitions,
            tuple(Renamed(before, now) for before, now in found.renamed),
            DevicesCost(len(users), found.affected, found.device_rows, found.device_bytes),
            found.seconds,
            sum(each.bytes or 0 for each in found.definitions if each.change != "removed"),
            "; ".join((f"compared with {name}", *found.notes)),
        )

    def cases(self) -> CasesResponse:
        """List the stored cases."""
        with self._settings.store() as store:
            return CasesResponse(tuple(map(_case_response, store.cases())))

    def store_case(self, request: StoreCaseRequest, operator: Operator) -> CaseResponse:
        """Store a case, in place of another one with its name."""
        case = request.case
        request_of(case.client)
        content = msgspec.json.encode((case.client, case.expect)).decode()
        if len(content) > MOST_OF_CASE:
            what = f"the case has {len(content):,} characters, and at most {MOST_OF_CASE:,} are allowed"
            raise InvalidAdminRequestError(what, fix="name fewer rows")
        with self._settings.store() as store:
            names = {each.name for each in store.cases()}
            if case.name not in names and len(names) >= MOST_CASES:
                raise InvalidAdminRequestError(f"there are {MOST_CASES} cases already", fix="delete some")
            store.put_case(case.name, content, operator.name)
            return next(_case_response(each) for each in store.cases() if each.name == case.name)

    def delete_case(self, request: DeleteCaseRequest) -> Nothing:
        """Delete a stored case."""
        with self._settings.store() as store:
            if not store.delete_case(request.name):
                raise _no_case(request.name)
        return Nothing()

    def run_cases(self, request: RunCasesRequest) -> CaseResults:
        """Run stored cases against a sync config, over the rows in the store."""
        plan = compiled(request.content).plan
        deadline = Deadline("headwater rules preview")
        with self._settings.store() as store, closing(open_store(self._settings.storage).open_reader()) as reader:
            stored = {each.name: _case_response(each) for each in store.cases()}
            for name in request.names or ():
                if name not in stored:
                    raise _no_case(name)
            chosen = [stored[name] for name in (stored if request.names is None else dict.fromkeys(request.names))]
            current = current_rows(self._settings, store, (), deadline)
            requests = [request_of(case.client) for case in chosen]
            try:
                found = client_rows(current, reader, plan, requests, self._settings.limits)
            except ComparisonTooLargeError as error:
                raise ApiError(error.what, fix=error.fix, code=TOO_LARGE) from None
        return CaseResults(tuple(map(_case_result, chosen, found)))


def _no_case(name: str) -> ApiError:
    return ApiError(f"there is no case {name}"[:200], fix="see /api/headwater/v1/cases", code=NOT_FOUND)


def _case_response(case: StoredCase) -> CaseResponse:
    client, expect = msgspec.json.decode(case.content, type=tuple[ClientRequest, Mapping[str, Expected] | None])
    return CaseResponse(case.name, client, expect, case.updated, case.author)


def _case_result(case: CaseResponse, found: ClientRows) -> CaseResult:
    failures = list(found.failures)
    for table, expected in (case.expect or {}).items():
        ids = found.ids.get(table, frozenset())
        if expected.rows not in {None, len(ids)}:
            failures.append(f"{table}: the client gets {len(ids):,} rows, not {expected.rows:,}")
        failures += [f"{table}: the client does not get {row_id}" for row_id in expected.has if row_id not in ids]
        failures += [f"{table}: the client gets {row_id}" for row_id in expected.lacks if row_id in ids]
    return CaseResult(case.name, not failures, tuple(failures), {table: len(ids) for table, ids in found.ids.items()})


def served_plan(store: StoreWriter) -> tuple[SyncPlan, str]:
    """The plan that devices are served by, and what to call it."""
    served = in_state(store, VersionState.ACTIVE)
    if served is None:
        return NO_RULES, "nothing: no version is served yet"
    return compiled(served.yaml).plan, f"version {served.id}"
