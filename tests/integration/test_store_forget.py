"""A value that people ask to be forgotten leaves the store, whoever syncs meanwhile; and the store's bytes show it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
import zstandard

from headwater.insight import forget as store_forget
from headwater.oplog.op import OpId
from tests.support.command import Outcome
from tests.support.fix_headwater import Deploy, Deployment, read_bucket
from tests.support.fix_postgres import SourceDb
from tests.support.model_device import ModelBucket, contents
from tests.support.store_checker import histories, problems
from tests.support.store_file import store_file
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

Run = Callable[..., Outcome]

CONFIG = auto_streams(
    people="SELECT * FROM people WHERE team = auth.parameter('team')",
    mine="SELECT id, email FROM people WHERE email = auth.user_id()",
    logins="SELECT * FROM logins WHERE who IN (SELECT email FROM people WHERE team = auth.parameter('team'))",
)
OLD, NEW = "ann.first@mail.example", "ann.second@mail.example"
ROWS = 60


class PeopleStore:
    """People and their logins; Ann is number 42. A device that saw her at first is `behind`."""

    def __init__(self, deployment: Deployment, run: Run, folder: Path) -> None:
        self.deployment = deployment
        self.source = deployment.source
        self._run = run
        self._folder = folder
        self.behind: dict[str, ModelBucket] = {}

    def forget(self, *options: str) -> Outcome:
        settings = self.deployment.settings
        (self._folder / "headwater.yaml").write_text(
            json.dumps(
                {
                    "replication": {
                        "connections": [
                            {
                                "uri": f"postgresql://postgres@127.0.0.1:{settings.port}/{settings.database}",
                                "sslmode": "disable",
                            }
                        ]
                    },
                    "storage": {"type": "sqlite", "path": str(self.deployment.directory)},
                }
            )
        )
        return self._run("store", "forget", *options)

    def forgotten(self, *options: str) -> str:
        outcome = self.forget(*options, "--yes")
        assert outcome.code == 0, outcome.err
        assert "it is gone" in outcome.out
        return outcome.out

    def remember(self) -> None:
        """A device syncs, and is not heard of for a while."""
        self.deployment.caught_up()
        self.behind = self.deployment.buckets("-", team="red")

    def catch_up(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The device comes back, and ends with the checksums that it is told. It drops buckets that are not its own."""
        upto = self.deployment.caught_up()
        names = self.deployment.buckets("-", team="red").keys()
        self.behind = {name: self.behind.get(name, ModelBucket()) for name in names}
        with self.deployment.reader.snapshot() as snapshot:
            assert snapshot is not None
            totals = snapshot.totals(list(self.behind))
        for name, model in self.behind.items():
            read_bucket(self.deployment.reader, name, upto, model)
            assert model.checksum == totals[name].checksum, name
        return contents(self.behind.values())

    def truth(self) -> dict[tuple[str, str], dict[str, Any]]:
        people = self.source.fetch("select id, email, team, note from people where team = 'red'")
        rows: dict[tuple[str, str], dict[str, Any]] = {
            ("people", str(i)): {"id": i, "email": email, "team": team, "note": note} for i, email, team, note in people
        }
        for who, at in self.source.fetch(
            "select who, at from logins where who in (select email from people where team = 'red')"
        ):
            rows["logins", who] = {"id": who, "who": who, "at": at}
        return rows

    def check(self) -> None:
        """New and old devices show what the source has, and the store is whole."""
        self.deployment.caught_up()
        truth = self.truth()
        assert contents(self.deployment.buckets("-", team="red").values()).keys() == truth.keys()
        assert self.catch_up().keys() == truth.keys()
        assert problems(self.deployment.directory) == []

    def holds(self, text: str) -> list[str]:
        """Where the store has a text: files by their bytes, and segments once decompressed."""
        directory = self.deployment.directory
        found = [file.name for file in directory.rglob("*") if file.is_file() and text.encode() in file.read_bytes()]
        with store_file(directory) as db:
            blobs = db.execute("select bodies from segment_blobs").fetchall()
            found += [
                "segment"
                for (blob,) in blobs
                if isinstance(blob, bytes) and text.encode() in zstandard.decompress(blob)
            ]
        return found


@pytest.fixture
def people(deploy: Deploy, source_db: SourceDb, headwater_here: Run, tmp_path: Path) -> PeopleStore:
    source_db.execute("create table people (id int primary key, email text, team text, note text)")
    source_db.execute("create table logins (who text primary key, at text)")
    source_db.execute(
        "insert into people select i, 'p' || i || '@mail.example', case i % 2 when 0 then 'red' else 'blue' end, 'n'"
        f" from generate_series(1, {ROWS}) i"
    )
    source_db.execute("insert into logins select email, 'today' from people")
    source_db.execute(f"update people set email = '{OLD}' where id = 42")
    source_db.execute(f"insert into logins values ('{OLD}', 'now')")
    deployment = deploy(CONFIG).start()
    made = PeopleStore(deployment, headwater_here, tmp_path)
    made.remember()
    source_db.execute(f"update people set email = '{NEW}', note = 'elsewhere' where id = 42")
    source_db.execute(f"update logins set who = '{NEW}' where who = '{OLD}'")
    deployment.caught_up()
    return made


