"""The streams that the app has subscribed to, which outlive a restart, and those that the server gives to everybody."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from headwater_client.errors import ConnectError
from headwater_client.protocol.lines import StreamInfo
from headwater_client.protocol.session import RequestedStream, json_text
from headwater_client.storage.connection import writing

_MICRO = 1_000_000


@dataclass(frozen=True)
class StreamKey:
    """A stream with parameters. `params` is JSON text with sorted keys, `null` for none."""

    name: str
    params: str = "null"

    @classmethod
    def of(cls, name: str, params: Mapping[str, object] | None) -> StreamKey:
        """Raises `ConnectError` for parameters that JSON has no form for."""
        try:
            return cls(name, json_text(params))
        except (ValueError, TypeError, RecursionError) as error:
            raise ConnectError(f"parameters of the stream {name} go to the server as JSON: {error}") from error

    @property
    def parameters(self) -> dict[str, object] | None:
        found: dict[str, object] | None = json.loads(self.params)
        return found


@dataclass(frozen=True)
class StoredStream:
    """A stream of the file; times are in seconds since 1970. `explicit` ones were subscribed to by the app."""

    key: StreamKey
    active: bool
    is_default: bool
    explicit: bool
    priority: int | None
    ttl: int | None
    expires_at: float | None
    last_synced_at: float | None


def subscribe(connection: sqlite3.Connection, key: StreamKey, priority: int | None, ttl: int, now: float) -> None:
    """Ask for a stream, until `ttl` seconds after it is given up."""
    with writing(connection):
        connection.execute(
            "INSERT INTO ps_stream_subscriptions(stream_name, local_params, local_priority, ttl, expires_at)"
            " VALUES (?, ?, ?, ?, ?) ON CONFLICT(stream_name, local_params) DO UPDATE SET"
            " local_priority = min(coalesce(local_priority, excluded.local_priority),"
            " coalesce(excluded.local_priority, local_priority)), ttl = excluded.ttl, expires_at = excluded.expires_at",
            (key.name, key.params, priority, ttl, int((now + ttl) * _MICRO)),
        )


def keep_alive(connection: sqlite3.Connection, held: Collection[StreamKey], now: float) -> None:
    """Restart the ttl of streams that the app still holds."""
    if not held:
        return
    with writing(connection):
        connection.executemany(
            "UPDATE ps_stream_subscriptions SET expires_at = ? + ttl * 1000000"
            " WHERE stream_name = ? AND local_params = ? AND ttl IS NOT NULL",
            [(int(now * _MICRO), key.name, key.params) for key in held],
        )


def drop_expired(connection: sqlite3.Connection, held: Collection[StreamKey], now: float) -> None:
    """Forget subscriptions whose time is over and that nobody holds."""
    with writing(connection):
        connection.execute(
            "UPDATE ps_stream_subscriptions SET ttl = NULL, expires_at = NULL, local_priority = NULL"
            " WHERE ttl IS NOT NULL AND expires_at <= ? AND (stream_name, local_params) NOT IN"
            " (SELECT value ->> 0, value ->> 1 FROM json_each(?))",
            (int(now * _MICRO), json.dumps([(key.name, key.params) for key in held])),
        )
        connection.execute("DELETE FROM ps_stream_subscriptions WHERE ttl IS NULL AND NOT is_default")


def requested(connection: sqlite3.Connection) -> list[RequestedStream]:
    """What to ask the server for."""
    return [
        RequestedStream(each.key.name, each.key.parameters, each.priority)
        for each in stored(connection)
        if each.explicit
    ]


def note_streams(connection: sqlite3.Connection, streams: Sequence[StreamInfo], include_defaults: bool) -> None:
    """Take down which streams the server has for this device. To be called within a transaction."""
    connection.execute("UPDATE ps_stream_subscriptions SET active = 0, is_default = 0")
    for stream in streams:
        connection.execute("UPDATE ps_stream_subscriptions SET active = 1 WHERE stream_name = ?", (stream.name,))
        if stream.is_default and include_defaults:
            connection.execute(
                "INSERT INTO ps_stream_subscriptions(stream_name, active, is_default) VALUES (?, 1, 1)"
                " ON CONFLICT(stream_name, local_params) DO UPDATE SET is_default = 1",
                (stream.name,),
            )
    connection.execute("DELETE FROM ps_stream_subscriptions WHERE ttl IS NULL AND NOT is_default")


def note_synced(connection: sqlite3.Connection, now: int) -> None:
    """A whole checkpoint shows. To be called within a transaction; `now` is in microseconds since 1970."""
    connection.execute("UPDATE ps_stream_subscriptions SET last_synced_at = ? WHERE active", (now,))


def stored(connection: sqlite3.Connection) -> list[StoredStream]:
    """The streams of the file, in the order in which they were subscribed to."""
    rows = connection.execute(
        "SELECT stream_name, local_params, active, is_default, ttl, local_priority, expires_at, last_synced_at"
        " FROM ps_stream_subscriptions ORDER BY id"
    )
    return [
        StoredStream(
            key=StreamKey(name, params),
            active=bool(active),
            is_default=bool(is_default),
            explicit=ttl is not None,
            priority=priority,
            ttl=ttl,
            expires_at=None if expires is None else expires / _MICRO,
            last_synced_at=None if synced is None else synced / _MICRO,
        )
        for name, params, active, is_default, ttl, priority, expires, synced in rows.fetchall()
    ]
