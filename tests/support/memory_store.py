"""A store in memory that answers for any op id it ever had. It keeps the whole history and looks everything up."""

from __future__ import annotations

import json
import socket
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headwater.oplog.lsn import Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import (
    BucketMarks,
    BucketTotal,
    Checkpoint,
    Chunk,
    FlushMark,
    Newest,
    ReplicatorStatus,
    StoredConfig,
    StoreReader,
    Touched,
    WriteCheckpoint,
)
from headwater.storage.contract.store import Revocation


@dataclass(frozen=True)
class Op:
    id: int
    kind: str
    row: str = ""
    data: str | None = None
    fixed_sum: int | None = None
    table: str = "todos"

    @property
    def checksum(self) -> int:
        if self.fixed_sum is not None:
            return self.fixed_sum
        return 0 if self.kind == "CLEAR" else zlib.crc32(f"{self.kind} {self.row} {self.data}".encode())

    @property
    def line(self) -> str:
        op: dict[str, object] = {"op_id": str(self.id), "op": self.kind, "checksum": self.checksum}
        if self.kind in {"PUT", "REMOVE"}:
            op |= {"object_type": self.table, "object_id": self.row, "subkey": self.row, "data": self.data}
        return json.dumps(op, separators=(",", ":"))


class SocketListener:
    """A listener with a socket pair for a descriptor."""

    def __init__(self) -> None:
        self._mine, self.theirs = socket.socketpair()
        self._mine.setblocking(False)

    def fileno(self) -> int:
        return self._mine.fileno()

    def drain(self) -> None:
        self._mine.recv(4096)

    def close(self) -> None:
        self._mine.close()
        self.theirs.close()


