"""Assigns names to what the planner drafted: equal row sides of a stream share one bucket definition, equal lookups one
index."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headwater_rules.compiler.planner import LookupDraft, VariantDraft
from headwater_rules.errors import Code, Place, RuleError
from headwater_rules.evaluate.naming import SHORT, bucket_digest, lookup_digest
from headwater_rules.plan import (
    BucketDefinition,
    ConversionOptions,
    LookupDefinition,
    LookupStage,
    RowSource,
    Stage,
    Variant,
)


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

    def name(self, position: int) -> str:
        """The name of a bucket definition."""
        return list(self._buckets)[position]

    def variant(self, stream: str, draft: VariantDraft, place: Place, priority: int | None = None) -> Variant:
        """The draft as a variant that refers to its definitions by position. Raises RuleError when two digests shorten
        to the same name."""
        stages: list[Stage] = [] if draft.arrays is None else [draft.arrays]
        stages += [LookupStage(self._lookup(lookup, place), lookup.sources) for lookup in draft.lookups]
        bucket = self._bucket(stream, draft.row, place)
        return Variant((bucket,), draft.gates, tuple(stages), draft.params, priority)

    def _bucket(self, stream: str, row: RowSource, place: Place) -> int:
        digest = bucket_digest(row, self._options)
        name = f"{stream}.{digest[:SHORT]}"
        position, known = self._buckets.setdefault(name, (len(self._buckets), BucketDefinition(name, digest, (row,))))
        _check_digest(known.digest, digest, name, place)
        return position

    def _lookup(self, draft: LookupDraft, place: Place) -> int:
        parts = (draft.table, draft.filters, draft.each, draft.keys, draft.outputs)
        digest = lookup_digest(*parts, self._options)
        name = f"lookup.{digest[:SHORT]}"
        position, known = self._lookups.setdefault(name, (len(self._lookups), LookupDefinition(name, digest, *parts)))
        _check_digest(known.digest, digest, name, place)
        return position


def merged(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Merge variants that the same request leads to in the same way."""
    buckets: dict[Variant, dict[int, None]] = {}
    for variant in variants:
        buckets.setdefault(replace(variant, buckets=()), {}).update(dict.fromkeys(variant.buckets))
    return tuple(replace(way, buckets=tuple(found)) for way, found in buckets.items())


def _check_digest(known: str, digest: str, name: str, place: Place) -> None:
    if known != digest:
        raise RuleError(
            Code.INTERNAL,
            f"two different queries of this config would share the name {name}",
            place,
            "add a condition such as `id IS NOT NULL` to one of them",
        )
