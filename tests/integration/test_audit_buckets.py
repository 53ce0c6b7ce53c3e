"""Damage to a store is named by the audit and mended by it, and devices download only what was broken."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import apsw
import psycopg
import pytest
import zstandard

from headwater.replication.jobs.sampling import SamplingResults, SamplingSettings, sampling_results
from tests.support.changed_source import unheard
from tests.support.fix_headwater import WATCHED, Deploy, Deployment
from tests.support.fix_postgres import SourceDb
from tests.support.model_device import contents
from tests.support.store_checker import Op, histories, problems
from tests.support.store_file import store_file
from tests.support.sync_configs import auto_streams
from tests.support.waiting import wait_until

CONFIG = auto_streams(
    items="SELECT * FROM items WHERE owner = auth.user_id()",
    notes="SELECT notes.* FROM notes JOIN groups ON notes.team = groups.team WHERE groups.member = auth.user_id()",
)

OWNERS = 14

EAGER = SamplingSettings(rate=1e9, share=1.0, slice=50, rest=0.0, delay=0.0)


def prepare(source: SourceDb) -> None:
    """Rows that come in segments: ten for each owner, with ids 1000 apart."""
    source.execute("create table items (id int primary key, owner text, body text)")
    source.execute(
        "insert into items select 1000 * k + o, 'u' || o, 'body ' || k"
        f" from generate_series(0, {OWNERS - 1}) o, generate_series(1, 10) k"
    )
    source.execute("create table notes (id int primary key, team text, text text)")
    source.execute("insert into notes select i, 't' || i % 2, 'note ' || i from generate_series(1, 20) i")
    source.execute("create table groups (id int primary key, team text, member text)")
    source.execute("insert into groups values (1, 't0', 'u0'), (2, 't1', 'u1'), (3, 't0', 'u2')")
    source.execute("create publication headwater for all tables")


@pytest.fixture
def deployment(deploy: Deploy, source_db: SourceDb) -> Deployment:
    """It has read the source, and then got what is in the hot tail."""
    prepare(source_db)
    deployment = deploy(CONFIG, on_postgres=False).start()
    source_db.execute("update items set body = 'changed' where id / 1000 in (3, 6)")
    source_db.execute("delete from items where id / 1000 = 8")
    deployment.caught_up()
    return deployment


@contextmanager
def opened(deployment: Deployment) -> Iterator[apsw.Connection]:
    """The stopped deployment's store, to be damaged."""
    deployment.stop()
    with store_file(deployment.directory) as db:
        yield db


@dataclass(frozen=True, slots=True)
class Place:
    """Where damage is done: an owner's bucket, and a row of that owner."""

    db: apsw.Connection
    bucket: int
    owner: int
    table: int

    def run(self, sql: str, *values: apsw.SQLiteValue) -> None:
        self.db.execute(sql, values)
        assert self.db.changes() == 1, sql

    @property
    def row(self) -> str:
        return str(5000 + self.owner)

    def segment(self) -> tuple[int, bytes]:
        blob, bodies = self.db.execute(
            "select id, bodies from segment_blobs where bucket = ?", (self.bucket,)
        ).fetchall()[0]
        assert isinstance(bodies, bytes)
        return int(str(blob)), bodies


def drop_hot_op(at: Place) -> None:
    at.run("delete from ops where id = (select max(id) from ops where bucket = ? and line like '%PUT%')", at.bucket)


def flip_hot_op(at: Place) -> None:
    sql = "update ops set line = replace(line, 'changed', 'chanqed') where bucket = ? and line like ?"
    at.run(sql, at.bucket, f'%PUT%"{3000 + at.owner}"%')


def flip_subkey(at: Place) -> None:
    sql = """update ops set line = replace(line, '"subkey":"', '"subkey":"9') where bucket = ? and line like ?"""
    at.run(sql, at.bucket, f'%PUT%"{3000 + at.owner}"%')


def break_text(at: Place) -> None:
    line = "cast(replace(cast(line as blob), x'6368', x'ff68') as text)"
    at.run(f"update ops set line = {line} where bucket = ? and line like ?", at.bucket, f'%PUT%"{3000 + at.owner}"%')


def flip_compressed(at: Place) -> None:
    blob, bodies = at.segment()
    broken = bytes([bodies[0] ^ 4]) + bodies[1:]
    at.run("update segment_blobs set bodies = ? where id = ?", broken, blob)


def flip_in_segment(at: Place) -> None:
    blob, bodies = at.segment()
    text = zstandard.decompress(bodies).replace(b"body 5", b"bodx 5", 1)
    at.run("update segment_blobs set bodies = ? where id = ?", zstandard.compress(text), blob)


def drop_segment(at: Place) -> None:
    at.run("delete from segment_blobs where id = ?", at.segment()[0])


def drop_bucket(at: Place) -> None:
    at.run("delete from buckets where id = ?", at.bucket)


