"""Resolves a request to the buckets that it may read, with reasons.

Lookup stages are joined: values of one looked-up row are only combined with values of the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from types import MappingProxyType

import orjson

from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.inputs import Canonical, Inputs
from headwater_rules.evaluate.joins import of_literal
from headwater_rules.evaluate.limits import MOST_BUCKETS, MOST_RESULTS, ResolveLimits, Setting, TooManyResultsError
from headwater_rules.evaluate.naming import key_text
from headwater_rules.plan import (
    Expr,
    FromRequest,
    FromStage,
    LookupStage,
    ParamSource,
    RequestInput,
    RequestStage,
    Stage,
    Stream,
    SyncPlan,
    Variant,
    found_output,
)
from headwater_rules.results import (
    LookupReader,
    OmittedSubscription,
    Resolution,
    ResolvedBucket,
    StreamStatus,
    StreamSubscription,
    SyncRequest,
)

Found = tuple[Canonical, ...]
State = tuple[Found, ...]
"""For each stage that has run, the outputs of the row it found; empty once no later stage needs them."""
Rows = Sequence[Found]
Named = tuple[int, StreamSubscription]
Family = tuple[tuple[int, ...], str]
"""The buckets of several definitions for the same values."""

_COUNTED = 9
"""How many buckets beyond the limit, as a multiple of it, are counted for the message. Bounded because a client
controls how many there are."""

_BUDGET = 20
"""After this many buckets, lookups and rows of left-out subscriptions, as a multiple of the limit, no more are
evaluated. Bounded because a client controls how many such subscriptions there are."""

_COMPARED = 20
"""How many rows a step may compare with the request, as a multiple of those that it may find. After as many steps'
worth of rows as _BUDGET no more subscriptions are evaluated: each compares the same rows again, also if none passes."""

_STEPS = 200
"""After this many steps from subscriptions to buckets, as a multiple of the limit, no more are evaluated. Bounded
because each bucket lists all subscriptions that lead to it."""


def resolve(
    plan: SyncPlan,
    request: SyncRequest,
    read: LookupReader,
    *,
    max_buckets: int = MOST_BUCKETS,
    max_results: int = MOST_RESULTS,
    left_out: Set[str] = frozenset(),
    errors: Mapping[str, Sequence[Mapping[str, object]]] = MappingProxyType({}),
) -> Resolution:
    """The buckets of a request, with lookups answered by `read` (at one checkpoint). If the answer contains no lookup
    keys, it is valid as long as the plan is. Subscriptions to unknown streams are ignored. Expressions that fail on the
    request's values are reported with their stream.

    A subscription that exceeds a limit is left out entirely and reported. Streams with a more urgent priority are
    fitted in first, then those defined earlier. `left_out` are the keys of subscriptions that were left out before: see
    `ResolveLimits`. `errors` are others, by the name of a stream, which all subscriptions to it get.
    """
    streams: list[Stream] = []
    entries: list[_Entry] = []
    common = Inputs(request.claims, request.parameters, None)
    named: dict[str, list[Named]] = {}
    for number, subscription in enumerate(request.subscriptions):
        named.setdefault(subscription.stream, []).append((number, subscription))
    for stream in plan.streams:
        found = _entries(stream, request, len(streams), named.get(stream.name, ()), common)
        if found:
            streams.append(stream)
            entries += found
    limits = ResolveLimits(max_buckets, max_results, left_out)
    resolver = _Resolver(plan, read, limits)
    answers: dict[int, _Answer] = {}
    for number in sorted(range(len(entries)), key=lambda number: entries[number].urgency):
        answers[number] = resolver.answer(entries[number])
    given = [answers[number] for number in range(len(entries))]
    return Resolution(
        tuple(_buckets(plan, given)),
        tuple(_statuses(streams, given, errors)),
        frozenset(resolver.answers),
        tuple(answer.left_out for answer in given if answer.left_out is not None),
    )


@dataclass(frozen=True, slots=True)
class _Entry:
    """One reason to resolve a stream: the implicit subscription, or one that the client named."""

    stream: Stream
    reason: dict[str, int]
    label: str | int
    subscription: StreamSubscription
    inputs: Inputs

    @property
    def urgency(self) -> int:
        """The most urgent priority of any bucket that it can lead to."""
        return min((self.priority_of(variant) for variant in self.stream.variants), default=self.stream.priority)

    def priority_of(self, variant: Variant) -> int:
        if self.subscription.override_priority is not None:
            return self.subscription.override_priority
        return self.stream.priority if variant.priority is None else variant.priority


@dataclass(slots=True)
class _Answer:
    """The buckets that an entry leads to, with priorities, and error messages."""

    entry: _Entry
    families: dict[Family, int] = field(default_factory=dict)
    messages: dict[str, None] = field(default_factory=dict)
    left_out: OmittedSubscription | None = None


@dataclass(slots=True)
class _Bucket:
    definition: int
    priority: int
    reasons: list[dict[str, int]] = field(default_factory=list)


def _entries(stream: Stream, request: SyncRequest, index: int, named: Sequence[Named], common: Inputs) -> list[_Entry]:
    given: list[tuple[dict[str, int], str | int, StreamSubscription]] = []
    # one without parameters replaces the implicit subscription
    replaced = any(subscription.parameters is None for _, subscription in named)
    if stream.auto_subscribe and request.include_defaults and not replaced:
        given.append(({"default": index}, "default", StreamSubscription(stream.name)))
    given += (({"sub": number}, number, subscription) for number, subscription in named)
    return [
        _Entry(stream, *each, Inputs(request.claims, request.parameters, each[2].parameters, common)) for each in given
    ]


def _statuses(
    streams: Iterable[Stream], answers: Iterable[_Answer], others: Mapping[str, Sequence[Mapping[str, object]]]
) -> Iterator[StreamStatus]:
    errors: dict[str, list[dict[str, object]]] = {}
    for answer in answers:
        name, label = answer.entry.stream.name, answer.entry.label
        found = errors.setdefault(name, [])
        found += ({"subscription": label, "message": message} for message in answer.messages)
        found += ({"subscription": label, **other} for other in others.get(name, ()))
    for stream in streams:
        yield StreamStatus(stream.name, stream.auto_subscribe, tuple(errors[stream.name]))


def _buckets(plan: SyncPlan, answers: Iterable[_Answer]) -> Iterator[ResolvedBucket]:
    buckets: dict[str, _Bucket] = {}
    for answer in answers:
        reason = answer.entry.reason
        for (definitions, values), priority in answer.families.items():
            for definition in definitions:
                name = plan.buckets[definition].name + values
                bucket = buckets.setdefault(name, _Bucket(definition, priority))
                bucket.priority = min(bucket.priority, priority)
                if not bucket.reasons or bucket.reasons[-1] is not reason:
                    bucket.reasons.append(reason)
    for name, found in buckets.items():
        yield ResolvedBucket(name, found.definition, found.priority, tuple(found.reasons))


class _Resolver:
    def __init__(self, plan: SyncPlan, read: LookupReader, limits: ResolveLimits) -> None:
        self.answers: dict[str, tuple[Found, ...]] = {}
        self._plan = plan
        self._read = read
        self._limits = limits
        self._given: set[Family] = set()
        self._spare = _COUNTED * limits.buckets
        self._budget = _BUDGET * max(limits.buckets, limits.results)
        self._steps = _STEPS * max(limits.buckets, limits.results)
        self._compares = _BUDGET * _COMPARED * limits.results
        self._common_states: dict[tuple[int, int], Sequence[State]] = {}
        self._max_results = limits.results

    def answer(self, entry: _Entry) -> _Answer:
        """The buckets of an entry, if they fit in besides those of earlier entries."""
        answer = _Answer(entry)
        if min(self._budget, self._steps, self._compares) <= 0:
            others = "too many subscriptions exceed the limit"
            if self._budget > 0:
                others = "other subscriptions lead to too many buckets"
            setting = Setting.BUCKETS
            if self._compares <= 0:
                others, setting = "other subscriptions compare too many rows", Setting.RESULTS
            reason = f"stream {entry.stream.name} was not evaluated, because {others} already"
            return self._omitted(answer, setting, reason)
        self._max_results = self._limits.most(Setting.RESULTS, entry.subscription)
        try:
            counted = self._collect(answer)
        except TooManyResultsError as error:
            self._budget -= self._max_results
            reason = f"a step of stream {entry.stream.name} needs more than {error.most:,} {error.what}"
            return self._omitted(answer, Setting.RESULTS, reason)
        new = answer.families.keys() - self._given
        total = len(self._given) + len(new)
        if new and total > self._limits.most(Setting.BUCKETS, entry.subscription):
            self._budget -= min(len(answer.families), self._limits.buckets)
            least = "" if counted else "at least "
            own, all_of = f"{least}{len(answer.families):,}", f"{least}{total:,}"
            reason = f"the {own} buckets of stream {entry.stream.name} would make {all_of} in all"
            return self._omitted(answer, Setting.BUCKETS, reason)
        self._given |= new
        return answer

    def _omitted(self, answer: _Answer, setting: Setting, reason: str) -> _Answer:
        left_out = self._limits.omitted(answer.entry.subscription, setting, reason)
        return _Answer(answer.entry, {}, {**answer.messages, left_out.message: None}, left_out)

    def _collect(self, answer: _Answer) -> bool:
        """Run all variants of the entry. Buckets of a variant's definitions for the same values count as one, so that
        the number of a stream's queries does not affect the limit. Returns False when there are too many to go on
        counting."""
        families = answer.families
        for variant in answer.entry.stream.variants:
            priority = answer.entry.priority_of(variant)
            try:
                for values in self._values(variant, answer.entry.inputs):
                    family = (variant.buckets, values)
                    families[family] = min(families.get(family, priority), priority)
                    if len(families) > self._limits.buckets:
                        if not self._spare:
                            return False
                        self._spare -= 1
            except EvaluationError as error:
                answer.messages.setdefault(f"Error evaluating bucket ids: {error}")
        return True

    def _values(self, variant: Variant, inputs: Inputs) -> Iterator[str]:
        """The part of the bucket names that the request determines."""
        if not all(inputs.holds(gate) for gate in variant.gates):
            return
        for state in self._states(variant, inputs):
            self._steps -= 1
            choices = [_agreed([_values(source, state, inputs) for source in sources]) for sources in variant.params]
            for values in product(*choices):
                text = key_text("", values)
                if text is not None:
                    self._steps -= 1
                    yield text

    def _states(self, variant: Variant, inputs: Inputs) -> Iterable[State]:
        """What the stages find, once for all subscriptions where they read none."""
        if any(map(_reads_subscription, variant.stages)):
            return self._find_states(variant, inputs)
        key = id(variant), self._max_results
        if key not in self._common_states:
            self._common_states[key] = list(self._find_states(variant, inputs))
        return self._common_states[key]

    def _find_states(self, variant: Variant, inputs: Inputs) -> Iterable[State]:
        states: Iterable[State] = [()]
        for number, stage in enumerate(variant.stages):
            needed = _needed_after(variant, number)
            joined: dict[State, None] = {}
            for row in self._passing(stage, self._run(stage, states, inputs), inputs):
                joined.setdefault(tuple(kept if i in needed else () for i, kept in enumerate(row)))
                if len(joined) > self._max_results:
                    raise TooManyResultsError(self._max_results, "lookup rows")
            states = joined
        return states

    def _passing(self, stage: Stage, found: Iterable[tuple[State, Rows]], inputs: Inputs) -> Iterator[State]:
        """The states that rows lead to which pass the stage's filters."""
        filters = stage.filters if isinstance(stage, LookupStage) else ()
        read = [(name, output) for name in _inputs_of(filters) if (output := found_output(name)) is not None]
        compared = 0
        for state, rows in found:
            for each in rows:
                row = (*state, each)
                if filters:
                    compared += 1
                    self._compares -= 1
                    if compared > _COMPARED * self._max_results:
                        raise TooManyResultsError(_COMPARED * self._max_results, "lookup rows to be compared")
                    values = {name: of_literal(str(row[output.stage][output.output])) for name, output in read}
                    if not all(inputs.passes(condition, values) for condition in filters):
                        continue
                yield row

    def _run(self, stage: Stage, states: Iterable[State], inputs: Inputs) -> list[tuple[State, Rows]]:
        """The rows that the stage finds for each state, possibly in several pieces."""
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
                raise TooManyResultsError(self._max_results, "lookups")
        return keys

    def _ask(self, keys: Iterable[str]) -> None:
        wanted = dict.fromkeys(keys)
        if len(wanted) > self._max_results:
            raise TooManyResultsError(self._max_results, "lookups")
        missing = [key for key in wanted if key not in self.answers]
        if not missing:
            return
        outputs = self._read(missing)
        for key in missing:
            texts = dict.fromkeys(outputs.get(key, ()))
            self.answers[key] = tuple(tuple(orjson.loads(text)) for text in texts)


