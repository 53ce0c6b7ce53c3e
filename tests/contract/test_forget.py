"""What `storage.sql.forget` promises of every store; and devices converge wherever they stand when ops are
forgotten."""

from __future__ import annotations

import copy
import random
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from headwater.compaction.bucket import BucketFindings, Forgetter, by_bucket, classify
from headwater.errors import HeadwaterError
from headwater.insight import forget as store_forget
from headwater.insight.forget import Forgetting
from headwater.oplog.op import OpId
from headwater.storage.address import SqliteAddress, StoreAddress
from headwater.storage.contract.reader import Checkpoint
from headwater.storage.contract.store import Lease
from headwater.storage.contract.versions import Origin
from headwater.storage.open import open_store
from headwater.storage.sql.forget import ForgetStore, RowTarget, Searched, TextTarget
from headwater.sync.request import write_key
from tests.support.model_device import ModelBucket
from tests.support.store_checker import problems
from tests.support.store_file import store_tables
from tests.support.written_store import WrittenStore, compact, shown

A, B = 'todos.1["a"]', 'todos.1["b"]'
SECRET = 'quoted "secret" \\ née'


def found(address: StoreAddress, target: TextTarget | RowTarget) -> dict[int, set[int]]:
    with closing(open_store(address).open_forget()) as finder:
        ops = [op for op in finder.ops(target.hints, Searched()) if target.is_in(op.line)]
    return by_bucket((op.bucket, op.op_id) for op in ops)


def looked(address: StoreAddress, target: TextTarget | RowTarget) -> dict[str, BucketFindings]:
    with closing(open_store(address).open_compaction()) as compaction:
        seen = [classify(compaction, bucket, ops) for bucket, ops in found(address, target).items()]
    return {each.name: each for each in seen if each is not None}


def forget(written: WrittenStore, target: TextTarget | RowTarget) -> None:
    """As the command does once the source has been asked; it proves it by itself."""
    address = written.address
    with (
        closing(open_store(address).open_forget()) as finder,
        closing(open_store(address).open_compaction()) as compaction,
    ):
        forgetting = Forgetting(address, finder, compaction, target, written.table)
        plan = forgetting.plan(lambda: None)
        forgetting.remove(plan, lambda _: None)
        forgetting.prove()


def in_files(address: StoreAddress, text: str) -> bool:
    """Whether the bytes of a store's files have a text."""
    if isinstance(address, SqliteAddress):
        contents = [file.read_bytes() for file in Path(address.directory).rglob("*") if file.is_file()]
    else:
        with store_tables(address) as db:
            db.execute("checkpoint")
            contents = [bytes(row[0]) for row in db.execute(_POSTGRES_FILES, binary=True)]
    return any(text.encode() in content for content in contents)


_POSTGRES_FILES = """
with heaps as (select oid, reltoastrelid from pg_class where relnamespace = current_schema()::regnamespace)
select pg_read_binary_file(pg_relation_filepath(oid)) from (
    select oid from heaps union select reltoastrelid from heaps where reltoastrelid <> 0
) files where pg_relation_filepath(oid) is not null
"""


class Devices:
    """Devices that sync at every checkpoint and are then not heard of."""

    def __init__(self, written: WrittenStore) -> None:
        self._written = written
        self._left: list[dict[str, ModelBucket]] = []
        self._now = {A: ModelBucket(), B: ModelBucket()}

    def sync(self, _: Checkpoint) -> None:
        self._written.catch_up(self._now)
        self._left.append(copy.deepcopy(self._now))

    def check(self) -> None:
        """Whoever comes back, and whoever is new, shows what there is."""
        standing = self._written.standing()
        for device in [*copy.deepcopy(self._left), {A: ModelBucket(), B: ModelBucket()}]:
            self._written.catch_up(device)
            assert shown(device) == standing
        assert problems(self._written.address) == []


def lived(written: WrittenStore, devices: Devices, seed: int) -> None:
    """Some life in both buckets, with the secret in some versions of some rows; it stands nowhere at the end."""
    chance = random.Random(seed)
    devices.sync(
        written.publish({f"r{i}": (chance.choice([A, B]), SECRET if i % 5 == 0 else f"t{i}") for i in range(40)})
    )
    for number in range(12):
        changes: dict[str, tuple[str, str] | None] = {}
        for row in chance.sample(range(50), 6):
            text = SECRET if chance.random() < 0.3 else f"t{number}"
            changes[f"r{row}"] = None if chance.random() < 0.25 else (chance.choice([A, B]), text)
        devices.sync(written.write(changes))
        if number == 6:
            compact(written.address, A)
    devices.sync(
        written.write({row: (bucket, "said no more") for row, (bucket, text) in written.rows.items() if text == SECRET})
    )


