"""A device that is killed before any one of its statements, and started again: it ends as one that was not."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from headwater_client.cli import findings_in
from headwater_client.protocol.lines import parse_line
from headwater_client.protocol.session import StreamSession
from headwater_client.schema import Schema
from headwater_client.storage import buckets, layout, uploads
from headwater_client.storage.connection import open_connection
from headwater_client.storage.layout import replace_schema
from headwater_client.storage.store import DeviceStore
from tests.unit.clients_python.hearing import hear_line
from tests.unit.clients_python.played_server import PRIORITIES, PlayedServer

Line = dict[str, object]


def history() -> PlayedServer:
    """What comes at first, and is replaced, removed and cleared later."""
    server = PlayedServer()
    for bucket in PRIORITIES:
        for row in "abc":
            server.put(bucket, f"{bucket} {row}", "first")
    return server


def continued() -> PlayedServer:
    server = history()
    server.upload()
    server.put("last", "mine", "written")
    server.put("last", "last a", "second")
    server.remove("first", "first b")
    server.clear("urgent")
    server.put("urgent", "urgent d", "first")
    return server


def live(path: Path, killed: Callable[[str], None] = lambda _: None) -> None:
    """Open the file, write, take the first checkpoint, upload, and take the second. Done again, it changes nothing."""
    app, storing = open_connection(path), open_connection(path)
    for each in (app, storing):
        each.set_trace_callback(killed)
    layout.prepare(app)
    replace_schema(app, Schema.of({"todos": {"title": "text"}}))
    store = DeviceStore(storing, {})
    if app.execute("SELECT seq FROM sqlite_sequence WHERE name = 'ps_crud'").fetchone() is None:
        app.execute("INSERT INTO todos(id, title) VALUES ('mine', 'written')")
        app.commit()
    hear(store, history())
    while entries := uploads.next_transaction(app):
        uploads.complete(app, entries[-1].op_id, None)
    sequence = uploads.unconfirmed_sequence(app)
    if sequence is not None:
        uploads.set_target(app, 1, sequence)
    hear(store, continued())
    for each in (app, storing):
        each.close()


def hear(store: DeviceStore, server: PlayedServer) -> None:
    """A stream that sends what the device lacks of the server's newest state."""
    session, lacking = StreamSession(), store.positions()
    if min(lacking.values(), default=0) > server.last_op:
        return  # it is further than that already
    checkpoint: Line = {"last_op_id": str(server.last_op), "buckets": server.sums(), "streams": []}
    if server.uploaded:
        checkpoint["write_checkpoint"] = str(server.uploaded)
    lines: list[Line] = [{"checkpoint": checkpoint}]
    for bucket, priority in PRIORITIES.items():
        lines += [{"data": {"bucket": bucket, "data": [op]}} for op in server.after(bucket, lacking.get(bucket, 0))]
        lines.append({"partial_checkpoint_complete": {"priority": priority}})
    for line in [*lines, {"checkpoint_complete": {"last_op_id": str(server.last_op)}}]:
        parsed = parse_line(json.dumps(line).encode())
        assert parsed is not None
        hear_line(session, store, parsed, 1.0)


def live_until(path: Path, last: int, large: int) -> None:
    """In a process of its own: killed before the statement of that number."""
    buckets._LARGE = large  # type: ignore[misc]
    numbers = count()

    def killed(_: str) -> None:
        if next(numbers) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    live(path, killed)


@pytest.mark.parametrize("large", [20_000, 2], ids=["small downloads", "large downloads"])
@pytest.mark.parametrize("step", [61, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_killed_before_any_statement(tmp_path: Path, step: int, large: int) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    for last in count(0, step):
        path = tmp_path / f"{last}.db"
        child = processes.Process(target=live_until, args=(path, last, large))
        child.start()
        child.join(60)
        live(path)
        connection = open_connection(path)
        shown = dict(connection.execute("SELECT id, title FROM todos").fetchall())
        assert shown == {
            "first a": "first", "first c": "first", "last a": "second", "last b": "first", "last c": "first",
            "mine": "written", "urgent d": "first",
        }, last  # fmt: skip
        assert [each for each in findings_in(connection) if each.fine is False] == [], last
        assert uploads.confirmed(connection), last
        connection.close()
        if child.exitcode == 0:
            assert last > 100
            return
        assert child.exitcode == -signal.SIGKILL
