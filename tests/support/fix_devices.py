"""Devices: the stock Node SDK in a process of its own, one per database file; the Python client in one; or the stock
web SDK in a browser.

    def test_a_row_reaches_the_device(device_factory):
        device = device_factory(endpoint, token, {"todos": {"title": "text"}})
        device.connect()
        device.wait_for("select title from todos", [{"title": "milk"}])

Values are read as JSON: a blob is `{"blob": hex}`, an infinity `{"real": "Infinity"}`. The SDK's driver refuses
integers past 2^53: select those as text, `cast(n as text)`.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Final, Literal, get_args

import pytest

from tests.support.chromium import find_chromium
from tests.support.node_process import Json, LineProcess, NodeProcess
from tests.support.web_page import built_page

Row = dict[str, Json]
Schema = Mapping[str, Mapping[str, str]]
"""Table to column to `text`, `integer` or `real`; every table also has the column `id`."""

DEADLINE: Final = 60.0
_PYTHON_DEVICE: Final = Path(__file__).parents[1] / "e2e" / "python" / "device.py"
# A device has no pandas unless the app wants it, and what is installed is loaded
_WITHOUT_PANDAS: Final = (
    "import runpy, sys; sys.modules['pandas'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
)
_OPEN_SECONDS: Final = 60.0
_SLACK: Final = 10.0
"""How much longer than the device we wait for its answer, in seconds: so that a time-out tells what it saw."""

# The target is 2^63-1 while writes wait, then the write checkpoint that must arrive before others' data may show.
_CONFIRMED: Final = """
    with state as (
        select key, cast(value as integer) as value from ps_kv
    )
    select not exists (select 1 from ps_crud)
       and coalesce((select value from state where key = 'target_checkpoint_request_id'), 0)
        <= coalesce((select value from state where key = 'last_applied_checkpoint_request_id'), 0) as confirmed
"""


class NotSeen(AssertionError):
    """A device did not come to show what the test waited for."""


class Device:
    """One device. Made by the fixture `device_factory`, which also ends it."""

    def __init__(self, process: LineProcess, path: Path) -> None:
        self.process = process
        self.path = path

    def connect(self) -> Row:
        """Connect; returns the status after the first attempt, whether that went well or not."""
        return _row(self.process.call("connect"))

    def check_refusals(self) -> None:
        """Have the app's connector forget the refusals that do not stand any more."""
        self.process.call("check_refusals")

    def disconnect(self) -> None:
        """Close the sync connection, keeping the data."""
        self.process.call("disconnect")

    def clear(self) -> None:
        """Close the sync connection and remove the synced data."""
        self.process.call("clear")

    def set_token(self, token: str) -> None:
        """Hand out `token` the next time the SDK asks for one, and for uploads."""
        self.process.call("set_token", token=token)

    def set_following_token(self, token: str) -> None:
        """Hand out `token` from the second time on that the SDK asks for one."""
        self.process.call("set_following_token", token=token)

    def status(self) -> Row:
        """What the SDK says of itself: `connected`, `has_synced`, `download_error`, `upload_error` and others."""
        return _row(self.process.call("status"))

    def credentials_fetched(self) -> int:
        """How often the SDK has asked for a token."""
        return int(str(self.process.call("credentials_fetched")))

    def client_id(self) -> str:
        """The id of this database, which scopes its write checkpoints."""
        return str(self.process.call("client_id"))

    def query(self, sql: str, *args: Json) -> list[Row]:
        """The rows that the device has now."""
        return _rows(self.process.call("query", sql=sql, args=list(args)))

    def execute(self, sql: str, *args: Json) -> None:
        """A local write: it shows at once and goes to the upload queue."""
        self.process.call("execute", sql=sql, args=list(args))

    def transaction(self, *statements: tuple[str, Sequence[Json]]) -> None:
        """Local writes that belong together, each an SQL text and its arguments."""
        self.process.call("transaction", statements=[[sql, list(args)] for sql, args in statements])

    def watch(self, name: str, sql: str, *args: Json) -> None:
        """Start to keep every result of a watched query; returns when the first is there."""
        self.process.call("watch", name=name, sql=sql, args=list(args))

    def watch_results(self, name: str) -> list[list[Row]]:
        """Every result that the watch called `name` has given, in order."""
        results = self.process.call("watch_results", name=name)
        assert isinstance(results, list)
        return [_rows(result) for result in results]

    def subscribe(
        self, stream: str, params: Row | None = None, *, priority: int | None = None, ttl: int | None = None
    ) -> None:
        """Subscribe to a stream; `ttl` in seconds is how long it stays after `unsubscribe`."""
        options = {"priority": priority, "ttl": ttl}
        given = {name: value for name, value in options.items() if value is not None}
        self.process.call("subscribe", stream=stream, params=params, **given)

    def unsubscribe(self, stream: str, params: Row | None = None) -> None:
        """Give up a subscription made with the same parameters."""
        self.process.call("unsubscribe", stream=stream, params=params)

    def wait_synced(self, deadline: float = DEADLINE) -> None:
        """Wait until one full checkpoint has been applied. Raises `NotSeen`."""
        answer = self._until("wait_first_sync", deadline)
        if not answer["done"]:
            raise NotSeen(f"{self.path.name}: no first sync within {deadline} s; its status: {answer['status']}")

    def wait_for(self, sql: str, expected: Sequence[Row], *args: Json, deadline: float = DEADLINE) -> None:
        """Wait until `sql` gives exactly the `expected` rows, in their order. Raises `NotSeen` with the difference."""
        answer = self._until("wait_rows", deadline, sql=sql, args=list(args), rows=list(expected))
        if not answer["done"]:
            difference = _difference(expected, _rows(answer.get("rows", [])))
            raise NotSeen(
                f"{self.path.name}: not the expected rows of `{sql}` within {deadline} s; "
                f"status: {self.status()}\n{difference}"
            )

    def wait_confirmed(self, deadline: float = DEADLINE) -> None:
        """Wait until every local write is uploaded and its write checkpoint applied. Raises `NotSeen`."""
        self.wait_for(_CONFIRMED, [{"confirmed": 1}], deadline=deadline)

    def wait_status(self, deadline: float = DEADLINE, **fields: Json) -> None:
        """Wait until the status has these fields, as in `wait_status(connected=False)`. Raises `NotSeen`."""
        answer = self._until("wait_status", deadline, fields=fields)
        if not answer["done"]:
            raise NotSeen(f"{self.path.name}: the status was not {fields} within {deadline} s, but {answer['status']}")

    def close(self) -> None:
        """Close the database and end the process; the file stays, and can be opened again."""
        self.process.stop()

    def kill(self) -> None:
        """End the process at once, as a crash would; the file stays, and can be opened again."""
        self.process.kill()

    def _until(self, command: str, deadline: float, **arguments: Json) -> Row:
        milliseconds = int(deadline * 1000)
        return _row(self.process.call(command, deadline=deadline + _SLACK, timeout_ms=milliseconds, **arguments))


