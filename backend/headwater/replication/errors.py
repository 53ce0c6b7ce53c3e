"""What can stop live replication, beside the source's and the store's own errors."""

from __future__ import annotations

from typing import ClassVar

from headwater.errors import HeadwaterError, Kind


class SchemaChangedError(HeadwaterError):
    """A table is not what it is in the store. With `oid`, only the stream has that table so: the catalog is back at
    what is stored, or ahead of the stream."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_5001"

    def __init__(self, what: str, where: str = "", fix: str = "", oid: int | None = None) -> None:
        super().__init__(what, where, fix)
        self.oid = oid


class RowIncompleteError(HeadwaterError):
    """A change lacks a value that nothing here has and that can't be asked for."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_5004"


class ProtocolError(HeadwaterError):
    """The stream's messages are in an order that the protocol does not know."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_5002"


class SourceReplacedError(HeadwaterError):
    """The source is another cluster, or another history of it, than the one we followed."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_5003"
