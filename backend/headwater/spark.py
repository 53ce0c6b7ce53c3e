"""The op log as a Spark source, streamed or in batch: `spark.readStream.format("headwater")`. Needs the extra `spark`.

    from headwater.spark import OplogSource
    spark.dataSource.register(OplogSource)

Offsets are op ids. https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import orjson
import pyarrow as pa
from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import format_lsn
from headwater.oplog.op import OpId
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.history import FlushRange, HistoryFilter, HistoryLimits, HistoryOp, Slice
from headwater.storage.open import open_store

EARLIEST, LATEST = "earliest", "latest"

_NAMES = (
    "path", "uri", "password", "schema", "definition", "bucket", "table", "snapshot", "startingOffset", "endingOffset",
    "maxOpsPerBatch",
)  # fmt: skip


class OplogOptionError(HeadwaterError):
    """An option of the source is wrong."""

    code = "HW_5201"


@dataclass(frozen=True, slots=True)
class OplogOptions:
    """What to read. With `tables`, only ops of these output tables, and CLEARs. An offset is an op id or one of the
    names above. `limit` is the largest number of ops in a micro-batch, None for any number."""

    address: StoreAddress
    where: HistoryFilter
    tables: frozenset[str]
    snapshot: bool
    start: int | str
    end: int | str
    limit: int | None


def read_options(options: Mapping[str, str]) -> OplogOptions:
    """Read the options of a query; upper and lower case in names are equal. Raises OplogOptionError."""
    given = {name.lower(): value for name, value in options.items()}
    unknown = sorted(set(given) - {name.lower() for name in _NAMES})
    if unknown:
        raise OplogOptionError("there is no such option", unknown[0], f"the options are {', '.join(_NAMES)}")
    limit = given.get("maxopsperbatch")
    return OplogOptions(
        address=_address(given),
        where=HistoryFilter(tuple(_names(given, "definition")), tuple(_names(given, "bucket"))),
        tables=frozenset(_names(given, "table")),
        snapshot=_flag(given, "snapshot"),
        start=_offset(given, "startingOffset", EARLIEST),
        end=_offset(given, "endingOffset", LATEST),
        limit=None if limit is None else _whole("maxOpsPerBatch", limit, 1),
    )


def _address(given: Mapping[str, str]) -> StoreAddress:
    path, uri = given.get("path"), given.get("uri")
    if (path is None) == (uri is None):
        raise OplogOptionError(
            "one of path and uri must say where the store is", "options", "path: its directory; uri: its database"
        )
    if path is not None:
        return SqliteAddress(path.removeprefix("file:"))
    assert uri is not None
    try:
        parts = conninfo_to_dict(uri)
    except ProgrammingError:  # its message has the text, which may contain a password
        raise OplogOptionError("can't be read", "uri", "write postgresql://user:password@host/database") from None
    if "password" in parts:
        raise OplogOptionError(
            "must not contain a password: Spark shows it in plans",
            "uri",
            "give it as the option password, which is hidden",
        )
    place = f"{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"
    if "password" in given:
        uri = make_conninfo(uri, password=given["password"])
    return PostgresAddress(uri, given.get("schema", "headwater"), place)


def _names(given: Mapping[str, str], option: str) -> Iterator[str]:
    """One name, or several as a JSON list."""
    text = given.get(option)
    if text is None:
        return
    if not text.startswith("["):
        yield text
        return
    try:
        names = orjson.loads(text)
    except orjson.JSONDecodeError:
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise OplogOptionError("must be one name, or a JSON list of names", option)
    yield from names


def _flag(given: Mapping[str, str], option: str) -> bool:
    text = given.get(option, "false").lower()
    if text not in {"true", "false"}:
        raise OplogOptionError("must be true or false", option)
    return text == "true"


def _offset(given: Mapping[str, str], option: str, default: str) -> int | str:
    text = given.get(option.lower(), default)
    allowed = (EARLIEST, LATEST) if default == EARLIEST else (LATEST,)
    return text if text in allowed else _whole(option, text, 0, f" or {' or '.join(allowed)}")


def _whole(option: str, text: str, least: int, others: str = "") -> int:
    if not text.isdecimal() or int(text) < least:
        raise OplogOptionError(f"must be a whole number from {least} on{others}", option)
    return int(text)


_OPS = {
    "op_id": "bigint", "op": "string", "bucket": "string", "definition": "string", "table": "string", "id": "string",
    "subkey": "string", "data": "string", "checksum": "bigint", "source": "string", "commit_lsn": "string",
    "committed_at": "timestamp",
}  # fmt: skip
"""Columns of ops, streamed or read in batch."""

_SNAPSHOT = {**_OPS, "checkpoint": "bigint"}
"""Columns of the rows in buckets at `checkpoint`."""

_ARROW = {"bigint": pa.int64(), "string": pa.string(), "timestamp": pa.timestamp("us", tz="UTC")}

_EPOCH_2000_US = 946_684_800_000_000


_Origin = tuple[str | None, str | None, int | None]


def _origin(flush: FlushRange) -> _Origin:
    """Source, LSN and commit time of a flush. Bulk work has no commit, so only the source is known."""
    if flush.committed_us == 0:
        return flush.source or None, None, None
    return flush.source, format_lsn(flush.lsn), flush.committed_us + _EPOCH_2000_US


class Origins:
    """The source, LSN and commit time of ops, as far as flushes are recorded."""

    def __init__(self, flushes: Sequence[FlushRange]) -> None:
        self._flushes = flushes
        self._ends = [flush.last for flush in flushes]
        self._origins = [_origin(flush) for flush in flushes]

    def of(self, op_id: int) -> _Origin:
        place = bisect_left(self._ends, op_id)
        known = place < len(self._ends) and op_id > self._flushes[place].after
        return self._origins[place] if known else (None, None, None)


def arrow_rows(
    ops: Sequence[HistoryOp], origins: Origins, tables: frozenset[str], checkpoint: int | None = None
) -> pa.RecordBatch:
    """Rows with the columns of ops, or with a checkpoint those of a snapshot. With `tables`, only ops of these output
    tables and CLEARs; empty means all."""
    rows = [_row(op, origins) for op in ops]
    if tables:
        rows = [row for row in rows if row[1] == "CLEAR" or row[4] in tables]
    if checkpoint is not None:
        rows = [(*row, checkpoint) for row in rows]
    columns = _OPS if checkpoint is None else _SNAPSHOT
    cells = zip(*rows, strict=True) if rows else [()] * len(columns)
    arrays = [pa.array(column, _ARROW[kind]) for column, kind in zip(cells, columns.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _row(op: HistoryOp, origins: Origins) -> tuple[object, ...]:
    body = orjson.loads(op.line)
    return (
        op.op_id, body["op"], op.bucket, op.definition, body.get("object_type"), body.get("object_id"),
        body.get("subkey"), body.get("data"), body["checksum"], *origins.of(op.op_id),
    )  # fmt: skip


NAME = "headwater"

_OPS_A_TASK = 50_000
_MOST_SLICES = 256

_Offset = dict[str, int | str]


class ForeignOffsetError(HeadwaterError):
    """A stream's offset belongs to another store, or to a later state of this one."""

    code = "HW_5202"


