"""Many devices of the Python client in one process of their own, which only download: for storms and benchmarks.

    with ManyDevices(folder, endpoint, tokens) as devices:
        devices.wait_synced()

They have no schema, so rows stay as they came. `python -m tests.support.many_devices` is that process.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from tests.support.node_process import LineProcess

if TYPE_CHECKING:
    from headwater_client import Database

Row = tuple[str, str]
"""The table and the text of a row, as storms write it. One that is in two buckets is there twice."""

_SECONDS = 120.0
_ANSWER_SECONDS = 60.0


class ManyDevices:
    """A device for each of `tokens`, with a file of its own in `folder`. A context manager that ends them."""

    def __init__(
        self, folder: Path, endpoint: str, tokens: Sequence[str], transport: Literal["http", "websocket"] = "http"
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tests.support.many_devices"]
        self.process = LineProcess(command, "many_devices", folder / "devices.log")
        self._arguments: dict[str, Any] = {
            "folder": str(folder), "endpoint": endpoint, "tokens": list(tokens), "transport": transport,
        }  # fmt: skip

    def __enter__(self) -> Self:
        self.process.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    def open(self) -> None:
        """Open the files, without a connection."""
        self.process.call("open", **self._arguments, deadline=_ANSWER_SECONDS)

    def connect(self) -> None:
        """Connect all of them at once."""
        self.process.call("connect", deadline=_ANSWER_SECONDS)

    def wait_synced(self, since: float = 0.0, seconds: float = _SECONDS) -> list[float]:
        """When each has completed its first checkpoint after `since`, in seconds since 1970."""
        found = self.process.call("wait_synced", since=since, seconds=seconds, deadline=seconds + _ANSWER_SECONDS)
        assert isinstance(found, list), found
        return [float(str(each)) for each in found]

    def digests(self, tables: Iterable[str]) -> list[str]:
        """What each device has of these tables, in short: as `digest` of its rows."""
        found = self.process.call("digests", tables=list(tables), deadline=_ANSWER_SECONDS * 5)
        assert isinstance(found, list)
        return [str(each) for each in found]

    def rows(self, number: int, tables: Iterable[str]) -> list[Row]:
        """What one device has of these tables."""
        found: Any = self.process.call("rows", number=number, tables=list(tables), deadline=_ANSWER_SECONDS)
        return [(str(table), str(text)) for table, text in found]


def digest(rows: Iterable[Row]) -> str:
    """The same for the same rows, in whatever order."""
    return hashlib.sha256("\n".join(sorted(map(repr, rows))).encode()).hexdigest()


class _Devices:
    """What the process can be told to do. Every public method is a command."""

    def __init__(self) -> None:
        self._databases: list[Database] = []
        self._connects: list[Callable[[], None]] = []

    def open(self, folder: str, endpoint: str, tokens: list[str], transport: Literal["http", "websocket"]) -> None:
        from headwater_client import ConnectOptions, Database, DownloadConnector

        options = ConnectOptions(retry_delay=0.2, transport=transport)
        for number, token in enumerate(tokens):
            database = Database(Path(folder) / f"{number}.db")
            self._databases.append(database)
            connector = DownloadConnector(endpoint, token)
            self._connects.append(lambda d=database, c=connector: d.connect(c, options))  # type: ignore[misc]

    def connect(self) -> None:
        for connect in self._connects:
            connect()

    def wait_synced(self, since: float, seconds: float) -> list[float]:
        deadline = time.monotonic() + seconds
        while True:
            moments = [each.status.last_synced_at or 0.0 for each in self._databases]
            if all(moment > since for moment in moments):
                return moments
            late = [each.status for each, moment in zip(self._databases, moments, strict=True) if moment <= since]
            assert time.monotonic() < deadline, f"{len(late)} devices still wait, the first: {late[0]}"
            time.sleep(0.02)

    def digests(self, tables: list[str]) -> list[str]:
        return [digest(self.rows(number, tables)) for number in range(len(self._databases))]

    def rows(self, number: int, tables: list[str]) -> list[Row]:
        from tests.storm.tables import canonical

        sql = "SELECT row_type, data FROM ps_oplog WHERE row_type IN (SELECT value FROM json_each(?))"
        found = self._databases[number].execute(sql, [json.dumps(tables)]).fetchall()
        return [(table, canonical(json.loads(data))) for table, data in found]

    def close(self) -> None:
        for database in self._databases:
            database.close()


def main() -> None:
    """Answer each line of stdin, until it ends."""
    sys.modules["pandas"] = None  # type: ignore[assignment]  # what is installed is loaded, which devices lack
    devices = _Devices()
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            number, command = asked.pop("id"), asked.pop("command")
            try:
                answer = {"id": number, "result": getattr(devices, command)(**asked)}
            except Exception as error:  # noqa: BLE001 - who asked is told
                answer = {"id": number, "error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)
    finally:
        devices.close()


if __name__ == "__main__":
    main()
