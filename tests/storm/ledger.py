"""What each transaction did, and whether what a device saw is the state after some commit.

Each transaction leaves its name in a table that devices have, too: so a checkpoint tells which transactions it holds.
It has to hold, with a transaction, whatever was committed before that one began to commit; and each row has to be what
the last of the transactions in it that wrote the row made of it. Which was last, a sequence tells that was drawn from
while the row's lock was held.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tests.storm.tables import KINDS, USERS, Rows, Shown, Version, Versions, shown_to, with_joined
from tests.storm.versions import VersionsGiven

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class Effect:
    """What a statement made of the rows with one id, or of the whole table where `rows` is None. `rows` is what devices
    are to be shown, and holds nothing where the table is not judged by it; `versions` is what is known in any case."""

    order: int
    table: str
    id: str
    rows: Rows | None
    versions: tuple[Version, ...] = ()


@dataclass(slots=True)
class Transaction:
    """`sent` is when its COMMIT was sent, `done` when that was known to have succeeded."""

    name: str
    effects: list[Effect] = field(default_factory=list)
    sent: float = 0.0
    done: float = math.inf


@dataclass(frozen=True, slots=True)
class Sight:
    """A checkpoint that a device completed: by user the rows, the transactions in it, and the tables not to judge."""

    checkpoint: int
    shown: Mapping[str, Shown]
    names: frozenset[str]
    excluded: frozenset[str]


class Ledger:
    """The transactions and sights of one round."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix  # of the names of its transactions
        self._lock = threading.Lock()
        self._excluded: set[str] = set()
        self.transactions: dict[str, Transaction] = {}
        self.sights: list[Sight] = []

    def exclude(self, table: str) -> None:
        """From now to the end of the round it may be compared with the source. To be told before its cause."""
        with self._lock:
            self._excluded.add(table)

    @property
    def excluded(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._excluded)

    def begin_commit(self, transaction: Transaction) -> None:
        """Its COMMIT is about to be sent."""
        transaction.sent = time.monotonic()
        with self._lock:
            self.transactions[transaction.name] = transaction

    def end_commit(self, transaction: Transaction, *, committed: bool) -> None:
        """How that went."""
        with self._lock:
            if committed:
                transaction.done = time.monotonic()
            else:
                del self.transactions[transaction.name]

    def see(self, checkpoint: int, shown: Mapping[str, Shown], names: Iterable[str], excluded: frozenset[str]) -> None:
        """Note a checkpoint that a device completed."""
        own = frozenset(name for name in names if name.startswith(self._prefix))
        self.sights.append(Sight(checkpoint, shown, own, excluded))

    def judge(self, base: Mapping[str, Mapping[str, Rows]]) -> list[str]:
        """What is wrong with the sights, given the state before the first transaction."""
        reckoning = _Reckoning(base)
        found: list[str] = []
        previous: frozenset[str] = frozenset()
        for sight in self.sights:
            if EVERYTHING in sight.excluded:
                break
            late = reckoning.take(self._new(sight, previous), sight)
            wrong = [*self._order(sight, previous), *late, *reckoning.compare(sight)]
            found += [f"checkpoint {sight.checkpoint}: {what}" for what in wrong]
            previous = sight.names
            if len(found) > 20:
                break
        return found

    def judge_versions(self, base: Versions) -> list[str]:
        """What devices had that nobody gave to their users, tables that may be compared with the source included."""
        given = VersionsGiven(base)
        for transaction in self.transactions.values():
            given.add(final_versions(transaction))
        seen: set[tuple[str, str, str]] = set()
        for sight in self.sights:
            for user in USERS:
                seen.update((user, *row) for row in sight.shown[user])
        for user, table, row in seen:
            given.note_shown(user, table, row)
        return [text for user, table, row in sorted(seen) if (text := given.fault(user, table, row))][:20]

    def _new(self, sight: Sight, previous: frozenset[str]) -> list[Transaction]:
        return [self.transactions[name] for name in sorted(sight.names - previous) if name in self.transactions]

    def _order(self, sight: Sight, previous: frozenset[str]) -> Iterable[str]:
        known = sight.names & self.transactions.keys()
        if unknown := sight.names - known:
            yield f"transactions that were rolled back: {sorted(unknown)[:5]}"
        if lost := previous - sight.names:
            yield f"transactions that were there before are gone: {sorted(lost)[:5]}"
        newest = max((self.transactions[name].sent for name in known), default=0.0)
        missing = sorted(t.name for t in self.transactions.values() if t.done < newest and t.name not in known)
        if missing:
            yield f"without {missing[:5]}, which had been committed before others in it"


def final_versions(transaction: Transaction) -> dict[tuple[str, str], tuple[Version, ...]]:
    """What a transaction made in the end of the rows it wrote: what was between was nobody's to see."""
    last: dict[tuple[str, str], tuple[Version, ...]] = {}
    for effect in sorted(transaction.effects, key=lambda e: e.order):
        if effect.rows is None:
            last = {key: versions for key, versions in last.items() if key[0] != effect.table}
        else:
            last[effect.table, effect.id] = effect.versions
    return last


class _Reckoning:
    """The state that a set of transactions leads to, as the set grows."""

    def __init__(self, base: Mapping[str, Mapping[str, Rows]]) -> None:
        self._state = {table: dict(base.get(table, {})) for table in KINDS}
        self._joins = {"guests", "rooms"} <= base.keys()  # of a table that is not published, nothing is joined
        self._orders: dict[tuple[str, str], int] = {}
        self._emptied: dict[str, int] = {}

    def take(self, transactions: Iterable[Transaction], sight: Sight) -> list[str]:
        """Add transactions; tells of those that should have been in an earlier sight."""
        late: list[str] = []
        effects = sorted(((e, t.name) for t in transactions for e in t.effects), key=lambda pair: pair[0].order)
        before = dict(self._orders)
        for effect, name in effects:
            key = (effect.table, effect.id)
            newer = max(before.get(key, 0), self._emptied.get(effect.table, 0))
            if effect.order < newer and effect.table not in sight.excluded:
                late.append(f"{name} came to {key} after a later transaction was there")
            if effect.rows is None:
                self._joins = self._joins and effect.table != "rooms"  # guests follow in steps
                self._state[effect.table] = {}
                self._emptied[effect.table] = effect.order
                continue
            self._orders[key] = max(effect.order, self._orders.get(key, 0))
            if effect.order >= self._orders[key]:
                self._state[effect.table][effect.id] = effect.rows
        return late

    def compare(self, sight: Sight) -> Iterable[str]:
        """Where rows differ from what these transactions lead to."""
        tables = frozenset(KINDS) - sight.excluded
        if "rooms" in sight.excluded:
            tables -= {"guests"}  # whose rows are shown is told by the rooms
        if self._joins:
            tables = with_joined(tables)
        for user in USERS:
            wanted = shown_to(user, self._state, tables)
            shown = {row: count for row, count in sight.shown[user].items() if row[0] in tables}
            yield from (f"{user} {text}" for text in differences(wanted, shown))


def differences(wanted: Mapping[tuple[str, str], int], shown: Mapping[tuple[str, str], int]) -> list[str]:
    """What is missing and what is too much, at most ten of each."""
    missing = [f"lacks {row[0]} {row[1]}" for row, count in wanted.items() if shown.get(row, 0) < count]
    extra = [f"has {row[0]} {row[1]}" for row, count in shown.items() if wanted.get(row, 0) < count]
    return missing[:10] + extra[:10]
