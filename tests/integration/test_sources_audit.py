"""Audits where several databases have rows in one store: each bucket is checked by somebody, and none is repaired
wrongly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import apsw
import pytest

from headwater.bulk.contract import Report, Stop, VerifyJob, VerifyOutcome
from headwater.pipeline.jobs import BulkJobs
from headwater.replication.jobs.sampling import SamplingSettings, sampling_results
from headwater.replication.jobs.sampling_checks import BucketWalk
from headwater.storage.open import open_store
from tests.support.changed_source import Device
from tests.support.fix_sources import NewSources, Sources
from tests.support.local_bulk import LocalEngine
from tests.support.store_checker import problems
from tests.support.store_file import store_file
from tests.support.waiting import wait_until

EAGER = SamplingSettings(rate=1e9, share=1.0, slice=50, rest=0.0, delay=0.0)

ITEMS = "create table items (id text primary key, owner text, body text);"
SHARED = """
config: {edition: 3}
streams:
  items: {auto_subscribe: true, query: 'SELECT id, body FROM "shop.public".items WHERE owner = auth.user_id()'}
"""
APART = """
config: {edition: 3}
streams:
  ours: {auto_subscribe: true, query: 'SELECT id, body FROM "one.public".items WHERE owner = auth.user_id()'}
  theirs: {auto_subscribe: true, query: 'SELECT id, body FROM "two.public".items WHERE owner = auth.user_id()'}
"""


def rows(shard: str) -> str:
    """Ten rows of a user, and what comes later in the stream."""
    return f"{ITEMS} insert into items select '{shard}' || i, 'a', 'body ' || i from generate_series(1, 10) i"


def shards(new_sources: NewSources, **changes: object) -> Sources:
    sources = new_sources(SHARED, {"shop/east": rows("e"), "shop/west": rows("w")}, **changes).start()
    for each in sources:
        each.source.execute(
            "update items set body = 'changed' where id like '_2'; delete from items where id like '_3'"
        )
    sources.caught_up()
    return sources


@contextmanager
def damaged(sources: Sources) -> Iterator[apsw.Connection]:
    """The store while nobody follows, to be damaged."""
    sources.stop()
    with store_file(sources.any.directory) as db:
        yield db
    sources.start()


def lose_op(sources: Sources, row: str) -> None:
    """The PUT of a row that came in the stream is gone, and the totals fit."""
    with damaged(sources) as db:
        where = f"""line like '%PUT%' and line like '%"object_id":"{row}"%'"""
        ((bucket, checksum),) = db.execute(
            f"select bucket, json_extract(line, '$.checksum') from ops where {where}"
        ).fetchall()
        db.execute(f"delete from ops where {where}")
        db.execute(
            "update buckets set checksum = (checksum - ?) & 4294967295, count = count - 1 where id = ?",
            (checksum, bucket),
        )


@pytest.mark.parametrize("lost", ["e2", "w2"])
def test_a_shared_bucket_is_rebuilt_with_the_rows_of_all(new_sources: NewSources, lost: str) -> None:
    sources = shards(new_sources)
    right = sources.rows("a")
    device = Device(sources.any)
    device.rows()
    lose_op(sources, lost)
    east = sources["shop/east"]
    found = east.ask("audit")
    assert found["broken_buckets"] == 1
    assert problems(sources.any.directory)
    assert east.ask("audit", repair=True)["broken_buckets"] == 1
    # What only the other source can evaluate, it is asked for
    wait_until(lambda: not problems(sources.any.directory), "the bucket to be whole")
    assert sources.rows("a") == right
    assert device.rows() == right
    assert [each.ask("audit")["broken_buckets"] for each in sources] == [0, 0]


class Beside(BulkJobs):
    """Does something between the search for a bucket's rows and its rebuild."""

    def __init__(self) -> None:
        super().__init__(LocalEngine())
        self.do: Callable[[], None] = lambda: None

    def rows_in_buckets(
        self, job: VerifyJob, buckets: Collection[int], progress: Report, stop: Stop = None
    ) -> dict[int, list[str]]:
        found = super().rows_in_buckets(job, buckets, progress, stop)
        self.do()
        return found


