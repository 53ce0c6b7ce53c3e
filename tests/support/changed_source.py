"""A device that stays connected while somebody changes the source's tables, and what it has to show in the end."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from headwater.replication.schema import wanted_tables
from headwater.source.stream import Received, ReplicationStream
from headwater.source.triggers import install
from headwater_rules.compile import compile_config
from tests.support.fix_headwater import Deployment, read_bucket, wait_until
from tests.support.model_device import ModelBucket, contents
from tests.support.turns import AT_THE_START, BY_TRIGGERS

if TYPE_CHECKING:
    from tests.support.fix_postgres import SourceDb

Rows = dict[tuple[str, str], dict[str, object]]


def without_nulls(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if value is not None}


def as_shown(row: dict[str, object]) -> dict[str, object]:
    """A row of the source as a device has it: what is made of parts is JSON there, in text."""
    nested = {name: json.dumps(v, separators=(",", ":")) for name, v in row.items() if isinstance(v, dict | list)}
    return without_nulls(row | nested)


def published_rows(source: SourceDb, shown: Mapping[str, str], publications: Sequence[str] = ("headwater",)) -> Rows:
    """What a device is to show, as far as it is published: what is null is not there. `shown` gives a condition on
    the rows of the tables whose schema and name are like its keys."""
    rows: Rows = {}
    detailed = source.connection.info.server_version >= 15_00_00
    details = "attnames, coalesce(rowfilter, 'true')" if detailed else "array['*'], 'true'"
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
        checkpoint = self._deployment.reader.checkpoint()
        assert checkpoint is not None
        for name in names:
            self._buckets[name] = read_bucket(
                self._deployment.reader, name, checkpoint[0].op_id, self._buckets.get(name)
            )
        found = contents([self._buckets[name] for name in names])
        return {key: without_nulls(row) for key, row in found.items()}


def settled(deployment: Deployment) -> bool:
    """The store knows the tables as they are, and none is being compared with the source."""
    deployment.raise_failure()
    plan = compile_config(deployment.yaml).plan
    published = wanted_tables(deployment.source.connection, deployment.settings, [plan])
    with deployment.store() as store:
        stored = store.tables("default")
    shapes = {t.relation.oid: t.shape for t in published}
    return {t.relation.oid: t.fingerprint for t in stored} == shapes and not any(t.resync for t in stored)


@dataclass(frozen=True)
class Change:
    """What somebody does to the source in one transaction, and how many ops that is to cost. `before` is how the
    source is made ready."""

    sql: str
    ops: int
    before: str = ""
    needs: int = 14
    publications: tuple[str, ...] = ("headwater",)


def play(deployment: Deployment, change: Change, shown: Mapping[str, str], *, found: str, after: str) -> int:
    """Start a deployment, have a device connected over the change, which is found in one of the ways `FOUND`, and hold
    it to the truth. A commit to the table `others` comes through too, and in the end what `after` writes. Returns how
    many ops the change was."""
    source, stopped = deployment.source, found == AT_THE_START
    if found == BY_TRIGGERS:
        assert install(deployment.settings).done
        deployment.poll_seconds = 3600
    deployment.start()
    device = Device(deployment)

    def truth() -> Rows:
        return published_rows(source, shown, change.publications)

    assert device.rows() == truth()
    before = deployment.op_count()
    if stopped:
        deployment.stop()
    source.execute(change.sql)
    if stopped:
        deployment.start()
    source.execute("insert into others values ('2', 'two')")
    wait_until(lambda: device.rows() == truth(), f"the device to show the truth after: {change.sql}")
    wait_until(lambda: settled(deployment), "the comparison to end")
    assert device.rows() == truth()
    ops = deployment.op_count() - before - 1
    assert [record.kind for record in deployment.bulk_records()].count("snapshot") == 1
    source.execute(f"{after}; update others set text = 'last' where id = '2'")
    assert deployment.caught_up()
    assert device.rows() == truth()
    deployment.close()
    assert deployment.problems() == []
    return ops


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
