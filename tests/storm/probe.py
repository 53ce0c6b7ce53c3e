"""A device at the endpoint that writes to each of several sources in turn: how long until it has its row back, and
whether the write checkpoint of that source then tells the truth."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import httpx
import psycopg

from tests.storm.ledger import EVERYTHING
from tests.storm.side import Side, StormFailed
from tests.storm.tables import LEDGER
from tests.storm.writers import Log
from tests.support.fix_service import token_for
from tests.support.model_client import ModelClient
from tests.support.waiting import wait_until
from tests.support.working_thread import WorkingThread

USER = "probe"
_PAUSE_SECONDS = 0.2
_GIVE_UP_SECONDS = 120.0
_SILENCE_SECONDS = 60.0  # the service sends a line every 20 seconds
_SLOW_CONNECT = 30.0


class _Client(ModelClient):
    """What the device has. `seen` is the write checkpoint and the ids in the ledger of its newest whole checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: tuple[int, frozenset[str]] = (0, frozenset())

    def _on_checkpoint_complete(self, value: dict[str, object]) -> None:
        assert value == {"last_op_id": str(self._last_op)}
        self._verify(list(self._wanted))
        for bucket in self.buckets.values():
            bucket.position = max(bucket.position, self._last_op)
        rows = (row for bucket in self.buckets.values() for row in bucket.rows)
        self.seen = self.write_checkpoint or self.seen[0], frozenset(row for table, row, _ in rows if table == LEDGER)
        self.completed += 1
        self.lines.clear()


class _Phone(WorkingThread):
    """Stays connected."""

    def __init__(self, endpoint: str) -> None:
        super().__init__("phone")
        self.client = _Client()
        self._endpoint = endpoint

    def work(self) -> None:
        while not self._ended.is_set():
            with suppress(httpx.TransportError):
                self._stay()
            self._ended.wait(0.2)

    def end(self) -> None:
        """The next line ends it."""
        self._ended.set()

    def _stay(self) -> None:
        with stream(self._endpoint, self.client) as response:
            if response.status_code != 200:  # no checkpoint yet
                return
            for line in response.iter_lines():
                self.client.receive(line.encode() + b"\n")
                if self._ended.is_set():
                    return


def stream(endpoint: str, client: ModelClient) -> Any:
    """A sync stream of the probe's user."""
    positions = [{"name": name, "after": str(after)} for name, after in client.connect().items()]
    body = {"raw_data": True, "include_checksum": True, "client_id": USER, "buckets": positions}
    timeout = httpx.Timeout(_SLOW_CONNECT, read=_SILENCE_SECONDS)
    return httpx.stream("POST", f"{endpoint}/sync/stream", json=body, headers=_headers(), timeout=timeout)


def _headers() -> dict[str, str]:
    return {"authorization": f"Token {token_for(USER)}"}


class _Prober(WorkingThread):
    """Writes to one source after the other."""

    def __init__(self, probe: Probe, sides: Sequence[Side]) -> None:
        super().__init__("prober")
        self._probe = probe
        self._sides = sides

    def work(self) -> None:
        while not self._ended.is_set():
            for side in self._sides:
                if not self._ended.wait(_PAUSE_SECONDS):
                    self._probe.one(side, self._ended)