CheckpointMode = Literal["legacy", "requests"]
"""Who numbers a device's writes: the service, or the device."""

Transport = Literal["ndjson", "bson", "websocket"]

Sdk = Literal["node", "python", "web"]

WAYS: Final[Sequence[tuple[Sdk, Transport]]] = tuple(product(get_args(Sdk), get_args(Transport)))
"""Every SDK over every transport."""


class DeviceFactory:
    """Opens devices on database files of one folder."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._opened = 0

    def __call__(
        self,
        endpoint: str,
        token: str,
        schema: Schema,
        *,
        name: str | None = None,
        params: Row | None = None,
        upload_url: str | None = None,
        connector: Path | None = None,
        local_only: Collection[str] = (),
        raw: Mapping[str, str] | None = None,
        include_default_streams: bool = True,
        transport: Transport = "ndjson",
        checkpoint_mode: CheckpointMode = "legacy",
        retry_delay: float = 0.1,
        sdk: Sdk = "node",
    ) -> Device:
        """Open a device, not yet connected.

        The same `name` opens the same database file again, once the first is closed. `params` are the connection
        parameters. Local transactions are posted to `upload_url` as `{"batch": [{"op", "type", "id", "data"}]}`
        with the token as bearer, unless the class `Connector` of the module `connector` uploads in its own way; in
        Python that is its `UploadConnector`. Tables of the schema that are `local_only` are never synced, and those of
        `raw` are made by these statements, as tables of the app's own (not in Python). By `transport`, lines come as
        the SDK asks for them, as BSON because it takes nothing else, or by websocket.
        `retry_delay` in seconds is what the SDK waits after a failure. A web device is one page in a Chromium of its
        own, and its database is gone with it.
        """
        self._opened += 1
        path = self._folder / f"{name or f'device-{self._opened}'}.db"
        process = self._stack.enter_context(_start(sdk, path.with_suffix(".log")))
        process.call(
            "open",
            deadline=_OPEN_SECONDS,
            **(_in_browser(path) if sdk == "web" else {"path": str(path)}),
            endpoint=endpoint.rstrip("/"),
            token=token,
            schema={table: dict(columns) for table, columns in schema.items()},
            params=params,
            upload_url=upload_url,
            connector=None if connector is None else connector.as_uri(),
            local_only=list(local_only),
            raw=dict(raw or {}),
            include_default_streams=include_default_streams,
            transport=transport,
            checkpoint_mode=checkpoint_mode,
            retry_delay_ms=int(retry_delay * 1000),
            upload_throttle_ms=10,
        )
        return Device(process, path)


def _start(sdk: Sdk, log: Path) -> LineProcess:
    match sdk:
        case "node":
            return NodeProcess("device.mjs", log)
        case "web":
            return NodeProcess("web_device.mjs", log)
        case "python":
            return LineProcess([sys.executable, "-c", _WITHOUT_PANDAS, _PYTHON_DEVICE], "device.py", log)


def _in_browser(path: Path) -> dict[str, Json]:
    return {
        "path": path.name,
        "executable": find_chromium(),
        "sandbox": os.geteuid() != 0,
        "profile": str(path.with_suffix(".profile")),
        "folder": str(built_page()),
    }


@pytest.fixture(params=["node", pytest.param("python", marks=pytest.mark.long)])
def sdk(request: pytest.FixtureRequest) -> Sdk:
    """Whose device it is, where a test does not say so itself."""
    chosen: Sdk = request.param
    return chosen


@pytest.fixture
def device_factory(tmp_path: Path) -> Iterator[DeviceFactory]:
    """Opens devices on database files of this test, and ends them with it."""
    with ExitStack() as stack:
        yield DeviceFactory(tmp_path, stack)


def _row(value: Json) -> Row:
    assert isinstance(value, dict)
    return value


def _rows(value: Json) -> list[Row]:
    assert isinstance(value, list)
    return [_row(each) for each in value]


def _difference(expected: Sequence[Row], seen: Sequence[Row]) -> str:
    """What is missing (-) and what is too much (+), at most 40 lines."""
    wanted, present = (
        [json.dumps(row, ensure_ascii=False, sort_keys=True) for row in rows] for rows in (expected, seen)
    )
    found = list(difflib.unified_diff(wanted, present, "expected", "on the device", n=1, lineterm=""))
    more = [f"… and {len(found) - 40} lines more"] if len(found) > 40 else []
    return "\n".join([*(line[:300] for line in found[:40]), *more])
