"""What can stop live replication, beside the source's and the store's own errors."""

from __future__ import annotations

from typing import ClassVar

from headwater.errors import HeadwaterError, Kind


class SchemaChangedError(HeadwaterError):
    """A table is not what it was when its rows were read."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_5001"


class ProtocolError(HeadwaterError):
    """The stream's messages are in an order that the protocol does not know."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_5002"


class SourceReplacedError(HeadwaterError):
    """The source is another cluster, or another history of it, than the one we followed."""

    kind: ClassVar[Kind] = Kind.RESYNC
    code: ClassVar[str] = "HW_5003"
