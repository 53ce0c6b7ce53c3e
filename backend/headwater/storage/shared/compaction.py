"""Which ops of a bucket's history can be removed, and the form of those that stay. Pure: reads and returns histories as
runs of finished ops, joined by newlines.

For a device at any position p, history up to p followed by compacted history after p must give the same rows and
checksum as the full history:

* A PUT or REMOVE of a row that has a later op becomes a MOVE. It keeps its op id and checksum, so sums don't change.
* Everything before the first live PUT becomes one CLEAR, with the op id of the last op replaced and the sum of their
  checksums. A device past it is not affected; any other device starts over at it.
* Live PUTs before a CLEAR can be put again at the end, which every device then downloads again.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headwater.oplog.keys import in_memory
from headwater.oplog.op import OpId
from headwater.storage.contract.compaction import Reput, SealedRun
from headwater.storage.shared.common import SEGMENT_BYTES, SEGMENT_OPS
from headwater.storage.shared.segments import compressor, op_id_of

STANDS, REMOVES, SUPERSEDED, MOVED, CLEARS = range(5)
"""Roles of an op in its history: a PUT whose row is live; a REMOVE that is the last op of its row; a PUT or REMOVE that
a later op supersedes; a MOVE; a CLEAR."""

HOT_OPS, HOT_BYTES = 2_000, 2 << 20
"""The most of the hot tail that is read at once."""

_UNSEEN = 255
_LEVEL = 3
_UINT32 = 0xFFFFFFFF


# As `oplog.op` writes them. Within JSON strings quotes are escaped, so the first `,"checksum":` ends the row's name
_OP = re.compile(
    rb'\{"op_id":"(\d+)","op":"(PUT|REMOVE|MOVE|CLEAR)"(?:,("object_type":.*?))?,"checksum":(\d+)'
    rb'(?:,"subkey":"(.*?)","data":)?'
)


class OpHead(NamedTuple):
    """The parts of an op that compaction needs; `row` is None for MOVE and CLEAR."""

    op_id: int
    kind: bytes
    row: int | None
    checksum: int


def op_head(line: bytes) -> OpHead:
    """Parse a finished op. Raises ValueError for anything else."""
    found = _OP.match(line)
    if found is None:
        raise ValueError("not a finished op")
    op_id, kind, name, checksum, subkey = found.groups()
    return OpHead(int(op_id), kind, None if name is None else row_key(name, subkey), int(checksum))


def changed_rows(ops: Iterable[tuple[int, str]], seen: int) -> tuple[set[int], OpId]:
    """Keys of the rows that finished ops, given with their ids, change; and the newest id, or `seen` without any."""
    rows: set[int] = set()
    for op_id, line in ops:
        seen = max(seen, op_id)
        row = op_head(line.encode()).row
        if row is not None:
            rows.add(row)
    return rows, OpId(seen)


def row_key(name: bytes, subkey: bytes) -> int:
    """A row's identity within its bucket, in 128 bits: buckets have millions of rows, and no two may collide."""
    return in_memory(b"%b\n%b" % (name, subkey))


@dataclass(slots=True)
class ScannedPiece:
    """The scan of one run: the role of each op, the length of each live op (0 for others), and the sum of the
    checksums."""

    roles: bytearray
    lengths: array[int]
    checksum: int = 0

    @property
    def changes(self) -> bool:
        """Whether it holds ops that become MOVEs."""
        return SUPERSEDED in self.roles


@dataclass(frozen=True, slots=True)
class HistoryScan:
    """The scan of a history, run by run."""

    pieces: list[ScannedPiece]

    @property
    def ops(self) -> int:
        return sum(len(piece.roles) for piece in self.pieces)

    @property
    def live(self) -> int:
        return sum(piece.roles.count(STANDS) for piece in self.pieces)


def scan(sizes: Sequence[int], read: Callable[[int], bytes], *, partitions: int = 1) -> HistoryScan:
    """Scan a history of runs with `sizes` ops each, from end to beginning. `read` gives a run by its number and is
    called `partitions` times for each: every pass tracks only one partition of the row keys, which bounds memory."""
    pieces = [ScannedPiece(bytearray([_UNSEEN]) * size, array("I", bytes(4 * size))) for size in sizes]
    for part in range(partitions):
        seen: set[int] = set()
        for number in reversed(range(len(pieces))):
            lines = read(number).split(b"\n")
            if len(lines) != len(pieces[number].roles):
                raise ValueError(f"a run of {sizes[number]} ops has {len(lines)}")
            _look(pieces[number], lines, seen, part, partitions)
    return HistoryScan(pieces)


