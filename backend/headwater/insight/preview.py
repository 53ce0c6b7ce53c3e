"""What a user would get under a sync config that is not deployed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import orjson
from msgspec import Raw, Struct

from headwater.errors import HeadwaterError
from headwater.insight.rows import CurrentRows, op_size
from headwater.insight.words import count
from headwater.storage.contract.reader import StoreReader
from headwater.sync.request import RequestLimits
from headwater_rules.errors import did_you_mean
from headwater_rules.evaluate.requests import resolve
from headwater_rules.plan import Expr, FromRequest, RequestInput, RequestStage, Stream, SyncPlan
from headwater_rules.results import Resolution, ResolvedBucket, SyncRequest
from headwater_rules.versions import only

_PAGE = 50_000
KEPT_ENTRIES = 500_000


class PreviewTooLargeError(HeadwaterError):
    """The rows to be shown in a preview are too large for one answer."""

    code = "HW_8109"


class PreviewRow(Struct, frozen=True):
    """A row as a device would have it, and the source that it comes from."""

    table: str
    id: str
    data: Raw
    source: str


class PreviewBucket(Struct):
    """A bucket that the client would get, why, and its first rows. `size` is in bytes of JSON."""

    name: str
    priority: int
    reasons: list[Mapping[str, object]]
    rows: int = 0
    size: int = 0
    first: list[PreviewRow] = []


class Preview(Struct, frozen=True):
    """What a client would get. `lookups` are the keys looked up and their outputs; `missing_tables` have no rows in the
    store."""

    user: str
    buckets: tuple[PreviewBucket, ...]
    streams: tuple[str, ...]
    lookups: Mapping[str, tuple[Raw, ...]]
    missing_tables: tuple[str, ...]
    warnings: tuple[str, ...]


def preview(
    current: CurrentRows,
    reader: StoreReader,
    plan: SyncPlan,
    request: SyncRequest,
    limits: RequestLimits,
    *,
    shown: int,
    max_shown_size: int | None = None,
) -> Preview:
    """The answer to `request` under `plan`, with the first `shown` rows of each bucket. The limits are the API's. For a
    refused request, the errors of its streams say why. Raises PreviewTooLargeError when the rows to be shown have more
    than `max_shown_size` characters."""
    lookups = LookupScan(current, plan, current.complete(plan), reader)
    resolution = resolve(plan, request, lookups, max_buckets=limits.max_buckets, max_results=limits.max_results)
    streams = tuple(status.name for status in resolution.streams)
    return Preview(
        str(request.claims["sub"]),
        _buckets(current, plan, request, resolution, shown, max_shown_size),
        streams,
        {key: tuple(map(Raw, outputs)) for key, outputs in lookups.answers.items()},
        tuple(current.missing(plan)),
        (*request_notes(plan, request, resolution), *current.notes),
    )


def _buckets(
    current: CurrentRows,
    plan: SyncPlan,
    request: SyncRequest,
    resolution: Resolution,
    shown: int,
    max_shown_size: int | None,
) -> tuple[PreviewBucket, ...]:
    kept = 0
    found = {
        bucket.name: PreviewBucket(bucket.name, bucket.priority, _reasons(bucket, request, resolution))
        for bucket in resolution.buckets
    }
    used = only(plan, {plan.buckets[bucket.definition].name for bucket in resolution.buckets})
    pages = [current.pages(table, _PAGE) for table in current.tables(used)]
    failed = Counter[str]()
    for each, row_id, result in current.scan("rows", used, pages):
        for put in result.puts:
            bucket = found.get(put.bucket)
            if bucket is None:
                continue
            bucket.rows += 1
            bucket.size += op_size(put, each.table, row_id)
            if len(bucket.first) < shown:
                bucket.first.append(PreviewRow(put.table, put.id, Raw(put.data), each.table.source))
                kept += len(put.data)
                if max_shown_size is not None and kept > max_shown_size:
                    what = f"the rows have more than {max_shown_size:,} characters"
                    raise PreviewTooLargeError(what, fix="ask for fewer")
        failed.update(result.errors)
    current.notes += [f"{error}: left out of {count(number, 'row')}" for error, number in failed.items()]
    return tuple(found.values())


def _reasons(bucket: ResolvedBucket, request: SyncRequest, resolution: Resolution) -> list[Mapping[str, object]]:
    """Why the user gets a bucket: through default streams, or through subscriptions, identified by number."""
    streams, subscriptions = resolution.streams, request.subscriptions
    return [
        {"stream": streams[reason["default"]].name, "by": "default"}
        if "default" in reason
        else {"stream": subscriptions[reason["sub"]].stream, "by": "subscription", "subscription": reason["sub"]}
        for reason in bucket.reasons
    ]


# warnings about the request


def request_notes(plan: SyncPlan, request: SyncRequest, resolution: Resolution) -> tuple[str, ...]:
    """What is odd about a request under a plan, and why streams give nothing."""
    return (*_request_warnings(plan, request), *_failures(resolution, request))


def request_failures(plan: SyncPlan, request: SyncRequest, resolution: Resolution) -> tuple[str, ...]:
    """Why a request gets nothing of a stream that it asks for."""
    return (*_unknown_streams(plan, request), *_failures(resolution, request))


def _unknown_streams(plan: SyncPlan, request: SyncRequest) -> Iterator[str]:
    known = [stream.name for stream in plan.streams]
    for subscription in request.subscriptions:
        if subscription.stream not in known:
            hint = did_you_mean(subscription.stream, known)
            yield f"the rules have no stream {subscription.stream}{f'; {hint}' if hint else ''}"


def _request_warnings(plan: SyncPlan, request: SyncRequest) -> Iterator[str]:
    yield from _unknown_streams(plan, request)
    streams = {stream.name: stream for stream in plan.streams}
    for subscription in request.subscriptions:
        stream = streams.get(subscription.stream)
        if stream is None:
            continue
        given = set(subscription.parameters or ())
        for name in _unused(given, [stream], RequestInput.SUBSCRIPTION):
            yield f"stream {stream.name} does not use the subscription's parameter {name}"
    for name in _unused(set(request.parameters or ()), plan.streams, RequestInput.CONNECTION):
        yield f"no stream uses the client parameter {name}"


def _unused(given: set[str], streams: Sequence[Stream], source: RequestInput) -> list[str]:
    """The names among `given` that no expression reads from `source`. A path begins with a key in double quotes; an
    expression that takes the whole object uses every name."""
    texts = [expr.sql for stream in streams for expr in _exprs(stream) if source.value in expr.inputs]
    if any("->" not in text for text in texts):
        return []
    keys = {name: f'$."{orjson.dumps(name).decode()[1:-1]}"'.replace("'", "''") for name in given}
    return sorted(name for name, key in keys.items() if not any(key in text for text in texts))


def _exprs(stream: Stream) -> Iterator[Expr]:
    for variant in stream.variants:
        yield from variant.gates
        sources = [source for group in variant.params for source in group]
        for stage in variant.stages:
            if isinstance(stage, RequestStage):
                yield from (*stage.arrays, *stage.filters, *stage.outputs)
            else:
                sources += stage.keys
                yield from stage.filters
        yield from (source.expr for source in sources if isinstance(source, FromRequest))


def _failures(resolution: Resolution, request: SyncRequest) -> Iterator[str]:
    for status in resolution.streams:
        for error in status.errors:
            who = error["subscription"]
            entry = "" if who == "default" else f", subscription {request.subscriptions[int(str(who))].stream}"
            yield f"stream {status.name}{entry}: {error['message']}"


# lookups that the store may not have


class LookupScan:
    """A `LookupReader`. Reads lookups that are `complete` in the store from it, and computes others from the current
    rows of their tables. `answers` holds all keys looked up so far and their outputs."""

    def __init__(
        self,
        rows: CurrentRows,
        plan: SyncPlan,
        complete: Collection[str],
        reader: StoreReader,
        kept: int = KEPT_ENTRIES,
    ) -> None:
        self.answers: dict[str, list[str]] = {}
        self._rows = rows
        self._plan = plan
        self._reader = reader
        self._kept = kept
        self._stored = frozenset(complete)
        self._scanned: dict[str, dict[str, list[str]]] = {}

    def __call__(self, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        by_name = defaultdict[str, list[str]](list)
        for key in keys:
            by_name[key[: key.index("[")]].append(key)
        found: dict[str, list[str]] = {}
        for name, wanted in by_name.items():
            if name in self._stored:
                with self._reader.snapshot() as snapshot:
                    found |= {key: [] for key in wanted} if snapshot is None else snapshot.lookups(wanted)
            else:
                entries = self._scanned[name] if name in self._scanned else self._scan(name, wanted)
                found |= {key: entries.get(key, []) for key in wanted}
        self.answers |= found
        return found

    def _scan(self, name: str, wanted: Sequence[str]) -> dict[str, list[str]]:
        """The entries of one lookup: all of them, kept for later calls, or only the wanted ones when there are too
        many."""
        plan = only(self._plan, {name})
        keys = set(wanted)
        entries: dict[str, list[str]] = {}
        number, complete = 0, True
        pages = [self._rows.pages(table, _PAGE) for table in self._rows.lookup_tables(plan)]
        for _, _, result in self._rows.scan("lookups", plan, pages):
            for key, output in result.lookups:
                if complete or key in keys:
                    entries.setdefault(key, []).append(output)
                    number += 1
            if complete and number > self._kept:
                complete = False
                entries = {key: entries[key] for key in keys if key in entries}
        if complete:
            self._scanned[name] = entries
        return entries
