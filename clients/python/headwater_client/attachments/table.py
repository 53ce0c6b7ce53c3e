"""The table that tells of each file: one row each, never synced itself."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from headwater_client.schema.tables import Table

ATTACHMENTS: Final = Table(
    {
        "filename": "text",
        "local_uri": "text",
        "timestamp": "integer",
        "size": "integer",
        "media_type": "text",
        "state": "integer",
        "has_synced": "integer",
        "meta_data": "text",
    },
    local_only=True,
)
"""Goes into the schema, under the name `attachments`; the stock SDKs have the same columns."""


class State(IntEnum):
    """What is to be done about a file."""

    QUEUED_UPLOAD = 0
    QUEUED_DOWNLOAD = 1
    QUEUED_DELETE = 2
    SYNCED = 3
    ARCHIVED = 4


@dataclass(frozen=True)
class Attachment:
    """One file. `local_path` is relative to the queue's folder, None while the file is not here; `size` in bytes."""

    id: str
    filename: str
    state: State
    local_path: str | None = None
    size: int | None = None
    media_type: str | None = None
    meta_data: str | None = None
    has_synced: bool = False
    timestamp: float = 0.0

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Attachment:
        return cls(
            id=row["id"],
            filename=row["filename"],
            state=State(row["state"]),
            local_path=row["local_uri"],
            size=row["size"],
            media_type=row["media_type"],
            meta_data=row["meta_data"],
            has_synced=bool(row["has_synced"]),
            timestamp=(row["timestamp"] or 0) / 1000,
        )

    def as_row(self) -> dict[str, object]:
        return {
            "id": self.id,
            "filename": self.filename,
            "state": int(self.state),
            "local_uri": self.local_path,
            "size": self.size,
            "media_type": self.media_type,
            "meta_data": self.meta_data,
            "has_synced": int(self.has_synced),
            "timestamp": int(self.timestamp * 1000),
        }
