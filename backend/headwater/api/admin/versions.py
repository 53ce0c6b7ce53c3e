"""Lists versions of the sync config, shows their text, deploys new ones and rolls back."""

from __future__ import annotations

from msgspec import Struct

from headwater.api.admin.route import INVALID_RULES, NOT_FOUND, AdminSettings
from headwater.api.errors import ApiError
from headwater.insight.diff import compared, of_source
from headwater.source.catalog.schema import see_schema
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.compiler.compile import Compiled
from headwater_rules.errors import RuleError, SyncConfigError
from headwater_rules.schema import SourceSchema
from headwater_rules.versions import check_names


class VersionResponse(Struct, frozen=True):
    """A version of the sync config. Times are in seconds since 1970, null for what has not happened."""

    id: int
    state: VersionState
    origin: Origin
    created: float
    activated: float | None
    stopped: float | None
    note: str | None


class VersionsResponse(Struct, frozen=True):
    """All versions, newest first."""

    versions: tuple[VersionResponse, ...]


class VersionRequest(Struct, frozen=True):
    """A version by its id."""

    id: int


class VersionTextResponse(Struct, frozen=True):
    """A version and its text."""

    version: VersionResponse
    content: str


class DeployRequest(Struct, frozen=True):
    """The text of a sync config. With `allow_missing` it may name tables and columns that the source lacks: nobody gets
    rows by them until a migration has added them."""

    content: str
    allow_missing: bool = False


class RollbackRequest(Struct, frozen=True):
    """The version to go back to. By default it is the one that was active before the present one."""

    id: int | None = None


class DeployResponse(Struct, frozen=True):
    """The deployed version. `new` is false when a version with this text was already active or being processed. `note`
    says whether it was compared with the source's tables, and `findings` what the source lacks."""

    version: VersionResponse
    new: bool
    note: str
    findings: tuple[str, ...] = ()


def version_response(version: ConfigVersion) -> VersionResponse:
    return VersionResponse(
        version.id,
        version.state,
        version.origin,
        version.created,
        version.activated or None,
        version.stopped or None,
        version.note or None,
    )


class VersionsHandler:
    """Lists versions and deploys new ones."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def versions(self) -> VersionsResponse:
        """List all versions of the sync config."""
        with self._settings.store() as store:
            return VersionsResponse(tuple(version_response(each) for each in reversed(store.versions())))

    def text(self, which: VersionRequest) -> VersionTextResponse:
        """Show the text of one version."""
        with self._settings.store() as store:
            found = _find(store, which.id)
        return VersionTextResponse(version_response(found), found.yaml)

    def deploy(self, request: DeployRequest) -> DeployResponse:
        """Deploy a sync config. Devices get it once its rows are processed; until then the active one stays."""
        seen = see_schema(self._settings.sources, request.content)
        checked = compared_rules(request.content, seen.schema, allow_missing=request.allow_missing)
        with self._settings.store() as store:
            return deploy(store, request.content, seen.note, checked)

    def roll_back(self, request: RollbackRequest) -> DeployResponse:
        """Deploy the text of an earlier version again."""
        with self._settings.store() as store:
            chosen = _before(store) if request.id is None else _find(store, request.id)
            seen = see_schema(self._settings.sources, chosen.yaml)
            try:
                checked = compared(chosen.yaml, seen.schema, allow_missing=True)
            except SyncConfigError as errors:  # of a strict config, which was served before all the same
                checked = compiled(chosen.yaml), errors.findings
            return deploy(store, chosen.yaml, seen.note, checked)


def compiled(text: str) -> Compiled:
    """Compile a sync config. Raises PSYNC_R0001."""
    return compared_rules(text, None)[0]


def compared_rules(
    text: str, schema: SourceSchema | None, *, allow_missing: bool = False
) -> tuple[Compiled, tuple[RuleError, ...]]:
    """`compared`, for a request. Raises PSYNC_R0001."""
    try:
        return compared(text, schema, allow_missing=allow_missing)
    except SyncConfigError as error:
        raise invalid(error) from None


def invalid(error: SyncConfigError) -> ApiError:
    """The error that lists everything that is wrong with a sync config."""
    return ApiError("Sync config parsing failed", fix="; ".join(map(str, error.errors)), code=INVALID_RULES)


def deploy(store: StoreWriter, text: str, note: str, checked: tuple[Compiled, tuple[RuleError, ...]]) -> DeployResponse:
    """Add a version with this text, compared already, for the replicator to process. Raises PSYNC_R0001."""
    compiled, findings = checked
    before = {version.id for version in store.versions()}
    try:
        check_names(compiled.plan, store.known_definitions())
    except SyncConfigError as error:
        raise invalid(error) from None
    version = store.deploy(text, Origin.COMMAND)
    return DeployResponse(
        version_response(version), version.id not in before, note, tuple(map(str, of_source(findings)))
    )


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
