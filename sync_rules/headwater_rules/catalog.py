"""Names for what the planner drafted: equal row sides of a stream share one bucket definition, equal lookups one
index."""

from __future__ import annotations

from headwater_rules.errors import Code, Place, RuleError
from headwater_rules.naming import SHORT, bucket_digest, lookup_digest
from headwater_rules.plan import (
    BucketDefinition,
    ConversionOptions,
    LookupDefinition,
    LookupStage,
    RowSource,
    Variant,
)
from headwater_rules.planner import LookupDraft, VariantDraft


class Catalog:
    """Collects definitions in the order of first use."""

    def __init__(self, options: ConversionOptions) -> None:
        self._options = options
        self._buckets: dict[str, tuple[int, BucketDefinition]] = {}
        self._lookups: dict[str, tuple[int, LookupDefinition]] = {}

    @property
    def buckets(self) -> tuple[BucketDefinition, ...]:
        return tuple(bucket for _, bucket in self._buckets.values())

    @property
    def lookups(self) -> tuple[LookupDefinition, ...]:
        return tuple(lookup for _, lookup in self._lookups.values())

    def variant(self, stream: str, draft: VariantDraft, place: Place) -> Variant:
        """The draft with positions of its definitions. Raises RuleError when two digests shorten to one name."""
        stages = tuple(LookupStage(self._lookup(lookup, place), lookup.sources) for lookup in draft.lookups)
        return Variant(self._bucket(stream, draft.row, place), draft.gates, stages, draft.params)

    def _bucket(self, stream: str, row: RowSource, place: Place) -> int:
        digest = bucket_digest(row, self._options)
        name = f"{stream}.{digest[:SHORT]}"
        position, known = self._buckets.setdefault(name, (len(self._buckets), BucketDefinition(name, digest, (row,))))
        _same(known.digest, digest, name, place)
        return position

    def _lookup(self, draft: LookupDraft, place: Place) -> int:
        parts = (draft.table, draft.filters, draft.each, draft.keys, draft.outputs)
        digest = lookup_digest(*parts, self._options)
        name = f"lookup.{digest[:SHORT]}"
        position, known = self._lookups.setdefault(name, (len(self._lookups), LookupDefinition(name, digest, *parts)))
        _same(known.digest, digest, name, place)
        return position


def _same(known: str, digest: str, name: str, place: Place) -> None:
    if known != digest:
        raise RuleError(
            Code.INTERNAL,
            f"two different queries of this config would share the name {name}",
            place,
            "add a condition such as `id IS NOT NULL` to one of them",
        )
