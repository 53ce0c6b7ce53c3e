"""Why a row reaches a client or does not, in terms of the rules. Every statement comes from evaluating the plan, none
from reading the config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from headwater_rules.describe.wording import compared_words, joined_words, request_words, row_words
from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.binding import Bound, Layout, lacking
from headwater_rules.evaluate.inputs import Inputs
from headwater_rules.evaluate.joins import bind_joins, with_joined
from headwater_rules.evaluate.limits import MOST_BUCKETS, MOST_RESULTS
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import (
    Expr,
    FromRequest,
    LookupDefinition,
    LookupStage,
    ParamSource,
    RowSource,
    Stream,
    SyncPlan,
    Variant,
)
from headwater_rules.results import LookupReader, Put, SourceRow, SyncRequest


class Why:
    """What one request leads to, and what keeps rows from it. `answers` are the lookups that were read, and what
    was found."""

    def __init__(
        self,
        plan: SyncPlan,
        request: SyncRequest,
        read: LookupReader,
        *,
        max_buckets: int = MOST_BUCKETS,
        max_results: int = MOST_RESULTS,
    ) -> None:
        self.answers: dict[str, Sequence[str]] = {}
        self._joined = joined_words(plan)
        self.request = request
        self._plan = plan
        self._lookups = read
        self.resolution = resolve(plan, request, self._read, max_buckets=max_buckets, max_results=max_results)
        self._given = {bucket.name for bucket in self.resolution.buckets}

    def of_row(self, row: SourceRow, position: int, source: RowSource) -> str:
        """What keeps a row from the client that one source of a bucket definition reads; empty when nothing does."""
        puts = [put for put in row.result.puts if put.definition == position]
        if puts:
            return "" if any(put.bucket in self._given for put in puts) else self._of_buckets(puts, position)
        if absent := lacking(source.deciding(), row.columns):
            listed = ", ".join(f"`{name}`" for name in absent)
            return f"the table has no column {listed}, which decides who gets its rows"
        failing = [self._words_of(expr, source) for expr in source.filters if not self._passes(row, source, (expr,))]
        if failing:
            return f"the row does not fulfil {' and '.join(failing)}"
        if source.filters and not self._passes(row, source, source.filters):
            return "no element of the row's arrays fulfils all conditions"
        compared = ", ".join(row_words(expr, source.each) for expr in source.params)
        return f"nothing to compare with: {compared} is null or a blob in the row"

    def _words_of(self, expr: Expr, source: RowSource) -> str:
        return row_words(expr, source.each, self._joined)

    def _passes(self, row: SourceRow, source: RowSource, filters: tuple[Expr, ...]) -> bool:
        layout = Layout(row.source, row.schema, row.table, tuple(row.columns))
        statement = Bound(layout, source.table, filters, source.each).statement()
        joins = bind_joins(layout, self._plan)
        values = Layout.row(tuple(row.columns.values()), row.row_id, row.now, layout.constants())
        try:
            values, unknown = with_joined(joins, values, row.joined)
            return statement is None or (not unknown and bool(statement.rows(values)))
        except EvaluationError:
            return False

    def of_stream(self, stream: Stream) -> list[str]:
        """What in the request, or in the rows that it looks up, keeps a stream from giving any bucket."""
        if not self.asks_for(stream):
            return ["the client is not subscribed to it, and it is no default"]
        return list(dict.fromkeys(why for variant in stream.variants for why in self._of_variant(stream, variant)))

    def asks_for(self, stream: Stream) -> bool:
        """Whether the request is subscribed to a stream."""
        return any(status.name == stream.name for status in self.resolution.streams)

    def stream_of(self, definition: int) -> Stream:
        """The first stream that gives buckets of a definition."""
        return next(
            stream for stream in self._plan.streams if any(definition in variant.buckets for variant in stream.variants)
        )

    def short(self, name: str, definition: int) -> str:
        """A bucket's name without the hash."""
        return self.stream_of(definition).name + name[len(self._plan.buckets[definition].name) :]

    def _of_buckets(self, puts: Sequence[Put], position: int) -> str:
        needed = ", ".join(self.short(put.bucket, position) for put in puts)
        stream = self.stream_of(position)
        if not self.asks_for(stream):
            return f"the client is not subscribed to it, and it is no default (the row is in bucket {needed})"
        given = [bucket.name for bucket in self.resolution.buckets if bucket.definition == position]
        held = ", ".join(self.short(name, position) for name in given) or "none"
        variants = [variant for variant in stream.variants if position in variant.buckets]
        whys = dict.fromkeys(why for variant in variants for why in self._of_variant(stream, variant))
        return f"the row is in bucket {needed}, the client has {held}" + "".join(f"; {why}" for why in whys)

    def _of_variant(self, stream: Stream, variant: Variant) -> Iterator[str]:
        for inputs in self._inputs(stream):
            try:
                failing = [request_words(gate) for gate in variant.gates if not inputs.holds(gate)]
                sources = [each for each in variant.sources() if isinstance(each, FromRequest)]
                absent = [request_words(source.expr) for source in sources if not inputs.values(source)]
            except EvaluationError as error:
                yield f"the request fails: {error}"
                continue
            if failing:
                yield f"the request does not fulfil {' and '.join(failing)}"
            elif absent:
                yield f"the request has no value for {' and '.join(dict.fromkeys(absent))}"
            else:
                yield from self._of_stages(variant)

    def _of_stages(self, variant: Variant) -> Iterator[str]:
        for number in variant.lookups():
            lookup = self._plan.lookups[number]
            asked = {key: found for key, found in self.answers.items() if key.startswith(f"{lookup.name}[")}
            for key in [key for key, found in asked.items() if not found]:
                yield f"no row of `{lookup.table.name}` with {_looked_up(lookup, key)}"
            if not any(asked.values()):
                return
        for stage in variant.stages:
            if isinstance(stage, LookupStage) and stage.filters:
                conditions = (compared_words(self._plan, variant, each) for each in stage.filters)
                table = self._plan.lookups[stage.lookup].table.name
                yield f"rows of `{table}` count only where {' and '.join(conditions)}"
        if not any(bucket.definition in variant.buckets for bucket in self.resolution.buckets):
            for sources in variant.params:
                if len(sources) > 1:
                    yield f"no value is the same for {' and '.join(self._words(variant, each) for each in sources)}"

    def _words(self, variant: Variant, source: ParamSource) -> str:
        if isinstance(source, FromRequest):
            return request_words(source.expr)
        stage = variant.stages[source.stage]
        if not isinstance(stage, LookupStage):
            return request_words(stage.outputs[source.output], stage.arrays)
        lookup = self._plan.lookups[stage.lookup]
        return f"{row_words(lookup.outputs[source.output], lookup.each)} of `{lookup.table.name}`"

    def _inputs(self, stream: Stream) -> Iterator[Inputs]:
        request = self.request
        named = [each.parameters for each in request.subscriptions if each.stream == stream.name]
        for parameters in [*([None] if stream.auto_subscribe and request.include_defaults else []), *named]:
            yield Inputs(request.claims, request.parameters, parameters)

    def _read(self, keys: Sequence[str]) -> dict[str, Sequence[str]]:
        found = self._lookups(keys)
        answers = {key: found.get(key, ()) for key in keys}
        self.answers |= answers
        return answers


def _looked_up(lookup: LookupDefinition, key: str) -> str:
    values = orjson.loads(key[len(lookup.name) :])
    keys = (row_words(expr, lookup.each) for expr in lookup.keys)
    pairs = [f"{key} = {value!r}" for key, value in zip(keys, values, strict=True)]
    return " and ".join([*pairs, *(row_words(expr, lookup.each) for expr in lookup.filters)]) or "anything"
