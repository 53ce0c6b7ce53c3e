"""Lists versions of the sync config, shows their text, deploys new ones and rolls back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from headwater.api.admin.route import INVALID_RULES, NEWER_VERSION, NOT_FOUND, NOT_SENT, AdminSettings
from headwater.api.errors import ApiError
from headwater.api.findings import RefusedRulesError
from headwater.api.studio.tokens import Operator
from headwater.insight.diff import compared, of_source
from headwater.source.catalog.schema import see_schema
from headwater.storage.contract.versions import (
    ConfigVersion,
    NewerVersionError,
    NotProcessingError,
    Origin,
    VersionState,
)
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.compiler.compile import Compiled
from headwater_rules.errors import RuleCode, RuleError, SyncConfigError
from headwater_rules.schema import SourceSchema
from headwater_rules.versions import check_names


class VersionResponse(Struct, frozen=True):
    """A version of the sync config. Times are in seconds since 1970, null for what has not happened. `note` is the
    service's, `message` what the `author` said, if they are known."""

    id: int
    state: VersionState
    origin: Origin
    created: float
    activated: float | None
    stopped: float | None
    note: str | None
    author: str | None = None
    message: str | None = None


class VersionsRequest(Struct, frozen=True):
    """At most how many versions to list, and the id of the one before which to begin."""

    before: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] | None = None


class VersionsResponse(Struct, frozen=True):
    """Versions, newest first. `more` says whether there are older ones."""

    versions: tuple[VersionResponse, ...]
    more: bool


class VersionRequest(Struct, frozen=True):
    """A version by its id."""

    id: int


class VersionTextResponse(Struct, frozen=True):
    """A version and its text."""

    version: VersionResponse
    content: str


