"""No byte of an op or a segment can change unnoticed."""

from __future__ import annotations

import pytest
import zstandard

from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import finished_op, put_body, put_checksum, remove_body
from headwater.storage.sql.verify import DamageError, ReadOp, StoredSegment, cut_keys, entry_hash, read_op, segment_ops

DATA = '{"id":"7","text":"it\\n is \\"ß\\""}'
KEYS = StoreKeys(b"secret")
DIGEST = KEYS.content("todos", "7", DATA)
PUT = finished_op(12, put_body("todos", "7", "3", DATA, DIGEST)).encode()
REMOVE = finished_op(12, remove_body("todos", "7", "3", KEYS.removal("todos", "7", "3"))).encode()


def flips(content: bytes) -> list[bytes]:
    """The content with one bit of one byte flipped, in every way."""
    return [
        content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :]
        for place in range(len(content))
        for bit in range(8)
    ]


def meaning(op: ReadOp) -> tuple[object, ...]:
    """What the sums of bucket and history are made of."""
    return op.kind, op.checksum, entry_hash(op.table, op.object_id, op.subkey, op.checksum, KEYS)


@pytest.mark.parametrize("line", [PUT, REMOVE], ids=["PUT", "REMOVE"])
def test_flipped_bit_of_an_op(line: bytes) -> None:
    sound = meaning(read_op(12, line, KEYS))
    unnoticed = []
    for flipped in flips(line):
        try:
            if meaning(read_op(12, flipped, KEYS)) == sound:
                unnoticed.append(flipped)
        except DamageError:
            continue
    assert unnoticed == []


def test_read_op() -> None:
    assert read_op(12, PUT, KEYS)[:2] == ("PUT", put_checksum(DIGEST))
    assert read_op(12, PUT, KEYS)[3:] == ("todos", "7", "3")
    assert read_op(12, b'{"op_id":"12","op":"MOVE","checksum":9}', KEYS)[:3] == ("MOVE", 9, None)


@pytest.mark.parametrize("sealed", [False, True])
def test_flipped_bit_of_a_segment(sealed: bool) -> None:
    bodies = [put_body("todos", str(n), "3", DATA, KEYS.content("todos", str(n), DATA)) for n in range(4)]
    lines = [finished_op(n, body) for n, body in enumerate(bodies, 20)] if sealed else bodies
    checksum = sum(put_checksum(KEYS.content("todos", str(n), DATA)) for n in range(4)) & 0xFFFFFFFF
    blob = zstandard.compress("\n".join(lines).encode())
    sound = StoredSegment(20, 23, sealed, 4, checksum, blob)
    right = [meaning(read_op(*op, KEYS)) for op in segment_ops(sound)]
    unnoticed = []
    for flipped in flips(blob):
        try:
            found = [meaning(read_op(*op, KEYS)) for op in segment_ops(sound._replace(bodies=flipped))]
        except DamageError:
            continue
        if found == right and zstandard.decompress(flipped) != zstandard.decompress(blob):
            unnoticed.append(flipped)
    assert unnoticed == []


def test_cut_keys() -> None:
    assert cut_keys([], 10) == []
    assert cut_keys([(3, 4), (5, 4), (9, 4), (11, 50), (12, 1)], 10) == [(3, 9), (9, 11), (11, 12), (12, 1 << 63)]
