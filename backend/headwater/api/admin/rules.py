"""What a sync config does before it is deployed, and why a user's devices have what they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from headwater.api.admin.route import (
    MOST_BYTES,
    NOTHING_SERVED,
    TOO_LARGE,
    AdminSettings,
    Deadline,
    InvalidAdminRequestError,
)
from headwater.api.admin.versions import compared_rules, compiled, in_state
from headwater.api.admin.warm import WarmSchema
from headwater.api.errors import ApiError
from headwater.api.findings import RuleFinding, finding_of
from headwater.insight.diff import Estimate, diff_with_rows, of_source
from headwater.insight.explain import (
    NothingServedYetError,
    RowExplained,
    UserExplained,
    explain_row,
    explain_user,
)
from headwater.insight.preview import Preview, PreviewTooLargeError, preview
from headwater.insight.rows import CurrentRows
from headwater.source.catalog.schema import see_schema
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.versions import VersionState
from headwater.storage.open import open_store
from headwater.storage.sql.stats import DefinitionStats
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.compiler.compile import findings_in
from headwater_rules.errors import Severity
from headwater_rules.plan import NO_RULES
from headwater_rules.results import StreamSubscription, SyncRequest
from headwater_rules.versions import StreamChange

Text = Annotated[str, Meta(max_length=10_000, pattern=r"^[^\x00]*$")]
"""Text without NUL, which no store can hold."""


class ClientRequest(Struct, frozen=True):
    """A client and its request. `user` is the token's claim sub, `claims` are the other ones, and `parameters` are the
    client parameters."""

    user: Text
    claims: Mapping[str, object] | None = None
    parameters: Mapping[str, object] | None = None
    subscriptions: tuple[StreamSubscription, ...] = ()
    include_defaults: bool = True


def request_of(client: ClientRequest) -> SyncRequest:
    """The request of this client, as the rules take it. Raises InvalidAdminRequestError."""
    claims = dict(client.claims or {})
    if claims.get("sub", client.user) != client.user:
        raise InvalidAdminRequestError("the claim sub names another user than `user`", fix="leave it out")
    claims["sub"] = client.user
    return SyncRequest(claims, client.parameters, client.include_defaults, client.subscriptions)


class ExplainUserRequest(Struct, frozen=True):
    """A client, as an operator describes it."""

    client: ClientRequest


class ExplainRowRequest(Struct, frozen=True):
    """A client and a row. `table` is the table's name on devices, or its schema and name in a source, maybe with tag;
    `id` is the row's id there. With `sources`, only their rows are looked at."""

    client: ClientRequest
    table: Text
    id: Text
    sources: tuple[Text, ...] = ()


class ExplainHandler:
    """Explains rows and users from what the store really sends to devices."""

    def __init__(self, settings: AdminSettings, reader: StoreReader) -> None:
        self._settings = settings
        self._reader = reader
        self._limits = settings.limits

    def user(self, request: ExplainUserRequest) -> UserExplained:
        """Explain what a user's devices are sent now: buckets, rows, bytes, and why."""
        deadline = Deadline("headwater explain user")
        try:
            return explain_user(self._reader, request_of(request.client), self._limits, deadline.check)
        except NothingServedYetError:
            raise _nothing() from None

    def row(self, request: ExplainRowRequest) -> RowExplained:
        """Explain whether a user's devices have a row, by which bucket and since when, or which condition fails."""
        deadline = Deadline("headwater explain row")
        client = request_of(request.client)
        with self._settings.store() as store:
            current = current_rows(self._settings, store, request.sources, deadline)
            try:
                return explain_row(self._reader, current, client, request.table, request.id, self._limits)
            except NothingServedYetError:
                raise _nothing() from None


def _nothing() -> ApiError:
    return ApiError(
        "no sync config is served yet", fix="deploy one, or wait for its first snapshot to end", code=NOTHING_SERVED
    )


def current_rows(settings: AdminSettings, store: StoreWriter, names: Sequence[str], deadline: Deadline) -> CurrentRows:
    """The rows of all sources, or of those with these names. Raises HW_6202 for a name that none has."""
    settings.check_names(names)
    return CurrentRows(store, settings.sources, deadline.watch, names, check=deadline.check)


_FILE = "the sync config of the request"


class SyncConfigRequest(Struct, frozen=True):
    """The text of a sync config."""

    content: str