class RangePartition(InputPartition):
    """Ops in (after, upto], a part of the range `within`."""

    def __init__(self, after: OpId, upto: OpId, within: tuple[OpId, OpId], flushes: Sequence[FlushRange]) -> None:
        super().__init__((after, upto))
        self.after, self.upto, self.within = after, upto, within
        self.flushes = flushes


class SlicePartition(InputPartition):
    """The rows in some of the buckets."""

    def __init__(self, part: Slice, flushes: Sequence[FlushRange]) -> None:
        super().__init__(part)
        self.part = part
        self.flushes = flushes


def _ranges(options: OplogOptions, start: OpId, end: OpId) -> list[InputPartition]:
    ranges = open_store(options.address).cut_history(start, end, _OPS_A_TASK)
    flushes = open_store(options.address).read_flushes(start, end)
    return [
        RangePartition(after, upto, (start, end), [f for f in flushes if f.after < upto and f.last > after])
        for after, upto in ranges
    ]


def _read_range(options: OplogOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):  # Spark's own, when there is nothing to read
        return
    origins = Origins(partition.flushes)
    for ops in open_store(options.address).read_history(
        partition.after, partition.upto, options.where, within=partition.within
    ):
        yield arrow_rows(ops, origins, options.tables)


class OplogReader(DataSourceReader):
    def __init__(self, options: OplogOptions, limits: HistoryLimits) -> None:
        self._options = options
        self._start = _resolved("startingOffset", options.start, limits)
        self._end = _resolved("endingOffset", options.end, limits)

    def partitions(self) -> Sequence[InputPartition]:
        return _ranges(self._options, self._start, self._end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_range(self._options, partition)


class SnapshotReader(DataSourceReader):
    """Reads the rows in buckets at one checkpoint."""

    def __init__(self, options: OplogOptions, limits: HistoryLimits) -> None:
        self._options = options
        self._limits = limits

    def partitions(self) -> Sequence[InputPartition]:
        count = min(_MOST_SLICES, self._limits.ops // _OPS_A_TASK + 1)
        flushes = open_store(self._options.address).read_flushes(OpId(0), self._limits.checkpoint)
        return [SlicePartition(Slice(number, count), flushes) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            raise TypeError(type(partition).__name__)
        options, checkpoint = self._options, self._limits.checkpoint
        origins = Origins(partition.flushes)
        for ops in open_store(options.address).read_standing(checkpoint, options.where, partition.part):
            yield arrow_rows(ops, origins, options.tables, checkpoint)


class OplogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches of ops. An offset has the store that it belongs to, and the last op that was read."""

    def __init__(self, options: OplogOptions) -> None:
        self._options = options
        self._target: OpId | None = None

    def initialOffset(self) -> _Offset:  # noqa: N802 - Spark's name
        limits = open_store(self._options.address).history_limits(self._options.where)
        return _encoded(_resolved("startingOffset", self._options.start, limits), limits)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._options.limit is None else ReadMaxRows(self._options.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = open_store(self._options.address).history_limits().checkpoint

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:  # noqa: N802
        position = OpId(int(start["op_id"]))
        limits = open_store(self._options.address).history_limits(self._options.where, since=position)
        _check_offset(start, limits)
        end = limits.checkpoint if self._target is None else max(position, min(self._target, limits.checkpoint))
        if isinstance(limit, ReadMaxRows):
            # A first batch must not end before the ops that compaction has merged: those would be missing
            least = limits.merged if position == 0 else position
            end = max(least, open_store(self._options.address).history_end(position, end, limit.max_rows))
        return _encoded(end, limits)

    def reportLatestOffset(self) -> _Offset:  # noqa: N802
        limits = open_store(self._options.address).history_limits()
        return _encoded(limits.checkpoint, limits)

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        position = OpId(int(start["op_id"]))
        _check_offset(end, open_store(self._options.address).history_limits(self._options.where, since=position))
        return _ranges(self._options, position, OpId(int(end["op_id"])))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read_range(self._options, partition)


class OplogSource(DataSource):
    """Registered as `headwater`. A DataFrame that is read in batch has the store as it was when the DataFrame was
    made."""

    _limits: HistoryLimits | None = None

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        options = read_options(self.options)
        self._limits = open_store(options.address).history_limits(options.where)
        columns = _SNAPSHOT if options.snapshot else _OPS
        return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        limits = self._limits or open_store(options.address).history_limits(options.where)
        return SnapshotReader(options, limits) if options.snapshot else OplogReader(options, limits)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        options = read_options(self.options)
        if options.snapshot:
            raise OplogOptionError("a snapshot is read in batch", "snapshot", "use spark.read")
        if options.end != LATEST:
            raise OplogOptionError("a stream has no end", "endingOffset", "use spark.read")
        return OplogStreamReader(options)


def _resolved(option: str, offset: int | str, limits: HistoryLimits) -> OpId:
    if offset == EARLIEST:
        return OpId(0)
    if offset == LATEST:
        return limits.checkpoint
    if int(offset) > limits.checkpoint:
        raise OplogOptionError(f"the store has ops up to {limits.checkpoint} only", option, "give a lower op id")
    return OpId(int(offset))


def _encoded(op_id: OpId, limits: HistoryLimits) -> _Offset:
    return {"op_id": op_id, "store": limits.store}


def _check_offset(offset: _Offset, limits: HistoryLimits) -> None:
    if offset["store"] != limits.store:
        what = "the stream's checkpoint directory belongs to another store"
    elif int(offset["op_id"]) > limits.checkpoint:
        what = f"the stream was at op {offset['op_id']}, and the store ends at op {limits.checkpoint}: it was restored"
    else:
        return
    raise ForeignOffsetError(what, "offset", "start a new stream from a snapshot, with a new checkpoint directory")
