"""Errors that stop live replication, beside those of the source and the store."""

from __future__ import annotations

from collections.abc import Sequence

from headwater.errors import HeadwaterError
from headwater.oplog.lsn import Lsn, format_lsn


class SchemaChangedError(HeadwaterError):
    """The stream does not fit what the catalog says. It is read again from the store's position."""

    code = "HW_5001"


class PoisonError(HeadwaterError):
    """A transaction of the source can't be applied. Its commit record begins at `lsn`, if that is known, and not after
    `upto`."""

    code = "HW_5005"

    def __init__(self, why: str, tag: str, lsn: Lsn | None, upto: Lsn) -> None:
        at = "" if lsn is None else f" at {format_lsn(lsn)}"
        fix = (
            ""
            if lsn is None
            else f"run headwater source skip --lsn {format_lsn(lsn)} to skip it and compare all tables"
        )
        super().__init__(f"the transaction{at} can't be applied: {why}", f"source {tag}", fix)
        self.args = (why, tag, lsn, upto)  # what pickle replays
        self.why = why
        self.lsn = lsn
        self.upto = upto


BROKEN_BUCKET = "HW_5301"
"""The ops of a bucket do not add up to the rows that belong in it."""

BROKEN_LOOKUPS = "HW_5302"
"""Rows have other lookups than the rules give them."""

BROKEN_ROWS = "HW_5304"
"""Stored rows differ from the source, or are in other buckets than the rules give them."""


class StreamProtocolError(HeadwaterError):
    """The stream's messages come in an order that the protocol does not allow."""

    code = "HW_5002"


class SourceReplacedError(HeadwaterError):
    """The source is not the cluster that we followed, or has another history."""

    code = "HW_5003"


_NAMED = 3


class OtherDataError(HeadwaterError):
    """The source's connection leads to another database, which does not seem to hold the same data."""

    code = "HW_5006"

    def __init__(self, source: str, where: str, found: Sequence[str]) -> None:
        more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        super().__init__(
            "the source is another database now, which does not seem to hold the same data: "
            + "; ".join(found[:_NAMED])
            + more,
            where,
            "nothing is sent to devices until replication.connections is corrected, or "
            f"`headwater source move {source} --accept-differences` says that it is right",
        )
        self.args = (source, where, found)  # what pickle replays
