"""`/api/sync-rules/v1/…`: deploys and shows the sync config, in the shapes of the published service."""

from __future__ import annotations

from msgspec import UNSET

from headwater.api.admin.errors import DeployClosedError, NothingServedError
from headwater.api.admin.published.diagnostics import reprocess
from headwater.api.admin.published.shapes import (
    BucketDefinitionTold,
    Checked,
    Current,
    CurrentRules,
    SlotName,
)
from headwater.api.admin.rules import Rules
from headwater.api.admin.settings import AdminSettings
from headwater.api.admin.versions import compared_rules, deploy, in_state
from headwater.replication.own_slot import slot_of
from headwater.source.catalog.schema import see_schema
from headwater.storage.backend import Store
from headwater.storage.contract.versions import ConfigVersion, VersionState
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import RuleErrors
from headwater_rules.plan import SyncPlan
from headwater_rules.schema import SourceSchema


class DeploysDesk:
    """Deploys and shows sync configs."""

    def __init__(self, settings: AdminSettings) -> None:
        self._settings = settings

    def deploy(self, asked: Rules) -> SlotName:
        """Deploy a sync config. Refused when the service config names one."""
        if self._settings.from_file:
            raise DeployClosedError(
                "Sync config API disabled: the service config names the sync config",
                fix="change that file, or use /api/headwater/v1/deploy",
            )
        seen = see_schema(self._settings.sources)
        checked = compared_rules(asked.content, seen.schema)
        with self._settings.store() as store:
            deploy(store, asked.content, seen.note, checked)
            return SlotName(slot_of(self._settings.source, store))

    def validate(self, asked: Rules) -> Checked:
        """Check a sync config, and list the tables that it reads and those that devices get."""
        return _checked(asked.content, see_schema(self._settings.sources).schema)

    def reprocess(self) -> SlotName:
        """Compare all tables with the source, and send devices what differs."""
        return SlotName(reprocess(self._settings))

    def current(self) -> Current:
        """Show the active sync config, and the one that is being processed."""
        with self._settings.store() as store:
            active, following = in_state(store, VersionState.ACTIVE), in_state(store, VersionState.PROCESSING)
            if active is None:
                raise NothingServedError("No active sync config", fix="deploy one")
            return Current(self._told(store, active), None if following is None else self._told(store, following))

    def _told(self, store: Store, version: ConfigVersion) -> CurrentRules:
        checked = _checked(version.yaml, None)
        return CurrentRules(
            slot_of(self._settings.source, store),
            version.yaml,
            checked.valid,
            checked.errors,
            checked.bucket_definitions,
            checked.source_tables,
            checked.data_tables,
        )


def _checked(text: str, schema: SourceSchema | None) -> Checked:
    try:
        plan = compile_config(text, schema=schema).plan
    except RuleErrors as errors:
        return Checked(valid=False, errors=tuple(str(error) for error in errors.errors))
    tables = [{"connectionTag": each.tag, "schema": each.schema, "name": each.name} for each in plan.tables()]
    return Checked(True, UNSET, _definitions(plan), tuple(tables), _outputs(plan))


def _definitions(plan: SyncPlan) -> tuple[BucketDefinitionTold, ...]:
    told = []
    for position, bucket in enumerate(plan.buckets):
        used = (s.name for s in plan.streams if any(position in variant.buckets for variant in s.variants))
        read = dict.fromkeys(f"{source.table.schema}.{source.table.name}" for source in bucket.sources)
        told.append(BucketDefinitionTold(bucket.name, tuple(dict.fromkeys(used)), tuple(read)))
    return tuple(told)


def _outputs(plan: SyncPlan) -> tuple[str, ...]:
    """The names of tables on devices, without duplicates."""
    names = (source.output_table or source.table.name for bucket in plan.buckets for source in bucket.sources)
    return tuple(dict.fromkeys(names))
