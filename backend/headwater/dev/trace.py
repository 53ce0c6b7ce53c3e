"""What happened of late to the rows of one person: each commit, the SQL that made it, the ops that it became, and the
lines of the sync config that gave them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import orjson
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from headwater.insight.explain import Served, open_served
from headwater.oplog.lsn import Lsn, format_lsn, parse_lsn
from headwater.oplog.op import OpId
from headwater.source.connect import SourceSettings, connect
from headwater.storage.address import StoreAddress
from headwater.storage.contract.history import FlushRange
from headwater.storage.contract.reader import StoreReader
from headwater.storage.open import open_store
from headwater.sync.request import RequestLimits
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.explain import BucketPath, SentRows, StreamWords, explain
from headwater_rules.results import ResolvedBucket, SyncRequest


@dataclass(frozen=True, slots=True)
class RuleLines:
    """The lines `first` to `last` of a stream, counted from 1, and `giving`, those of its query that give a bucket."""

    first: int
    last: int
    giving: tuple[int, ...]


class RuleText:
    """The text of a sync config. The lines come from what its plan compares, so that they say what really decides."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines()
        self._streams = {stream.name: stream for stream in explain(compile_config(text).plan).streams}
        read = YAML().load(text)
        streams = read.get("streams") or read["bucket_definitions"]
        self._first = {name: streams.lc.key(name)[0] + 1 for name in self._streams}
        self._query = {name: _place(streams[name], "query", self._first[name]) for name in self._streams}

    def of_bucket(self, stream: str, bucket: str) -> RuleLines:
        """The lines of a stream that give one of its buckets."""
        first, last = self._first[stream], self._last(stream)
        query = range(self._query[stream], last + 1)
        way = _way(self._streams[stream], bucket.partition("[")[0])
        giving = tuple(number for number in query if self._compares(self._lines[number - 1], way))
        return RuleLines(first, last, giving or tuple(query))

    def _last(self, stream: str) -> int:
        """The last line of a stream: what follows is empty, a comment, or the next stream."""
        after = [line for line in self._first.values() if line > self._first[stream]]
        last = min(after, default=len(self._lines) + 1) - 1
        while not self._lines[last - 1].strip() or self._lines[last - 1].lstrip().startswith("#"):
            last -= 1
        return last

    def _compares(self, line: str, way: BucketPath) -> bool:
        return any(
            _has_word(line, row) and any(_has_word(line, value) for value in values)
            for rows in way.rows
            for row, values in _compared(rows, way)
        )


def _place(stream: CommentedMap, key: str, otherwise: int) -> int:
    """The line of a key, counted from 1."""
    return stream.lc.key(key)[0] + 1 if key in stream else otherwise


def _way(stream: StreamWords, definition: str) -> BucketPath:
    return next(way for way in stream.ways if definition in way.buckets)


def _compared(rows: SentRows, way: BucketPath) -> Iterator[tuple[str, tuple[str, ...]]]:
    """What is compared of a row, with words for what it is compared with: a value of the request, or a looked-up
    table."""
    tables = tuple(step.table.rpartition(".")[2] for step in way.steps if step.table)
    for row, sources in rows.parameters:
        yield row, tuple(source for source in sources if "(step " not in source) or tables


