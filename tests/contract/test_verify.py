"""What a store gives to be checked, and buckets that are built anew."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from headwater.oplog.op import OpId
from headwater.oplog.transform import DraftOp, RowKeys, row_ops
from headwater.storage.address import PostgresAddress, SqliteAddress, StoreAddress
from headwater.storage.contract.parts import CurrentRow
from headwater.storage.contract.reader import StoreReader
from headwater.storage.open import open_store
from headwater.storage.sql.verify import ALL_KEYS, MODULUS, Examined, changed_parts, examine, row_entries
from headwater_rules.results import LookupEntry
from tests.contract.source_writer import A, B, SourceWriter, assert_in_step, named, put, totals
from tests.support.store_file import store_file

ROWS = {str(n): (A if n % 2 else B, f"text {n}") for n in range(30)}
CHANGES = {"1": (A, "another"), "2": (A, "moved"), "3": None}


def damage(address: StoreAddress, sql: str) -> None:
    """Change something behind the store's back; exactly one row."""
    match address:
        case SqliteAddress(directory):
            with store_file(directory) as db:
                db.execute(sql)
                assert db.changes() == 1
        case PostgresAddress():
            with psycopg.connect(address.conninfo, options=f"-c search_path={address.schema}") as conn:
                assert conn.execute(sql.encode()).rowcount == 1


def examined(writer: SourceWriter, bucket: str, parts: int = 1) -> Examined:
    with open_store(writer.address).open_verify() as reader:
        head = reader.head(writer.key(bucket))
        assert head is not None
        return examine(head, reader, writer.keys, parts)


def by_rows(writer: SourceWriter, bucket: str, parts: int = 1) -> tuple[int, ...]:
    """The sums of a bucket's entries as current rows have them."""
    sums = [0] * parts
    for row in writer.rows().values():
        for entry in row_entries(writer.table, row, writer.keys, parts):
            if entry.bucket == writer.key(bucket):
                sums[entry.part] += entry.hash
    return tuple(total % MODULUS for total in sums)


@pytest.fixture
def written(writer: SourceWriter) -> SourceWriter:
    writer.bootstrap(ROWS, parts=3)
    writer.write(CHANGES)
    return writer


@pytest.mark.parametrize("parts", [1, 64])
@pytest.mark.parametrize("bucket", [A, B])
def test_sums_of_a_sound_history(written: SourceWriter, bucket: str, parts: int) -> None:
    found = examined(written, bucket, parts)
    assert found.problem == ""
    assert found.sums == by_rows(written, bucket, parts)
    assert any(found.sums)


def test_key_ranges(written: SourceWriter) -> None:
    written.write({str(100 + n): (f'todos.1["{n}"]', "x") for n in range(40)})
    with open_store(written.address).open_verify() as reader:
        cuts = reader.cut(8)
        assert 3 < len(cuts) <= 42
        names = [head.name for cut in cuts for head in reader.heads(*cut)]
        assert names == [head.name for head in reader.heads(*ALL_KEYS)]
    assert sorted(names) == sorted({A, B, *(f'todos.1["{n}"]' for n in range(40))})


OF_A = f"name = '{A}'"
KEY_A = f"(select id from buckets where {OF_A})"
FIRST_BLOB = f"(select min(id) from segment_blobs where bucket = {KEY_A})"
FIRST_OP = f"(select min(first_op) from segments where bucket = {KEY_A})"
HOT_A = f"bucket = {KEY_A} and line like '%another%'"
LOST_OP = f"delete from ops where {HOT_A}"


def line_sql(old: str, new: str) -> str:
    return f"update ops set line = replace(line, '{old}', '{new}') where {HOT_A}"


DAMAGES: list[tuple[str, str]] = [
    (LOST_OP, "but its totals say"),
    (line_sql("another", "anothex"), "does not match its checksum"),
    (line_sql("op_id", "op-id"), "can't be read"),
    (line_sql("PUT", "BUT"), "unknown kind"),
    (f"update buckets set name = 'todos.1[7]' where {OF_A}", "name"),
    (f"delete from segment_blobs where id = {FIRST_BLOB}", "is lost"),
    (f"update segment_blobs set size = size + 1 where id = {FIRST_BLOB}", "holds other ops"),
    (f"update segments set last_op = last_op + 1 where first_op = {FIRST_OP}", "holds other ops"),
    (f"update buckets set checksum = checksum + 1 where {OF_A}", "do not add up"),
    (f"update buckets set clear_op = clear_op + 1 where {OF_A}", "does not begin"),
]


