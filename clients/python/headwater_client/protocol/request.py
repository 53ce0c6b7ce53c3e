"""The body of a sync stream's request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Position:
    """Up to where a device has a bucket."""

    bucket: str
    after: int


@dataclass(frozen=True)
class StreamRequest:
    """A stream asked for by name and parameters; `priority` replaces that of the stream."""

    stream: str
    parameters: Mapping[str, object] | None
    priority: int | None


@dataclass(frozen=True)
class SyncRequest:
    """What a device tells of itself as it connects."""

    client_id: str
    positions: Sequence[Position] = ()
    subscriptions: Sequence[StreamRequest] = ()
    include_defaults: bool = True
    parameters: Mapping[str, object] = field(default_factory=dict)
    app_metadata: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        """As JSON."""
        request = {
            "buckets": [{"name": each.bucket, "after": str(each.after)} for each in self.positions],
            "include_checksum": True,
            "raw_data": True,
            "binary_data": True,
            "client_id": self.client_id,
            "parameters": dict(self.parameters),
            "app_metadata": dict(self.app_metadata),
            "streams": {
                "include_defaults": self.include_defaults,
                "subscriptions": [
                    {
                        "stream": each.stream,
                        "parameters": None if each.parameters is None else dict(each.parameters),
                        "override_priority": each.priority,
                    }
                    for each in self.subscriptions
                ],
            },
        }
        return _dumped(request).encode()


def json_text(value: object) -> str:
    """As compact JSON with sorted keys, which can be sent. Raises ValueError, TypeError or RecursionError for what JSON
    or UTF-8 has no form for."""
    text = _dumped(value)
    text.encode()
    return text


def _dumped(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
