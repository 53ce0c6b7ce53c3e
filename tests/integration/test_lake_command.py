"""`headwater lake export` as a process: killed, stopped, beside sources that change, and on a full disk."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from headwater.cli.config import load_config
from headwater.cli.lake.export import run
from headwater.config import ConfigSource
from headwater.embedded.postgres import EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from tests.integration.followed_source import SmallDisk
from tests.support.command import Outcome, headwater_here
from tests.support.fix_headwater import Deploy, Deployment
from tests.support.fix_processes import Launch
from tests.support.fix_service import config_of, connection_to, free_port
from tests.support.fix_sources import NewSources
from tests.support.fix_stores import NewAddress
from tests.support.lakes import assert_is_store, devices_of, manifest_of, ops_of, snapshot_of
from tests.support.model_device import contents
from tests.support.processes import Running
from tests.support.sync_configs import NOTES_AND_OTHERS
from tests.support.waiting import wait_until
from tests.support.written_store import WrittenStore, compact, shown

A, B = 'todos["a"]', 'todos["b"]'
LAKE_POINTS = ("lake.after_file", "lake.after_next", "lake.after_name", "lake.after_commit")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Where a lake is to be."""
    return tmp_path / "lake"


@pytest.fixture
def written(new_address: NewAddress) -> Iterator[WrittenStore]:
    with closing(WrittenStore(new_address())) as store:
        store.publish({str(i): (A if i % 3 else B, f"text {i}") for i in range(300)})
        yield store


def config_for(folder: Path, address: StoreAddress) -> Path:
    """The config of a service with this store."""
    if isinstance(address, SqliteAddress):
        storage: dict[str, object] = {"type": "sqlite", "path": address.directory}
    else:
        parts = conninfo_to_dict(address.conninfo)
        storage = {**connection_to(int(parts["port"] or 0), str(parts["dbname"]), str(parts["user"]))}
        storage["schema"] = address.schema
    path = folder / "lake.json"
    path.write_text(json.dumps({"replication": {"connections": [connection_to(1024)]}, "storage": storage}))
    return path


def once(config: Path, root: Path, *options: str) -> Outcome:
    return headwater_here("lake", "export", root, "--config", config, "--once", *options, cwd=config.parent)


def export_in(launch_module: Launch, config: Path, root: Path, *options: str, failpoint: str = "") -> Running:
    """The command as a process."""
    arguments = "lake", "export", str(root), "--config", str(config), *options
    return launch_module("headwater", *arguments, failpoint=failpoint)


@pytest.mark.parametrize("point", LAKE_POINTS)
@pytest.mark.parametrize("new_address", ["sqlite", pytest.param("postgres", marks=pytest.mark.long)], indirect=True)
def test_kill_within_round(
    written: WrittenStore, launch_module: Launch, tmp_path: Path, root: Path, point: str
) -> None:
    config = config_for(tmp_path, written.address)
    seen: dict[str, bytes] = {}
    for number in (1, 2):
        export_in(launch_module, config, root, "--once", failpoint=f"{point}:{number}").died_at(point)
        seen |= {path.name: path.read_bytes() for path in (root / "ops").glob("[!.]*")}
        written.write({str(i): (A, f"changed {number}") for i in range(number * 50)} | {f"gone {number}": (B, "x")})
        written.write({f"gone {number}": None, str(number): None})
        compact(written.address, A)
    outcome = once(config, root)
    assert (outcome.code, outcome.err) == (0, "")
    assert shown(assert_is_store(root, written.address)) == written.standing()
    assert {name: (root / "ops" / name).read_bytes() for name in seen} == seen, "what could be read once stays"
    assert [path.name for path in root.rglob(".*")] == [".lock"], "nothing is left of the crashes"


