"""A process that has more files open than `select` can count, as one that follows a hundred sources has."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import closing

import pytest

from headwater.decode.pgoutput import Payload
from headwater.oplog.lsn import parse_lsn
from headwater.replication.own_slot import _has_ended
from headwater.source.connect import connect, dial, wait_for
from headwater.source.stream import ReplicationStream
from tests.support.fix_postgres import SourceDb
from tests.support.waiting import wait_until

_MANY = 1_100


@pytest.fixture
def many_open() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2 * _MANY:
        pytest.skip(f"a process may open {before[1]} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * _MANY), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(_MANY)]
    try:
        yield
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_connections(many_open: None, source_db: SourceDb) -> None:
    conn = dial(source_db.settings(), "headwater test")
    try:
        assert conn.socket > _MANY
        assert not wait_for(conn, 0)
        assert wait_for(conn, 0, writing=True)
        conn.send_query(b"select 1")
        assert wait_for(conn, 30)
    finally:
        conn.finish()


def test_session_that_the_server_ended(many_open: None, source_db: SourceDb) -> None:
    with closing(connect(source_db.settings(), application_name="headwater test")) as conn:
        assert not _has_ended(conn)
        source_db.execute(f"select pg_terminate_backend({conn.info.backend_pid})")
        wait_until(lambda: _has_ended(conn), "the end of the session to be seen")


def test_stream(many_open: None, source_db: SourceDb) -> None:
    source_db.execute("create table t (a int primary key)")
    source_db.execute("create publication headwater for table t")
    source_db.execute("select pg_create_logical_replication_slot('many', 'pgoutput')")
    source_db.execute("insert into t values (1)")
    start = source_db.fetch("select confirmed_flush_lsn::text from pg_replication_slots where slot_name = 'many'")
    with ReplicationStream(source_db.settings(), "many", parse_lsn(start[0][0]), ["headwater"]) as stream:
        payloads: list[Payload] = []
        while not any(bytes(payload[:1]) == b"I" for payload in payloads):
            payloads += stream.receive(10, more_expected=True).payloads
        stream.report(parse_lsn(start[0][0]), force=True)
