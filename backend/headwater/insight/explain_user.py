"""Explains what a user's device is sent: its buckets, with rows and reasons; and why other streams give nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwater.insight.served import Limits, Served, open_served
from headwater.storage.contract.reader import StoreReader
from headwater_rules.results import ResolvedBucket, StreamStatus, SyncRequest


@dataclass(frozen=True, slots=True)
class Reason:
    """A stream that gives a bucket, and whether it does by default or by a subscription."""

    stream: str
    by: str


@dataclass(frozen=True, slots=True)
class UsersBucket:
    """One bucket. `values` are those that all its rows have in common. A new device downloads `ops` of `size` bytes (of
    JSON, before compression) and then has `rows` rows, null when they are too many to count."""

    name: str
    definition: str
    priority: int
    reasons: tuple[Reason, ...]
    values: Mapping[str, object]
    rows: int | None
    ops: int
    size: int


@dataclass(frozen=True, slots=True)
class UsersStream:
    """A stream. `errors` are those that the device is told. `empty_because` explains why a stream gives no bucket."""

    name: str
    default: bool
    subscribed: bool
    buckets: int
    errors: tuple[str, ...]
    empty_because: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UserExplained:
    """Everything that a user is sent at a checkpoint, under a version of the sync config. `lookups` are the keys that
    were looked up, with their results."""

    user: str
    version: int
    checkpoint: int
    rows: int | None
    ops: int
    size: int
    buckets: tuple[UsersBucket, ...]
    streams: tuple[UsersStream, ...]
    lookups: Mapping[str, tuple[str, ...]]


def explain_user(
    reader: StoreReader, request: SyncRequest, limits: Limits, check: Callable[[], None] = lambda: None
) -> UserExplained:
    """Explain what the user of `request` is sent now. Reads all buckets whole. Raises NothingServedYetError."""
    with open_served(reader, request, limits, check) as served:
        buckets = tuple(_bucket(served, bucket) for bucket in served.why.resolution.buckets)
        return UserExplained(
            str(request.claims["sub"]),
            served.config,
            served.checkpoint.op_id,
            _sum(bucket.rows for bucket in buckets),
            sum(bucket.ops for bucket in buckets),
            sum(bucket.size for bucket in buckets),
            buckets,
            _streams(served, buckets),
            {key: tuple(found) for key, found in served.why.answers.items()},
        )


def _bucket(served: Served, bucket: ResolvedBucket) -> UsersBucket:
    held = served.held(bucket.name)
    return UsersBucket(
        bucket.name,
        served.plan.buckets[bucket.definition].name,
        bucket.priority,
        tuple(Reason(stream, by) for stream, by in served.streams_of(bucket)),
        served.values_of(bucket),
        held.rows,
        held.ops,
        held.size,
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _streams(served: Served, buckets: Sequence[UsersBucket]) -> tuple[UsersStream, ...]:
    statuses = {status.name: status for status in served.why.resolution.streams}
    told = []
    for stream in served.plan.streams:
        number = sum(any(reason.stream == stream.name for reason in bucket.reasons) for bucket in buckets)
        because = () if number else tuple(served.why.of_stream(stream))
        errors = _errors(statuses.get(stream.name))
        told.append(UsersStream(stream.name, stream.auto_subscribe, stream.name in statuses, number, errors, because))
    return tuple(told)


def _errors(status: StreamStatus | None) -> tuple[str, ...]:
    return () if status is None else tuple(str(error["message"]) for error in status.errors)