@dataclass
class MemoryStore:
    """Writes are seen with the next `commit`. Implements StoreReader."""

    chunk_ops: int = 1000
    config: StoredConfig | None = field(default_factory=lambda: StoredConfig(1, "streams: {}"))
    reads: list[str] = field(default_factory=list)
    revoked: list[Revocation] = field(default_factory=list)
    told: str = ""  # by its replicator
    others: dict[str, Lsn] = field(default_factory=dict)  # positions of sources besides the first
    told_by: dict[str, str] = field(default_factory=dict)  # by their replicators

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        self._next = 1
        self._lsn = 0
        self._checkpoint = 0
        self._ops: dict[str, list[Op]] = {}
        self._compacted: dict[str, int] = {}
        self._lookups: list[tuple[int, str, tuple[str, ...]]] = []
        self._flushes: list[FlushMark] = []
        self._writes: dict[str, WriteCheckpoint] = {}
        self._seq = 0
        self._listeners: list[SocketListener] = []

    # writing

    def put(self, bucket: str, row: str, data: str = "{}", *, table: str = "todos") -> None:
        self._append(bucket, "PUT", row, data, table)

    def remove(self, bucket: str, row: str) -> None:
        self._append(bucket, "REMOVE", row, None)

    def clear(self, bucket: str) -> None:
        self._append(bucket, "CLEAR", "", None)

    def compact(self, bucket: str) -> None:
        """Superseded ops become MOVEs, and what is before the first row that stands one CLEAR."""
        with self._lock:
            live = {op.id for op in self._live(bucket).values()}
            ops = [op for op in self._ops.get(bucket, []) if op.id <= self._checkpoint]
            newest = {op.row: op.id for op in ops if op.kind in {"PUT", "REMOVE"}}
            start = next((n for n, op in enumerate(ops) if op.id in live), len(ops))
            if not start:
                return
            since = self._since_clear(bucket, ops[start - 1].id)
            clear = Op(ops[start - 1].id, "CLEAR", fixed_sum=sum(op.checksum for op in since) % 2**32)
            moved = [
                op
                if op.kind in {"CLEAR", "MOVE"} or newest[op.row] == op.id
                else Op(op.id, "MOVE", fixed_sum=op.checksum)
                for op in ops[start:]
            ]
            self._ops[bucket][: len(ops)] = [clear, *moved]
            self._compacted[bucket] = ops[-1].id

    def set_lookup(self, key: str, outputs: Sequence[str]) -> None:
        with self._lock:
            self._lookups.append((self._take_id(), key, tuple(outputs)))

    def commit(self, *, wake: bool = True, committed_us: int = 0) -> Checkpoint:
        """Move the checkpoint, and the source's position by one, with a commit of that time if one is given."""
        with self._lock:
            self._checkpoint = self._next - 1
            if committed_us:
                self._flushes.append(FlushMark(OpId(self._checkpoint), "default", committed_us))
            self._lsn += 1
            answer = self._now()
        if wake:
            self.wake()
        return answer

    def replace_config(self, yaml: str) -> None:
        with self._lock:
            self.config = StoredConfig(self.config.id + 1 if self.config else 1, yaml)
            self.wake()

    def wake(self) -> None:
        for listener in self._listeners:
            listener.theirs.send(b"1")

    def rows(self, buckets: Sequence[str]) -> dict[tuple[str, str], object]:
        """What a device with these buckets shows at the checkpoint."""
        newest: dict[str, tuple[int, str]] = {}
        for bucket in buckets:
            for row, op in self._live(bucket).items():
                if newest.get(row, (0, ""))[0] < op.id:
                    newest[row] = (op.id, op.data or "")
        return {("todos", row): json.loads(data) for row, (_, data) in newest.items()}

    # reading

    @contextmanager
    def snapshot(self) -> Iterator[MemorySnapshot | None]:
        with self._lock:
            self.reads.append("snapshot")
            newest = self.newest()
            snapshot = MemorySnapshot(self, newest.checkpoint, self.config) if newest and self.config else None
        yield snapshot

    def newest(self) -> Newest | None:
        with self._lock:
            if self.config is None or not self._checkpoint:
                return None
            return Newest(self._now(), self.config.id, max((each.seq for each in self.revoked), default=0))

    def touched(self, after: OpId, upto: OpId) -> Touched:
        with self._lock:
            buckets = {name for name, ops in self._ops.items() if any(after < op.id <= upto for op in ops)}
            lookups = {key for op_id, key, _ in self._lookups if after < op_id <= upto}
            flushes = tuple(flush for flush in self._flushes if after < flush.last_op <= upto)
            return Touched(frozenset(buckets), frozenset(lookups), flushes)

    def chunk(self, bucket: str, after: OpId, upto: OpId) -> Chunk:
        with self._lock:
            self.reads.append(f"chunk {bucket}")
            visible = [op for op in self._since_clear(bucket, upto) if op.id > after]
            ops = visible[: self.chunk_ops]
            overtaken = self._compacted.get(bucket, 0) > upto
            if not ops:
                return Chunk(b"", 0, after, more=False, overtaken=overtaken)
            more = len(visible) > len(ops)
            return Chunk(",".join(op.line for op in ops).encode(), len(ops), OpId(ops[-1].id), more, overtaken)

    def marks(self, buckets: Sequence[str]) -> dict[str, BucketMarks]:
        with self._lock:
            return {name: self._marks(name) for name in buckets if name in self._ops}

    def listen(self) -> SocketListener:
        listener = SocketListener()
        self._listeners.append(listener)
        return listener

    def create_write_checkpoint(self, keys: Sequence[str], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._lock:
            for key in dict.fromkeys(keys):
                self._seq += 1
                previous = self._writes[key].id if key in self._writes else 0
                self._writes[key] = WriteCheckpoint(key, previous + 1, self._later(key, lsns), self._seq)
            return {key: self._writes[key].id for key in keys}

    def request_write_checkpoint(self, requests: Mapping[str, int], lsns: Mapping[str, Lsn]) -> dict[str, int]:
        with self._lock:
            for key, chosen in requests.items():
                if key not in self._writes or chosen > self._writes[key].id:
                    self._seq += 1
                    self._writes[key] = WriteCheckpoint(key, chosen, self._later(key, lsns), self._seq)
            return {key: self._writes[key].id for key in requests}

    def _later(self, key: str, lsns: Mapping[str, Lsn]) -> dict[str, Lsn]:
        return {**(self._writes[key].lsns if key in self._writes else {}), **lsns}

    def forget_write_requests(self, seconds: float) -> int:
        return 0

    def write_checkpoints(self, after_seq: int) -> list[WriteCheckpoint]:
        with self._lock:
            return sorted((w for w in self._writes.values() if w.seq > after_seq), key=lambda write: write.seq)

    def newest_write(self) -> int:
        return self._seq

    def write_checkpoint(self, key: str) -> WriteCheckpoint | None:
        with self._lock:
            return self._writes.get(key)

    def revocations(self, after_seq: int) -> list[Revocation]:
        self.reads.append("revocations")
        return [each for each in self.revoked if each.seq > after_seq]

    def replicator_alive(self) -> bool:
        return True

    def get_meta(self, key: str) -> str:
        return ""

    def replicator_status(self, tag: str) -> ReplicatorStatus:
        told = self.told_by.get(tag, self.told)
        return ReplicatorStatus(told, 0.0, runs=True) if told else ReplicatorStatus()

    def close(self) -> None:
        pass

    def total(self, bucket: str, upto: OpId) -> BucketTotal:
        ops = self._since_clear(bucket, upto)
        return BucketTotal(sum(op.checksum for op in ops) % 2**32, len(ops))

    def outputs(self, key: str, upto: OpId) -> list[str]:
        found: tuple[str, ...] = ()
        for op_id, name, outputs in self._lookups:
            if name == key and op_id <= upto:
                found = outputs
        return list(found)

    def _now(self) -> Checkpoint:
        return Checkpoint(OpId(self._checkpoint), {"default": Lsn(self._lsn), **self.others})

    def _marks(self, bucket: str) -> BucketMarks:
        visible = [op for op in self._ops[bucket] if op.id <= self._checkpoint]
        clear = max((op.id for op in visible if op.kind == "CLEAR"), default=0)
        return BucketMarks(OpId(clear), OpId(self._compacted.get(bucket, 0)), OpId(visible[-1].id if visible else 0))

    def _append(self, bucket: str, kind: str, row: str, data: str | None, table: str = "todos") -> None:
        with self._lock:
            self._ops.setdefault(bucket, []).append(Op(self._take_id(), kind, row, data, table=table))

    def _take_id(self) -> int:
        self._next += 1
        return self._next - 1

    def _since_clear(self, bucket: str, upto: int) -> list[Op]:
        visible = [op for op in self._ops.get(bucket, []) if op.id <= upto]
        clears = [index for index, op in enumerate(visible) if op.kind == "CLEAR"]
        return visible[clears[-1] :] if clears else visible

    def _live(self, bucket: str) -> dict[str, Op]:
        live: dict[str, Op] = {}
        for op in self._since_clear(bucket, self._checkpoint):
            if op.kind == "PUT":
                live[op.row] = op
            else:
                live.pop(op.row, None)
        return live


@dataclass(frozen=True)
class MemorySnapshot:
    store: MemoryStore
    checkpoint: Checkpoint
    config: StoredConfig

    def totals(self, buckets: Sequence[str]) -> dict[str, BucketTotal]:
        with self.store._lock:
            self.store.reads.extend(f"total {name}" for name in buckets)
            return {name: self.store.total(name, self.checkpoint.op_id) for name in buckets}

    def lookups(self, keys: Sequence[str]) -> dict[str, list[str]]:
        with self.store._lock:
            return {key: self.store.outputs(key, self.checkpoint.op_id) for key in keys}


_: type[StoreReader] = MemoryStore
