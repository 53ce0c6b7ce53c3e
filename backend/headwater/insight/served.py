"""Reads what a device is sent: buckets of the active version, in the same way as a stream reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import orjson

from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import Checkpoint, StoreReader
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.explain import Explanation, explain
from headwater_rules.describe.why import Why
from headwater_rules.plan import SyncPlan
from headwater_rules.results import ResolvedBucket, SyncRequest

MOST_COUNTED = 2_000_000
"""The most rows of one bucket that are counted, since counting keeps a hash of each in memory."""

Entry = tuple[str, str, str]
"""Table, id and subkey, which identify a row in a bucket."""


class NothingServedYetError(HeadwaterError):
    """No version of the sync config is active yet, so no device gets anything."""

    code = "HW_8108"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask for."""

    max_buckets: int
    max_results: int


@dataclass(frozen=True, slots=True)
class StandingRow:
    """A row in a bucket, with the op that put it there, and its JSON."""

    table: str
    id: str
    op_id: int
    data: str


@dataclass(frozen=True, slots=True)
class Held:
    """What a new device downloads of one bucket: ops and bytes, and the rows that it then has; None when these are too
    many to count."""

    ops: int
    size: int
    rows: int | None


@dataclass(frozen=True, slots=True)
class Served:
    """The answers to one request, all at one checkpoint."""

    reader: StoreReader
    checkpoint: Checkpoint
    config: int
    plan: SyncPlan
    words: Explanation
    why: Why
    check: Callable[[], None]

    def held(self, bucket: str) -> Held:
        """Read a bucket as a new device does."""
        ops = size = 0
        standing: set[bytes] | None = set()
        for chunk in self._chunks(bucket):
            found = orjson.loads(b"[%b]" % chunk)
            ops, size = ops + len(found), size + len(chunk)
            if standing is not None:
                for op in found:
                    _count(op, standing)
                standing = standing if len(standing) <= MOST_COUNTED else None
        return Held(ops, size, None if standing is None else len(standing))

    def standing(self, bucket: str, ids: Collection[str]) -> list[StandingRow]:
        """The rows with these ids in a bucket, in the order of their ops."""
        needles = [b'"object_id":%b' % orjson.dumps(each) for each in ids]
        found: dict[Entry, StandingRow] = {}
        for chunk in self._chunks(bucket):
            if not any(needle in chunk for needle in needles):
                continue
            for op in orjson.loads(b"[%b]" % chunk):
                if op.get("object_id") in ids:
                    entry = (op["object_type"], op["object_id"], op["subkey"])
                    found.pop(entry, None)
                    if op["op"] == "PUT":
                        found[entry] = StandingRow(entry[0], entry[1], int(op["op_id"]), op["data"])
        return list(found.values())

    def streams_of(self, bucket: ResolvedBucket) -> list[tuple[str, str]]:
        """The streams that give the client a bucket, each with `default` or `subscription`."""
        told: list[tuple[str, str]] = []
        for reason in bucket.reasons:
            if "default" in reason:
                told.append((self.why.resolution.streams[reason["default"]].name, "default"))
            else:
                told.append((self.why.request.subscriptions[reason["sub"]].stream, "subscription"))
        return told

    def values_of(self, bucket: ResolvedBucket) -> dict[str, object]:
        """The values that a bucket's rows have in common, by their expressions in the sync config."""
        name = self.plan.buckets[bucket.definition].name
        values = orjson.loads(bucket.name[len(name) :])
        rows = next(
            rows
            for stream in self.words.streams
            for way in stream.ways
            if name in way.buckets
            for rows in way.rows
            if len(rows.parameters) == len(values)
        )
        return dict(zip((words for words, _ in rows.parameters), values, strict=True))

    def _chunks(self, bucket: str) -> Iterator[bytes]:
        after, more = OpId(0), True
        while more:
            self.check()
            chunk = self.reader.chunk(bucket, after, self.checkpoint.op_id)
            after, more = chunk.next_after, chunk.more
            if chunk.size:
                yield chunk.ops


@contextmanager
def open_served(
    reader: StoreReader, request: SyncRequest, limits: Limits, check: Callable[[], None] = lambda: None
) -> Iterator[Served]:
    """Open the newest checkpoint for one request. `check` is called now and then and may raise. Raises
    NothingServedYetError."""
    with reader.snapshot() as snapshot:
        if snapshot is None:
            raise NothingServedYetError("no sync config is served yet", fix="see `headwater rules versions`")
        plan, words = _plan(snapshot.config.yaml)
        bounds: Mapping[str, int] = {"max_buckets": limits.max_buckets, "max_results": limits.max_results}
        why = Why(plan, request, snapshot.lookups, **bounds)
        yield Served(reader, snapshot.checkpoint, snapshot.config.id, plan, words, why, check)


@lru_cache(maxsize=2)
def _plan(yaml: str) -> tuple[SyncPlan, Explanation]:
    plan = compile_config(yaml).plan
    return plan, explain(plan)


def _count(op: Mapping[str, str], standing: set[bytes]) -> None:
    kind = op["op"]
    if kind == "CLEAR":
        standing.clear()
    elif kind in {"PUT", "REMOVE"}:
        entry = blake2b(orjson.dumps((op["object_type"], op["object_id"], op["subkey"])), digest_size=16).digest()
        if kind == "PUT":
            standing.add(entry)
        else:
            standing.discard(entry)
