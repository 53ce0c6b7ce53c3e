"""Tells what a sync config would do before it is deployed: its errors, its cost, and what a user would get."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace

import msgspec

from headwater.api.admin.asking import Client, request_of
from headwater.api.admin.errors import TooLargeAnswerError
from headwater.api.admin.route import MOST_BYTES
from headwater.api.admin.settings import AdminSettings
from headwater.api.admin.versions import compared_rules, compiled, in_state
from headwater.api.admin.work import Patience
from headwater.insight.diff import diff_with_rows, of_source
from headwater.insight.estimate import Estimate
from headwater.insight.preview import TooMuchShownError, preview
from headwater.insight.rows import CurrentRows
from headwater.source.catalog.schema import see_schema
from headwater.storage.contract.stats import DefinitionStats
from headwater.storage.contract.versions import VersionState
from headwater.storage.open import open_backend
from headwater_rules.compiler.compile import findings_in
from headwater_rules.errors import RuleError, Severity
from headwater_rules.plan import ConversionOptions, SyncPlan

_NOTHING = SyncPlan((), (), (), ConversionOptions())
_FILE = "the sync config of the request"


@dataclass(frozen=True, slots=True)
class Rules:
    """The text of a sync config."""

    content: str


@dataclass(frozen=True, slots=True)
class Validate:
    """The text of a sync config. With `allow_missing`, tables and columns that the source lacks are no error: a
    migration will add them."""

    content: str
    allow_missing: bool = False


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """An error or warning in a sync config. `place` has the offsets, lines and columns in its text."""

    code: str
    severity: str
    message: str
    suggestion: str | None
    place: Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class Validated:
    """Whether a sync config can be deployed. `schema` says whether it was compared with the source's tables, and
    `note` with which and as of when, or why not."""

    valid: bool
    findings: tuple[RuleFinding, ...]
    schema: bool
    note: str


@dataclass(frozen=True, slots=True)
class Compare:
    """A sync config, and how many rows of each table to sample for estimates of new buckets. With `allow_missing`,
    tables and columns that the source lacks are no error."""

    content: str
    sample: int = 100_000
    allow_missing: bool = False


@dataclass(frozen=True, slots=True)
class SideTold:
    """A bucket definition or lookup, and what becomes of it. `before` is the name of the one that it replaces. `stored`
    is what the store has of it, `to_download` what each device that gets it would download."""

    name: str
    change: str
    before: str | None
    streams: tuple[str, ...]
    tables: tuple[str, ...]
    stored: DefinitionStats | None = None
    to_download: Estimate | None = None


@dataclass(frozen=True, slots=True)
class StreamTold:
    """A stream, what becomes of it, and how it differs."""

    name: str
    change: str
    rows: bool
    lookups: bool
    request: bool
    priority: bool
    auto_subscribe: bool


@dataclass(frozen=True, slots=True)
class DiffTold:
    """What a sync config would change, compared with the active version."""

    file: str
    against: str
    same: bool
    definitions: tuple[SideTold, ...]
    lookups: tuple[SideTold, ...]
    streams: tuple[StreamTold, ...]
    missing_tables: tuple[str, ...]
    one_bucket_per_row: tuple[Mapping[str, object], ...]
    for_everybody: tuple[Mapping[str, object], ...]
    unsent: tuple[RuleFinding, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreviewAsked:
    """A sync config, a client, and how many rows of each bucket to show."""

    content: str
    client: Client
    rows: int = 5


@dataclass(frozen=True, slots=True)
class RowShown:
    """A row as a device would have it."""

    table: str
    id: str
    data: object


@dataclass(frozen=True, slots=True)
class BucketShown:
    """A bucket that the client would get, why, and its first rows. `size` is in bytes of JSON."""

    name: str
    priority: int
    reasons: tuple[Mapping[str, object], ...]
    rows: int
    size: int
    first: tuple[RowShown, ...]


@dataclass(frozen=True, slots=True)
class PreviewTold:
    """What a client would get."""

    user: str
    buckets: tuple[BucketShown, ...]
    streams: tuple[str, ...]
    lookups: Mapping[str, tuple[object, ...]]
    missing_tables: tuple[str, ...]
    warnings: tuple[str, ...]


class RulesDesk:
    """Checks and compares sync configs. Deploys and writes nothing."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def validate(self, asked: Validate) -> Validated:
        """Find everything that is wrong with a sync config, also with its tables if the source answers."""
        seen = see_schema(self._settings.sources)
        found = findings_in(asked.content, seen.schema, allow_missing=asked.allow_missing, advise=True)
        valid = not any(each.severity is Severity.FATAL for each in found)
        return Validated(valid, tuple(map(finding_of, found)), seen.schema is not None, seen.note)

    def diff(self, asked: Compare) -> DiffTold:
        """Compare a sync config with the active one: what changes, and what devices would download again."""
        seen = see_schema(self._settings.sources)
        new, findings = compared_rules(asked.content, seen.schema, allow_missing=asked.allow_missing)
        patience = Patience("headwater rules diff")
        with self._settings.store() as store:
            served = in_state(store, VersionState.ACTIVE)
            found = diff_with_rows(
                CurrentRows(store, self._settings.source, patience.watch, check=patience.check),
                new,
                _NOTHING if served is None else compiled(served.yaml).plan,
                file=_FILE,
                against="no version: none is served yet" if served is None else f"version {served.id}",
                allowed=self._settings.max_buckets,
                sample=max(1, asked.sample),
            )
        told = replace(found, unsent=of_source(findings), notes=(*found.notes, seen.note))
        return msgspec.convert(told.as_dict(), DiffTold)

    def preview(self, asked: PreviewAsked) -> PreviewTold:
        """Show the buckets and first rows that a user would get under a sync config."""
        plan = compiled(asked.content).plan
        patience = Patience("headwater rules preview")
        with self._settings.store() as store, closing(open_backend(self._settings.storage).open_reader()) as reader:
            try:
                found = preview(
                    CurrentRows(store, self._settings.source, patience.watch, check=patience.check),
                    reader,
                    plan,
                    request_of(asked.client),
                    max_buckets=self._settings.max_buckets,
                    max_results=self._settings.max_results,
                    shown=max(0, asked.rows),
                    room=MOST_BYTES,
                )
            except TooMuchShownError as error:
                raise TooLargeAnswerError(error.what, fix="ask for fewer rows") from None
        return msgspec.convert(found.as_dict(), PreviewTold)


def finding_of(error: RuleError) -> RuleFinding:
    """A finding in the form of the API."""
    return msgspec.convert(error.to_dict(), RuleFinding)