def _needed_after(variant: Variant, number: int) -> set[int]:
    """The stages whose outputs are still needed after stage `number`."""
    stages = [stage.reads() for stage in variant.stages[number + 1 :] if isinstance(stage, LookupStage)]
    params = {source.stage for group in variant.params for source in group if isinstance(source, FromStage)}
    return params.union(*stages)


@lru_cache(maxsize=1000)
def _reads_subscription(stage: Stage) -> bool:
    if isinstance(stage, LookupStage):
        exprs = [*(source.expr for source in stage.keys if isinstance(source, FromRequest)), *stage.filters]
    else:
        exprs = [*stage.arrays, *stage.filters, *stage.outputs]
    return RequestInput.SUBSCRIPTION.value in _inputs_of(exprs)


def _inputs_of(exprs: Iterable[Expr]) -> dict[str, None]:
    return dict.fromkeys(name for expr in exprs for name in expr.inputs)


def _values(source: ParamSource, state: State, inputs: Inputs) -> Found:
    match source:
        case FromRequest():
            return inputs.values(source)
        case FromStage(stage, output):
            return (state[stage][output],)


def _agreed(sources: Sequence[Found]) -> Found:
    """The values that all sources have in common."""
    first, *others = sources
    return tuple(value for value in first if all(value in other for other in others)) if others else first