def _look(piece: ScannedPiece, lines: list[bytes], seen: set[int], part: int, partitions: int) -> None:
    roles, lengths = piece.roles, piece.lengths
    total = 0
    for index in range(len(lines) - 1, -1, -1):
        if roles[index] != _UNSEEN:
            continue
        line = lines[index]
        _, kind, row, checksum = op_head(line)
        if row is None:
            roles[index] = CLEARS if kind == b"CLEAR" else MOVED
        elif partitions > 1 and row % partitions != part:
            continue
        elif row in seen:
            roles[index] = SUPERSEDED
        else:
            seen.add(row)
            roles[index] = REMOVES if kind == b"REMOVE" else STANDS
            if kind != b"REMOVE":
                lengths[index] = len(line)
        total += checksum
    piece.checksum = (piece.checksum + total) & _UINT32


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a history where a CLEAR could end: before op `offset` of run `piece`. It saves `gain` ops, after
    `rows` live PUTs of `cost` bytes have been put again."""

    piece: int
    offset: int
    gain: int
    rows: int
    cost: int


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """How much compaction may cost. Nothing while at most `spare` useless ops per live row remain. Beyond that, at most
    `budget` bytes that devices download again, as long as an op saved costs no more than `price` times the bucket's
    mean row length, and only if at least `least` ops are saved."""

    spare: float = 0.2
    budget: int = 16 << 20
    price: float = 1.0
    least: int = 16


def free_cut(history: HistoryScan) -> Cut:
    """The cut before the first live PUT."""
    return next(_cuts(history))


def choose_cut(history: HistoryScan, policy: CompactionPolicy) -> Cut:
    """The cut that saves most relative to what devices download again. Prefers cuts that leave no more useless ops than
    allowed."""
    free = free_cut(history)
    live, ops = history.live, history.ops
    excess = ops - live - policy.spare * live
    if free.gain >= excess:
        return free
    mean = sum(sum(piece.lengths) for piece in history.pieces) / max(1, live)
    enough: Cut | None = None
    most = free
    for cut in _cuts(history):
        saved = cut.gain - free.gain
        if cut.cost > policy.budget:
            break
        if saved < policy.least or cut.cost > policy.price * mean * saved:
            continue
        if cut.gain >= excess and (enough is None or saved * enough.cost > (enough.gain - free.gain) * cut.cost):
            enough = cut
        most = cut if cut.gain > most.gain else most
    return enough or most


def _cuts(history: HistoryScan) -> Iterator[Cut]:
    """Every place right before a live PUT and behind an op that is not one, and the end. The first costs nothing."""
    useless = rows = cost = 0
    first = True
    for number, piece in enumerate(history.pieces):
        start = 0
        while (found := piece.roles.find(STANDS, start)) >= 0:
            useless += found - start
            if first or found > start or (found == 0 and number):
                yield Cut(number, found, max(0, useless - 1), rows, cost)
                first = False
            rows += 1
            cost += piece.lengths[found]
            start = found + 1
        useless += len(piece.roles) - start
    yield Cut(len(history.pieces), 0, max(0, useless - 1), rows, cost)


def live_before(cut: Cut, history: HistoryScan, read: Callable[[int], bytes]) -> Iterator[list[Reput]]:
    """The rows that have to be put again before everything up to `cut` can be cleared, run by run."""
    for number, piece in enumerate(history.pieces[: cut.piece + 1]):
        end = len(piece.roles) if number < cut.piece else cut.offset
        places = [index for index in range(end) if piece.roles[index] == STANDS]
        if places:
            lines = read(number).split(b"\n")
            yield [_reput_of(lines[index]) for index in places]


def _reput_of(line: bytes) -> Reput:
    head = op_head(line)
    assert head.row is not None
    # A finished op is {"op_id":"<id>", and its body
    return Reput(head.row, head.checksum, line[line.index(b'"', 10) + 2 :].decode())


def op_ids(run: bytes) -> list[int]:
    """The ids of a run's ops."""
    return [op_id_of(line) for line in run.split(b"\n")]


def shortened(run: bytes, roles: bytearray) -> list[bytes]:
    """The ops of a run, with superseded ones as MOVEs."""
    lines = run.split(b"\n")
    index = roles.find(SUPERSEDED)
    while index >= 0:
        head = op_head(lines[index])
        lines[index] = b'{"op_id":"%d","op":"MOVE","checksum":%d}' % (head.op_id, head.checksum)
        index = roles.find(SUPERSEDED, index + 1)
    return lines


def checksum_of(lines: Sequence[bytes]) -> int:
    """The sum of ops' checksums, unsigned modulo 2^32."""
    return sum(op_head(line).checksum for line in lines) & _UINT32


def clear_line(op_id: int, checksum: int) -> str:
    """A CLEAR that replaces ops with this sum of checksums."""
    return f'{{"op_id":"{op_id}","op":"CLEAR","checksum":{checksum}}}'


class Sealer:
    """Packs ops into segments of at most 999 ops and 1 MiB; a larger op gets a segment of its own."""

    def __init__(self) -> None:
        self._compressor = compressor(_LEVEL)
        self._runs: list[SealedRun] = []
        self._lines: list[bytes] = []
        self._bytes = 0

    @property
    def full(self) -> int:
        """The number of full segments."""
        return len(self._runs)

    @property
    def open(self) -> Sequence[bytes]:
        """Ops of the segment that is not full yet."""
        return self._lines

    def add(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if len(self._lines) >= SEGMENT_OPS or (self._lines and self._bytes + len(line) > SEGMENT_BYTES):
                self._seal()
            self._lines.append(line)
            self._bytes += len(line) + 1

    def take(self) -> list[SealedRun]:
        """All segments, including the last, partly filled one."""
        if self._lines:
            self._seal()
        runs, self._runs = self._runs, []
        return runs

    def _seal(self) -> None:
        lines = self._lines
        run = b"\n".join(lines)
        first, last = op_head(lines[0]).op_id, op_head(lines[-1]).op_id
        blob = self._compressor.compress(run)
        self._runs.append(SealedRun(OpId(first), OpId(last), len(lines), checksum_of(lines), blob))
        self._lines, self._bytes = [], 0
