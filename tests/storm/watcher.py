"""A device that follows the store and looks at every checkpoint it can, and at every op that it is given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

from headwater.oplog.op import OpId
from headwater.storage.contract.reader import StoreReader
from headwater.storage.contract.store import StoreBusyError, StoreUnreachableError
from headwater_rules.compiler.compile import compile_config
from headwater_rules.evaluate.requests import resolve
from headwater_rules.results import SyncRequest
from tests.storm.ledger import Ledger
from tests.storm.secrets import SECRET
from tests.storm.sources import ORIGIN, ShownBySource, by_origin, config_of, faults_across
from tests.storm.tables import AGED, FRESH, LEDGER, USERS, Shown, canonical
from tests.support.model_device import ModelBucket, chunks_of, parse_ops
from tests.support.working_thread import WorkingThread

_LOOK_SECONDS = 0.01


class Device:
    """The devices of all users in one, so that they look at the same checkpoints. It stays connected: it keeps what
    it has and takes what is new."""

    def __init__(self, reader: StoreReader, sources: tuple[str, ...]) -> None:
        self._reader = reader
        self._plan = compile_config(config_of(sources)).plan
        self._by_origin = by_origin(sources)
        self._buckets: dict[str, ModelBucket] = {}
        self.checkpoint = 0

    def complete(self) -> ShownBySource | None:
        """Bring it to the newest checkpoint: what it shows then. None when there is no checkpoint, or it was
        overtaken meanwhile."""
        resolved: dict[str, list[str]] = {}
        with self._reader.snapshot() as snapshot:
            if snapshot is None:
                return None
            for user in USERS:
                resolution = resolve(self._plan, SyncRequest({"sub": user}), snapshot.lookups)
                resolved[user] = [bucket.name for bucket in resolution.buckets]
            names = sorted({name for every in resolved.values() for name in every})
            assert SECRET not in str(names), f"what a table was under another name leads to {names}"
            totals = snapshot.totals(names)
            upto = snapshot.checkpoint.op_id
        assert upto >= self.checkpoint, f"checkpoints do not go back: {self.checkpoint}, then {upto}"
        self._buckets = {name: self._buckets.get(name, ModelBucket()) for name in names}
        for name, bucket in self._buckets.items():
            if not self._read(name, bucket, upto):
                return None
            assert bucket.checksum == totals[name].checksum, f"the checksum of {name} is right at {upto}"
        self.checkpoint = upto
        shown: dict[str, dict[str, Shown]] = {
            name: {user: Counter() for user in USERS} for name in self._by_origin.values()
        }
        for user, every in resolved.items():
            for table, origin, text in _rows([self._buckets[name] for name in every]):
                shown[self._by_origin[origin]][user][table, text] += 1
        return shown

    def _read(self, name: str, bucket: ModelBucket, upto: OpId) -> bool:
        for chunk in chunks_of(self._reader, name, bucket.position, upto):
            assert SECRET.encode() not in chunk.ops, f"what a table was under another name is in {name} at {upto}"
            for op in parse_ops(chunk.ops):
                bucket.apply(op)
            if chunk.overtaken:
                return False
        bucket.position = max(bucket.position, upto)
        return True


def _rows(buckets: list[ModelBucket]) -> Iterator[tuple[str, str, str]]:
    """By table and origin, the text of each row."""
    for bucket in buckets:
        for (table, _, _), (_, data, _) in bucket.rows.items():
            yield (table, *(_text(data) if len(data) < 10_000 else _long_text(data)))


@lru_cache(maxsize=100_000)
def _text(data: str) -> tuple[str, str]:
    return _told(data)


@lru_cache(maxsize=100)
def _long_text(data: str) -> tuple[str, str]:
    return _told(data)


def _told(data: str) -> tuple[str, str]:
    fields = json.loads(data)
    return str(fields.pop(ORIGIN, "")), canonical(fields)


def names_in(shown: Shown, ledger: str = LEDGER) -> frozenset[str]:
    """The transactions whose names a device has, in that table."""
    return frozenset(json.loads(text)["id"] for table, text in shown if table == ledger)


def _untimely(shown: Shown) -> list[str]:
    """Transactions that are not in one of the two windows, as each has to be, whatever the time is."""
    fresh, aged, every = (names_in(shown, table) for table in (FRESH, AGED, LEDGER))
    return [f"{name} is in both windows or in none" for name in sorted((fresh & aged) | (every ^ (fresh | aged)))[:5]]


class Watcher(WorkingThread):
    """Notes every checkpoint in the ledgers of the round, of each source what it has of it. `faults` is what does not
    fit together in one."""

    def __init__(self, device: Device, ledgers: Mapping[str, Ledger]) -> None:
        super().__init__("watcher")
        self._device = device
        self._ledgers = ledgers
        self.faults: list[str] = []

    def work(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        before = self._device.checkpoint
        try:
            shown = self._device.complete()
        except (StoreUnreachableError, StoreBusyError):  # its server died: a device comes again
            return
        if shown is None or self._device.checkpoint == before:
            return
        number = self._device.checkpoint
        self.faults += [f"checkpoint {number}: {what}" for what in faults_across(shown)]
        for source, ledger in self._ledgers.items():
            # asked after the checkpoint was taken: what is excluded only then was still right in it
            own = shown[source]
            self.faults += [f"checkpoint {number}: {source} {what}" for what in _untimely(own[USERS[0]])]
            ledger.see(number, own, names_in(own[USERS[0]]), ledger.excluded)
