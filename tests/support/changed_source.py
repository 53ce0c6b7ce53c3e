"""A device that stays connected while somebody changes the source's tables, and what it has to show in the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from headwater.oplog.lsn import ZERO
from headwater.oplog.op import OpId
from headwater.replication.tables.schema_watch import wanted_tables
from headwater.source.catalog.published import PublishedTable
from headwater.source.stream import Received, ReplicationStream
from headwater.source.triggers import install
from headwater.storage.contract.store import StoredTable
from headwater.storage.open import open_store
from tests.support.fix_headwater import TRIGGERED, Deployment, plan_of, read_bucket
from tests.support.model_device import ModelBucket, contents
from tests.support.turns import AT_THE_START, BY_TRIGGERS
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

OTHERS = "create table others (id text primary key, text text); insert into others values ('1', 'one')"
"""The table that `play` writes to beside the one that is changed."""

Rows = dict[tuple[str, str], dict[str, object]]


def without_nulls(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not None}


def as_shown(row: dict[str, object]) -> dict[str, object]:
    """A row of the source as a device has it: what is made of parts is JSON there, in text."""
    nested = {name: json.dumps(v, separators=(",", ":")) for name, v in row.items() if isinstance(v, dict | list)}
    return without_nulls(row | nested)


def published_rows(source: SourceDb, shown: Mapping[str, str], publications: Sequence[str] = ("headwater",)) -> Rows:
    """What a device is to show, as far as it is published: what is null is not there. `shown` gives a condition on
    the rows of the tables whose schema and name are like its keys. Generated columns belong to a row though Postgres
    may not publish them."""
    rows: Rows = {}
    detailed = source.connection.info.server_version >= 15_00_00
    generated = """array(select attname from pg_attribute where attgenerated <> '' and attname <> all(attnames)
                         and attrelid = format('%%I.%%I', schemaname, tablename)::regclass)"""
    details = f"attnames || {generated}, coalesce(rowfilter, 'true')" if detailed else "array['*'], 'true'"
    query = f"""select quote_ident(schemaname) || '.' || quote_ident(tablename), tablename, {details}
                from pg_publication_tables p where schemaname || '.' || tablename like %s and pubname = any(%s)
                  and not exists (select from pg_publication_tables root
                                  join pg_partition_ancestors(format('%%I.%%I', p.schemaname, p.tablename)::regclass) a
                                  on a.relid = format('%%I.%%I', root.schemaname, root.tablename)::regclass
                                  where root.pubname = any(%s) and root.tablename <> p.tablename)"""
    for pattern, condition in shown.items():
        for table, name, columns, row_filter in source.fetch(query, pattern, list(publications), list(publications)):
            selected = f"select {', '.join(columns)} from {table} where {condition} and {row_filter}"
            for (row,) in source.fetch(f"select row_to_json(t) from ({selected}) t"):
                rows[name, row["id"]] = as_shown(row)
    return rows


class Device:
    """A client that stays connected: it has everything up to the last time it looked."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._buckets: dict[str, ModelBucket] = {}

    def rows(self) -> Rows:
        names = self._deployment.buckets("a").keys()
        checkpoint = self._deployment.reader.newest()
        assert checkpoint is not None
        for name in names:
            self._buckets[name] = read_bucket(
                self._deployment.reader, name, checkpoint.checkpoint.op_id, self._buckets.get(name)
            )
        found = contents([self._buckets[name] for name in names])
        return {key: without_nulls(row) for key, row in found.items()}


def settled(deployment: Deployment) -> bool:
    """The store knows the tables as they are, and none is being compared with the source."""
    deployment.raise_failure()
    with deployment.store() as store:
        stored = store.tables(deployment.name)
    if any(table.resync for table in stored):
        return False
    return known(stored, wanted_tables(deployment.source.connection, deployment.settings, [plan_of(deployment.yaml)]))


def known(stored: Sequence[StoredTable], published: Sequence[PublishedTable]) -> bool:
    """Whether the published tables are those that are stored, and stand as they were stored."""
    shapes = {table.relation.oid: table.fingerprint for table in stored}
    return shapes.keys() == {table.relation.oid for table in published} and all(
        table.followed_on(shapes[table.relation.oid]) for table in published
    )


def compared(deployment: Deployment) -> bool:
    """A table is being compared with the source, or soon is."""
    deployment.raise_failure()
    with deployment.store() as store:
        return any(table.resync for table in store.tables(deployment.name))


@dataclass(frozen=True)
class Change:
    """What somebody does to the source, and how many ops that is to cost. It is one transaction, or one for each
    statement where it is done `separately`. `before` is how the source is made ready, `after` what is written in the
    end, if not what is for all cases. `new_slot` says that the old one can't be read on: nothing flows meanwhile."""

    sql: str
    ops: int
    before: str = ""
    needs: int = 14
    publications: tuple[str, ...] = ("headwater",)
    after: str | None = None
    separately: bool = False
    new_slot: bool = False

    def make(self, source: SourceDb) -> None:
        for statement in self.sql.split(";") if self.separately else [self.sql]:
            source.execute(statement)


