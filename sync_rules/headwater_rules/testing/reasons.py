"""Why a client of a rehearsed database has a row or lacks it."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from headwater_rules.describe.why import Why
from headwater_rules.plan import RowSource, Value
from headwater_rules.results import Put, SourceRow, SyncRequest
from headwater_rules.testing.world import World, like

_MOST_ROWS = 3


class Reasons:
    """Explains one client's view."""

    def __init__(self, world: World, request: SyncRequest) -> None:
        self._world = world
        self._plan = world.plan
        self._why = Why(world.plan, request, world.read)

    def of_present(self, table: str, object_id: str) -> Iterator[str]:
        """Each bucket that contains the row, and why the client has the bucket."""
        for bucket in self._why.resolution.buckets:
            if any(put.table == table and put.id == object_id for put in self._world.puts(bucket.name)):
                stream = self._why.stream_of(bucket.definition)
                asked = any("sub" in reason for reason in bucket.reasons)
                why = "subscribed to" if asked else "a default"
                yield f"stream `{stream.name}` ({why}): in bucket {self._why.short(bucket.name, bucket.definition)}"

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
                    yield f"stream `{self._why.stream_of(position).name}`: {self._of_row(row, position, source)}"

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
        why = self._why.of_row(row, position, source)
        if why:
            return why
        needed = ", ".join(
            self._why.short(put.bucket, position) for put in row.result.puts if put.definition == position
        )
        return f"the row is in bucket {needed}, which the client has, but with other values"


def _data(put: Put) -> dict[str, Value]:
    return {**orjson.loads(put.data), "id": put.id}