@pytest.mark.parametrize(("sql", "problem"), DAMAGES, ids=[problem + str(n) for n, (_, problem) in enumerate(DAMAGES)])
def test_damage_is_named(written: SourceWriter, sql: str, problem: str) -> None:
    damage(written.address, sql)
    assert problem in examined(written, A).problem
    assert examined(written, B).problem == ""


def test_changed_subkey(written: SourceWriter) -> None:
    damage(written.address, line_sql('"subkey":"', '"subkey":"1'))
    found = examined(written, A)
    assert found.problem == ""
    assert found.sums != by_rows(written, A)


def test_ops_say_which_parts_changed(written: SourceWriter) -> None:
    before = examined(written, A, 512)
    written.write({"5": (B, "left"), "7": (A, "changed")})
    after = examined(written, A, 512)
    with open_store(written.address).open_verify() as reader:
        changed = changed_parts(reader, written.key(A), before.head.last_op, written.keys, 512)
    assert {n for n, (a, b) in enumerate(zip(before.sums, after.sums, strict=True)) if a != b} == changed
    assert len(changed) == 2


def test_bucket_begun_anew(written: SourceWriter, open_reading: Callable[[SourceWriter], StoreReader]) -> None:
    reader = open_reading(written)
    old, _, _ = totals(reader, A)
    device, untouched = assert_in_step(reader, A), totals(reader, B)[1:]
    damage(written.address, LOST_OP)
    with written.flush() as flush:
        flush.reset_bucket(written.key(A), named(written.keys, A))
        ops: list[DraftOp] = []
        for row_id in ("9", "11"):
            ops += row_ops((), [put(A, row_id, "again")], RowKeys(written.table, row_id, written.keys))[0]
        flush.append(ops, {A: named(written.keys, A)})
    assert examined(written, A).problem == ""
    assert examined(written, A).ops == 3
    with open_store(written.address).open_verify() as verify:  # nothing damaged is left behind the CLEAR
        assert list(verify.segments(written.key(A), 0)) == []
        assert len(list(verify.hot(written.key(A), 0, 1 << 62))) == 3
    assert sorted(assert_in_step(reader, A).rows) == sorted(assert_in_step(reader, A, device).rows)
    assert totals(reader, B)[1:] == untouched
    assert reader.chunk(A, OpId(0), OpId(old)).overtaken


def test_lost_bucket(written: SourceWriter) -> None:
    damage(written.address, f"delete from buckets where {OF_A}")
    with written.flush() as flush:
        flush.reset_bucket(written.key(A), None)
        flush.reset_bucket(written.key(B), None)
    with open_store(written.address).open_verify() as reader:
        assert reader.head(written.key(A)) is None
    assert (examined(written, B).ops, examined(written, B).problem) == (1, "")
    with written.flush() as flush:
        flush.reset_bucket(written.key(A), named(written.keys, A))
    assert (examined(written, A).ops, examined(written, A).problem) == (1, "")


def test_rows_with_lookups(written: SourceWriter) -> None:
    long_id = "x" * 900
    with written.flush() as flush:
        flush.put_rows(written.table, [CurrentRow(long_id, 0, "x\ty", "", None)])
        for row_id in ("1", long_id, "gone"):
            flush.replace_lookups(written.table, row_id, [LookupEntry('l["a"]', f'["{row_id[:4]}"]')])
    with open_store(written.address).open_verify() as reader:
        assert reader.tables({"default"}) == [written.table]
        batches = list(reader.rows(written.table, 0, 1 << 62))
        rows = [row for batch in batches for _, row in batch]
        assert {row.row_id for row in rows} == written.rows().keys() | {long_id}
        assert reader.lookups(written.table, [row.row_id for row in rows]) == {
            "1": {LookupEntry('l["a"]', '["1"]')},
            long_id: {LookupEntry('l["a"]', '["xxxx"]')},
        }
        assert reader.lone_lookups(written.table) == ["gone"]


def test_one_moment_until_renewed(written: SourceWriter) -> None:
    with open_store(written.address).open_verify() as reader:
        before = reader.head(written.key(A))
        written.write({"1": (A, "later")})
        assert reader.head(written.key(A)) == before
        reader.renew()
        assert reader.head(written.key(A)) != before


def test_notes_are_kept(written: SourceWriter) -> None:
    assert written.store.get_meta("what") == ""
    written.store.set_meta(written.lease, "what", "first")
    written.store.set_meta(written.lease, "what", "second")
    assert written.store.get_meta("what") == "second"
    reader = open_store(written.store.address).open_reader()
    assert (reader.get_meta("what"), reader.get_meta("that")) == ("second", "")
    reader.close()