@pytest.fixture
def followed(deploy: Deploy) -> Deployment:
    """A source that is followed, and its store."""
    deployment = deploy(NOTES_AND_OTHERS)
    deployment.source.execute("create table notes (id text primary key, body text)")
    deployment.source.execute("create table others (id text primary key, body text)")
    deployment.source.execute("insert into notes select i::text, 'note ' || i from generate_series(1, 500) i")
    return deployment.start()


def test_lake_of_changing_source(followed: Deployment, launch_module: Launch, tmp_path: Path, root: Path) -> None:
    config = tmp_path / "service.json"
    config.write_text(json.dumps(config_of(followed, free_port())))

    def reached() -> bool:
        found = json.loads((root / "manifest.json").read_text()) if (root / "manifest.json").exists() else {}
        snapshots = found.get("snapshots") or [{}]
        assert running.alive, running.output
        return (found.get("checkpoint"), snapshots[-1].get("checkpoint")) == (followed.caught_up(),) * 2

    for number, change in enumerate(
        [
            "update notes set body = 'changed' where id like '%7'",
            "delete from notes where id like '%5'; insert into others values ('1', 'x')",
            "truncate notes; insert into notes values ('1', null)",
        ]
    ):
        running = export_in(launch_module, config, root, "--every", "1s", "--snapshot-every", "1s")
        running.wait_for(" at op ")
        followed.source.execute(change)
        wait_until(reached, "the lake to have the change")
        if number < 2:
            running.kill()
        else:
            running.ask_to_end()
            assert running.wait() == 0, running.output
        followed.source.execute(f"insert into notes values ('while nobody exported {number}', 'x')")
    followed.caught_up()
    assert once(config, root).code == 0
    assert contents(devices_of(root).values()) == followed.rows("anyone")
    assert_is_store(root, followed.address)
    rows = {(row["table"], row["row_id"]): json.loads(row["data"]) for row in snapshot_of(root, "rows")}
    assert rows == followed.rows("anyone")
    assert {op["source"] for op in ops_of(root)[-1:]} == {"default"}


@pytest.mark.parametrize("on_postgres", [False, True], ids=["embedded", "postgres"])
def test_lake_of_several_sources(new_sources: NewSources, tmp_path: Path, root: Path, on_postgres: bool) -> None:
    config = (
        "config: {edition: 3}\nstreams:\n"
        """  notes: {auto_subscribe: true, query: 'SELECT id, body FROM "one.public".notes'}\n"""
        """  todos: {auto_subscribe: true, query: 'SELECT id, body FROM "two.public".todos'}\n"""
    )
    tables = {name: f"create table {table} (id text primary key, body text)" for name, table in
              (("one", "notes"), ("two", "todos"))}  # fmt: skip
    sources = new_sources(config, tables, on_postgres=on_postgres).start()
    service = config_for(tmp_path, sources.any.address)
    for step in range(2):
        sources["one"].source.execute(f"insert into notes values ('n{step}', 'a note')")
        sources["two"].source.execute(f"insert into todos values ('t{step}', 'to do')")
        rows = sources.rows("a")
        assert len(rows) == 2 * step + 2
        assert once(service, root).code == 0
        assert contents(devices_of(root).values()) == rows
    assert_is_store(root, sources.any.address)
    of = {(row["source"], row["table"], row["row_id"]) for row in snapshot_of(root, "rows")}
    assert of == {("one", "notes", "n0"), ("one", "notes", "n1"), ("two", "todos", "t0"), ("two", "todos", "t1")}
    assert {op["source"] for op in ops_of(root) if op["committed_at"] is not None} == {"one", "two"}
    assert manifest_of(root)["sources"].keys() == {"one", "two"}


