"""Ops that bulk work left without ids."""

from __future__ import annotations

import pytest

from headwater.oplog.op import CLEAR_BODY, finished_op
from headwater.storage.shared.segments import numbered

PUT = '"op":"PUT","object_type":"t","object_id":"1","checksum":7,"subkey":"x","data":%s}'


@pytest.mark.parametrize("first", [1, 999, 2**53 - 1])
@pytest.mark.parametrize(
    "bodies",
    [
        [CLEAR_BODY],
        [CLEAR_BODY, PUT % '"{}"', PUT % "null"],
        [PUT % '"100 %"', PUT % '"%d %% %(x)s %b"', PUT % '"ü😀\\n,\\"op_id\\":"'],
        [PUT % "null"] * 2_000,
    ],
)
def test_numbered(first: int, bodies: list[str]) -> None:
    expected = "\n".join(finished_op(op_id, body) for op_id, body in enumerate(bodies, first))
    assert numbered("\n".join(bodies).encode(), first).decode() == expected
