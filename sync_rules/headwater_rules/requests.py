"""A request to the buckets it may read, and why.

Lookup stages are joined: what comes from one looked-up row is only ever combined with values of the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import orjson

from headwater_rules.errors import EvaluationError, RuleLimitError
from headwater_rules.inputs import Canonical, Inputs
from headwater_rules.naming import key_text
from headwater_rules.plan import FromLookup, FromRequest, ParamSource, Stream, SyncPlan, Variant
from headwater_rules.results import LookupReader, Resolution, ResolvedBucket, StreamStatus, SyncRequest

Found = tuple[Canonical, ...]
State = tuple[Found, ...]
"""Per stage that has run the outputs of the row it found, or nothing once nobody needs them."""


def resolve(
    plan: SyncPlan, request: SyncRequest, read: LookupReader, *, max_buckets: int = 1000, max_results: int = 1000
) -> Resolution:
    """The buckets of a request, with lookups answered by `read` (at one checkpoint). Without lookup keys in the
    answer it holds for as long as the plan does. A subscription to an unknown stream is left out. Expressions that
    fail on the request's values are reported with their stream; raises RuleLimitError beyond the limits."""
    resolver = _Resolver(plan, read, max_buckets, max_results)
    statuses: list[StreamStatus] = []
    for stream in plan.streams:
        entries = _entries(stream, request, len(statuses))
        if entries:
            errors = [error for entry in entries for error in resolver.add(stream, entry)]
            statuses.append(StreamStatus(stream.name, stream.auto_subscribe, tuple(errors)))
    buckets = (
        ResolvedBucket(name, found.definition, found.priority, tuple(found.reasons))
        for name, found in resolver.buckets.items()
    )
    return Resolution(tuple(buckets), tuple(statuses), frozenset(resolver.answers))


def default_stream_names(plan: SyncPlan) -> tuple[str, ...]:
    """The streams that a request gets without naming them, in the order of the config."""
    return tuple(stream.name for stream in plan.streams if stream.auto_subscribe)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One reason to resolve a stream: the implicit subscription, or one that the client named."""

    reason: dict[str, int]
    label: str | int
    priority: int
    inputs: Inputs


@dataclass(slots=True)
class _Bucket:
    definition: int
    priority: int
    reasons: list[dict[str, int]] = field(default_factory=list)


def _entries(stream: Stream, request: SyncRequest, index: int) -> list[_Entry]:
    entries: list[_Entry] = []
    named = [(number, entry) for number, entry in enumerate(request.subscriptions) if entry.stream == stream.name]
    # one without parameters takes the place of the implicit subscription
    replaced = any(subscription.parameters is None for _, subscription in named)
    if stream.auto_subscribe and request.include_defaults and not replaced:
        inputs = Inputs(request.claims, request.parameters, None)
        entries.append(_Entry({"default": index}, "default", stream.priority, inputs))
    for number, subscription in named:
        inputs = Inputs(request.claims, request.parameters, subscription.parameters)
        override = subscription.override_priority
        entries.append(_Entry({"sub": number}, number, stream.priority if override is None else override, inputs))
    return entries


class _Resolver:
    def __init__(self, plan: SyncPlan, read: LookupReader, max_buckets: int, max_results: int) -> None:
        self.buckets: dict[str, _Bucket] = {}
        self.answers: dict[str, tuple[Found, ...]] = {}
        self._plan = plan
        self._read = read
        self._max_buckets = max_buckets
        self._max_results = max_results

    def add(self, stream: Stream, entry: _Entry) -> list[dict[str, object]]:
        """Resolve all variants of a stream for one subscription; what failed is returned in wire form."""
        messages: dict[str, None] = {}
        for variant in stream.variants:
            try:
                for name in self._names(variant, entry.inputs):
                    self._found(name, variant.bucket, entry)
            except EvaluationError as error:
                messages.setdefault(f"Error evaluating bucket ids: {error}")
        return [{"subscription": entry.label, "message": message} for message in messages]

    def _found(self, name: str, definition: int, entry: _Entry) -> None:
        bucket = self.buckets.get(name)
        if bucket is None:
            if len(self.buckets) >= self._max_buckets:
                raise RuleLimitError("buckets", self._max_buckets)
            bucket = self.buckets[name] = _Bucket(definition, entry.priority)
        bucket.priority = min(bucket.priority, entry.priority)
        if entry.reason not in bucket.reasons:
            bucket.reasons.append(entry.reason)

    def _names(self, variant: Variant, inputs: Inputs) -> Iterator[str]:
        if not all(inputs.holds(gate) for gate in variant.gates):
            return
        prefix = self._plan.buckets[variant.bucket].name
        for state in self._states(variant, inputs):
            choices = [_agreed([_values(source, state, inputs) for source in sources]) for sources in variant.params]
            for values in product(*choices):
                name = key_text(prefix, values)
                if name is not None:
                    yield name

    def _states(self, variant: Variant, inputs: Inputs) -> Iterable[State]:
        states: Iterable[State] = [()]
        for number, stage in enumerate(variant.stages):
            needed = _needed_after(variant, number)
            name = self._plan.lookups[stage.lookup].name
            asked = [(state, key) for state in states for key in self._keys(name, stage.keys, state, inputs)]
            self._ask(key for _, key in asked)
            joined: dict[State, None] = {}
            for state, key in asked:
                for found in self.answers[key]:
                    row = (*state, found)
                    joined.setdefault(tuple(kept if i in needed else () for i, kept in enumerate(row)))
                    if len(joined) > self._max_results:
                        raise RuleLimitError("lookup rows", self._max_results)
            states = joined
        return states

    def _keys(self, name: str, sources: Sequence[ParamSource], state: State, inputs: Inputs) -> list[str]:
        keys: list[str] = []
        for values in product(*(_values(source, state, inputs) for source in sources)):
            key = key_text(name, values)
            if key is not None:
                keys.append(key)
            if len(keys) > self._max_results:
                raise RuleLimitError("lookups", self._max_results)
        return keys

    def _ask(self, keys: Iterable[str]) -> None:
        wanted = dict.fromkeys(keys)
        if len(wanted) > self._max_results:
            raise RuleLimitError("lookups", self._max_results)
        missing = [key for key in wanted if key not in self.answers]
        if not missing:
            return
        outputs = self._read(missing)
        for key in missing:
            texts = dict.fromkeys(outputs.get(key, ()))
            self.answers[key] = tuple(tuple(orjson.loads(text)) for text in texts)


def _needed_after(variant: Variant, number: int) -> set[int]:
    """The stages whose outputs are still used once stage `number` has run."""
    later = [source for stage in variant.stages[number + 1 :] for source in stage.keys]
    later += [source for sources in variant.params for source in sources]
    return {source.stage for source in later if isinstance(source, FromLookup)}


def _values(source: ParamSource, state: State, inputs: Inputs) -> Found:
    match source:
        case FromRequest():
            return inputs.values(source)
        case FromLookup(stage, output):
            return (state[stage][output],)


def _agreed(sources: Sequence[Found]) -> Found:
    """The values that every source gives."""
    first, *others = sources
    return tuple(value for value in first if all(value in other for other in others)) if others else first