def test_a_rebuild_keeps_what_another_source_writes_meanwhile(new_sources: NewSources) -> None:
    bulk = Beside()
    sources = shards(new_sources, bulk=bulk)
    device = Device(sources.any)
    device.rows()
    lose_op(sources, "e2")
    west = sources["shop/west"]

    def write() -> None:
        west.source.execute(
            "insert into items values ('new', 'a', 'new'); update items set body = 'late' where id = 'w5'"
        )
        west.source.execute("update items set owner = 'b' where id = 'w6'; delete from items where id = 'w7'")
        west.caught_up()

    bulk.do = write
    assert sources["shop/east"].ask("audit", repair=True)["broken_buckets"] == 1
    shown = sources.rows("a")
    assert problems(sources.any.directory) == []
    assert shown["items", "new"]["body"] == "new"
    assert shown["items", "w5"]["body"] == "late"
    assert not {("items", "w6"), ("items", "w7")} & shown.keys()
    assert device.rows() == shown
    assert len(shown) == 9 + 8


def test_an_audit_is_about_one_source(new_sources: NewSources) -> None:
    sources = new_sources(APART, {"one": rows("o"), "two": rows("t")}).start()
    sources["two"].source.execute("update items set body = 'changed' where id = 't2'")
    sources.caught_up()
    lose_op(sources, "t2")
    ours = sources["one"].ask("audit", repair=True)
    assert ours["broken_buckets"] == 0
    assert ours["ops_checked"] == 11  # a CLEAR, and its own rows
    assert sources["two"].ask("audit", repair=True)["broken_buckets"] == 1
    assert problems(sources.any.directory) == []


def test_another_source_that_truncates_disturbs_no_audit(new_sources: NewSources) -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(BulkJobs):
        def verify(self, job: VerifyJob, progress: Report, stop: Stop = None) -> VerifyOutcome:
            begun.set()
            go.wait()
            return super().verify(job, progress, stop)

    sources = new_sources(APART, {"one": rows("o"), "two": rows("t")}, bulk=Slow(LocalEngine())).start()
    number: list[Mapping[str, object]] = []
    asking = threading.Thread(target=lambda: number.append(sources["one"].ask("audit")))
    asking.start()
    assert begun.wait(60)
    sources["two"].source.execute("truncate items")
    sources["two"].caught_up()
    go.set()
    asking.join()
    assert [each["broken_buckets"] for each in number] == [0]


def test_a_bucket_that_another_source_moved_is_not_misnamed(new_sources: NewSources) -> None:
    sources = shards(new_sources)
    name = next(iter(sources.any.buckets("a")))
    with damaged(sources) as db:  # as if it had been made under another key since the job began
        key = db.execute("select id from buckets where name = ?", (name,)).fetchall()[0][0]
        for table, column in (
            ("buckets", "id"),
            ("ops", "bucket"),
            ("segments", "bucket"),
            ("segment_blobs", "bucket"),
        ):
            db.execute(f"update {table} set {column} = 77 where {column} = ?", (key,))
        for (number,) in db.execute("select id from tables").fetchall():
            db.execute(f"update rows_{number} set members = replace(members, ?, '77')", (str(key),))
        db.execute("insert into moved_buckets (id, name) values (77, ?)", (name,))
    with open_store(sources.any.address).open_verify() as reader:
        old = type(reader.keys())(reader.keys().secret)
        head = reader.head(77)
        assert head is not None
        walk = BucketWalk(head, old, 1)
        assert walk.take(reader, 1000)
    assert walk.problem == ""


def test_sampling_of_shards(new_sources: NewSources) -> None:
    sources = shards(new_sources, sampling=EAGER)
    right = sources.rows("a")
    lose_op(sources, "w2")
    wait_until(lambda: not problems(sources.any.directory), "the bucket to be whole")
    assert sources.rows("a") == right
    with sources.any.store() as store:
        found = {each.name: [d.what for d in sampling_results(store, each.name).findings] for each in sources}
    assert any(found.values()), "whose turn it is goes through what they share"
