"""A transaction that can't be taken in: it is named, left out if that is allowed, and what it did comes all the same.

No server sends such a transaction, so the tests make our own code fail on a mark in the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from headwater.decode.errors import DecodeError
from headwater.decode.pgoutput import Decoder
from headwater.oplog.change import Message
from headwater.replication.fold import Fold
from headwater.replication.poison import PoisonBook
from tests.support.fix_headwater import Deployment, wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

pytestmark = pytest.mark.spark

Deploy = Callable[..., Deployment]

CONFIG = """
config: {edition: 3}
streams:
  notes:
    auto_subscribe: true
    query: SELECT * FROM notes
"""

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
def test_a_transaction_that_fails_is_left_out_and_what_it_did_is_compared(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(CONFIG).start()
    source_db.execute("insert into notes values ('1', 'before')")
    source_db.execute(f"begin; insert into notes values ('2', 'with it'), ('3', '{MARK}'); commit")
    source_db.execute("insert into notes values ('4', 'after')")
    wait_until(lambda: deployment.rows("a") == truth(source_db), "all rows, those that were left out among them")
    with deployment.store() as store:
        (poison,) = PoisonBook(deployment.settings, store).read()
        assert poison.skipped
        assert MARK not in poison.why, "no value of a row is told"
    source_db.execute("update notes set body = 'last' where id = '1'")
    assert deployment.rows("a") == truth(source_db)
    assert [record.kind for record in deployment.bulk_records()].count("snapshot") == 1
    deployment.close()
    assert deployment.problems() == []


@pytest.mark.usefixtures("faulty")
def test_where_it_is_to_stop_a_command_goes_on(deploy: Deploy, source_db: SourceDb) -> None:
    source_db.execute("create table notes (id text primary key, body text)")
    deployment = deploy(CONFIG)
    deployment.poison_changes = "stop"
    deployment.start()
    source_db.execute(f"insert into notes values ('1', '{MARK}')")
    source_db.execute("insert into notes values ('2', 'after')")
    with deployment.store() as store:
        book = PoisonBook(deployment.settings, store)
        wait_until(lambda: len(book.read()) == 1, "the transaction to be named")
        (poison,) = book.read()
        assert not poison.skipped
    wrong = deployment.ask("skip", lsn="0/1")
    assert wrong["state"] == "failed"
    assert poison.lsn in wrong["error"]
    assert deployment.ask("skip", lsn=poison.lsn)["state"] == "done"
    wait_until(lambda: deployment.rows("a") == truth(source_db), "all rows")
    idle = deployment.ask("skip", lsn=poison.lsn)
    assert idle["state"] == "failed"
