"""The op log as a Spark source, streamed or in batch: `spark.readStream.format("headwater")`.

    spark.dataSource.register(OplogSource)

Offsets are op ids. https://spark.apache.org/docs/latest/api/python/tutorial/sql/python_data_source.html
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from headwater.errors import HeadwaterError
from headwater.oplog.op import OpId
from headwater.pipeline.oplog.options import EARLIEST, LATEST, OplogOptionError, OplogOptions, read_options
from headwater.pipeline.oplog.rows import OPS, SNAPSHOT, Origins, arrow_rows
from headwater.storage.contract.history import (
    FlushRange,
    HistoryLimits,
    Slice,
)
from headwater.storage.open import open_backend

if TYPE_CHECKING:
    import pyarrow as pa

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
    ranges = open_backend(options.address).cut_history(start, end, _OPS_A_TASK)
    flushes = open_backend(options.address).read_flushes(start, end)
    return [
        RangePartition(after, upto, (start, end), [f for f in flushes if f.after < upto and f.last > after])
        for after, upto in ranges
    ]


def _read_range(options: OplogOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, RangePartition):  # Spark's own, when there is nothing to read
        return
    origins = Origins(partition.flushes)
    for ops in open_backend(options.address).read_history(
        partition.after, partition.upto, options.where, within=partition.within
    ):
        yield arrow_rows(ops, origins, options.tables)


class OplogReader(DataSourceReader):
    """Reads ops between two offsets."""

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
        flushes = open_backend(self._options.address).read_flushes(OpId(0), self._limits.checkpoint)
        return [SlicePartition(Slice(number, count), flushes) for number in range(count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SlicePartition):
            raise TypeError(type(partition).__name__)
        options, checkpoint = self._options, self._limits.checkpoint
        origins = Origins(partition.flushes)
        for ops in open_backend(options.address).read_standing(checkpoint, options.where, partition.part):
            yield arrow_rows(ops, origins, options.tables, checkpoint)


class OplogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads micro-batches of ops. An offset has the store that it belongs to, and the last op that was read."""

    def __init__(self, options: OplogOptions) -> None:
        self._options = options
        self._target: OpId | None = None

    def initialOffset(self) -> _Offset:  # noqa: N802 - Spark's name
        limits = open_backend(self._options.address).history_limits(self._options.where)
        return _encoded(_resolved("startingOffset", self._options.start, limits), limits)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable() if self._options.limit is None else ReadMaxRows(self._options.limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = open_backend(self._options.address).history_limits().checkpoint

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:  # noqa: N802
        position = OpId(int(start["op_id"]))
        limits = open_backend(self._options.address).history_limits(self._options.where, since=position)
        _check_offset(start, limits)
        end = limits.checkpoint if self._target is None else max(position, min(self._target, limits.checkpoint))
        if isinstance(limit, ReadMaxRows):
            # A first batch must not end before the ops that compaction has merged: those would be missing
            least = limits.merged if position == 0 else position
            end = max(least, open_backend(self._options.address).history_end(position, end, limit.max_rows))
        return _encoded(end, limits)

    def reportLatestOffset(self) -> _Offset:  # noqa: N802
        limits = open_backend(self._options.address).history_limits()
        return _encoded(limits.checkpoint, limits)

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        position = OpId(int(start["op_id"]))
        _check_offset(end, open_backend(self._options.address).history_limits(self._options.where, since=position))
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

    def schema(self) -> StructType:
        options = read_options(self.options)
        self._limits = open_backend(options.address).history_limits(options.where)
        return SNAPSHOT if options.snapshot else OPS

    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self.options)
        limits = self._limits or open_backend(options.address).history_limits(options.where)
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
