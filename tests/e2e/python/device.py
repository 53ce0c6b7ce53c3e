"""One device: the Python client over one database file, driven over its pipes by the lines of `tests/e2e/node`."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import httpx

from headwater_client import ConnectOptions, Credentials, Database, Subscription, SyncStatus, Table, UploadConnector


class Connector:
    """Hands out the token that the test gave, and uploads to the test's backend."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.following: str | None = None
        self.fetched = 0

    def fetch_credentials(self) -> Credentials:
        token = self.options["token"]
        self.fetched += 1
        self.options["token"] = self.following or token
        return Credentials(self.options["endpoint"], token)

    def upload_data(self, database: Database) -> None:
        url = self.options.get("upload_url")
        if not url:
            raise RuntimeError("this device was opened without an upload_url")
        transaction = database.get_next_crud_transaction()
        if transaction is None:
            return
        batch = [{"op": each.op, "type": each.table, "id": each.id, "data": each.data} for each in transaction.crud]
        headers = {"authorization": f"Bearer {self.options['token']}"}
        response = httpx.post(url, json={"batch": batch}, headers=headers, timeout=30)
        if response.status_code != 200:
            raise RuntimeError(f"the upload answered {response.status_code}: {response.text}")
        transaction.complete()


class Device:
    """What a device can be told to do. Every public method is a command."""

    def __init__(self) -> None:
        self._db: Database | None = None
        self._options: dict[str, Any] = {}
        self._connector: Any = None
        self._watches: dict[str, list[Any]] = {}
        self._subscriptions: dict[str, Subscription] = {}

    @property
    def db(self) -> Database:
        assert self._db is not None
        return self._db

    def open(self, path: str, schema: dict[str, Any], local_only: Sequence[str] = (), **options: Any) -> None:
        tables = {name: Table(columns, local_only=name in local_only) for name, columns in schema.items()}
        self._db = Database(path, tables)
        self._options = options
        self._connector = Connector(options)
        if options.get("connector"):
            self._connector = UploadConnector(options["endpoint"], lambda: options["token"])

    def connect(self) -> dict[str, Any]:
        options = self._options
        self.db.connect(
            self._connector,
            ConnectOptions(
                parameters=options.get("params") or {},
                include_defaults=options.get("include_default_streams", True),
                retry_delay=options["retry_delay_ms"] / 1000,
                upload_throttle=options["upload_throttle_ms"] / 1000,
                checkpoint_mode=options["checkpoint_mode"],
                transport="websocket" if options["transport"] == "websocket" else "http",
                bson=options["transport"] == "bson",
            ),
        )
        self.db.wait_for_status(lambda status: status.connected or status.download_error is not None, 30)
        return self.status()

    def check_refusals(self) -> None:
        self._connector.check_refusals(self.db)

    def disconnect(self) -> None:
        self.db.disconnect()

    def clear(self) -> None:
        self.db.disconnect_and_clear()

    def set_token(self, token: str) -> None:
        self._options["token"] = token

    def set_following_token(self, token: str) -> None:
        self._connector.following = token

    def credentials_fetched(self) -> int:
        return int(self._connector.fetched)

    def status(self) -> dict[str, Any]:
        return _told(self.db.status)

    def client_id(self) -> str:
        return self.db.client_id

    def query(self, sql: str, args: Sequence[Any] = ()) -> list[dict[str, Any]]:
        return [{name: _encoded(value) for name, value in row.items()} for row in self.db.rows(sql, args)]

    def execute(self, sql: str, args: Sequence[Any] = ()) -> None:
        self.db.execute(sql, list(args))

    def transaction(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        with self.db.atomic():
            for sql, args in statements:
                self.db.execute(sql, list(args))

    def wait_first_sync(self, timeout_ms: int) -> dict[str, Any]:
        done = _until(lambda: self.db.status.has_synced, timeout_ms)
        return {"done": done, "status": self.status()}

    def wait_rows(self, sql: str, rows: list[Any], timeout_ms: int, args: Sequence[Any] = ()) -> dict[str, Any]:
        seen: list[Any] = []

        def look() -> bool:
            nonlocal seen
            seen = self.query(sql, args)
            return _same(seen, rows)

        return {"done": _until(look, timeout_ms), "rows": seen}

    def wait_status(self, fields: dict[str, Any], timeout_ms: int) -> dict[str, Any]:
        done = _until(lambda: fields.items() <= self.status().items(), timeout_ms)
        return {"done": done, "status": self.status()}

    def watch(self, name: str, sql: str, args: Sequence[Any] = ()) -> None:
        results = self._watches[name] = []
        first = threading.Event()

        def follow() -> None:
            for result in self.db.watch(sql, args, throttle=0):
                results.append(result)
                first.set()

        threading.Thread(target=follow, daemon=True).start()
        assert first.wait(30)

    def watch_results(self, name: str) -> list[Any]:
        return self._watches[name]

    def subscribe(
        self, stream: str, params: dict[str, Any] | None = None, priority: int | None = None, ttl: int | None = None
    ) -> None:
        more = {} if ttl is None else {"ttl": ttl}
        self._subscriptions[_key(stream, params)] = self.db.subscribe(stream, params, priority=priority, **more)

    def unsubscribe(self, stream: str, params: dict[str, Any] | None = None) -> None:
        self._subscriptions.pop(_key(stream, params)).unsubscribe()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()


def _until(look: Callable[[], bool], timeout_ms: int) -> bool:
    deadline = time.monotonic() + timeout_ms / 1000
    while not look():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _told(status: SyncStatus) -> dict[str, Any]:
    synced = status.last_synced_at
    return {
        "connected": status.connected,
        "connecting": status.connecting,
        "downloading": status.downloading,
        "uploading": status.uploading,
        "has_synced": status.has_synced,
        "last_synced_at": None if synced is None else datetime.fromtimestamp(synced, UTC).isoformat(),
        "download_error": _text(status.download_error),
        "upload_error": _text(status.upload_error),
    }


def _text(error: Exception | None) -> str | None:
    return None if error is None else str(error)


def _encoded(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"real": "Infinity" if value > 0 else "-Infinity"}
    return value


def _same(seen: list[Any], expected: list[Any]) -> bool:
    return bool(json.loads(json.dumps(seen)) == expected)


def _key(stream: str, params: dict[str, Any] | None) -> str:
    return json.dumps([stream, params])


def main() -> None:
    """Answer each line of stdin, until it ends."""
    device = Device()
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            number, command = asked.pop("id"), asked.pop("command")
            try:
                answer = {"id": number, "result": getattr(device, command)(**asked)}
            except Exception as error:  # noqa: BLE001 - the test is told, and fails
                answer = {"id": number, "error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        device.close()


if __name__ == "__main__":
    main()
