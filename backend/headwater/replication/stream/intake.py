"""Transactions of the source that can't be taken in: found out one by one, put on record, and left out if that is
allowed. What was left out comes with the comparison of all tables that follows, so nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import orjson
import psycopg

from headwater.decode.errors import DecodeError
from headwater.decode.pgoutput import Decoder
from headwater.errors import HeadwaterError, machine_error
from headwater.oplog.lsn import Lsn, format_lsn, parse_lsn
from headwater.replication.errors import PoisonError
from headwater.replication.stream.apply import Applier
from headwater.replication.tables.changes import distrust
from headwater.source.connect import SourceSettings
from headwater.source.rows.generated import NotComputableError
from headwater.storage.backend import Store
from headwater.storage.contract.reason import Cause, ResyncReason
from headwater.storage.contract.requests import RequestState
from headwater.storage.contract.store import Lease

SKIP = "skip"
"""Kind of request. Payload: `{"lsn": "0/1A2B3C"}`, as the error names it."""

_OF_THE_TRANSACTION = (DecodeError, NotComputableError)
"""Errors of ours that say of a transaction that it can't be taken in."""

_KEPT = 50
_BY_ITSELF, _BY_ITSELF_SECONDS = 10, 3600.0  # beyond that, something else is wrong


class StreamIntake:
    """Takes batches of the stream in. Where one fails for no outside reason, the next attempt goes transaction by
    transaction until it has passed that place, and so tells which one it is. What the machine lacks is an outside
    reason, whichever way it shows."""

    def __init__(self, applier: Applier, careful_until: Lsn) -> None:
        self._decode = Decoder().decode
        self._applier = applier
        self._careful_until = careful_until
        applier.careful = applier.position <= careful_until

    def take(self, payloads: Sequence[bytes], size: int) -> None:
        """Messages of so many bytes together. Raises PoisonError; without its `lsn` when it is not known yet which
        transaction it is."""
        with self._naming():
            try:
                messages = self._decode(payloads)
            except DecodeError:
                self._one_by_one(payloads)
            else:
                self._applier.consume(messages, size)

    def settle(self, received: Lsn, *, idle: bool) -> None:
        """`Applier.settle`. Raises as `take` does."""
        with self._naming():
            self._applier.settle(received, idle=idle)
        if self._applier.careful and self._applier.position > self._careful_until:
            self._applier.careful = False

    @contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except _OF_THE_TRANSACTION as error:
            raise (machine_error(error) or self._poison(str(error))) from error
        except (HeadwaterError, psycopg.Error):
            raise
        except Exception as error:
            why = f"{type(error).__name__} in {_place(error)}"
            raise (machine_error(error) or self._poison(why)) from error

    def _one_by_one(self, payloads: Sequence[bytes]) -> None:
        """What can't be decoded is passed over in a transaction that is left out."""
        self._applier.careful = True
        for payload in payloads:
            try:
                messages = self._decode([payload])
            except DecodeError:
                if self._applier.skipping:
                    continue
                raise
            self._applier.consume(messages, len(payload))

    def _poison(self, why: str) -> PoisonError:
        lsn = self._applier.final_lsn
        known = self._applier.careful and self._applier.in_transaction
        return PoisonError(why, self._applier.tag, lsn if known else None, upto=lsn)


def _place(error: BaseException) -> str:
    """Where it was raised, for whoever reads the log; a message could hold values of rows."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "unknown" if trace is None else f"{trace.tb_frame.f_code.co_name}, line {trace.tb_lineno}"


@dataclass(frozen=True, slots=True)
class Poison:
    """A transaction on record. `lsn` is where its commit record begins, `at` is in seconds since 1970."""

    lsn: str
    at: float
    why: str
    skipped: bool


class FailedTransactions:
    """The record that the store keeps."""

    def __init__(self, source: SourceSettings, store: Store) -> None:
        self._source = source
        self._store = store

    def read(self) -> list[Poison]:
        """The newest last."""
        return [Poison(**entry) for entry in orjson.loads(self._store.noted(self._key) or "[]")]

    @property
    def _key(self) -> str:
        return f"poison {self._source.tag}"

    def skipped(self) -> frozenset[Lsn]:
        """Transactions that are to be left out."""
        return frozenset(parse_lsn(poison.lsn) for poison in self.read() if poison.skipped)

    def note(self, lease: Lease, error: PoisonError) -> bool:
        """Put a transaction on record; whether it is left out from now on."""
        if error.lsn is None:
            return False
        lsn, now = format_lsn(error.lsn), time.time()
        known = self.read()
        lately = sum(poison.skipped and poison.at > now - _BY_ITSELF_SECONDS for poison in known)
        skip = self._source.poison_changes == "skip" and lately < _BY_ITSELF
        if error.lsn in self.skipped():
            return True  # somebody said so since the stream began
        if skip:
            self._compare_all(lease, lsn)  # first: with the skip alone on record, a crash would lose what it did
        self._write(lease, [p for p in known if p.lsn != lsn] + [Poison(lsn, now, error.why, skip)])
        return skip

    def take_requests(self, lease: Lease) -> None:
        """Do what `headwater source skip` asks for."""
        for request in self._store.open_requests(self._source.tag):
            if request.kind != SKIP:
                continue
            wanted = str(orjson.loads(request.payload or "{}").get("lsn"))
            known = self.read()
            stuck = [poison.lsn for poison in known if not poison.skipped]
            if wanted not in stuck:
                error = f"no transaction at {wanted} keeps the stream; there is: {', '.join(stuck) or 'none'}"
                answer = orjson.dumps({"error": error}).decode()
                self._store.update_request(lease, request.id, RequestState.FAILED, result=answer)
                continue
            self._compare_all(lease, wanted)
            self._write(lease, [Poison(p.lsn, p.at, p.why, p.skipped or p.lsn == wanted) for p in known])
            answer = orjson.dumps({"lsn": wanted}).decode()
            self._store.update_request(lease, request.id, RequestState.DONE, result=answer)

    def forget(self, lease: Lease) -> None:
        """The source's history is another: its positions mean other transactions."""
        self._write(lease, ())

    def _write(self, lease: Lease, poisons: Sequence[Poison]) -> None:
        self._store.note(lease, self._key, orjson.dumps([asdict(poison) for poison in poisons[-_KEPT:]]).decode())

    def _compare_all(self, lease: Lease, lsn: str) -> None:
        reason = ResyncReason(Cause.LEFT_OUT, str(lsn))
        distrust(self._store, lease, self._store.tables(self._source.tag), reason)
