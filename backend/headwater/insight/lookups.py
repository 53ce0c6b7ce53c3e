"""Answers the lookups of a request for rules whose lookups the store may not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.insight.rows import CurrentRows
from headwater.storage.contract.reader import StoreReader
from headwater_rules.plan import SyncPlan
from headwater_rules.versions import only, sides

_PAGE = 50_000
KEPT_ENTRIES = 500_000


class LookupScan:
    """A `LookupReader`. Reads lookups that are complete in the store from it, and computes others from the current rows
    of their tables. `answers` holds all keys looked up so far and their outputs."""

    def __init__(
        self,
        rows: CurrentRows,
        plan: SyncPlan,
        complete: Mapping[str, str],
        reader: StoreReader,
        kept: int = KEPT_ENTRIES,
    ) -> None:
        self.answers: dict[str, list[str]] = {}
        self._rows = rows
        self._plan = plan
        self._reader = reader
        self._kept = kept
        self._stored = {name for name, digest in sides(plan).items() if complete.get(name) == digest}
        self._scanned: dict[str, dict[str, list[str]]] = {}

    def __call__(self, keys: Sequence[str]) -> Mapping[str, Sequence[str]]:
        by_name: dict[str, list[str]] = {}
        for key in keys:
            by_name.setdefault(key[: key.index("[")], []).append(key)
        found: dict[str, list[str]] = {}
        for name, wanted in by_name.items():
            if name in self._stored:
                found |= self._ask_store(wanted)
            else:
                entries = self._scanned[name] if name in self._scanned else self._scan(name, wanted)
                found |= {key: entries.get(key, []) for key in wanted}
        self.answers |= found
        return found

    def _ask_store(self, keys: Sequence[str]) -> dict[str, list[str]]:
        with self._reader.snapshot() as snapshot:
            return {key: [] for key in keys} if snapshot is None else snapshot.lookups(keys)

    def _scan(self, name: str, wanted: Sequence[str]) -> dict[str, list[str]]:
        """The entries of one lookup: all of them, kept for later calls, or only the wanted ones when there are too
        many."""
        plan = only(self._plan, {name})
        keys = set(wanted)
        entries: dict[str, list[str]] = {}
        number, complete = 0, True
        pages = [self._rows.pages(table, _PAGE) for table in self._rows.tables(plan)]
        with self._rows.watch("lookups", sum(len(each.ranges) for each in pages)) as page_done:
            for each in pages:
                for _, result in self._rows.results(plan, each, page_done):
                    for key, output in result.lookups:
                        if complete or key in keys:
                            entries.setdefault(key, []).append(output)
                            number += 1
                    if complete and number > self._kept:
                        complete = False
                        entries = {key: entries[key] for key in keys if key in entries}
        if complete:
            self._scanned[name] = entries
        return entries