def play(deployment: Deployment, change: Change, shown: Mapping[str, str], *, found: str, after: str) -> None:
    """Start a deployment, have a device connected over the change, which is found in one of the ways `FOUND`, and hold
    it to the truth and the costs. While tables are compared, a commit to the table `others` reaches the device; so does
    in the end what is written `after`."""
    source = deployment.source
    if found == BY_TRIGGERS:
        assert install(deployment.settings).done
        deployment.intervals = TRIGGERED
    deployment.start()
    device = Device(deployment)

    def truth() -> Rows:
        return published_rows(source, shown, change.publications)

    if found == BY_TRIGGERS:
        _exhaust_other_hints(deployment)
    assert device.rows() == truth()
    before = deployment.op_count()
    if found == AT_THE_START:
        deployment.stop()
    if found == AT_THE_START or change.new_slot:
        change.make(source)
    else:
        _make_beside_others(deployment, change, device, truth)
    if found == AT_THE_START:
        deployment.start()
    wait_until(lambda: device.rows() == truth(), f"the device to show the truth after: {change.sql}")
    wait_until(lambda: settled(deployment), "the comparison to end")
    source.execute("insert into others values ('2', 'two') on conflict do nothing")
    assert deployment.caught_up()
    assert device.rows() == truth()
    ops = deployment.op_count() - before - 1
    if found == AT_THE_START or not change.separately:  # else it may be looked at between two of the transactions
        assert ops == change.ops, ops
    assert deployment.kinds().count("snapshot") == 1
    source.execute(f"{after if change.after is None else change.after}; update others set text = 'last' where id = '2'")
    assert deployment.caught_up()
    assert device.rows() == truth()
    deployment.close()
    assert deployment.problems() == []


def _exhaust_other_hints(deployment: Deployment) -> None:
    """From here on, only an event trigger has the catalog looked at. The first row of a table that a stream brings
    comes with the table's description, which is a hint too, and after each hint there is one more look."""
    source = deployment.source
    source.execute("insert into others values ('0', 'zero')")
    assert deployment.caught_up()
    looked = "select now() - query_start > '0.6s' from pg_stat_activity where application_name = %s and datname = %s"
    wait_until(
        lambda: source.fetch(looked, "headwater schema", source.name) == [(True,)], "the looks at hints to be over"
    )


def _make_beside_others(deployment: Deployment, change: Change, device: Device, truth: Callable[[], Rows]) -> None:
    """Make the change. Where it has tables compared, a commit to another table comes through meanwhile."""
    source = deployment.source
    with psycopg.connect(source.dsn) as writer:
        writer.execute("select pg_current_xact_id()")  # now the comparison's snapshot waits for it to end
        change.make(source)
        wait_until(
            lambda: compared(deployment) or (settled(deployment) and device.rows() == truth()),
            f"somebody to notice: {change.sql}",
        )
        if compared(deployment):
            source.execute("insert into others values ('2', 'two')")
            wait_until(lambda: ("others", "2") in device.rows(), "the commit to another table")
            assert not settled(deployment) or device.rows() == truth(), "one that is gone is not compared in the end"


@contextmanager
def unheard(deployment: Deployment) -> Iterator[None]:
    """Changes that are made meanwhile are lost on their way. Postgres loses none, and whoever keeps some from the
    stream is noticed, so this has to be a stream that is false."""
    receive = ReplicationStream.receive
    begun, over = threading.Event(), False

    def forgetful(stream: ReplicationStream, wait: float, *, more_expected: bool) -> Received:
        begun.set()
        received = receive(stream, wait, more_expected=more_expected)
        if over:  # since it began to wait
            return received
        return replace(received, payloads=[p for p in received.payloads if p[:1] not in {b"I", b"U", b"D", b"T"}])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicationStream, "receive", forgetful)
        wait_until(begun.is_set, "what it waits for already to come")
        yield
        deployment.caught_up()
        over = True


@contextmanager
def held_back() -> Iterator[None]:
    """Nothing of the stream arrives meanwhile."""
    receive = ReplicationStream.receive
    begun, over = threading.Event(), threading.Event()

    def waiting(stream: ReplicationStream, wait: float, *, more_expected: bool) -> Received:
        begun.set()
        if over.wait(0.01):
            return receive(stream, wait, more_expected=more_expected)
        return Received([], 0, ZERO, idle=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicationStream, "receive", waiting)
        wait_until(begun.is_set, "the stream to be held back")
        yield
        over.set()


def given(deployment: Deployment) -> str:
    """Every op that any device could have been given."""
    with open_store(deployment.address).open_history() as view:
        return "\n".join(op.line for batch in view.ops(OpId(0), view.state().checkpoint) for op in batch)


@contextmanager
def locked(source: SourceDb, table: str = "busy") -> Iterator[psycopg.Connection]:
    """Somebody keeps a table, and its partitions, to themselves."""
    with psycopg.connect(source.dsn) as somebody:
        somebody.execute(f"lock table {table} in access exclusive mode".encode())
        yield somebody


def ask_beside(deployment: Deployment, kind: str, **payload: object) -> threading.Thread:
    """A command that waits for its result beside the test."""
    command = threading.Thread(target=deployment.ask, args=(kind,), kwargs=payload, daemon=True)
    command.start()
    return command
