"""Rows that are evaluated with rows of other tables of their source: which lookups give these, and which rows have to
be evaluated again.

A change of another row evaluates the rows that depend on it again in the same flush, up to a number. Beyond it, and
where bulk work has written rows or the other rows, which it does each by itself, rows are evaluated in steps between
flushes. What is left to do is stored with the flushes, so that a restart goes on with it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from headwater.replication.stream.registry import TableRegistry
from headwater.replication.tables.live import LiveTable
from headwater.storage.contract.parts import JoinedLookup, JoinedLookups
from headwater.storage.sql.flush import Flush
from headwater.storage.sql.lookups import name_of
from headwater.storage.sql.writer import StoreWriter
from headwater_rules.plan import RowJoin, TablePattern, tag_of

_log = logging.getLogger(__name__)

_MOST_KEYS = 1_000
_META = "rows to evaluate again of source {}"


@dataclass(slots=True)
class _Waiting:
    """Rows of a table to evaluate again: those with an entry under `key`, or without one all. `after` is how far that
    is; `done_as` is the state of the table's joins that it leads to."""

    key: str
    after: str | None = None
    done_as: str = ""


class JoinedRows:
    """Follows the joins of one source's plans."""

    def __init__(self, store: StoreWriter, source: str) -> None:
        self._store = store
        self._source = source
        self._taken_in: set[str] = set()
        self._filled: set[int] = set()  # tables that have had all their rows
        self._joins: dict[str, list[RowJoin]] = {}  # by the name of the lookup that gives the other row
        self._tables: dict[int, LiveTable] = {}  # those with joins
        self.lookups: JoinedLookups = {}
        """Those that are complete, by name."""
        self._moved = False
        self._settled: dict[str, str] = {}  # the state of a table's joins that all of its rows were evaluated with
        self._keys: dict[int, list[_Waiting]] = {}
        self._whole: dict[int, _Waiting] = {}
        self._load()

    def _load(self) -> None:
        text = self._store.get_meta(_META.format(self._source))
        state = json.loads(text) if text else {"settled": {}, "keys": {}, "filled": []}
        self._settled, self._filled = state["settled"], set(state["filled"])
        self._keys = {int(table): [_Waiting(key) for key in keys] for table, keys in state["keys"].items()}
        self._moved = False

    def reset(self) -> None:
        """A flush was abandoned, and with it what it had done."""
        if self._moved:
            self._load()
            self._whole.clear()
            self._look()

    @property
    def is_busy(self) -> bool:
        """Whether rows wait to be evaluated again."""
        return bool(self._whole or self._keys)

    def waits(self, table: int) -> bool:
        """Whether rows of a table, by its id, wait to be evaluated again."""
        return table in self._whole or table in self._keys

    def describe(self) -> str:
        """What is being done, for people; empty when nothing is."""
        tables = [self._tables[table].name for table in {*self._whole, *self._keys} if table in self._tables]
        return f"evaluates rows of {', '.join(sorted(tables))} with those that they are joined to" if tables else ""

    # what there is

    def renew(self, tables: TableRegistry) -> None:
        """The rules or tables are others now."""
        plans = tables.context.plans
        joins = {join.name: join for plan in plans for join in plan.joins}
        self._joins = {}
        for join in joins.values():
            self._joins.setdefault(join.lookup.name, []).append(join)
        self._all, self._compared = list(tables.tables.values()), tables.compared
        self._tables = {table.id: table for table in self._all if table.bound.has_joins}
        self._look()

    def begin(self, definitions: Collection[str]) -> None:
        """A deploy begins with no entries of these definitions."""
        self._taken_in.difference_update(definitions)

    def take_in(self, lookups: Sequence[str], evaluated: Sequence[TablePattern]) -> None:
        """A deploy has evaluated these lookups over all rows, and whatever else it needs of the tables `evaluated`,
        which no join had a part in."""
        self._taken_in.update(lookups)
        for table in self._tables.values():
            if any(self._is_of(pattern, table) for pattern in evaluated):
                self._settled.pop(str(table.id), None)
                self._whole.pop(table.id, None)
        self._look()

    def _look(self) -> None:
        complete = self._store.complete_definitions(self._source) if self._joins else {}
        there_are = {table.id for table in self._all}
        self._filled = (self._filled | there_are - self._compared) & there_are
        self.lookups = {}
        for name, joins in self._joins.items():
            lookup = joins[0].lookup
            if name not in complete and name not in self._taken_in:
                continue
            there = [table for table in self._all if self._is_of(lookup.table, table)]
            if there and all(table.id in self._filled and name not in table.bound.closed for table in there):
                self.lookups[name] = JoinedLookup(tuple(table.id for table in there), alone=not lookup.outputs)
        before, self._whole = self._whole, {}
        for table in self._tables.values():
            state = self._state(table)
            if self._settled.get(str(table.id)) != state:
                known = before.get(table.id)
                self._whole[table.id] = known if known and known.done_as == state else _Waiting("", done_as=state)
        self._keys = {table: keys for table, keys in self._keys.items() if table in self._tables}

    def _is_of(self, pattern: TablePattern, table: LiveTable) -> bool:
        return pattern.matches(tag_of(self._source), table.relation.schema, table.relation.name)

    def _state(self, table: LiveTable) -> str:
        """A text for everything that decides which rows the joins of a table find, but the rows."""
        found: list[object] = [table.id, sorted(table.bound.definitions)]
        for joins in self._joins.values():
            for join in joins:
                if self._is_of(join.table, table):
                    lookup = self.lookups.get(join.lookup.name)
                    found.append([join.name, None if lookup is None else sorted(lookup.tables)])
        text = json.dumps(sorted(map(json.dumps, found)))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # within flushes

    def watch(self, flush: Flush) -> None:
        """Have a flush read the other rows, and note what changes of them."""
        flush.watch(self.lookups)

    def dependents(self, flush: Flush, most: int) -> Iterator[tuple[LiveTable, list[str]]]:
        """The rows, by table, that depend on what the flush has changed, once; above `most` they wait."""
        for table, key in [pair for changed in flush.changed_keys() for pair in self._dependent_on(changed)]:
            found = self._rows(flush, table.id, key, None, most + 1)
            if len(found) > most:
                self._wait(flush, table, key)
            elif found:
                most -= len(found)
                yield table, [row_id for _, row_id in found]

    def _dependent_on(self, changed: str) -> Iterator[tuple[LiveTable, str]]:
        """The tables whose rows are joined by a key, and under which key of theirs; empty for all rows."""
        for join in self._joins[name_of(changed)]:
            key = join.index and join.index + changed.removeprefix(join.lookup.name)
            yield from ((table, key) for table in self._tables.values() if self._is_of(join.table, table))

    def _wait(self, flush: Flush, table: LiveTable, key: str) -> None:
        keys = self._keys.setdefault(table.id, [])
        keys[:] = [waiting for waiting in keys if waiting.key != key]
        keys.append(_Waiting(key))
        if not key or len(keys) > _MOST_KEYS:
            del self._keys[table.id]
            self._settled.pop(str(table.id), None)
            self._whole[table.id] = _Waiting("", done_as=self._state(table))
        self._save(flush)

    def _rows(self, flush: Flush, table: int, key: str, after: str | None, most: int) -> list[tuple[str, str]]:
        return flush.rows_under(table, key, after, most) if key else flush.rows_after(table, after, most)

    def next_rows(self, flush: Flush, most: int) -> tuple[LiveTable, list[str]] | None:
        """Up to `most` of the next rows that wait. None when there are none."""
        while self.is_busy:
            of = self._whole or {table: keys[0] for table, keys in self._keys.items()}
            number, waiting = next(iter(of.items()))
            found = self._rows(flush, number, waiting.key, waiting.after, most)
            self._moved = True
            if len(found) < most:
                self._end(flush, number, waiting)
            else:
                waiting.after = found[-1][0]
            if found:
                return self._tables[number], [row_id for _, row_id in found]
        return None

    def _end(self, flush: Flush, table: int, waiting: _Waiting) -> None:
        if waiting.done_as:
            self._settled = {number: state for number, state in self._settled.items() if int(number) in self._tables}
            self._settled[str(table)] = waiting.done_as
            del self._whole[table]  # keys that came meanwhile may be of rows that were passed
            _log.info("all rows of %s are evaluated with the rows that they are joined to", self._tables[table].name)
        else:
            self._keys[table].remove(waiting)
            if not self._keys[table]:
                del self._keys[table]
        self._save(flush)

    def _save(self, flush: Flush) -> None:
        self._moved = True
        keys = {table: [waiting.key for waiting in keys] for table, keys in self._keys.items()}
        state = {"settled": self._settled, "keys": keys, "filled": sorted(self._filled)}
        flush.set_meta(_META.format(self._source), json.dumps(state))

    def committed(self) -> None:
        """The flush is stored."""
        self._moved = False