class Probe:
    """A context manager that ends it. `waits` has, by source, for how many seconds rows were on their way in the round,
    from the commit until they and their write checkpoint were on the device."""

    def __init__(self, endpoint: str, log: Log) -> None:
        self._endpoint = endpoint
        self._phone = _Phone(endpoint)
        self._log = log
        self._number = 0
        self._prober: _Prober | None = None
        self._faults: list[str] = []
        self.waits: defaultdict[str, list[float]] = defaultdict(list)

    def __enter__(self) -> Self:
        self._phone.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.pause()
        self._phone.end()

    def resume(self, sides: Sequence[Side]) -> None:
        """Begin to write to these sources."""
        self.waits.clear()
        self._prober = _Prober(self, sides)
        self._prober.start()

    def pause(self) -> None:
        """Write no more."""
        if self._prober is not None:
            self._prober.end()
            if self._prober.failure is not None:
                raise self._prober.failure
            self._prober = None

    def judge(self) -> None:
        """Raises StormFailed, if a write checkpoint came before its row, and what the device could not bear."""
        if self._phone.failure is not None:
            raise self._phone.failure
        for source, waits in sorted(self.waits.items()):
            self._log(f"probe of {source}: {len(waits)} rows, the slowest after {max(waits):.1f} s")
        if self._faults:
            raise StormFailed("\n  ".join(["a write checkpoint came too early", *self._faults]))

    def one(self, side: Side, ended: threading.Event) -> None:
        """Write to a source and wait for the row and its write checkpoint. If the source dies meanwhile, nothing."""
        try:
            name = self._write(side)
        except psycopg.Error:
            return
        began = time.monotonic()
        number = self._write_checkpoint(side.name, ended)
        while number and not ended.is_set():
            judged = EVERYTHING not in side.ledger.excluded  # told before its cause
            reached, rows = self._phone.client.seen
            if reached >= number:
                if name not in rows and judged and EVERYTHING not in side.ledger.excluded:
                    self._faults.append(f"{number} without {name!r}")
                self.waits[side.name].append(time.monotonic() - began)
                self._log(f"{name} is back after {self.waits[side.name][-1]:.1f} s")
                return
            if time.monotonic() > began + _GIVE_UP_SECONDS:
                raise StormFailed(f"{name!r} is not on the device after {_GIVE_UP_SECONDS:.0f} s")
            if self._phone.failure is not None:
                raise self._phone.failure
            ended.wait(0.01)
        self._log(
            f"{name} is not back after {time.monotonic() - began:.1f} s, {'with' if number else 'without'} a number"
        )

    def _write(self, side: Side) -> str:
        self._number += 1
        name = f"probe {self._number} of {side.name}"
        with psycopg.connect(side.setup.source.dsn, autocommit=True, connect_timeout=5) as conn:
            conn.execute(f"insert into {LEDGER} (id) values (%s)", [name])
        return name

    def _write_checkpoint(self, source: str, ended: threading.Event) -> int:
        """The number that stands for the end of this source's log now; 0 if it was not given until the end."""
        while not ended.is_set():
            with suppress(httpx.TransportError):
                answer = self.ask(source)
                if answer.status_code == 200:
                    return int(answer.json()["data"]["write_checkpoint"])
            ended.wait(0.2)
        return 0

    def ask(self, source: str) -> httpx.Response:
        """Ask for a write checkpoint of a source; of all, if it is empty."""
        params = {"client_id": USER, **({"source": source} if source else {})}
        return httpx.get(f"{self._endpoint}/write-checkpoint2.json", params=params, headers=_headers(), timeout=30)

    def check_waits(self, side: Side, other: Side) -> None:
        """A write checkpoint of a source is not given while its replicator is stopped, though rows of another come.
        Raises StormFailed."""
        side.setup.stop()
        self._write(side)
        number = int(self.ask(side.name).json()["data"]["write_checkpoint"])
        for name in (self._write(other) for _ in range(3)):
            wait_until(lambda n=name: n in self._phone.client.seen[1], f"{name!r} to be on the device")  # type: ignore[misc]
        if self._phone.client.seen[0] >= number:
            raise StormFailed(f"a write checkpoint of {side.name} was given while it is not followed")
        side.setup.start()

    def check_refused(self, away: str) -> None:
        """No write checkpoint is given that a source which is away would have to reach. Raises StormFailed."""
        for source in (away, ""):
            answer = self.ask(source)
            code = answer.json().get("error", {}).get("code") if answer.status_code != 200 else ""
            if (answer.status_code, code) != (503, "HW_6007"):
                raise StormFailed(f"a write checkpoint of {source or 'all'}: {answer.status_code} {answer.text[:300]}")

    def stale(self) -> Mapping[str, set[str]]:
        """By source, the codes of what a new connection is told of streams that show old rows."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        with stream(self._endpoint, ModelClient()) as response:
            if response.status_code == 200:
                first = json.loads(next(response.iter_lines()))
                for each in first["checkpoint"]["streams"]:
                    for error in each["errors"]:
                        found[error["source"]].add(error["code"])
        return found

    def wait_until_told(self, source: str, seconds: float) -> None:
        """Wait until devices are told that streams of this source show old rows."""
        wait_until(lambda: "HW_6008" in self.stale()[source], f"{source} to be named as stale", seconds, longest=2.0)
