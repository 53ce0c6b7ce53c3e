"""A test service: a compiled config, rows, and clients that see them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson

from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import did_you_mean
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import Stream, SyncPlan, Value
from headwater_rules.results import Put, ResolvedBucket, StreamSubscription, SyncRequest
from headwater_rules.testing.values import column_value, row_values
from headwater_rules.testing.world import Reasons, World, like

User = str | int | Mapping[str, object] | None
Parameters = Mapping[str, object] | None
Subscriptions = Iterable[str] | Mapping[str, Parameters | Sequence[Parameters]]
Row = Mapping[str, object]
DeviceRow = dict[str, Value]


@dataclass(frozen=True, slots=True)
class GivenBucket:
    """A bucket that a client reads. `streams` are those that lead to it, `parameters` the values in its name, in an
    order that depends on the text of the queries."""

    name: str
    streams: tuple[str, ...]
    parameters: tuple[Value, ...]
    priority: int


class RulesTest:
    """The rows of a database, and what devices get of them under a sync config.

    While an expression of the rules fails on a row or a request, every assertion fails, unless `allow_errors` is set:
    the failing entry is left out, so a test that expects it to be missing would pass for the wrong reason.
    """

    def __init__(self, plan: SyncPlan, *, default_schema: str = "public") -> None:
        self.plan = plan
        self.allow_errors = False
        self.world = World(plan, default_schema)

    @classmethod
    def of(cls, path: str | Path, *, default_schema: str = "public") -> RulesTest:
        """Load a sync config from a file. Raises SyncConfigError."""
        return cls.of_text(Path(path).read_text(encoding="utf-8"), default_schema=default_schema)

    @classmethod
    def of_text(cls, text: str, *, default_schema: str = "public") -> RulesTest:
        """Load a sync config from its text. Raises SyncConfigError."""
        return cls(compile_config(text, default_schema=default_schema).plan, default_schema=default_schema)

    def insert(self, table: str, /, *rows: Row, **columns: object) -> None:
        """Insert rows, given as dicts or as one row's columns. The table may be given with its schema, or
        as `tag.schema.table`. Raises ValueError for a table that the rules do not read, and for a column that seems
        misspelled."""
        for row in (*rows, columns) if columns else rows:
            self.world.insert(table, row_values(row, self.plan.options))

    def update(self, table: str, where: Row, /, **changes: object) -> None:
        """Change columns of the rows that have the values of `where`. Raises ValueError when there is none, and for a
        column that seems misspelled."""
        options = self.plan.options
        self.world.update(table, row_values(where, options), row_values(changes, options))

    def delete(self, table: str, where: Row | None = None, /, **columns: object) -> None:
        """Delete the rows that have these values. Raises ValueError when there is none."""
        self.world.delete(table, row_values({**(where or {}), **columns}, self.plan.options))

    def set_time(self, now: datetime) -> None:
        """Set the time that rules see as `now()`; without a zone, it is in UTC. It may go back. Rules that read it fail
        until it is set."""
        aware = now.replace(tzinfo=UTC) if now.tzinfo is None else now
        self.world.set_time((aware - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1))

    def client(
        self,
        user: User = None,
        *,
        parameters: Parameters = None,
        subscriptions: Subscriptions = (),
        include_defaults: bool = True,
    ) -> Client:
        """A device. `user` is a user id or the claims of a token; `parameters` are those of the connection, and
        `subscriptions` are names of streams, or names with the parameters of one subscription or a list of them."""
        claims = user if isinstance(user, Mapping) else {"sub": user}
        named = tuple(_subscriptions(subscriptions))
        known = [stream.name for stream in self.plan.streams]
        for subscription in named:
            if subscription.stream not in known:
                hint = did_you_mean(subscription.stream, known) or f"there are {', '.join(known)}"
                raise ValueError(f"the sync config has no stream `{subscription.stream}`; {hint}")
        return Client(self, SyncRequest(claims, parameters, include_defaults, named))

    def assert_synced(
        self,
        user: User | Client,
        table: str,
        rows: Iterable[object],
        *,
        parameters: Parameters = None,
        subscriptions: Subscriptions = (),
    ) -> None:
        """See `Client.assert_synced`."""
        __tracebackhide__ = True
        self._client(user, parameters, subscriptions).assert_synced(table, rows)

    def assert_not_synced(
        self,
        user: User | Client,
        table: str,
        rows: Iterable[object] | None = None,
        *,
        parameters: Parameters = None,
        subscriptions: Subscriptions = (),
    ) -> None:
        """See `Client.assert_not_synced`."""
        __tracebackhide__ = True
        self._client(user, parameters, subscriptions).assert_not_synced(table, rows)

    def _client(self, user: User | Client, parameters: Parameters, subscriptions: Subscriptions) -> Client:
        if isinstance(user, Client):
            return user
        return self.client(user, parameters=parameters, subscriptions=subscriptions)


class Client:
    """One device. Its view follows the rows: ask again after a change."""

    def __init__(self, rules_test: RulesTest, request: SyncRequest) -> None:
        self.request = request
        self._rules_test = rules_test
        self._world = rules_test.world

    @property
    def errors(self) -> list[str]:
        """Expressions that fail on this client's claims or parameters, and streams left out because of the default
        limits."""
        streams = resolve(self._world.plan, self.request, self._world.read).streams
        return [f"stream {stream.name}: {error['message']}" for stream in streams for error in stream.errors]

    def buckets(self, stream: str | None = None) -> tuple[GivenBucket, ...]:
        """The buckets that this client reads; with `stream`, those that it leads to."""
        streams = self._world.plan.streams_by_bucket()
        given = (self._given(bucket, streams[bucket.definition]) for bucket in self._resolved())
        return tuple(bucket for bucket in given if stream is None or stream in bucket.streams)

    def tables(self) -> tuple[str, ...]:
        """The names of the tables that have rows on the device."""
        return tuple(sorted({put.table for put in self._puts()}))

    def table(self, name: str) -> list[DeviceRow]:
        """The rows of a table on the device."""
        return [orjson.loads(put.data) | {"id": put.id} for put in self._distinct(name)]

    def assert_synced(self, table: str, rows: Iterable[object]) -> None:
        """Assert that the device has exactly these rows of `table`. A dict matches a row with at least these values,
        anything else the row with this id."""
        __tracebackhide__ = True
        wanted = [self._wanted(row) for row in rows]
        self._known(table)
        actual = self.table(table)
        left = list(actual)
        missing: list[DeviceRow] = []
        for row in sorted(wanted, key=len, reverse=True):
            found = next((each for each in left if like(each, row)), None)
            if found is None:
                missing.append(row)
            else:
                left.remove(found)
        self._check(table, missing, left, forms=len({row["id"] for row in actual}) < len(actual))

    def assert_not_synced(self, table: str, rows: Iterable[object] | None = None) -> None:
        """Assert that the device has none of these rows of `table`; without `rows`, none at all."""
        __tracebackhide__ = True
        self._known(table)
        actual = self.table(table)
        wanted = None if rows is None else [self._wanted(row) for row in rows]
        there = [row for row in actual if wanted is None or any(like(row, each) for each in wanted)]
        self._check(table, [], there, forms=False)

    def _check(self, table: str, missing: list[DeviceRow], extra: list[DeviceRow], *, forms: bool) -> None:
        __tracebackhide__ = True
        errors = [] if self._rules_test.allow_errors else [*self._world.errors, *self.errors]
        if not (missing or extra or errors):
            return
        reasons = Reasons(self._world, self.request)
        lines = [f"this client's rows of `{table}` are not the expected ones"]
        for row in missing:
            lines += [f"  missing: {_shown(row)}", *(f"    {reason}" for reason in reasons.of_missing(table, row))]
        for row in extra:
            lines += [f"  unexpected: {_shown(row)}"]
            lines += [f"    {reason}" for reason in reasons.of_present(table, str(row["id"]))]
        if forms and extra:
            lines.append(
                "  a row comes from several queries or sources in different forms; a device keeps the one written last"
            )
        lines += [f"  an expression failed: {error}" for error in errors]
        raise AssertionError("\n".join(lines))

    def _known(self, table: str) -> None:
        """Raises ValueError for a table that no query produces, because a misspelled name must not pass as an absent
        row."""
        outputs = {source.output_table for bucket in self._world.plan.buckets for source in bucket.sources}
        if table not in outputs and None not in outputs:
            known = sorted(name for name in outputs if name is not None)
            hint = did_you_mean(table, known) or f"there are {', '.join(known)}"
            raise ValueError(f"no query gives a table `{table}` to devices; {hint}")

    def _wanted(self, row: object) -> DeviceRow:
        if isinstance(row, Mapping):
            values = row_values(row, self._world.plan.options)
            return values | ({"id": str(values["id"])} if "id" in values else {})  # ids are texts on the device
        return {"id": str(column_value(row, self._world.plan.options))}

    def _resolved(self) -> tuple[ResolvedBucket, ...]:
        return resolve(self._world.plan, self.request, self._world.read).buckets

    def _puts(self) -> Iterable[Put]:
        return (put for bucket in self._resolved() for put in self._world.puts(bucket.name))

    def _distinct(self, table: str) -> Iterable[Put]:
        """Each form of each row once: a row in several buckets is one row on the device."""
        return {(put.id, put.data): put for put in self._puts() if put.table == table}.values()

    def _given(self, bucket: ResolvedBucket, streams: Iterable[Stream]) -> GivenBucket:
        definition = self._world.plan.buckets[bucket.definition].name
        parameters = orjson.loads(bucket.name[len(definition) :])
        names = tuple(stream.name for stream in streams)
        return GivenBucket(bucket.name, names, tuple(parameters), bucket.priority)


def _subscriptions(named: Subscriptions) -> Iterable[StreamSubscription]:
    if isinstance(named, str):
        raise TypeError("subscriptions are a list of names, or a dict from names to parameters")
    if not isinstance(named, Mapping):
        yield from (StreamSubscription(name) for name in named)
        return
    for name, parameters in named.items():
        several = [parameters] if parameters is None or isinstance(parameters, Mapping) else parameters
        yield from (StreamSubscription(name, each) for each in several)


def _shown(row: Mapping[str, Value]) -> str:
    return json.dumps({name: repr(value) if isinstance(value, bytes) else value for name, value in row.items()},
                      ensure_ascii=False)  # fmt: skip
