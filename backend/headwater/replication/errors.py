"""What can stop live replication, beside the source's and the store's own errors."""

from __future__ import annotations

from typing import ClassVar

from headwater.errors import HeadwaterError, Kind
from headwater.oplog.lsn import Lsn, format_lsn


class SchemaChangedError(HeadwaterError):
    """The stream has to be read again from where the store stands: what it brings does not fit what the catalog says,
    and did not come to do so."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_5001"


class PoisonError(HeadwaterError):
    """A transaction of the source can't be taken in. Its commit record begins at `lsn`, where that is known, and at
    `upto` or before."""

    kind: ClassVar[Kind] = Kind.STOP
    code: ClassVar[str] = "HW_5005"

    def __init__(self, why: str, tag: str, lsn: Lsn | None, upto: Lsn) -> None:
        at = "" if lsn is None else f" at {format_lsn(lsn)}"
        fix = (
            ""
            if lsn is None
            else f"headwater source skip --lsn {format_lsn(lsn)} leaves it out and compares all tables"
        )
        super().__init__(f"the transaction{at} can't be taken in: {why}", f"source {tag}", fix)
        self.args = (why, tag, lsn, upto)  # what pickle replays
        self.why = why
        self.lsn = lsn
        self.upto = upto


BROKEN_BUCKET = "HW_5301"
"""A bucket's history does not lead to the rows that belong in it."""

BROKEN_LOOKUPS = "HW_5302"
"""Rows have other lookups than the rules give them."""

BROKEN_ROWS = "HW_5304"
"""Stored rows are not what the source has, or stand in other buckets than the rules give them."""


class ProtocolError(HeadwaterError):
    """The stream's messages are in an order that the protocol does not know."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_5002"


class SourceReplacedError(HeadwaterError):
    """The source is another cluster, or another history of it, than the one we followed."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_5003"