@pytest.mark.parametrize("seed", range(4))
def test_forget_text(written: WrittenStore, seed: int) -> None:
    devices = Devices(written)
    lived(written, devices, seed)
    before = looked(written.address, TextTarget(SECRET))
    assert sum(each.overruled for each in before.values()) > 0
    assert all(each.standing == each.removes == 0 for each in before.values())
    forget(written, TextTarget(SECRET))
    assert found(written.address, TextTarget("secret")) == {}, "in no way of writing it"
    devices.check()
    devices.sync(written.write({"r1": (B, "later"), "r2": None}))
    devices.check()


def test_forget_user(written: WrittenStore) -> None:
    reader = open_store(written.address).open_reader()
    keys = [write_key("dept/ann%lee", "phone"), write_key("dept/bob", "phone")]
    reader.create_write_checkpoint(keys, {})
    forget(written, TextTarget("dept/ann%lee"))
    assert [reader.write_checkpoint(key) is None for key in keys] == [True, False]
    reader.close()


def test_forget_what_operators_did_with_a_user(written: WrittenStore) -> None:
    user = "ann@mail.example"
    store = written.store
    store.note_change(user, "edit", "revoke", f'{{"kind":"sub","value":"{user}"}}')
    store.note_change("Ada", "edit", "revoke", '{"kind":"sub","value":"bob@mail.example"}')
    store.put_case(f"as {user}", "{}", "Ada")
    store.put_case("as ann", f'{{"user":"{user}"}}', "Ada")
    store.put_case("as bob", '{"user":"bob@mail.example"}', user)
    store.deploy("streams: {}", Origin.COMMAND, author=user, message=f"{user} asked for it")
    forget(written, TextTarget(user))
    assert found(written.address, TextTarget(user)) == {}
    assert [(change.who, change.what, "bob" in change.detail) for change in store.changes(None, 10)] == [
        ("Ada", "revoke", True),
        ("", "revoke", False),
    ]
    assert [(case.name, case.author) for case in store.cases()] == [("as bob", "")]


@pytest.mark.parametrize("seed", range(3))
def test_removes_that_name_it_go_too(written: WrittenStore, seed: int) -> None:
    devices = Devices(written)
    lived(written, devices, seed)
    gone, kept = "ann@mail.example", "bob@mail.example"
    devices.sync(written.write({gone: (A, "x"), kept: (A, "y")}))
    devices.sync(written.write({gone: (B, "x")}))
    devices.sync(written.write({gone: None, "r3": (A, "z")}))
    seen = looked(written.address, TextTarget(gone))
    assert (seen[A].removes, seen[B].removes) == (1, 1)
    assert seen[A].reput > 0
    forget(written, TextTarget(gone))
    assert found(written.address, TextTarget(gone)) == {}
    with closing(open_store(written.address).open_forget()) as finder:
        assert finder.texts(TextTarget(gone).hints, Searched()) == []
    assert [in_files(written.address, text) for text in (gone, kept)] == [False, True]
    devices.check()


def test_forget_row(written: WrittenStore) -> None:
    devices = Devices(written)
    devices.sync(written.publish({"1": (A, "one"), "11": (A, "eleven")}))
    devices.sync(written.write({"1": (A, "uno"), "11": (A, "undici")}))
    devices.sync(written.write({"1": None}))
    keys = written.keys
    row = RowTarget("1", keys, frozenset())
    seen = looked(written.address, row)[A]
    assert (seen.overruled, seen.removes, seen.standing) == (2, 0, 0)
    assert looked(written.address, RowTarget("1", keys, frozenset(), id_too=True))[A].removes == 1
    assert looked(written.address, RowTarget("1", keys, frozenset({str(written.table)}))) == {}, "of another table"
    forget(written, row)
    assert looked(written.address, row) == {}
    devices.check()


def test_standing_text_is_told(written: WrittenStore) -> None:
    written.publish({"r1": (A, SECRET), "r2": (A, SECRET)})
    written.write({"r2": (A, "other")})
    seen = looked(written.address, TextTarget(SECRET))[A]
    assert (seen.standing, seen.overruled) == (1, 1)
    with closing(open_store(written.address).open_forget()) as finder:
        texts = finder.texts(TextTarget(SECRET).hints, Searched())
    assert [(text.table, text.column, text.count, text.erasable) for text in texts] == [
        (f"rows_{written.table}", "line", 1, 0)
    ]


