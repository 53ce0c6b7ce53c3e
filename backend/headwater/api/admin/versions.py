"""Lists versions of the sync config, shows their text, deploys new ones and rolls back."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.api.admin.errors import InvalidRulesError, NotThereError
from headwater.api.admin.settings import AdminSettings
from headwater.insight.diff import compared, of_source
from headwater.source.catalog.schema import see_schema
from headwater.storage.backend import Store
from headwater.storage.contract.versions import ConfigVersion, Origin, VersionState
from headwater_rules.compiler.compile import Compiled
from headwater_rules.errors import RuleError, RuleErrors
from headwater_rules.schema import SourceSchema
from headwater_rules.versions import check_names


@dataclass(frozen=True, slots=True)
class VersionTold:
    """A version of the sync config. Times are in seconds since 1970, null for what has not happened."""

    id: int
    state: VersionState
    origin: Origin
    created: float
    activated: float | None
    stopped: float | None
    note: str | None


@dataclass(frozen=True, slots=True)
class Versions:
    """All versions, newest first."""

    versions: tuple[VersionTold, ...]


@dataclass(frozen=True, slots=True)
class WhichVersion:
    """A version by its id."""

    id: int


@dataclass(frozen=True, slots=True)
class VersionText:
    """A version and its text."""

    version: VersionTold
    content: str


@dataclass(frozen=True, slots=True)
class Deploy:
    """The text of a sync config. With `allow_missing` it may name tables and columns that the source lacks: nobody gets
    rows by them until a migration has added them."""

    content: str
    allow_missing: bool = False


@dataclass(frozen=True, slots=True)
class RollBack:
    """The version to go back to. By default it is the one that was active before the present one."""

    id: int | None = None


@dataclass(frozen=True, slots=True)
class Deployed:
    """The deployed version. `new` is false when a version with this text was already active or being processed. `note`
    says whether it was compared with the source's tables, and `findings` what the source lacks."""

    version: VersionTold
    new: bool
    note: str
    findings: tuple[str, ...] = ()


def told(version: ConfigVersion) -> VersionTold:
    """A version in the form of the API."""
    return VersionTold(
        version.id,
        version.state,
        version.origin,
        version.created,
        version.activated or None,
        version.stopped or None,
        version.note or None,
    )


class VersionsDesk:
    """Lists versions and deploys new ones."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def versions(self) -> Versions:
        """List all versions of the sync config."""
        with self._settings.store() as store:
            return Versions(tuple(told(each) for each in reversed(store.versions())))

    def text(self, which: WhichVersion) -> VersionText:
        """Show the text of one version."""
        with self._settings.store() as store:
            found = _find(store, which.id)
        return VersionText(told(found), found.yaml)

    def deploy(self, asked: Deploy) -> Deployed:
        """Deploy a sync config. Devices get it once its rows are processed; until then the active one stays."""
        seen = see_schema(self._settings.sources)
        checked = compared_rules(asked.content, seen.schema, allow_missing=asked.allow_missing)
        with self._settings.store() as store:
            return deploy(store, asked.content, seen.note, checked)

    def roll_back(self, asked: RollBack) -> Deployed:
        """Deploy the text of an earlier version again."""
        with self._settings.store() as store:
            chosen = _before(store) if asked.id is None else _find(store, asked.id)
            seen = see_schema(self._settings.sources)
            try:
                checked = compared(chosen.yaml, seen.schema, allow_missing=True)
            except RuleErrors as errors:  # of a strict config, which was served before all the same
                checked = compiled(chosen.yaml), errors.findings
            return deploy(store, chosen.yaml, seen.note, checked)


def compiled(text: str) -> Compiled:
    """Compile a sync config. Raises InvalidRulesError."""
    return compared_rules(text, None)[0]


def compared_rules(
    text: str, schema: SourceSchema | None, *, allow_missing: bool = False
) -> tuple[Compiled, tuple[RuleError, ...]]:
    """`compared`, for a request. Raises InvalidRulesError."""
    try:
        return compared(text, schema, allow_missing=allow_missing)
    except RuleErrors as error:
        raise invalid(error) from None


def invalid(error: RuleErrors) -> InvalidRulesError:
    """The error that lists everything that is wrong with a sync config."""
    return InvalidRulesError("Sync config parsing failed", fix="; ".join(map(str, error.errors)))


def deploy(store: Store, text: str, note: str, checked: tuple[Compiled, tuple[RuleError, ...]]) -> Deployed:
    """Add a version with this text, compared already, for the replicator to process. Raises InvalidRulesError."""
    compiled, findings = checked
    before = {version.id for version in store.versions()}
    try:
        check_names(compiled.plan, store.complete_sides())
    except RuleErrors as error:
        raise invalid(error) from None
    version = store.deploy(text, Origin.COMMAND)
    return Deployed(told(version), version.id not in before, note, tuple(map(str, of_source(findings))))


def in_state(store: Store, state: VersionState) -> ConfigVersion | None:
    """The newest version in a state."""
    return next((version for version in reversed(store.versions()) if version.state is state), None)


def _find(store: Store, number: int) -> ConfigVersion:
    found = next((version for version in store.versions() if version.id == number), None)
    if found is None:
        raise NotThereError(f"there is no version {number}", fix="see /api/headwater/v1/versions")
    return found


def _before(store: Store) -> ConfigVersion:
    now = in_state(store, VersionState.ACTIVE)
    texts = set() if now is None else {now.yaml}
    earlier = [version for version in store.versions() if version.activated and version.yaml not in texts]
    if not earlier:
        raise NotThereError("no other version was served before", fix="name one by its id")
    return max(earlier, key=lambda version: (version.activated, version.id))
