"""What one client has and is owed: positions and successive views of the store in, lines and downloads out. (The states
of its stream are in `states`.)

The client holds every bucket up to a position. Each view that differs from the last for this client begins a new
checkpoint; until every bucket has been sent up to it, more urgent ones first, the session owes downloads. Urgency only
sorts them: it interrupts nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import BucketTotal, Chunk
from headwater.sync import lines
from headwater.sync.lines import Line
from headwater_rules.results import Resolution, ResolvedBucket

INTERRUPTIBLE_AFTER = 1000
"""Ops sent for a checkpoint after which a newer one may replace it. Below, it is finished first: otherwise a busy
source would keep a client from ever completing one."""


@dataclass(frozen=True, slots=True)
class View:
    """What the store says at one checkpoint. `resolution` None means: as before. `totals` has at least every bucket
    that is new or may have changed; a bucket left out stands as before."""

    op_id: OpId
    resolution: Resolution | None
    totals: Mapping[str, BucketTotal]
    write_checkpoint: int | None


@dataclass(frozen=True, slots=True)
class BucketDownload:
    """Ops of a bucket that the client needs next."""

    bucket: str
    after: OpId
    upto: OpId


Reasons = tuple[Mapping[str, int], ...]
"""Why a client has a bucket; see `ResolvedBucket`."""


class BucketStep(NamedTuple):
    """A checkpoint in which one bucket changed, for a client who has everything else. Clients who take equal steps, and
    have the bucket for the same reasons, are sent the same lines."""

    bucket: str
    after: OpId
    upto: OpId
    checksum: int
    ops: int
    priority: int


@dataclass(slots=True)
class _Group:
    """Buckets of one priority that are still owed, the next one last."""

    priority: int
    buckets: list[str]


class ClientState:
    """What one client has and is owed.

    Use: `advance` at every view, then `next` until it is None, answering each BucketDownload with `receive`.

    Once `overtaken`, the checkpoint can't be completed any more, for compaction went past it. What was sent so far is
    right, but what is missing comes only with a newer view, which has to be given before anything else.
    """

    __slots__ = (
        "_buckets",
        "_first",
        "_groups",
        "_op_id",
        "_overtaken",
        "_owes",
        "_positions",
        "_sent",
        "_totals",
        "_write",
    )

    def __init__(self, positions: Mapping[str, OpId]) -> None:
        self._positions = dict(positions)
        self._first = True
        self._op_id = OpId(0)
        self._buckets: dict[str, ResolvedBucket] = {}
        self._totals: dict[str, BucketTotal] = {}
        self._write: int | None = None
        self._groups: list[_Group] = []  # the next one last; an empty deque would take ten times the memory
        self._owes = False
        self._overtaken = False
        self._sent = 0

    @property
    def interruptible(self) -> bool:
        """Whether a newer view may be given before everything owed was sent."""
        return not self._owes or self._overtaken or self._sent >= INTERRUPTIBLE_AFTER

    @property
    def overtaken(self) -> bool:
        """Whether a newer view has to be given."""
        return self._overtaken

    def advance(self, view: View) -> Line | None:
        """The line that begins a new checkpoint, or None when nothing changed for this client."""
        if self._first:
            return self._begin(view)
        before = self._buckets
        removed = self._adopt(view.resolution) if view.resolution is not None else []
        updated = self._changed(view, before)
        write = max(filter(None, (view.write_checkpoint, self._write)), default=None)
        if not (updated or removed or self._overtaken) and write == self._write:
            return None
        self._write = write
        self._totals.update({name: view.totals[name] for name in updated if name in view.totals})
        pending = [name for name in self._owed() if name in self._buckets]
        self._owe(dict.fromkeys([*updated, *pending]), view.op_id)
        return lines.checkpoint_diff(view.op_id, write, map(self._entry, updated), removed)

    def step(self, bucket: str, view: View) -> BucketStep | None:
        """What `advance` would begin with this view, if it is a step of this bucket; None if it is anything else."""
        if self._owes or self._write is not None or view.totals[bucket] == self._totals[bucket]:
            return None
        total, priority = view.totals[bucket], self._buckets[bucket].priority
        return BucketStep(bucket, self._positions[bucket], view.op_id, total.checksum, total.count, priority)

    def repeat(self, step: BucketStep, total: BucketTotal, position: OpId) -> None:
        """Take a step whose lines were built for another client, in place of `advance` and all that follows. `position`
        is that client's in the bucket, afterwards."""
        self._totals[step.bucket] = total
        self._positions[step.bucket] = position
        self._op_id = step.upto

    def reasons(self, bucket: str) -> Reasons:
        """Why the client has a bucket."""
        return self._buckets[bucket].reasons

    def position(self, bucket: str) -> OpId:
        """Up to which op the client has a bucket."""
        return self._positions[bucket]

    def next(self) -> BucketDownload | Line | None:
        """What to do next for the current checkpoint, or None when the client has all of it."""
        if not self._owes:
            return None
        if self._groups:
            group = self._groups[-1]
            if download := self._first_download(group):
                return download
            self._groups.pop()
            if self._groups:
                return lines.partially_complete(self._op_id, group.priority)
        self._owes = False
        return lines.complete(self._op_id)

    def upcoming(self, limit: int) -> list[str]:
        """The buckets that downloads are owed of next, at most so many."""
        return list(islice(self._owed(), limit))

    def receive(self, download: BucketDownload, chunk: Chunk) -> None:
        """Answer the last BucketDownload with what the store gave, which is the caller's to send on."""
        self._positions[download.bucket] = max(download.after, chunk.next_after)
        self._sent += chunk.size
        self._overtaken = self._overtaken or chunk.overtaken
        if not chunk.more and not chunk.overtaken:
            self._groups[-1].buckets.pop()

    def _begin(self, view: View) -> Line:
        if view.resolution is None:
            raise ValueError("the first view of a session needs a resolution")
        self._first = False
        self._adopt(view.resolution)
        self._write = view.write_checkpoint
        self._totals = {name: view.totals[name] for name in self._buckets}
        self._owe(self._buckets, view.op_id)
        return lines.checkpoint(view.op_id, self._write, map(self._entry, self._buckets), view.resolution.streams)

    def _adopt(self, resolution: Resolution) -> list[str]:
        """Take a resolution over: new buckets start at 0. Returns the names of those gone, whose positions go."""
        before = self._buckets
        self._buckets = {item.name: item for item in resolution.buckets}
        self._positions = {name: self._positions.get(name, OpId(0)) for name in self._buckets}
        removed = [name for name in before if name not in self._buckets]
        for name in removed:
            del self._totals[name]
        return removed

    def _changed(self, view: View, before: Mapping[str, ResolvedBucket]) -> list[str]:
        """Names of the buckets whose entry in the checkpoint is not what the client was sent last."""
        candidates = view.totals if view.resolution is None else self._buckets
        return [name for name in candidates if name in self._buckets and self._differs(name, view, before)]

    def _differs(self, name: str, view: View, before: Mapping[str, ResolvedBucket]) -> bool:
        sent = self._totals.get(name)
        return view.totals.get(name, sent) != sent or before.get(name) != self._buckets[name]

    def _entry(self, name: str) -> Line:
        return lines.bucket(self._buckets[name], self._totals[name])

    def _owe(self, names: Iterable[str], op_id: OpId) -> None:
        groups: dict[int, list[str]] = {}
        for name in names:
            groups.setdefault(self._buckets[name].priority, []).append(name)
        self._groups = [_Group(priority, groups[priority][::-1]) for priority in sorted(groups, reverse=True)]
        self._op_id = op_id
        self._owes = True
        self._overtaken = False
        self._sent = 0

    def _owed(self) -> Iterator[str]:
        """Buckets in the order in which they are sent."""
        return (name for group in reversed(self._groups) for name in reversed(group.buckets))

    def _first_download(self, group: _Group) -> BucketDownload | None:
        while group.buckets:
            after = self._positions[group.buckets[-1]]
            if after < self._op_id:
                return BucketDownload(group.buckets[-1], after, self._op_id)
            group.buckets.pop()
        return None
