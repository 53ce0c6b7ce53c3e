"""Watches the stream for what refreshes computed tables: commits to tables, and messages that ask for it.

Any role can write such a message. It has a table computed sooner, but not before its `least` seconds are over.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from headwater.oplog.change import Begin, Commit, Delete, Insert, LogicalMessage, Message, Relation, Truncate, Update
from headwater.source.triggers import asked_refresh

Named = tuple[str, str]

Commits = deque[int]
"""The last transactions (by xid) that refresh a computed table."""


def last_commits() -> Commits:
    """None yet, and room for as many as can be in the stream before they are visible: each has a session of its own."""
    return deque(maxlen=10_000)


class CommitWatch:
    """Nothing is watched until `watch` is called. Transactions that are skipped, or in the store already, count too: a
    refresh too many finds nothing to do."""

    def __init__(self) -> None:
        self.active = False
        self._known = frozenset[str]()
        self._by_table: dict[Named, list[str]] = {}
        self._xid = 0
        self._touched = set[str]()  # by the transaction that is read
        self._found = defaultdict[str, Commits](last_commits)

    def watch(self, tables: Mapping[str, Collection[Named]]) -> None:
        """Watch for what refreshes these computed tables: those named after commits to these tables, all by message."""
        self.active, self._known = bool(tables), frozenset(tables)
        self._by_table = {}
        for computed, read in tables.items():
            for table in read:
                self._by_table.setdefault(table, []).append(computed)

    def see(self, messages: Sequence[Message]) -> None:
        """Messages of the stream, in its order."""
        last: Relation | None = None
        for message in messages:
            match message:
                case Insert() | Update() | Delete():
                    if message.relation is not last:
                        last = message.relation
                        self._touch((last,))
                case Begin():
                    self._xid, last = message.xid, None
                    self._touched.clear()
                case Commit():
                    for computed in self._touched:
                        self._found[computed].append(self._xid)
                    self._touched.clear()
                case Truncate():
                    self._touch(message.relations)
                case LogicalMessage() if message.transactional:
                    self._touched |= {asked_refresh(message)} & self._known
                case _:
                    pass

    def _touch(self, relations: Iterable[Relation]) -> None:
        for relation in relations:
            self._touched.update(self._by_table.get((relation.schema, relation.name), ()))

    def take(self) -> dict[str, Commits]:
        """The last transactions since the last call that refresh a computed table, by its name."""
        found = dict(self._found)
        self._found.clear()
        return found
