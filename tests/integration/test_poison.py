"""A transaction that can't be applied: it is named, left out if that is allowed, and what it did comes all the same.

No server sends such a transaction, so the tests make our own code fail on a mark in the row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from headwater.decode.pgoutput import Decoder
from headwater.decode.wire import DecodeError
from headwater.oplog.change import Message
from headwater.oplog.lsn import Lsn, format_lsn
from headwater.replication.errors import PoisonError
from headwater.replication.stream.failed import FailedTransaction, FailedTransactions
from headwater.replication.stream.fold import Fold
from headwater.storage.contract.store import Lease, StoreUnreachableError
from tests.support.command import Outcome, headwater_here
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.fix_service import config_of
from tests.support.sync_configs import NOTES
from tests.support.waiting import wait_until

MARK = "can not be read"


def fail_to_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = Decoder.decode

    def decode_or_fail(self: Decoder, payloads: Sequence[bytes]) -> list[Message]:
        if any(MARK.encode() in payload for payload in payloads):
            raise DecodeError("a message is malformed")
        return decode(self, payloads)

    monkeypatch.setattr(Decoder, "decode", decode_or_fail)


def fail_to_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    apply = Fold.apply

    def apply_or_fail(self: Fold, changes: Sequence[tuple[object, object]]) -> None:
        if any(MARK in str(getattr(change, "new", "")) for _, change in changes):
            raise ZeroDivisionError(MARK)
        apply(self, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(Fold, "apply", apply_or_fail)


FAULTS = {"decoding": fail_to_decode, "applying": fail_to_apply}


@pytest.fixture(params=FAULTS)
def faulty(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[request.param](monkeypatch)


def truth(source: SourceDb) -> dict[tuple[str, str], dict[str, object]]:
    return {("notes", key): {"id": key, "body": body} for key, body in source.fetch("select id, body from notes")}


@pytest.mark.usefixtures("faulty")
def test_failed_transaction_is_skipped_and_compared(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES).start()
    source_db.execute("insert into notes values ('1', 'before')")
    source_db.execute(f"begin; insert into notes values ('2', 'with it'), ('3', '{MARK}'); commit")
    source_db.execute("insert into notes values ('4', 'after')")
    wait_until(lambda: deployment.rows("a") == truth(source_db), "all rows, those that were left out among them")
    with deployment.store() as store:
        (poison,) = FailedTransactions(deployment.settings, store).read()
        assert poison.skipped
        assert MARK not in poison.why, "no value of a row is told"
    source_db.execute("update notes set body = 'last' where id = '1'")
    assert deployment.rows("a") == truth(source_db)
    assert deployment.kinds().count("snapshot") == 1


def test_failed_transaction_is_noted_after_store_restart(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_decode(monkeypatch)
    failures, note = [StoreUnreachableError("the store's database cannot be reached")], FailedTransactions.record

    def noted_later(self: FailedTransactions, lease: Lease, error: PoisonError) -> bool:
        if failures:
            raise failures.pop()
        return note(self, lease, error)

    monkeypatch.setattr(FailedTransactions, "record", noted_later)
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES).start()
    source_db.execute(f"insert into notes values ('1', '{MARK}')")
    wait_until(lambda: deployment.rows("a") == truth(source_db), "the row that was left out")
    assert not failures


def named(deployment: Deployment) -> FailedTransaction:
    """The one transaction that is on record, once it is."""
    with deployment.store() as store:
        book = FailedTransactions(deployment.settings, store)

        def told() -> bool:
            deployment.raise_failure()
            return len(book.read()) == 1

        wait_until(told, "the transaction to be named")
        (poison,) = book.read()
        return poison


@pytest.mark.usefixtures("faulty")
def test_poison_stop_still_answers_requests(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES)
    deployment.on_apply_error = "stop"
    deployment.start()
    source_db.execute(f"insert into notes values ('1', '{MARK}')")
    source_db.execute("insert into notes values ('2', 'after')")
    poison = named(deployment)
    assert not poison.skipped
    wrong = deployment.ask("skip", lsn="0/1")
    assert wrong["state"] == "failed"
    assert poison.lsn in wrong["error"]
    assert deployment.ask("skip", lsn=poison.lsn)["state"] == "done"
    wait_until(lambda: deployment.rows("a") == truth(source_db), "all rows")
    idle = deployment.ask("skip", lsn=poison.lsn)
    assert idle["state"] == "failed"


@dataclass(frozen=True)
class Operator:
    """Somebody with the command and the config of a deployment."""

    config: Path

    @classmethod
    def of(cls, deployment: Deployment, folder: Path) -> Operator:
        operator = cls(folder / "headwater.json")
        operator.config.write_text(json.dumps(config_of(deployment, 0)), encoding="utf-8")
        return operator

    def skip(self, lsn: str) -> Outcome:
        return headwater_here("source", "skip", "--lsn", lsn, "-c", self.config)

    def status(self) -> str:
        """For people."""
        outcome = headwater_here("source", "status", "-c", self.config)
        assert outcome.code == ("cause  " in outcome.out), outcome.err
        return outcome.out

    def not_taken_in(self) -> list[dict[str, Any]]:
        """For scripts."""
        outcome = headwater_here("source", "status", "--json", "-c", self.config)
        assert outcome.code in {0, 1}, outcome.err
        found: list[dict[str, Any]] = json.loads(outcome.out)["transactions_not_taken_in"]
        return found


@pytest.mark.long  # it starts many commands
@pytest.mark.timeout(400)
def test_poison_command_skips_transaction(
    deploy: Deploy, source_db: SourceDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_apply(monkeypatch)
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES, on_postgres=False)
    deployment.on_apply_error = "stop"
    deployment.start()
    operator = Operator.of(deployment, tmp_path)
    assert operator.not_taken_in() == []
    source_db.execute(f"insert into notes values ('1', '{MARK}')")
    source_db.execute("insert into notes values ('2', 'after')")
    lsn = named(deployment).lsn

    wait_until(lambda: f"headwater source skip --lsn {lsn}" in operator.status(), "the remedy", pause=0.5)
    told = operator.status()
    assert f"transaction {lsn} holds up the stream since " in told
    assert "ZeroDivisionError in apply_or_fail, line " in told
    assert "state     retrying since" in told
    assert f"cause     [HW_5005] the transaction at {lsn} can't be applied: " in told
    assert MARK not in told, "no value of a row is told"
    ((at, skipped),) = [(each["lsn"], each["skipped"]) for each in operator.not_taken_in()]
    assert (at, skipped) == (lsn, False)

    for wrong, code in (("0/1", "HW_8201"), ("elsewhere", "HW_8202")):
        refused = operator.skip(wrong)
        assert (refused.code, refused.out) == (1, "")
        assert f"[{code}]" in refused.err
    assert f"no transaction at 0/1 blocks the stream; blocking: {lsn}" in operator.skip("0/1").err
    assert not named(deployment).skipped

    done = operator.skip(lsn)
    assert done.code == 0, done.err
    assert done.out == f"the transaction at {lsn} is skipped; all tables are compared with the source\n"
    wait_until(lambda: deployment.rows("a") == truth(source_db), "all rows")
    assert f"transaction {lsn} skipped since " in operator.status()
    assert [(each["lsn"], each["skipped"]) for each in operator.not_taken_in()] == [(lsn, True)]
    again = operator.skip(lsn)
    assert again.code == 1
    assert f"no transaction at {lsn} blocks the stream; blocking: none" in again.err


@pytest.mark.long
def test_poison_stops_after_ten_in_an_hour(
    deploy: Deploy, source_db: SourceDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_apply(monkeypatch)
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(NOTES).start()
    deployment.stop()
    with deployment.store() as store:
        lease, book = store.acquire("default", "test", 60), FailedTransactions(deployment.settings, store)

        def leaves_out(number: int) -> bool:
            return book.record(lease, PoisonError("why", "default", Lsn(number), Lsn(number)))

        long_ago = [
            FailedTransaction(format_lsn(Lsn(n)), time.time() - 3601, "why", skipped=True) for n in range(1, 31)
        ]
        store.set_meta(lease, "poison default", json.dumps([asdict(poison) for poison in long_ago]))
        assert all(leaves_out(number) for number in range(101, 111)), "those of long ago do not count"
        assert leaves_out(110), "one that is left out already stays so"
        assert not leaves_out(111)
        book.clear(lease)
        assert all(leaves_out(number) for number in range(201, 211))
        store.release(lease)
    deployment.start()
    source_db.execute(f"insert into notes values ('1', '{MARK}')")
    with deployment.store() as store:
        book = FailedTransactions(deployment.settings, store)
        wait_until(lambda: len(book.read()) == 11, "the transaction to be named")
        *_, poison = book.read()
    assert not poison.skipped
    source_db.execute("insert into notes values ('2', 'after')")
    assert deployment.ask("skip", lsn=poison.lsn)["state"] == "done"
    wait_until(lambda: deployment.rows("a") == truth(source_db), "all rows")
