"""Who is concerned by a change. Work follows the change and those it concerns, not the number of clients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Generic, TypeVar

from headwater.oplog.lsn import ZERO, Lsn
from headwater.oplog.op import OpId
from headwater.storage.contract.reader import FlushMark, Touched, WriteCheckpoint

Who = TypeVar("Who")


@dataclass(frozen=True, slots=True)
class Interest:
    """What a stream depends on: buckets it sends, lookup keys its set of buckets came from."""

    buckets: frozenset[str] = frozenset()
    lookups: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SourceChange:
    """What happened at the source that there is news of. `committed` is when its first commit was made, `learned` when
    this process learned of it, both in seconds since 1970. `traced` is the flush that is traced, if one is."""

    committed: float
    learned: float
    traced: FlushMark | None = None


@dataclass(frozen=True, slots=True)
class News:
    """What a stream should look at again, of all that happened up to `upto`. `buckets` None means all of its buckets;
    `write_checkpoint` is the id that has become visible; `change` is the first that it came from, if that is known."""

    upto: OpId
    buckets: frozenset[str] | None = frozenset()
    lookups: bool = False
    write_checkpoint: int | None = None
    change: SourceChange | None = None

    def also(self, later: News) -> News:
        everything = self.buckets is None or later.buckets is None
        return News(
            max(self.upto, later.upto),
            None if everything else (self.buckets or frozenset()) | (later.buckets or frozenset()),
            self.lookups or later.lookups,
            max(filter(None, (self.write_checkpoint, later.write_checkpoint)), default=None),
            self.change or later.change,
        )


def anything(upto: OpId, change: SourceChange | None = None) -> News:
    """News for somebody who has to look at all they depend on."""
    return News(upto, buckets=None, lookups=True, change=change)


class Interests(Generic[Who]):
    """An index from buckets and lookup keys to those who depend on them."""

    def __init__(self) -> None:
        self._held: dict[Who, Interest] = {}
        self._by_bucket: dict[str, set[Who]] = {}
        self._by_lookup: dict[str, set[Who]] = {}

    def put(self, who: Who, interest: Interest) -> None:
        """Replace what somebody depends on."""
        before = self._held.get(who, Interest())
        _move(self._by_bucket, who, before.buckets, interest.buckets)
        _move(self._by_lookup, who, before.lookups, interest.lookups)
        self._held[who] = interest

    def remove(self, who: Who) -> None:
        """Forget somebody; unknown ones are fine."""
        if who in self._held:
            self.put(who, Interest())
            del self._held[who]

    def everyone(self) -> list[Who]:
        return list(self._held)

    def concerned(self, touched: Touched, upto: OpId, change: SourceChange | None = None) -> dict[Who, News]:
        """Those whose buckets or lookups are among what was touched, and what each should look at."""
        if touched.buckets is None or touched.lookups is None:
            return dict.fromkeys(self._held, anything(upto, change))
        buckets: dict[Who, set[str]] = {}
        for name in _common(touched.buckets, self._by_bucket):
            for who in self._by_bucket[name]:
                buckets.setdefault(who, set()).add(name)
        news = {who: News(upto, frozenset(names), change=change) for who, names in buckets.items()}
        for key in _common(touched.lookups, self._by_lookup):
            for who in self._by_lookup[key]:
                held = news[who].buckets if who in news else frozenset()
                news[who] = News(upto, held, lookups=True, change=change)
        return news


class AwaitedWrites(Generic[Who]):
    """Write checkpoints that clients here wait for, until a checkpoint contains what they stand for."""

    def __init__(self) -> None:
        self._clients: dict[str, set[Who]] = {}
        self._awaited: dict[str, WriteCheckpoint] = {}

    def join(self, key: str, who: Who) -> None:
        """A client with this key is here; several may share one."""
        self._clients.setdefault(key, set()).add(who)

    def leave(self, key: str, who: Who) -> None:
        clients = self._clients.get(key, set())
        clients.discard(who)
        if not clients:
            self._clients.pop(key, None)
            self._awaited.pop(key, None)

    def expect(self, writes: Iterable[WriteCheckpoint]) -> None:
        """Keep those that anybody here waits for; a newer one replaces an older. Its id may be the same: all get other
        positions when a source's log begins again before those."""
        for write in writes:
            held = self._awaited.get(write.key)
            if write.key in self._clients and (held is None or (held.id, held.seq) < (write.id, write.seq)):
                self._awaited[write.key] = write

    def release(self, lsns: Mapping[str, Lsn], sources: Collection[str] | None = None) -> dict[Who, int]:
        """Who may now see which id, because a checkpoint with these positions contains it (see `reached`). Returned
        once."""
        contained = [write for write in self._awaited.values() if reached(write, lsns, sources)]
        for write in contained:
            del self._awaited[write.key]
        return {who: write.id for write in contained for who in self._clients[write.key]}


def reached(write: WriteCheckpoint, lsns: Mapping[str, Lsn], sources: Collection[str] | None = None) -> bool:
    """Whether a checkpoint with these positions contains the write. A source that it does not have, and that is not
    among the configured `sources` either, was removed with all its rows, and nobody waits for it any more."""
    return all(
        lsns.get(source, ZERO) >= lsn
        for source, lsn in write.lsns.items()
        if source in lsns or sources is None or source in sources
    )


def _move(index: dict[str, set[Who]], who: Who, before: Set[str], after: Set[str]) -> None:
    for name in before - after:
        index[name].discard(who)
        if not index[name]:
            del index[name]
    for name in after - before:
        index.setdefault(name, set()).add(who)


def _common(touched: frozenset[str], index: Mapping[str, object]) -> list[str]:
    if len(touched) < len(index):
        return [name for name in touched if name in index]
    return [name for name in index if name in touched]
