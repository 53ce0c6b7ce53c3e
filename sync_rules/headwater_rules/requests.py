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
from headwater_rules.plan import (
    FromRequest,
    FromStage,
    LookupStage,
    ParamSource,
    RequestStage,
    Stage,
    Stream,
    SyncPlan,
    Variant,
)
from headwater_rules.results import LookupReader, Resolution, ResolvedBucket, StreamStatus, SyncRequest

Found = tuple[Canonical, ...]
State = tuple[Found, ...]
"""Per stage that has run the outputs of the row it found, or nothing once nobody needs them."""
Rows = Sequence[Found]


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
    """One reason to resolve a stream: the implicit subscription, or one that the client named. `priority` is what the
    client asked for."""

    reason: dict[str, int]
    label: str | int
    priority: int | None
    inputs: Inputs

    def priority_of(self, stream: Stream, variant: Variant) -> int:
        if self.priority is not None:
            return self.priority
        return stream.priority if variant.priority is None else variant.priority


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
        entries.append(_Entry({"default": index}, "default", None, inputs))
    for number, subscription in named:
        inputs = Inputs(request.claims, request.parameters, subscription.parameters)
        entries.append(_Entry({"sub": number}, number, subscription.override_priority, inputs))
    return entries


class _Resolver:
    def __init__(self, plan: SyncPlan, read: LookupReader, max_buckets: int, max_results: int) -> None:
        self.buckets: dict[str, _Bucket] = {}
        self.answers: dict[str, tuple[Found, ...]] = {}
        self._plan = plan
        self._read = read
        self._max_buckets = max_buckets
        self._max_results = max_results
        self._families: set[tuple[tuple[int, ...], str]] = set()

    def add(self, stream: Stream, entry: _Entry) -> list[dict[str, object]]:
        """Resolve all variants of a stream for one subscription; what failed is returned in wire form."""
        messages: dict[str, None] = {}
        for variant in stream.variants:
            try:
                for values in self._values(variant, entry.inputs):
                    self._found(variant, values, entry.priority_of(stream, variant), entry.reason)
            except EvaluationError as error:
                messages.setdefault(f"Error evaluating bucket ids: {error}")
        return [{"subscription": entry.label, "message": message} for message in messages]

    def _found(self, variant: Variant, values: str, priority: int, reason: dict[str, int]) -> None:
        """Add the bucket of each of the variant's definitions for these values. Together they count as one: how many
        queries a stream has does not decide how many users it serves."""
        self._families.add((variant.buckets, values))
        if len(self._families) > self._max_buckets:
            raise RuleLimitError("buckets", self._max_buckets)
        for definition in variant.buckets:
            name = self._plan.buckets[definition].name + values
            bucket = self.buckets.setdefault(name, _Bucket(definition, priority))
            bucket.priority = min(bucket.priority, priority)
            if reason not in bucket.reasons:
                bucket.reasons.append(reason)

    def _values(self, variant: Variant, inputs: Inputs) -> Iterator[str]:
        """The part of the buckets' names that the request decides."""
        if not all(inputs.holds(gate) for gate in variant.gates):
            return
        for state in self._states(variant, inputs):
            choices = [_agreed([_values(source, state, inputs) for source in sources]) for sources in variant.params]
            for values in product(*choices):
                text = key_text("", values)
                if text is not None:
                    yield text

    def _states(self, variant: Variant, inputs: Inputs) -> Iterable[State]:
        states: Iterable[State] = [()]
        for number, stage in enumerate(variant.stages):
            needed = _needed_after(variant, number)
            joined: dict[State, None] = {}
            for state, rows in self._run(stage, states, inputs):
                for found in rows:
                    row = (*state, found)
                    joined.setdefault(tuple(kept if i in needed else () for i, kept in enumerate(row)))
                    if len(joined) > self._max_results:
                        raise RuleLimitError("lookup rows", self._max_results)
            states = joined
        return states

    def _run(self, stage: Stage, states: Iterable[State], inputs: Inputs) -> list[tuple[State, Rows]]:
        """What the stage finds for each state, in several pieces if need be."""
        if isinstance(stage, RequestStage):
            rows = inputs.rows(stage)
            return [(state, rows) for state in states]
        name = self._plan.lookups[stage.lookup].name
        asked = [(state, key) for state in states for key in self._keys(name, stage.keys, state, inputs)]
        self._ask(key for _, key in asked)
        return [(state, self.answers[key]) for state, key in asked]

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
    stages = [stage for stage in variant.stages[number + 1 :] if isinstance(stage, LookupStage)]
    later = [source for stage in stages for source in stage.keys]
    later += [source for sources in variant.params for source in sources]
    return {source.stage for source in later if isinstance(source, FromStage)}


def _values(source: ParamSource, state: State, inputs: Inputs) -> Found:
    match source:
        case FromRequest():
            return inputs.values(source)
        case FromStage(stage, output):
            return (state[stage][output],)


def _agreed(sources: Sequence[Found]) -> Found:
    """The values that every source gives."""
    first, *others = sources
    return tuple(value for value in first if all(value in other for other in others)) if others else first