def test_forget_row_with_all_versions(people: PeopleStore) -> None:
    people.source.execute("delete from people where id = 42")
    people.source.execute("delete from logins where who like 'ann.%'")
    people.deployment.caught_up()
    assert "segment" in people.holds(OLD)
    out = people.forgotten("--table", "public.people", "--id", "42")
    assert "segment" in out
    assert "devices that are offline" in out
    assert people.holds("elsewhere") == []
    people.check()


def test_forget_text_everywhere(people: PeopleStore) -> None:
    people.source.execute("delete from people where id = 42")
    people.source.execute("delete from logins where who like 'ann.%'")
    people.deployment.caught_up()
    people.deployment.reader.create_write_checkpoint([f"{OLD}/device"], {})
    assert {"store.db-wal", "write_checkpoints.db-wal", "segment"} <= {*people.holds(OLD)}
    for text in (OLD, NEW):
        people.forgotten("--contains", text)
    assert people.holds(OLD) == people.holds(NEW) == []
    assert "store.db" in people.holds("p2@mail.example"), "others keep theirs"
    people.check()
    # Work goes on, and what comes back later is there again
    people.source.execute(f"insert into people values (42, '{NEW}', 'red', 'back')")
    people.check()
    mine = people.deployment.buckets(NEW, team="none")
    assert [row["email"] for row in contents(mine.values()).values()] == [NEW]


def test_forget_refused_while_in_source(people: PeopleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (("--table", "people", "--id", "42"), ("--contains", NEW)):
        refused = people.forget(*options, "--yes")
        assert refused.code == 1
        assert "the source still has the" in refused.err
        assert "(public." in refused.err
        assert NEW not in refused.err
    monkeypatch.setattr(store_forget, "STREAM_PATIENCE", 0.0)
    # What only stands in the store is refused too: here the stream was kept from bringing the change
    people.source.execute("alter publication headwater set (publish = '')")
    people.source.execute("delete from people where id = 42")
    people.source.execute(f"delete from logins where who = '{NEW}'")
    people.source.execute("alter publication headwater set (publish = 'insert, update, delete, truncate')")
    people.deployment.caught_up()
    for options in (("--table", "people", "--id", "42"), ("--contains", NEW)):
        refused = people.forget(*options, "--yes")
        assert refused.code == 1
        assert "the store still needs it: " in refused.err
        assert NEW not in refused.err
    assert people.deployment.ask("resync")["state"] == "done"
    people.forgotten("--contains", NEW)
    people.check()


def test_forget_dry_run_changes_nothing(people: PeopleStore) -> None:
    people.source.execute("delete from people where id = 42")
    people.source.execute("delete from logins where who like 'ann.%'")
    people.deployment.caught_up()
    before = histories(people.deployment.directory)
    outcome = people.forget("--contains", OLD, "--dry-run")
    assert outcome.code == 0
    assert "ops in " in outcome.out
    assert "devices download them again" in outcome.out, "a login goes by its address"
    assert "2 buckets named by it and empty: removed" in outcome.out
    assert outcome.out.endswith("nothing was changed\n")
    outcome = people.forget("--table", "people", "--id", "42", "--dry-run")
    assert "download" not in outcome.out
    assert histories(people.deployment.directory) == before
    assert "segment" in people.holds(OLD)


def test_forget_while_devices_and_writers_work(people: PeopleStore) -> None:
    people.source.execute("delete from people where id = 42")
    people.source.execute("delete from logins where who like 'ann.%'")
    people.deployment.caught_up()
    stop = threading.Event()

    def write() -> None:
        number = 0
        with psycopg.connect(people.source.dsn, autocommit=True) as conn:
            while not stop.is_set():
                number += 1
                conn.execute("update people set note = %s where id = %s", [f"w{number}", number % 41 + 1])

    def read() -> None:
        while not stop.is_set():
            people.deployment.reader.newest()
            people.deployment.reader.chunk(next(iter(people.behind)), OpId(0), OpId(1 << 60))

    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(write), pool.submit(read)]
        try:
            people.forgotten("--contains", OLD)
        finally:
            stop.set()
        for done in busy:
            done.result()
    assert people.holds(OLD) == []
    people.check()


def test_row_of_computed_table_is_forgotten(
    deploy: Deploy, source_db: SourceDb, headwater_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_forget, "STREAM_PATIENCE", 0.0)
    source_db.execute(
        "create table orders (id int primary key, who text); insert into orders values (1, 'Ann Example')"
    )
    config = """
config: {edition: 3}
tables:
  per_person: {query: "SELECT who, count(*) AS n FROM orders GROUP BY who", key: [who], refresh: {every: 1d}}
streams:
  all: {auto_subscribe: true, query: SELECT * FROM per_person}
"""
    deployment = deploy(config).start()
    wait_until(lambda: deployment.rows("ann"), "the table to be computed", 30)
    store = PeopleStore(deployment, headwater_here, tmp_path)
    for options in (("--table", "per_person", "--id", "Ann Example"), ("--contains", "Ann Example")):
        refused = store.forget(*options, "--yes")
        assert refused.code == 1
        assert "the source still has the" in refused.err
        assert "per_person" in refused.err
    source_db.execute("delete from orders")
    refused = store.forget("--table", "per_person", "--id", "Ann Example", "--yes")
    assert "the store still needs it" in refused.err  # the table is not refreshed yet
    deployment.ask("resync", tables=["per_person"])
    store.forgotten("--table", "per_person", "--id", "Ann Example")