def wrong_total(at: Place) -> None:
    at.run("update buckets set checksum = (checksum + 1) & 4294967295 where id = ?", at.bucket)


def flip_row(at: Place) -> None:
    at.run(f"update rows_{at.table} set line = replace(line, 'body', 'bodx') where row_id = ?", at.row)


def unreadable_row(at: Place) -> None:
    at.run(f"update rows_{at.table} set line = replace(line, char(9), 'x') where row_id = ?", at.row)


def unreadable_members(at: Place) -> None:
    at.run(f"update rows_{at.table} set members = replace(members, '[[', '[(') where row_id = ?", at.row)


def drop_row(at: Place) -> None:
    at.run(f"delete from rows_{at.table} where row_id = ?", at.row)


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to an owner's part of the store; how the audit names the bucket, and the row."""

    do: Callable[[Place], None]
    bucket: str = ""
    row: str = ""


DAMAGES = (
    Damage(drop_hot_op, bucket="but its totals say"),
    Damage(flip_hot_op, bucket="does not match its checksum"),
    Damage(flip_subkey, bucket="does not lead to the current"),
    Damage(break_text, bucket="can't be read"),
    Damage(flip_compressed, bucket="the segment of ops"),
    Damage(flip_in_segment, bucket="does not match its checksum"),
    Damage(drop_segment, bucket="is lost"),
    Damage(drop_bucket, bucket="it does not exist"),
    Damage(wrong_total, bucket="do not add up"),
    Damage(flip_row, row="other values"),
    Damage(unreadable_row, row="can't be read"),
    Damage(unreadable_members, bucket="does not lead to the current", row="not in the buckets that the rules give it"),
    Damage(drop_row, bucket="does not lead to the current", row="missing in the store"),
)
SENT_AGAIN = {unreadable_members: 1, drop_row: 1}
"""Ops of buckets that need not be built anew."""


def damaged(deployment: Deployment, *, lone: bool = False) -> dict[str, Damage]:
    """Damage everything that can be, each thing in another owner's bucket; by bucket. Owner 13 and all notes are
    left alone, but for two lookups, or with one of no row (`lone`) for three."""
    done: dict[str, Damage] = {}
    with deployment.store() as store:
        table = next(table.id for table in store.tables("default") if table.relation.name == "items")
    with opened(deployment) as db:
        names = {int(str(key)): str(name) for key, name in db.execute("select id, name from buckets")}
        for owner, damage in enumerate(DAMAGES):
            key, name = next((key, name) for key, name in names.items() if f'["u{owner}"]' in name)
            damage.do(Place(db, key, owner, table))
            done[name] = damage
        db.execute("delete from lookups where row_id = '1'")
        db.execute("update lookups set output = replace(output, 't1', 't0') where row_id = '2'")
        if lone:
            db.execute("update lookups set row_id = 'gone' where row_id = '3'")
    return done


def assert_whole(deployment: Deployment, source: SourceDb) -> None:
    """Every user's device shows what the source has, with right checksums."""
    teams = dict(source.fetch("select member, team from groups"))
    for user in (f"u{owner}" for owner in range(OWNERS)):
        items: list[tuple[Any, ...]] = source.fetch("select 'items', id::text, body from items where owner = %s", user)
        notes: list[tuple[Any, ...]] = source.fetch(
            "select 'notes', id::text, text from notes where team = %s", teams.get(user)
        )
        shown = contents(deployment.buckets(user).values())
        assert sorted((*key, row.get("body", row.get("text"))) for key, row in shown.items()) == sorted(items + notes)


def assert_mended(deployment: Deployment, before: dict[str, list[Op]], mended: dict[str, Damage]) -> None:
    """Everything is right, and what was not damaged got no op."""
    after = deployment.ask("audit")
    assert (after["buckets"], after["rows"], after["lookups"]) == ([], [], 0)
    now = histories(deployment.directory)
    for name, ops in before.items():
        damage = mended.get(name)
        if damage is None or not damage.bucket:
            assert now[name] == ops, name
        elif damage.do in SENT_AGAIN:
            assert len(now[name]) == len(ops) + SENT_AGAIN[damage.do], name
        else:
            assert now[name][0]["op"] == "CLEAR", name
            assert len(now[name]) == 10, name
    assert_whole(deployment, deployment.source)
    deployment.stop()
    assert problems(deployment.directory) == []


