"""Random histories, cuts, duplicates, damage and local writes: the file shows what a plain model says, at each step."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from headwater_client.protocol.lines import parse_line
from headwater_client.protocol.session import FinishOutcome, StreamSession
from headwater_client.schema import Schema
from headwater_client.storage import buckets, layout, uploads
from headwater_client.storage.connection import open_connection
from headwater_client.storage.layout import replace_schema
from headwater_client.storage.store import DeviceStore
from tests.unit.clients_python.hearing import hear_line
from tests.unit.clients_python.played_server import PRIORITIES, ModelDevice, PlayedServer

BUCKETS = st.sampled_from(sorted(PRIORITIES))
ROWS = st.sampled_from(["a", "b", "c", "d"])
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5)  # as in Postgres
SUBKEYS = st.sampled_from(["s", "t"])


class DeviceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "device.db"
        self.server, self.model = PlayedServer(), ModelDevice()
        self.sent: dict[str, int] = {}
        self.target = 0
        self.session: StreamSession | None = None
        self.damaged: str | None = None
        self.open()

    def open(self) -> None:
        self.app = open_connection(self.path)
        layout.prepare(self.app)
        replace_schema(self.app, Schema.of({"todos": {"title": "text"}}))
        self.store = DeviceStore(open_connection(self.path), {})

    def teardown(self) -> None:
        self.app.close()
        self.store.connection.close()
        self.folder.cleanup()

    # The server's side

    @rule(bucket=BUCKETS, row=ROWS, value=VALUES, subkey=SUBKEYS)
    def put(self, bucket: str, row: str, value: str, subkey: str) -> None:
        self.server.put(bucket, row, value, subkey)

    @rule(bucket=BUCKETS, row=ROWS, subkey=SUBKEYS)
    def remove(self, bucket: str, row: str, subkey: str) -> None:
        self.server.remove(bucket, row, subkey)

    @rule(bucket=BUCKETS)
    def clear(self, bucket: str) -> None:
        self.server.clear(bucket)

    @precondition(lambda self: self.session is None)
    @rule(bucket=BUCKETS)
    def compact(self, bucket: str) -> None:
        self.server.compact(bucket)

    # The stream

    @rule(damaged=st.sampled_from([None, None, None, *sorted(PRIORITIES)]))
    def connect(self, damaged: str | None) -> None:
        self.session, self.damaged = StreamSession(), damaged
        self.sent = self.store.positions()
        assert self.sent == {name: held.position for name, held in self.model.stored.items()}
        self.checkpoint("checkpoint")

    @precondition(lambda self: self.session is not None and self.session.target is not None)
    @rule()
    def next_checkpoint(self) -> None:
        self.checkpoint("checkpoint_diff")

    def checkpoint(self, kind: str) -> None:
        self.target = self.server.last_op
        sums = self.server.sums()
        for each in sums:
            if each["bucket"] == self.damaged:
                each["checksum"] = int(str(each["checksum"])) ^ 1
        has_writes = self.server.uploaded and self.target >= self.server.confirmed_at
        self.seen = self.server.uploaded if has_writes else None
        line: dict[str, object] = {"last_op_id": str(self.target)}
        line |= {"buckets": sums, "streams": []} if kind == "checkpoint" else {"updated_buckets": sums}
        if self.seen is not None:
            line["write_checkpoint"] = str(self.seen)
        self.hear({kind: line})

    @precondition(lambda self: self.session is not None)
    @rule(bucket=BUCKETS, most=st.integers(1, 5), again=st.booleans())
    def data(self, bucket: str, most: int, again: bool) -> None:
        self.send(bucket, most, again=again)

    def send(self, bucket: str, most: int, *, again: bool = False) -> None:
        known = self.sent.get(bucket, 0)
        ops = [op for op in self.server.after(bucket, known) if int(str(op["op_id"])) <= self.target][:most]
        if ops:
            for _ in range(2 if again else 1):
                self.hear({"data": {"bucket": bucket, "data": ops}})
            self.sent[bucket] = int(str(ops[-1]["op_id"]))
            self.model.take(bucket, ops)

    @precondition(lambda self: self.session is not None)
    @rule()
    def complete(self) -> None:
        for bucket in PRIORITIES:
            self.send(bucket, 10**6)
        self.finish(None)

    @precondition(lambda self: self.session is not None)
    @rule(priority=st.sampled_from([0, 1]))
    def partially_complete(self, priority: int) -> None:
        for bucket, number in PRIORITIES.items():
            if number <= priority:
                self.send(bucket, 10**6)
        self.finish(priority)

    def finish(self, priority: int | None) -> None:
        involved = {name for name, number in PRIORITIES.items() if priority is None or number <= priority}
        kind = "checkpoint_complete" if priority is None else "partial_checkpoint_complete"
        outcome = self.hear({kind: {"last_op_id": str(self.target), "priority": priority or 0}})
        if self.damaged in involved:
            assert outcome is FinishOutcome.MISMATCH
            self.model.drop(self.damaged)
            self.session = None
            return
        self.model.stored_up_to(involved, self.target)
        if priority != 0 and self.model.waiting and not self.arrived(priority):
            assert outcome is FinishOutcome.BLOCKED
            return
        assert outcome is FinishOutcome.APPLIED
        if priority is None:
            self.model.show_all(self.target)
        else:
            self.model.show(involved, self.target)

    def arrived(self, priority: int | None) -> bool:
        """Whether the local writes have come back; only a whole checkpoint can tell."""
        if priority is None and self.seen == self.server.uploaded and uploads.first_waiting(self.app) is None:
            self.model.waiting = self.model.waiting and not self.uploaded
        return not self.model.waiting

    uploaded = False

    def hear(self, line: dict[str, object]) -> FinishOutcome | None:
        assert self.session is not None
        parsed = parse_line(json.dumps(line).encode())
        assert parsed is not None
        return hear_line(self.session, self.store, parsed, 1.0)

    @rule()
    def cut(self) -> None:
        self.session = None

    @rule()
    def killed(self) -> None:
        """The process is gone in the middle of a write."""
        self.session = None
        self.store.connection.execute("BEGIN IMMEDIATE")
        self.store.connection.execute("DELETE FROM ps_oplog")
        self.store.connection.close()
        self.app.close()
        self.open()

    # The app

    @rule(row=ROWS, value=VALUES)
    def write(self, row: str, value: str) -> None:
        self.app.execute("INSERT OR REPLACE INTO todos(id, title) VALUES (?, ?)", (row, value))
        self.app.commit()
        self.written(row, value)

    @precondition(lambda self: self.model.shown)
    @rule(row=ROWS)
    def delete(self, row: str) -> None:
        if row in self.model.shown:
            self.app.execute("DELETE FROM todos WHERE id = ?", (row,))
            self.app.commit()
            self.written(row, None)

    def written(self, row: str, value: str | None) -> None:
        self.model.touched.add(row)
        self.model.waiting, self.uploaded = True, False
        if value is None:
            del self.model.shown[row]
        else:
            self.model.shown[row] = value

    @rule()
    def undone(self) -> None:
        self.app.execute("INSERT INTO todos(id) VALUES ('undone')")
        self.app.rollback()

    @precondition(lambda self: self.model.waiting and not self.uploaded)
    @rule(taken=st.booleans())
    def upload(self, taken: bool) -> None:
        while entries := uploads.next_transaction(self.app):
            for entry in entries if taken else []:
                if entry.op == "DELETE":
                    self.server.remove("last", entry.id)
                else:
                    self.server.put("last", entry.id, str((entry.data or {}).get("title", "")))
            uploads.complete(self.app, entries[-1].op_id, None)
        sequence = uploads.unconfirmed_sequence(self.app)
        assert sequence is not None
        assert uploads.set_target(self.app, self.server.upload(), sequence)
        self.uploaded = True

    # What has to hold

    @invariant()
    def shows_what_the_model_says(self) -> None:
        found = self.app.execute("SELECT id, title FROM todos").fetchall()
        assert dict(found) == self.model.shown

    @invariant()
    def sums_are_right(self) -> None:
        rows = self.app.execute(
            "SELECT name, op_checksum, (SELECT coalesce(sum(hash), 0) FROM ps_oplog WHERE bucket = each.id)"
            " FROM ps_buckets AS each"
        )
        for name, kept, real in rows.fetchall():
            assert kept == real % 2**32, name


@pytest.mark.parametrize("large", [20_000, 2], ids=["small downloads", "large downloads"])
@pytest.mark.parametrize("examples", [20, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_device_equals_its_model(examples: int, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download counts as large from so many operations on."""
    monkeypatch.setattr(buckets, "_LARGE", large)
    monkeypatch.setattr(buckets, "_MANY_TIMES", 0)
    some = settings(max_examples=examples, stateful_step_count=40, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(DeviceMachine, settings=some)