def _has_word(line: str, words: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", line) is not None


_MOST_OPS = 20
"""The most ops of a commit that are shown."""

_MOST_TEXT = 200
"""The most characters of a value that are shown."""

_MOST_SECONDS = 600.0
"""How long before its commit a statement may have run."""

_EPOCH_2000 = 946_684_800

_WRITES = """select lsn::text, at, by, relation, rows, ids, sql from demo.writes
where lsn <= %s order by number desc limit 200"""


@dataclass(frozen=True, slots=True)
class NotedWrite:
    """A statement that changed `rows` rows of a table. `by` is the user whose upload it was, None for SQL that somebody
    wrote by hand."""

    by: str | None
    relation: str
    rows: int
    sql: str


@dataclass(frozen=True, slots=True)
class TracedOp:
    """An op of a bucket, with the lines of the rules that give the bucket. `data` is the row with long values cut, None
    when the op removes it."""

    op_id: int
    op: str
    table: str
    id: str
    bucket: str
    stream: str
    data: Mapping[str, object] | None
    lines: RuleLines


@dataclass(frozen=True, slots=True)
class TracedCommit:
    """What came of commits that became visible together. `committed` is in seconds since 1970; `more` says how many ops
    are not shown."""

    op_id: int
    lsn: str
    committed: float
    writes: tuple[NotedWrite, ...]
    ops: tuple[TracedOp, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Trace:
    """The commits up to a checkpoint, oldest first. `now` is the server's clock, in seconds since 1970."""

    now: float
    checkpoint: int
    commits: tuple[TracedCommit, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A write as the database keeps it, with when and where in its log it was made, and the ids of its first rows."""

    lsn: Lsn
    at: datetime
    ids: frozenset[str]
    write: NotedWrite


@dataclass(frozen=True, slots=True)
class Tracer:
    """Follows the demo's commits through its store."""

    reader: StoreReader
    storage: StoreAddress
    source: SourceSettings
    limits: RequestLimits
    rules: RuleText
    has_notes: bool = True
    """Whether the source keeps the statements that wrote lately, as the demo's does."""

    def trace(self, user: str, after: int | None) -> Trace:
        """The commits after an op that changed a bucket of the user; none without `after`. Blocking. Raises
        NothingServedYetError."""
        with open_served(self.reader, SyncRequest({"sub": user}), self.limits) as served:
            upto = served.checkpoint.op_id
            if after is None or after >= upto:
                return Trace(time.time(), upto, ())
            buckets = served.why.resolution.buckets
            ops = [op for bucket in buckets for op in self._ops(served, bucket, OpId(after), upto)]
        flushes = [each for each in open_store(self.storage).read_flushes(OpId(after), upto) if each.committed_us]
        return Trace(time.time(), upto, tuple(self._commits(flushes, sorted(ops, key=lambda op: op.op_id))))

    def _ops(self, served: Served, bucket: ResolvedBucket, after: OpId, upto: OpId) -> Iterator[TracedOp]:
        stream = served.reasons(bucket)[0].stream
        lines = self.rules.of_bucket(stream, bucket.name)
        for op in orjson.loads(b"[%b]" % self.reader.chunk(bucket.name, after, upto).ops):
            if op["op"] in {"PUT", "REMOVE"}:
                data = _cut(orjson.loads(op["data"])) if op.get("data") else None
                row = (op["object_type"], op["object_id"])
                yield TracedOp(int(op["op_id"]), op["op"], *row, bucket.name, stream, data, lines)

    def _commits(self, flushes: Sequence[FlushRange], ops: Sequence[TracedOp]) -> Iterator[TracedCommit]:
        kept = self._kept(flushes[-1].lsn) if flushes and self.has_notes else []
        before = Lsn(0)
        for flush in flushes:
            of_flush = [op for op in ops if flush.after < op.op_id <= flush.last]
            if of_flush:
                committed = _EPOCH_2000 + flush.committed_us / 1e6
                lately = [
                    each for each in kept if each.lsn <= flush.lsn and committed - each.at.timestamp() < _MOST_SECONDS
                ]
                shown = tuple(of_flush[:_MOST_OPS])
                more = len(of_flush) - len(shown)
                writes = _behind(of_flush, lately, before)
                yield TracedCommit(flush.last, format_lsn(flush.lsn), committed, writes, shown, more)
            before = flush.lsn

    def _kept(self, upto: Lsn) -> list[_Kept]:
        """The writes up to a place of the log, newest first."""
        with connect(self.source, application_name="headwater demo") as conn:
            rows = conn.execute(_WRITES, [format_lsn(upto)]).fetchall()
        return [
            _Kept(parse_lsn(lsn), at, frozenset(ids), NotedWrite(by, relation, count, sql))
            for lsn, at, by, relation, count, ids, sql in rows
        ]


def _behind(ops: Sequence[TracedOp], lately: Sequence[_Kept], before: Lsn) -> tuple[NotedWrite, ...]:
    """The last write of each row, and if that of some row is unknown, whatever was written since the commit `before`.
    Transactions overlap, so the position in the log alone does not decide."""
    found: dict[Lsn, NotedWrite] = {}
    for op in ops:
        kept = next((each for each in lately if op.id in each.ids and op.table == each.write.relation), None)
        found |= {each.lsn: each.write for each in ([kept] if kept else lately) if kept or each.lsn > before}
    return tuple(found[lsn] for lsn in sorted(found))


def _cut(row: Mapping[str, object]) -> Mapping[str, object]:
    return {
        name: f"{value[:_MOST_TEXT]}…" if isinstance(value, str) and len(value) > _MOST_TEXT else value
        for name, value in row.items()
    }
