"""Explains why a client has a row or lacks it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson

from headwater_rules.describe.wording import request_words, row_words
from headwater_rules.errors import EvaluationError
from headwater_rules.evaluate.binding import Bound, Layout
from headwater_rules.evaluate.inputs import Inputs
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import (
    Expr,
    FromRequest,
    LookupDefinition,
    LookupStage,
    RowSource,
    Stream,
    Value,
    Variant,
)
from headwater_rules.results import Put, SyncRequest
from headwater_rules.testing.world import SourceRow, World, like

_MOST_ROWS = 3


class Reasons:
    """Explains one client's view. Every statement comes from evaluating the plan."""

    def __init__(self, world: World, request: SyncRequest) -> None:
        self._world = world
        self._plan = world.plan
        self._streams = world.plan.streams_by_bucket()
        self._request = request
        self._answers: dict[str, Sequence[str]] = {}
        self._resolution = resolve(self._plan, request, self._read)

    def of_present(self, table: str, object_id: str) -> Iterator[str]:
        """Each bucket that contains the row, and why the client has the bucket."""
        for bucket in self._resolution.buckets:
            if any(put.table == table and put.id == object_id for put in self._world.puts(bucket.name)):
                stream = self._stream_of(bucket.definition)
                asked = any("sub" in reason for reason in bucket.reasons)
                why = "subscribed to" if asked else "a default"
                yield f"stream `{stream.name}` ({why}): in bucket {self._short(bucket.name, bucket.definition)}"

    def of_missing(self, table: str, wanted: dict[str, Value]) -> Iterator[str]:
        """For each row that may be meant, why the client does not get it; or that there is no such row."""
        sources = [
            (position, source)
            for position, bucket in enumerate(self._plan.buckets)
            for source in bucket.sources
            if source.output_table in (table, None)
        ]
        rows = [row for row in self._world.rows() if self._may_be_meant(row, table, wanted)]
        if not rows:
            yield "no inserted row matches this"
        for row in rows[:_MOST_ROWS]:
            for position, source in sources:
                if source.table.matches(source.table.tag, row.schema, row.table):
                    yield f"stream `{self._stream_of(position).name}`: {self._of_row(row, position, source)}"

    def _may_be_meant(self, row: SourceRow, table: str, row_wanted: dict[str, Value]) -> bool:
        wanted = {"id": row_wanted["id"]} if "id" in row_wanted else row_wanted
        if any(put.table == table and like(_data(put), wanted) for put in row.result.puts):
            return True
        feeds = any(
            source.output_table == table or (source.output_table is None and row.table == table)
            for bucket in self._plan.buckets
            for source in bucket.sources
            if source.table.matches(source.table.tag, row.schema, row.table)
        )
        named = {name: value for name, value in wanted.items() if name in row.columns}
        as_device = {**row.columns, "id": str(row.columns.get("id", row.row_id))}
        return feeds and bool(named) and like(as_device, named)

    def _of_row(self, row: SourceRow, position: int, source: RowSource) -> str:
        puts = [put for put in row.result.puts if put.definition == position]
        if puts:
            return self._of_bucket(puts, position)
        failing = [row_words(expr, source.each) for expr in source.filters if not _passes(row, source, (expr,))]
        if failing:
            return f"the row does not fulfil {' and '.join(failing)}"
        if source.filters and not _passes(row, source, source.filters):
            return "no element of the row's arrays fulfils all conditions"
        compared = ", ".join(row_words(expr, source.each) for expr in source.params)
        return f"nothing to compare with: {compared} is null or a blob in the row"

    def _of_bucket(self, puts: Sequence[Put], position: int) -> str:
        needed = ", ".join(self._short(put.bucket, position) for put in puts)
        stream = self._stream_of(position)
        given = [bucket.name for bucket in self._resolution.buckets if bucket.definition == position]
        if any(put.bucket in given for put in puts):
            return f"the row is in bucket {needed}, which the client has, but with other values"
        if not any(status.name == stream.name for status in self._resolution.streams):
            return f"the client is not subscribed to it, and it is no default (the row is in bucket {needed})"
        held = ", ".join(self._short(name, position) for name in given) or "none"
        whys = dict.fromkeys(
            why
            for variant in stream.variants
            if position in variant.buckets
            for why in self._of_variant(stream, variant)
        )
        return f"the row is in bucket {needed}, the client has {held}" + "".join(f"; {why}" for why in whys)

    def _of_variant(self, stream: Stream, variant: Variant) -> Iterator[str]:
        """Why a variant gives no bucket: what is missing in the request or the looked-up rows."""
        for inputs in self._inputs(stream):
            try:
                failing = [request_words(gate) for gate in variant.gates if not inputs.holds(gate)]
                stages = [stage for stage in variant.stages if isinstance(stage, LookupStage)]
                sources = [key for stage in stages for key in stage.keys]
                sources += [source for group in variant.params for source in group]
                absent = [
                    request_words(source.expr)
                    for source in sources
                    if isinstance(source, FromRequest) and not inputs.values(source)
                ]
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
            asked = {key: found for key, found in self._answers.items() if key.startswith(f"{lookup.name}[")}
            for key in [key for key, found in asked.items() if not found]:
                yield f"no row of `{lookup.table.name}` with {_looked_up(lookup, key)}"
            if not any(asked.values()):
                return

    def _inputs(self, stream: Stream) -> Iterator[Inputs]:
        request = self._request
        named = [each.parameters for each in request.subscriptions if each.stream == stream.name]
        for parameters in [*([None] if stream.auto_subscribe and request.include_defaults else []), *named]:
            yield Inputs(request.claims, request.parameters, parameters)

    def _read(self, keys: Sequence[str]) -> dict[str, list[str]]:
        found = self._world.read(keys)
        self._answers.update({key: found.get(key, ()) for key in keys})
        return found

    def _stream_of(self, definition: int) -> Stream:
        return self._streams[definition][0]

    def _short(self, name: str, definition: int) -> str:
        """A bucket's name without the digest."""
        return self._stream_of(definition).name + name[len(self._plan.buckets[definition].name) :]


def _looked_up(lookup: LookupDefinition, key: str) -> str:
    values = orjson.loads(key[len(lookup.name) :])
    keys = (row_words(expr, lookup.each) for expr in lookup.keys)
    pairs = [f"{key} = {value!r}" for key, value in zip(keys, values, strict=True)]
    return " and ".join([*pairs, *(row_words(expr, lookup.each) for expr in lookup.filters)]) or "anything"


def _passes(row: SourceRow, source: RowSource, filters: tuple[Expr, ...]) -> bool:
    layout = Layout(source.table.tag, row.schema, row.table, tuple(row.columns))
    statement = Bound(layout, source.table, filters, source.each).statement()
    constants = layout.constants()
    values = tuple(row.columns.values())
    full = values if constants is None else (*values, row.row_id, *constants)
    try:
        return statement is None or bool(statement.rows(full))
    except EvaluationError:
        return False


def _data(put: Put) -> dict[str, Value]:
    return {**orjson.loads(put.data), "id": put.id}
