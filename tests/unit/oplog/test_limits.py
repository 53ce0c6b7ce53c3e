"""Where exactly the limits of rows and ops are, and what is kept of what lies beyond."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.decode.copytext import join_cells, line_parts
from headwater.oplog import change, limits
from headwater.oplog.keys import StoreKeys
from headwater.oplog.limits import (
    OP_LIMIT,
    ROW_LIMIT,
    Stub,
    is_stub,
    read_stub,
    stored_line,
    stub_for,
)
from headwater.oplog.row_id import content_id
from headwater.oplog.transform import (
    BucketMembership,
    OversizedOp,
    decode_memberships,
    encode_memberships,
    fitting,
    oversized_ops,
)
from headwater_rules.results import Put

KEYS = StoreKeys(b"secret")


@pytest.mark.parametrize("letter", ["x", "é", "漢"])
def test_row_limit(letter: str) -> None:
    width = len(letter.encode())
    line = letter * (ROW_LIMIT // width) + "x" * (ROW_LIMIT % width)
    assert stored_line(line) == line
    stub = stored_line(line + "x")
    assert is_stub(stub)
    assert (read_stub(stub).size, read_stub(stub).content) == (ROW_LIMIT + 1, content_id(line + "x"))
    assert stored_line(stub) == stub


@given(st.lists(st.none() | st.text(alphabet="xé漢\t\n\\N", max_size=20), min_size=1, max_size=4))
def test_stub_of_a_large_row(cells: list[str | None]) -> None:
    line = join_cells(cells)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(change, "_PART", 3)
        patch.setattr(limits, "ROW_LIMIT", 20)
        patch.setattr(limits, "SURELY_A_ROW", 0)
        assert b"".join(line_parts(cells)) == line.encode()
        assert (stub_for(line_parts(cells)) or line) == stored_line(line)
        if (size := len(line.encode())) > 20:
            sizes = tuple(len(cell.encode()) for cell in line.split("\t"))
            assert read_stub(stored_line(line)) == Stub(size, content_id(line), sizes)


@pytest.mark.parametrize("line", ["", "\\\\!", "!", "\\N", "a\\tb"])
def test_no_row_looks_like_a_stub(line: str) -> None:
    assert not is_stub(line)


@pytest.mark.parametrize(("character", "size"), [("x", 1), ('"', 2), ("é", 2), ("\x01", 6)])
def test_size_of_an_op(character: str, size: int) -> None:
    data = character * ((OP_LIMIT - 2) // size)
    fits, too_large = (Put(0, 'b["1"]', "t", "1", text) for text in (data, data + character * 2))
    size_of_op = len(orjson.dumps(data)) + 2 * size
    assert fitting([fits, too_large], KEYS) == ([fits], [OversizedOp(KEYS.bucket('b["1"]'), "t", size_of_op)])
    assert [list(each) for each in fitting([fits], KEYS)] == [[fits], []]


def test_memberships_left_out() -> None:
    there = [BucketMembership(7, 9, "left out", "1"), BucketMembership(8, 9, "t", "left out")]
    oversized = OversizedOp(5, "t", 99)
    stored = encode_memberships(there, "1", [oversized])
    assert decode_memberships(stored, "1") == there
    assert oversized_ops(stored) == [oversized]
    assert oversized_ops(encode_memberships(there, "1")) == []
    assert decode_memberships(encode_memberships((), "1", [oversized]), "1") == []