def test_standing_text_is_kept(written: WrittenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_forget, "STREAM_PATIENCE", 0.0)
    written.publish({"r1": (A, SECRET), "r2": (A, SECRET)})
    written.write({"r2": (A, "other")})
    for target in (TextTarget(SECRET), RowTarget("r1", written.keys, frozenset())):
        with pytest.raises(HeadwaterError, match="HW_8401") as refused:
            forget(written, target)
        assert "secret" not in str(refused.value)
    assert looked(written.address, TextTarget(SECRET))[A].overruled == 1, "nothing was done"


def test_written_meanwhile(written: WrittenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    written.publish({"r1": (A, SECRET)})
    written.write({"r1": (A, "other")})
    rewrite = Forgetter.rewrite

    def rewritten(self: Forgetter, bucket: int, *, clear: bool) -> None:
        rewrite(self, bucket, clear=clear)
        written.write({"r1": (A, SECRET)})

    monkeypatch.setattr(Forgetter, "rewrite", rewritten)
    with pytest.raises(HeadwaterError, match="HW_8402"):
        forget(written, TextTarget(SECRET))


def test_forget_empty_bucket(written: WrittenStore) -> None:
    written.publish({"r1": (A, "x"), "r2": (B, "y")})
    written.write({"r1": None})
    with (
        closing(open_store(written.address).open_forget()) as finder,
        closing(open_store(written.address).open_compaction()) as compaction,
    ):
        assert finder.named_buckets(['["a"]']) == [written.key(A)]
        lease = compaction.acquire("test", 60.0)
        Forgetter(compaction, lease, lambda _: None).rewrite(written.key(A), clear=True)
        finder.drop_bucket(lease, written.key(A))
        assert finder.named_buckets(['["a"]']) == []
        compaction.release(lease)
    assert problems(written.address) == []
    written.write({"r3": (A, "back")})  # by a writer who knew the bucket
    device = {A: ModelBucket(), B: ModelBucket()}
    written.catch_up(device)
    assert shown(device) == Counter({(A, "r3", "back"): 1, (B, "r2", "y"): 1})
    assert problems(written.address) == []


def test_row_comes_into_bucket_to_be_dropped(written: WrittenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    named = f'todos.1["{SECRET}"]'
    written.publish({"r1": (named, "x"), "r2": (B, "y")})
    written.write({"r1": None})
    device = {named: ModelBucket()}
    written.catch_up(device)
    drop_bucket = ForgetStore.drop_bucket

    def dropped(self: ForgetStore, lease: Lease, bucket: int) -> None:
        written.write({"r3": (named, "new")})
        drop_bucket(self, lease, bucket)

    monkeypatch.setattr(ForgetStore, "drop_bucket", dropped)
    with pytest.raises(HeadwaterError, match="HW_8402"):
        forget(written, TextTarget(SECRET))
    written.catch_up(device)
    assert shown(device) == Counter({(named, "r3", "new"): 1})
    assert problems(written.address) == []


def test_checkpoint_from_before(written: WrittenStore) -> None:
    written.publish({"r1": (A, "x")})
    before = written.write({"r1": (A, SECRET)}).op_id
    written.write({"r1": (A, "other")})
    forget(written, TextTarget(SECRET))
    with closing(open_store(written.address).open_reader()) as reader:
        assert reader.chunk(A, OpId(0), before).overtaken


def test_figures_tell_rows_from_ops(written: WrittenStore) -> None:
    written.publish({f"r{i}": (A, "x" * i) for i in range(30)})
    written.write({f"r{i}": (A, "y") for i in range(10)})
    written.write({"r1": None, "new": (B, "z")})
    stats = open_store(written.address).store_stats()
    buckets = {bucket.name: bucket for bucket in stats.buckets}
    assert (buckets[A].rows, buckets[A].ops, buckets[A].grown) == (29, 42, 42)
    assert (buckets[B].rows, buckets[B].ops) == (1, 2)
    assert (stats.history.hot_ops + stats.history.sealed_ops, stats.lookups) == (44, 30)
    assert [(table.name, table.rows) for table in stats.tables] == [("public.todos", 30)]
    assert (
        stats.disk.file
        >= sum((stats.disk.rows, stats.disk.ops, stats.disk.segments, stats.disk.lookups, stats.disk.other)) // 2
    )
    compact(written.address, A)
    assert {b.name: b.grown for b in open_store(written.address).store_stats().buckets}[A] == 0
    assert stats.sources[0].source == "default"
    assert [job.kind for job in stats.jobs] == ["snapshot"]