class ValidateRequest(Struct, frozen=True):
    """The text of a sync config. With `allow_missing`, tables and columns that the source lacks are no error: a
    migration will add them."""

    content: str
    allow_missing: bool = False


class ValidateResponse(Struct, frozen=True):
    """Whether a sync config can be deployed. `schema` says whether it was compared with the source's tables, and
    `note` with which and as of when, or why not."""

    valid: bool
    findings: tuple[RuleFinding, ...]
    schema: bool
    note: str


class DiffRequest(Struct, frozen=True):
    """A sync config, and how many rows of each table to sample for estimates of new buckets, of all sources or of
    `sources`. With `allow_missing`, tables and columns that the sources lack are no error."""

    content: str
    sample: int = 100_000
    allow_missing: bool = False
    sources: tuple[Text, ...] = ()


class DefinitionChangeResponse(Struct, frozen=True):
    """A bucket definition or lookup, and what becomes of it. `before` is the name of the one that it replaces. `stored`
    is what the store has of it, `to_download` what each device that gets it would download."""

    name: str
    change: str
    before: str | None
    streams: tuple[str, ...]
    tables: tuple[str, ...]
    stored: DefinitionStats | None = None
    to_download: Estimate | None = None


class DiffResponse(Struct, frozen=True):
    """What a sync config would change, compared with the active version."""

    file: str
    against: str
    same: bool
    definitions: tuple[DefinitionChangeResponse, ...]
    lookups: tuple[DefinitionChangeResponse, ...]
    streams: tuple[StreamChange, ...]
    computed_tables: tuple[Mapping[str, str], ...]
    missing_tables: tuple[str, ...]
    one_bucket_per_row: tuple[Mapping[str, object], ...]
    for_everybody: tuple[Mapping[str, object], ...]
    unsent: tuple[RuleFinding, ...]
    notes: tuple[str, ...]


class PreviewRequest(Struct, frozen=True):
    """A sync config, a client, and how many rows of each bucket to show, of all sources or of `sources`."""

    content: str
    client: ClientRequest
    rows: int = 5
    sources: tuple[Text, ...] = ()


class RulesHandler:
    """Checks and compares sync configs. Deploys and writes nothing."""

    def __init__(self, settings: AdminSettings, warm: WarmSchema) -> None:
        self._settings = settings
        self._warm = warm

    def validate(self, request: ValidateRequest) -> ValidateResponse:
        """Find everything that is wrong with a sync config, also with its tables if the source answers."""
        seen = self._warm.tables(request.content).found
        found = findings_in(request.content, seen.schema, allow_missing=request.allow_missing, advise=True)
        valid = not any(each.severity is Severity.FATAL for each in found)
        return ValidateResponse(valid, tuple(map(finding_of, found)), seen.schema is not None, seen.note)

    def diff(self, request: DiffRequest) -> DiffResponse:
        """Compare a sync config with the active one: what changes, and what devices would download again."""
        seen = see_schema(self._settings.sources, request.content)
        new, findings = compared_rules(request.content, seen.schema, allow_missing=request.allow_missing)
        deadline = Deadline("headwater rules diff")
        with self._settings.store() as store:
            served = in_state(store, VersionState.ACTIVE)
            found = diff_with_rows(
                current_rows(self._settings, store, request.sources, deadline),
                new,
                NO_RULES if served is None else compiled(served.yaml).plan,
                file=_FILE,
                against="no version: none is served yet" if served is None else f"version {served.id}",
                allowed=self._settings.limits.max_buckets,
                sample=max(1, request.sample),
            )
        diff = replace(found, unsent=of_source(findings), notes=(*found.notes, seen.note))
        return msgspec.convert(diff.as_dict(), DiffResponse)

    def preview(self, request: PreviewRequest) -> Preview:
        """Show the buckets and first rows that a user would get under a sync config."""
        plan = compiled(request.content).plan
        deadline = Deadline("headwater rules preview")
        with self._settings.store() as store, closing(open_store(self._settings.storage).open_reader()) as reader:
            try:
                return preview(
                    current_rows(self._settings, store, request.sources, deadline),
                    reader,
                    plan,
                    request_of(request.client),
                    self._settings.limits,
                    shown=max(0, request.rows),
                    max_shown_size=MOST_BYTES,
                )
            except PreviewTooLargeError as error:
                raise ApiError(error.what, fix="ask for fewer rows", code=TOO_LARGE) from None
