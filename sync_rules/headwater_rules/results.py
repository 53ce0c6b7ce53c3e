"""Results of evaluation: entries of rows, and buckets of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headwater_rules.plan import Value


class Put(NamedTuple):
    """A row in one bucket. `definition` is a position in `SyncPlan.buckets`; `bucket` is the full name; `data` is the
    row's JSON text, without blobs."""

    definition: int
    bucket: str
    table: str
    id: str
    data: str


class LookupEntry(NamedTuple):
    """`key` is the full lookup key (`name["u1"]`), `output` a JSON array of the output values."""

    key: str
    output: str


class RowResult(NamedTuple):
    """The result for one row. `errors` describe entries that failed on this row and were left out. It stays the same
    until `flip`, in microseconds since 1970 UTC: for ever where that is None."""

    puts: list[Put]
    lookups: list[LookupEntry]
    errors: list[str]
    flip: int | None = None


UNKNOWN = "[null]"
"""The output of a lookup for a row of which rules can't say what it gives, where others are evaluated with it."""


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One row as it stands in the source, and what it gives. `source` is its tag, or for a shard `tag/shard`; `now` is
    the time at which it was evaluated, in microseconds since 1970, where rules read the clock. `joined` is what joins
    found for it: outputs of lookups by key."""

    schema: str
    table: str
    columns: Mapping[str, Value]
    row_id: str
    result: RowResult
    source: str = "default"
    now: int | None = None
    joined: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamSubscription:
    """One entry of the request's `streams.subscriptions`; its position is its id on the wire."""

    stream: str
    parameters: Mapping[str, object] | None = None
    override_priority: int | None = None


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """A sync request. `claims` is the verified token's payload."""

    claims: Mapping[str, object]
    parameters: Mapping[str, object] | None = None
    include_defaults: bool = True
    subscriptions: tuple[StreamSubscription, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedBucket:
    """`reasons` in wire form: `{"default": stream index}` or `{"sub": subscription index}`."""

    name: str
    definition: int
    priority: int
    reasons: tuple[Mapping[str, int], ...]


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One line of the checkpoint's `streams`. Each error is `{"subscription": "default" | index, "message": …}`, with
    more keys where a program may want to tell errors apart."""

    name: str
    is_default: bool
    errors: tuple[Mapping[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class OmittedSubscription:
    """A subscription that exceeds a limit of the request. `key` is the same for the same subscription and limit in
    every request; `message` names stream, numbers and setting."""

    key: str
    stream: str
    message: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """The buckets of a request at one checkpoint, the streams it is subscribed to, every lookup key that was read (a
    change under one of them can change the answer), and the subscriptions that were left out, which are also among the
    streams' errors."""

    buckets: tuple[ResolvedBucket, ...]
    streams: tuple[StreamStatus, ...]
    lookup_keys: frozenset[str] = field(default_factory=frozenset)
    left_out: tuple[OmittedSubscription, ...] = ()


LookupReader = Callable[[Sequence[str]], Mapping[str, Sequence[str]]]
"""Maps full lookup keys to the outputs (JSON array texts) stored under each; keys without outputs may be left out."""