@pytest.mark.parametrize("new_address", ["sqlite"], indirect=True)
def test_full_disk_of_lake(
    written: WrittenStore, tmp_path: Path, small_disk: Callable[[int], SmallDisk], launch_module: Launch
) -> None:
    disk, config = small_disk(8), config_for(tmp_path, written.address)
    root = disk.path / "lake"
    assert once(config, root).code == 0
    before = ops_of(root)
    written.write({str(i): (A, "changed") for i in range(300)})
    disk.fill()
    outcome = once(config, root)
    assert (outcome.code, outcome.out) == (75, "")
    assert "[HW_1001] the machine refuses: No space left on device" in outcome.err
    assert "free space on the disk" in outcome.err
    assert ops_of(root) == before
    running = export_in(launch_module, config, root, "--every", "1s", "--snapshot-every", "1s")
    running.wait_for("[HW_1001]", times=2)
    disk.make_room()
    running.wait_for(" at op ")
    running.ask_to_end()
    assert running.wait() == 0
    assert once(config, root).code == 0
    assert shown(assert_is_store(root, written.address)) == written.standing()


def test_store_that_is_away(
    postgres_with: Callable[[], EmbeddedPostgres], launch_module: Launch, tmp_path: Path, root: Path
) -> None:
    server = postgres_with()
    with closing(WrittenStore(PostgresAddress(server.dsn(), "kept", "test"))) as written:
        written.publish({"1": (A, "x")})
        config = config_for(tmp_path, written.address)
    server.stop()
    assert once(config, root).code == 75
    running = export_in(launch_module, config, root, "--every", "1s", "--snapshot-every", "1s")
    running.wait_for("[HW_4008]")
    server.start()
    running.wait_for(" at op ")
    assert shown(assert_is_store(root, written.address)) == written.standing()
    server.restart()
    with closing(WrittenStore(written.address)) as written:
        written.write({"2": (B, "y")})
    running.wait_for("2 ops added, snapshot of 2 rows")
    running.ask_to_end()
    assert running.wait() == 0


@pytest.mark.parametrize("new_address", ["sqlite"], indirect=True)
def test_stop_of_single_round(written: WrittenStore, tmp_path: Path, root: Path) -> None:
    config = load_config(ConfigSource(None, config_for(tmp_path, written.address), None), {}, tmp_path)
    stop = threading.Event()
    stop.set()
    with pytest.raises(HeadwaterError, match=r"HW_4005.*run it again, which continues here"):
        run(config, stop, str(root), every=1, snapshot_every=0, once=True, reset=False)
    run(config, threading.Event(), str(root), every=1, snapshot_every=0, once=True, reset=False)
    assert_is_store(root, written.address)


@pytest.mark.parametrize("new_address", ["sqlite"], indirect=True)
def test_what_it_says(written: WrittenStore, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(tmp_path, written.address)
    first = once(config, root)
    assert first.code == 0
    assert ": 302 ops added, snapshot of 300 rows, 300 in buckets; the lake has 302 ops, " in first.out
    assert ": nothing new; the lake has 302 ops, " in once(config, root).out
    again = once(config, root, "--reset")
    assert ": 302 ops added, snapshot of 300 rows" in again.out
    away = once(config, Path("s3:") / "bucket")
    assert away.code == 0, "a path with a colon is a path"
    refused = headwater_here("lake", "export", "s3://bucket/lake", "--config", config, cwd=tmp_path)
    assert refused.code == 1
    assert "[HW_5203] it is not on this machine" in refused.err
    (tmp_path / "lake" / "notes.txt").write_text("mine")
    assert "[HW_5203] the directory holds something that is no part of a lake" in once(config, root).err
    nowhere = once(config_for(tmp_path, SqliteAddress(str(tmp_path / "nowhere"))), tmp_path / "other")
    assert "[HW_8101] there is no store yet" in nowhere.err
    assert not (tmp_path / "other").exists()
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow" or name.startswith("headwater.")]:
        if name.startswith(("pyarrow", "headwater.lake", "headwater.cli.lake.")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    lacking = once(config, root)
    assert "[HW_8005] this command needs pyarrow; " in lacking.err
    assert "[lake]" in lacking.err
