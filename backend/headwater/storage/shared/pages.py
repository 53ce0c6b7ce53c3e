"""Leaves ops out of a page of additions whose rows changed or were deleted while a task read them."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from headwater.oplog.keys import StoreKeys
from headwater.oplog.op import put_opening
from headwater.oplog.row_id import row_subkey
from headwater.oplog.transform import decode_memberships
from headwater.storage.shared.segments import compressor, unpacked

Openings = dict[int, tuple[str, ...]]
"""By bucket, how the bodies to be left out begin."""


def openings(rows: Iterable[tuple[str, str, str | None]], table: int, keys: StoreKeys) -> Openings:
    """How the ops begin that a task made from rows of a table. Of each row: its id, its members, its subkey."""
    found: dict[int, list[str]] = {}
    for row_id, members, subkey in rows:
        for member in decode_memberships(members, row_id):
            sub = row_subkey(subkey, table, row_id, member.id, keys)
            found.setdefault(member.bucket, []).append(put_opening(member.table, member.id, sub, member.digest))
    return {bucket: tuple(starts) for bucket, starts in found.items()}


def without(segment: tuple[int, int, bytes], starts: tuple[str, ...]) -> tuple[int, int, bytes]:
    """A segment (number of ops, sum of their checksums, compressed bodies) without bodies that begin with `starts`."""
    if not starts:
        return segment
    kept = [body for body in unpacked(segment[2]).decode().split("\n") if not body.startswith(starts)]
    checksum = sum(int(orjson.loads("{" + body)["checksum"]) for body in kept)
    return len(kept), checksum & 0xFFFFFFFF, compressor(level=1).compress("\n".join(kept).encode())