def test_audit_finds_and_repairs_damage(deployment: Deployment) -> None:
    before = histories(deployment.directory)
    with store_file(deployment.directory) as db:
        keys = {str(name): key for key, name in db.execute("select id, name from buckets")}
    damages = damaged(deployment, lone=True)
    deployment.start()

    found = deployment.ask("audit")
    assert found["state"] == "done", found
    problems_of = {bucket["bucket"]: bucket["problem"] for bucket in found["buckets"]}
    for name, damage in damages.items():
        problem = problems_of.pop(f"key {keys[name]}" if damage.do is drop_bucket else name, "")
        assert bool(problem) == bool(damage.bucket), (name, problem)
        assert damage.bucket in problem
    assert problems_of == {}
    assert sorted(row["problem"] for row in found["rows"]) == sorted(damage.row for damage in DAMAGES if damage.row)
    assert found["lookups"] == 4

    mended = deployment.ask("audit", repair=True)
    assert mended["state"] == "done", mended
    assert_mended(deployment, before, damages)


def test_sampling_finds_and_repairs_damage(deployment: Deployment) -> None:
    before = histories(deployment.directory)
    damages = damaged(deployment)
    deployment.sampling = EAGER
    deployment.start()

    def mended() -> bool:
        deployment.raise_failure()
        try:
            return problems(deployment.directory) == []
        except (zstandard.ZstdError, UnicodeDecodeError, ValueError):
            return False

    wait_until(mended, "the sampling audit to mend the store")
    deployment.sampling = SamplingSettings(enabled=False)
    with deployment.store() as store:
        named = " ".join(finding.what for finding in sampling_results(store, "default").findings)
    for name, damage in damages.items():
        if damage.bucket and damage.do not in SENT_AGAIN and damage.do is not drop_bucket:
            assert name in named
    deployment.stop()
    deployment.start()
    assert_mended(deployment, before, damages)


def test_audit_under_constant_writes_finds_nothing(deploy: Deploy, source_db: SourceDb) -> None:
    prepare(source_db)
    deployment = deploy(CONFIG, sampling=EAGER).start()
    dice = random.Random(5)
    done = threading.Event()

    def write() -> None:
        with psycopg.connect(source_db.dsn, autocommit=True) as conn:
            while not done.is_set():
                row, other = dice.randint(1, 90), dice.randint(0, 2)
                conn.execute("insert into items values (%s, %s, 'x') on conflict (id) do update"
                             " set owner = excluded.owner", [row, f"u{other}"])  # fmt: skip
                conn.execute("delete from items where id = %s", [dice.randint(1, 90)])
                conn.execute("update groups set team = 't' || (random() * 3)::int where id = 1 + (random() * 2)::int")
                conn.execute("select pg_sleep(0.01)")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = deployment.ask("audit")
        assert (found["state"], found["buckets"], found["rows"], found["lookups"]) == ("done", [], [], 0)
        with deployment.store() as store:
            cycles = sampling_results(store, "default").cycles
            wait_until(lambda: sampling_results(store, "default").cycles >= cycles + 2, "two cycles of sampling")
        source_db.execute("truncate items")
        found = deployment.ask("audit")
        assert (found["state"], found["buckets"], found["rows"], found["lookups"]) == ("done", [], [], 0)
    finally:
        done.set()
        writer.join()
    deployment.caught_up()
    with deployment.store() as store:
        known = sampling_results(store, "default")
    assert known.findings == ()
    assert known.cycles >= cycles + 2


def test_sampling_passes_unreadable_tables(deploy: Deploy, source_db: SourceDb) -> None:
    names = ("first", "broken", "keyless", "last")
    source_db.execute("create type pair as (a int, b int); create table broken (id pair primary key, body text)")
    source_db.execute("create table keyless (id int, body text)")
    for name in ("first", "last"):
        source_db.execute(f"create table {name} (id int primary key, body text)")
        source_db.execute(f"insert into {name} values (1, 'one')")
    source_db.execute("insert into broken values (row(1, 2), 'one'); insert into keyless values (1, 'one')")
    source_db.execute("create publication headwater for table first, broken, keyless, last")
    deployment = deploy(auto_streams(all=[f"SELECT body AS id FROM {name}" for name in names])).start()
    with unheard(deployment):
        source_db.execute("insert into first values (2, 'two'); insert into last values (2, 'two')")
    deployment.stop()
    deployment.sampling, deployment.intervals = replace(EAGER, repair=False), WATCHED
    deployment.start()

    def cycles() -> SamplingResults:
        deployment.raise_failure()
        with deployment.store() as store:
            return sampling_results(store, "default")

    wait_until(lambda: cycles().cycles >= 2, "two cycles of sampling")
    found = cycles()
    missing = {(f.what, f.problem) for f in found.findings}
    assert missing == {(f"public.{name}, rows 2", "missing in the store") for name in ("first", "last")}
    assert {(name, reason.failed) for name, reason in found.left_out.items()} == {
        ("public.broken", True),
        ("public.keyless", False),
    }
    assert "anonymous composite types" in found.left_out["public.broken"].why

    def told() -> list[str]:
        return [finding.what for finding in deployment.health().findings if finding.code == "HW_2045"]

    wait_until(lambda: bool(told()), "the finding")
    assert [what.partition(":")[0] for what in told()] == [
        "the sampling audit can't compare public.broken with the source"
    ]