Said = Annotated[str, Meta(max_length=1_000, pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")]
"""Text that a terminal shows as it is."""


class DeployRequest(Struct, frozen=True):
    """The text of a sync config. With `allow_missing` it may name tables and columns that the source lacks: nobody gets
    rows by them until a migration has added them. With `force` it may name tables whose rows can't be replicated.
    `expected` is the newest version that the author knows of; nothing is deployed if there is a newer one. `note` is
    kept with the version. With `dry_run` all is checked, and nothing deployed."""

    content: str
    allow_missing: bool = False
    expected: int | None = None
    note: Said = ""
    dry_run: bool = False
    force: bool = False


class RollbackRequest(Struct, frozen=True):
    """The version to go back to; by default it is the one that was active before the present one. `expected` and `note`
    are those of a deploy."""

    id: int | None = None
    expected: int | None = None
    note: Said = ""


class DeployResponse(Struct, frozen=True):
    """The deployed version; null after a dry run. `new` is false when a version with this text was already active or
    being processed. `note` says whether it was compared with the source's tables, and `findings` what the source
    lacks."""

    version: VersionResponse | None
    new: bool
    note: str
    findings: tuple[str, ...] = ()

    def changed(self) -> Mapping[str, object] | None:
        """The new version, for the list of changes."""
        return {"version": self.version.id} if self.version and self.new else None


def version_response(version: ConfigVersion) -> VersionResponse:
    return VersionResponse(
        version.id,
        version.state,
        version.origin,
        version.created,
        version.activated or None,
        version.stopped or None,
        version.note or None,
        version.author or None,
        version.message or None,
    )


class VersionsHandler:
    """Lists versions and deploys new ones."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def versions(self, request: VersionsRequest) -> VersionsResponse:
        """List the versions of the sync config."""
        with self._settings.store() as store:
            found = [each for each in reversed(store.versions()) if request.before is None or each.id < request.before]
        listed = found[: request.limit]
        return VersionsResponse(tuple(map(version_response, listed)), len(listed) < len(found))

    def text(self, which: VersionRequest) -> VersionTextResponse:
        """Show the text of one version."""
        with self._settings.store() as store:
            found = _find(store, which.id)
        return VersionTextResponse(version_response(found), found.yaml)

    def deploy(self, request: DeployRequest, operator: Operator) -> DeployResponse:
        """Deploy a sync config. Devices get it once its rows are processed; until then the active one stays."""
        seen = see_schema(self._settings.sources, request.content)
        checked = compared_rules(request.content, seen.schema, allow_missing=request.allow_missing, advise=True)
        if not request.force and any(each.code is RuleCode.NOT_SENT for each in checked[1]):
            what = "it names tables whose rows can't be replicated"
            fix = "run the statements that the findings show, or deploy it anyway with `force`"
            raise RefusedRulesError(what, fix, NOT_SENT, checked[1])
        deploying = Deploying(request.content, operator.name, request.note, request.expected)
        with self._settings.store() as store:
            if request.dry_run:
                return _tried(store, deploying, seen.note, checked)
            return deploy(store, deploying, seen.note, checked)

    def cancel(self, request: VersionRequest, operator: Operator) -> VersionResponse:
        """Stop processing a version, and remove what was built for it. Devices keep the active one."""
        with self._settings.store() as store:
            _find(store, request.id)
            with _refusals():
                return version_response(store.cancel(request.id, f"cancelled by {operator.name or 'an operator'}"))

    def roll_back(self, request: RollbackRequest, operator: Operator) -> DeployResponse:
        """Deploy the text of an earlier version again."""
        with self._settings.store() as store:
            chosen = _before(store) if request.id is None else _find(store, request.id)
            seen = see_schema(self._settings.sources, chosen.yaml)
            try:
                checked = compared(chosen.yaml, seen.schema, allow_missing=True)
            except SyncConfigError as errors:  # of a strict config, which was served before all the same
                checked = compiled(chosen.yaml), errors.findings
            message = request.note or f"back to version {chosen.id}"
            deploying = Deploying(chosen.yaml, operator.name, message, request.expected)
            return deploy(store, deploying, seen.note, checked)


def compiled(text: str) -> Compiled:
    """Compile a sync config. Raises PSYNC_R0001."""
    return compared_rules(text, None)[0]


Checked = tuple[Compiled, tuple[RuleError, ...]]
"""A sync config that can be deployed, and what was found in it."""


def compared_rules(
    text: str, schema: SourceSchema | None, *, allow_missing: bool = False, advise: bool = False
) -> Checked:
    """`compared`, for a request. Raises PSYNC_R0001."""
    try:
        return compared(text, schema, allow_missing=allow_missing, advise=advise)
    except SyncConfigError as error:
        raise invalid(error) from None


def invalid(error: SyncConfigError) -> ApiError:
    """The error that lists everything that is wrong with a sync config."""
    said = "; ".join(map(str, error.errors))
    return RefusedRulesError("Sync config parsing failed", said, INVALID_RULES, error.findings)


@dataclass(frozen=True, slots=True)
class Deploying:
    """A sync config to deploy, and what its author says."""

    text: str
    author: str
    message: str = ""
    expected: int | None = None


def deploy(store: StoreWriter, what: Deploying, note: str, checked: Checked) -> DeployResponse:
    """Add a version with this text, compared already, for the replicator to process. Raises PSYNC_R0001 and HW_6211."""
    before = _check_names(store, checked)
    with _refusals():
        version = store.deploy(
            what.text, Origin.COMMAND, author=what.author, message=what.message, expected=what.expected
        )
    return DeployResponse(version_response(version), version.id not in before, note, _lacking(checked))


def _tried(store: StoreWriter, what: Deploying, note: str, checked: Checked) -> DeployResponse:
    """What `deploy` would do."""
    before = _check_names(store, checked)
    present = in_state(store, VersionState.PROCESSING) or in_state(store, VersionState.ACTIVE)
    new = present is None or present.yaml != what.text
    newest = max(before, default=0)
    if new and what.expected not in {None, newest}:
        raise ApiError(f"version {newest} was deployed meanwhile", fix="look at what it changes", code=NEWER_VERSION)
    return DeployResponse(None, new, note, _lacking(checked))


def _check_names(store: StoreWriter, checked: Checked) -> set[int]:
    """Check that no definition has the name of another one in the store. Returns the ids of all versions."""
    try:
        check_names(checked[0].plan, store.known_definitions())
    except SyncConfigError as error:
        raise invalid(error) from None
    return {version.id for version in store.versions()}


def _lacking(checked: Checked) -> tuple[str, ...]:
    return tuple(map(str, of_source(checked[1])))


@contextmanager
def _refusals() -> Iterator[None]:
    """Turn the store's refusals of a version into answers."""
    try:
        yield
    except (NewerVersionError, NotProcessingError) as error:
        raise ApiError(error.what, fix=error.fix, code=error.code) from None


def in_state(store: StoreWriter, state: VersionState) -> ConfigVersion | None:
    """The newest version in a state."""
    return next((version for version in reversed(store.versions()) if version.state is state), None)


def _find(store: StoreWriter, number: int) -> ConfigVersion:
    found = next((version for version in store.versions() if version.id == number), None)
    if found is None:
        raise ApiError(f"there is no version {number}", fix="see /api/headwater/v1/versions", code=NOT_FOUND)
    return found


def _before(store: StoreWriter) -> ConfigVersion:
    now = in_state(store, VersionState.ACTIVE)
    texts = set() if now is None else {now.yaml}
    earlier = [version for version in store.versions() if version.activated and version.yaml not in texts]
    if not earlier:
        raise ApiError("no other version was served before", fix="name one by its id", code=NOT_FOUND)
    return max(earlier, key=lambda version: (version.activated, version.id))
