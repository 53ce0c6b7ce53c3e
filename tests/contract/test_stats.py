"""What every store says that its buckets hold is what a new device downloads."""

from __future__ import annotations

from collections.abc import Callable

from headwater.oplog.op import OpId
from headwater.storage.address import StoreAddress
from headwater.storage.open import open_store
from headwater.storage.sql.stats import DefinitionStats
from tests.support.model_device import parse_ops
from tests.support.written_store import WrittenStore


def downloaded(address: StoreAddress, buckets: list[str]) -> list[tuple[int, int]]:
    """Ops and bytes of each bucket, as chunks bring them."""
    reader = open_store(address).open_reader()
    newest = reader.newest()
    assert newest is not None
    found = []
    for bucket in buckets:
        ops, size, after, more = 0, 0, OpId(0), True
        while more:
            chunk = reader.chunk(bucket, after, newest.checkpoint.op_id)
            ops, size = ops + len(parse_ops(chunk.ops)), size + len(chunk.ops) + 1
            after, more = chunk.next_after, chunk.more
        found.append((ops, size))
    reader.close()
    return found


def assert_told(stats: DefinitionStats, held: list[tuple[int, int]]) -> None:
    assert (stats.buckets, stats.ops) == (len(held), sum(ops for ops, _ in held))
    assert stats.largest_ops == max(ops for ops, _ in held)
    segments = 5  # the comma between two of them is not counted
    assert 0 <= sum(size for _, size in held) - stats.size <= segments
    assert 0 <= max(size for _, size in held) - stats.largest_size <= segments


def test_row_stats(written: WrittenStore) -> None:
    a, b, c = 'one["a"]', 'one["b"]', 'two["c"]'
    written.publish({f"r{i}": ((a, b, c)[min(i % 7, 2)], "é" * (i % 50)) for i in range(2_500)})
    written.write({f"r{i}": (a, "again" * i) for i in range(200)})
    written.write({"r3": None, "new": (b, "new")})
    one, two = open_store(written.address).definition_stats()
    assert (one.definition, two.definition) == ("one", "two")
    assert_told(one, downloaded(written.address, [a, b]))
    assert_told(two, downloaded(written.address, [c]))


def test_download_stats(written: WrittenStore) -> None:
    written.publish({f"r{i}": ('one["a"]', "text") for i in range(100)})
    written.write({"r1": ('one["a"]', "more")})
    written.truncate()
    (one,) = open_store(written.address).definition_stats()
    assert_told(one, downloaded(written.address, ['one["a"]']))
    assert one.ops == 1


def test_size_of_a_store(written: WrittenStore) -> None:
    written.publish({f"r{i}": ('one["a"]', "text" * 50) for i in range(500)})
    written.write({f"r{i}": ('one["a"]', "more") for i in range(50)})
    disk = open_store(written.address).disk_use()
    assert min(disk.rows, disk.ops, disk.segments, disk.lookups, disk.file) > 0
    assert disk.rows > 500 * 200
    assert disk.rows == open_store(written.address).store_stats().disk.rows


def test_exists(new_address: Callable[[], StoreAddress]) -> None:
    address = new_address()
    assert not open_store(address).exists()
    open_store(address).open_writer().close()
    assert open_store(address).exists()
    assert open_store(address).definition_stats() == []
