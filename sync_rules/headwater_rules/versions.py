"""What two versions of a sync config have in common, and what differs.

A row side (a bucket definition or a lookup) is named by the stream and by a digest of everything that determines its
rows. The same name in two versions therefore means the same rows: they are not evaluated again, and devices do not
download them again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from headwater_rules.errors import RuleCode, RuleError, SyncConfigError
from headwater_rules.plan import RequestStage, RowSource, Stage, Stream, SyncPlan, TablePattern, Variant, joined_lookups


def definitions_of(plan: SyncPlan) -> dict[str, str]:
    """Name to digest of every bucket definition and lookup."""
    buckets = {bucket.name: bucket.digest for bucket in plan.buckets}
    lookups = {lookup.name: lookup.digest for lookup in plan.lookups}
    _refuse_clashes(buckets, lookups)  # a stream may be called `lookup`
    return buckets | lookups


def only(plan: SyncPlan, names: Collection[str]) -> SyncPlan:
    """A plan with only the row sides in `names`, for evaluating rows. It has no streams, and its bucket definitions are
    in the order, but not at the positions, of `plan`."""
    buckets = tuple(bucket for bucket in plan.buckets if bucket.name in names)
    lookups = tuple(lookup for lookup in plan.lookups if lookup.name in names)
    return replace(plan, buckets=buckets, lookups=lookups, streams=())


def without(plan: SyncPlan, names: Collection[str]) -> SyncPlan:
    """A plan with all row sides except those in `names`. See `only`."""
    return only(plan, definitions_of(plan).keys() - set(names))


def of_tag(plan: SyncPlan, tag: str) -> SyncPlan:
    """A plan with only the row sides that read tables of sources with this tag. See `only`. Such a row side may read
    tables of other sources too, and the same bucket then has rows of several sources."""
    buckets = (bucket.name for bucket in plan.buckets if any(source.table.of(tag) for source in bucket.sources))
    lookups = (lookup.name for lookup in plan.lookups if lookup.table.of(tag))
    own = only(plan, {*buckets, *lookups})
    return replace(own, computed=tuple(table for table in plan.computed if table.tag == tag))


def tables_of(plan: SyncPlan, names: Collection[str]) -> tuple[TablePattern, ...]:
    """The tables that these row sides of a plan read, without duplicates."""
    return only(plan, names).tables()


def check_names(plan: SyncPlan, known: Mapping[str, str]) -> None:
    """Check the row sides of `plan` against `known` (name to digest). Raises SyncConfigError when two digests shorten
    to the same name, because rows of one would be taken for rows of the other."""
    _refuse_clashes(known, definitions_of(plan))


def _refuse_clashes(known: Mapping[str, str], found: Mapping[str, str]) -> None:
    errors = [
        RuleError(
            RuleCode.INTERNAL,
            f"two different queries, of this config or an earlier version, would share the name {name}",
            suggestion="add a condition such as `id IS NOT NULL` to the new one",
        )
        for name, digest in found.items()
        if known.get(name, digest) != digest
    ]
    if errors:
        raise SyncConfigError(errors)


def readers_of(plan: SyncPlan, table: TablePattern) -> frozenset[object]:
    """All ways from a request to buckets that lead over rows of a table: as rows to send, or to decide by. Equal ways
    of two plans are the same ones."""
    buckets = {bucket.name for bucket in plan.buckets for source in bucket.sources if _reads(plan, source, table)}
    lookups = {lookup.name for lookup in plan.lookups if lookup.table == table}
    return frozenset(
        (plan.buckets[bucket].name, *_way(plan, variant))
        for stream in plan.streams
        for variant in stream.variants
        for bucket in variant.buckets
        if plan.buckets[bucket].name in buckets or any(plan.lookups[each].name in lookups for each in variant.lookups())
    )


def _reads(plan: SyncPlan, source: RowSource, table: TablePattern) -> bool:
    joined = joined_lookups(plan, (*source.deciding(), *source.selected()))
    return source.table == table or any(lookup.table == table for lookup in joined)


class DefinitionKind(Enum):
    """The kind of a row side: rows in buckets, or entries that requests look up."""

    BUCKET = "bucket"
    LOOKUP = "lookup"


class ChangeKind(Enum):
    """How a thing differs between two versions. CHANGED: another row side replaces the one before."""

    UNCHANGED = "unchanged"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """A row side and how it differs. `before` is the name of the row side that it replaces, when it is CHANGED.
    `streams` use it; it reads `tables`."""

    name: str
    kind: DefinitionKind
    change: ChangeKind
    before: str | None
    streams: tuple[str, ...]
    tables: tuple[TablePattern, ...]


@dataclass(frozen=True, slots=True)
class StreamChange:
    """A stream and how it differs. The flags say where a CHANGED one differs: in the rows of its buckets, in the
    lookups that requests use, in other steps from a request to buckets, and in its settings."""

    name: str
    change: ChangeKind
    rows: bool = False
    lookups: bool = False
    request: bool = False
    priority: bool = False
    auto_subscribe: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """The row sides, streams and computed tables of two versions, in the order of the new one, followed by the removed
    ones."""

    definitions: tuple[DefinitionChange, ...]
    streams: tuple[StreamChange, ...]
    computed: tuple[tuple[str, ChangeKind], ...] = ()

    @property
    def same(self) -> bool:
        """Whether the versions differ in nothing but their text."""
        changes = [side.change for side in self.definitions] + [stream.change for stream in self.streams]
        changes += [change for _, change in self.computed]
        return all(change is ChangeKind.UNCHANGED for change in changes)

    def having(self, *changes: ChangeKind, kind: DefinitionKind | None = None) -> tuple[DefinitionChange, ...]:
        """The row sides with one of these changes."""
        return tuple(side for side in self.definitions if side.change in changes and kind in (None, side.kind))


def compare(old: SyncPlan, new: SyncPlan) -> Comparison:
    """What changes when `new` replaces `old`. Raises SyncConfigError as `check_names` does."""
    check_names(new, definitions_of(old))
    changes = (*_sides(_buckets(old), _buckets(new)), *_sides(_lookups(old), _lookups(new)))
    return Comparison(changes, _streams(old, new), tuple(_computed(old, new)))


def _computed(old: SyncPlan, new: SyncPlan) -> Iterator[tuple[str, ChangeKind]]:
    """The computed tables of both, by name."""
    before, after = ({table.name: table for table in plan.computed} for plan in (old, new))
    for name, table in after.items():
        same = before.get(name) == table
        yield name, ChangeKind.UNCHANGED if same else ChangeKind.CHANGED if name in before else ChangeKind.ADDED
    yield from ((name, ChangeKind.REMOVED) for name in before if name not in after)


def _buckets(plan: SyncPlan) -> list[DefinitionChange]:
    """The bucket definitions of a plan, as if nothing changed."""
    tables = ((each.name, tuple(dict.fromkeys(source.table for source in each.sources))) for each in plan.buckets)
    return _unchanged(DefinitionKind.BUCKET, tables, plan.streams_by_bucket())


def _lookups(plan: SyncPlan) -> list[DefinitionChange]:
    tables = ((each.name, (each.table,)) for each in plan.lookups)
    return _unchanged(DefinitionKind.LOOKUP, tables, plan.streams_by_lookup())


def _unchanged(
    kind: DefinitionKind, tables: Iterable[tuple[str, tuple[TablePattern, ...]]], users: Mapping[int, Iterable[Stream]]
) -> list[DefinitionChange]:
    found = []
    for position, (name, read) in enumerate(tables):
        streams = tuple(stream.name for stream in users.get(position, ()))
        found.append(DefinitionChange(name, kind, ChangeKind.UNCHANGED, None, streams, read))
    return found


def _sides(old: Sequence[DefinitionChange], new: Sequence[DefinitionChange]) -> Iterator[DefinitionChange]:
    kept = {side.name for side in old} & {side.name for side in new}
    gone = [side for side in old if side.name not in kept]
    places = _places(gone, [side for side in new if side.name not in kept])
    for side in new:
        if side.name in kept:
            yield side
        elif side.name in places:
            yield replace(side, change=ChangeKind.CHANGED, before=places[side.name])
        else:
            yield replace(side, change=ChangeKind.ADDED)
    for side in gone:
        if side.name not in places.values():
            yield replace(side, change=ChangeKind.REMOVED)


def _places(gone: Sequence[DefinitionChange], come: Sequence[DefinitionChange]) -> dict[str, str]:
    """Which new side replaces which old one: a side of a stream that used both, preferably over the same tables."""
    places: dict[str, str] = {}
    left = list(gone)
    for alike in (_same_tables, _same_stream):
        for side in come:
            match = next((old for old in left if alike(old, side)), None) if side.name not in places else None
            if match is not None:
                places[side.name] = match.name
                left.remove(match)
    return places


def _same_stream(old: DefinitionChange, new: DefinitionChange) -> bool:
    return not set(old.streams).isdisjoint(new.streams)


def _same_tables(old: DefinitionChange, new: DefinitionChange) -> bool:
    return _same_stream(old, new) and old.tables == new.tables


def _streams(old: SyncPlan, new: SyncPlan) -> tuple[StreamChange, ...]:
    before = {stream.name: stream for stream in old.streams}
    after = {stream.name for stream in new.streams}
    changes = [
        _stream(old, before[stream.name], new, stream)
        if stream.name in before
        else StreamChange(stream.name, ChangeKind.ADDED)
        for stream in new.streams
    ]
    gone = (StreamChange(name, ChangeKind.REMOVED) for name in before if name not in after)
    return (*changes, *gone)


def _stream(old: SyncPlan, before: Stream, new: SyncPlan, after: Stream) -> StreamChange:
    rows = _row_sides(old, before) != _row_sides(new, after)
    lookups = _lookup_sides(old, before) != _lookup_sides(new, after)
    request = _request_sides(old, before, rows, lookups) != _request_sides(new, after, rows, lookups)
    priority = _priorities(before) != _priorities(after)
    subscribed = before.auto_subscribe != after.auto_subscribe
    change = ChangeKind.CHANGED if rows or lookups or request or priority or subscribed else ChangeKind.UNCHANGED
    return StreamChange(after.name, change, rows, lookups, request, priority, subscribed)


def _priorities(stream: Stream) -> set[int]:
    return {stream.priority if variant.priority is None else variant.priority for variant in stream.variants}


def _row_sides(plan: SyncPlan, stream: Stream) -> set[str]:
    return {plan.buckets[bucket].name for variant in stream.variants for bucket in variant.buckets}


def _lookup_sides(plan: SyncPlan, stream: Stream) -> set[str]:
    return {plan.lookups[lookup].name for variant in stream.variants for lookup in variant.lookups()}


def _request_sides(plan: SyncPlan, stream: Stream, rows: bool, lookups: bool) -> set[object]:
    """What leads from a request to buckets. Names of rows or lookups that differ anyway are left out, so that the
    comparison shows whether anything else does."""
    return {
        (
            None if rows else plan.buckets[bucket].name,
            *_way(plan, variant, lookups),
        )
        for variant in stream.variants
        for bucket in variant.buckets
    }


def _way(plan: SyncPlan, variant: Variant, lookups_differ: bool = False) -> tuple[object, ...]:
    return variant.gates, tuple(_named(plan, stage, lookups_differ) for stage in variant.stages), variant.params


def _named(plan: SyncPlan, stage: Stage, differs: bool) -> object:
    """A stage without positions in its plan."""
    if isinstance(stage, RequestStage):
        return stage
    return (None if differs else plan.lookups[stage.lookup].name, stage.keys, stage.filters)
