"""Devices at the endpoints: each stays connected, goes to another endpoint when its own dies, and notes when it heard
what."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence

import httpx

from tests.support.fix_service import token_for
from tests.support.model_client import ModelClient
from tests.support.model_device import contents
from tests.support.working_thread import WorkingThread

_TURN_SECONDS = 0.05
_SILENCE_SECONDS = 60.0  # the service sends a line every 20 seconds


class Client(ModelClient):
    """What a device has. `heard` has when a beat was in a complete checkpoint for the first time, on the monotonic
    clock: of beat 1 at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[float] = []

    def _on_checkpoint_complete(self, value: dict[str, object]) -> None:
        """Checksums are verified at each; rows are read at the end only, which costs much."""
        assert value == {"last_op_id": str(self._last_op)}
        self._verify(list(self._wanted))
        for bucket in self.buckets.values():
            bucket.position = max(bucket.position, self._last_op)
        beats = {int(row) for bucket in self.buckets.values() for table, row, _ in bucket.rows if table == "beats"}
        count = len(beats)
        assert count == max(beats, default=0), "with a commit, a device has all before it"
        assert count >= len(self.heard), "nothing is taken back"
        self.heard += [time.monotonic()] * (count - len(self.heard))
        self.completed += 1
        self.lines.clear()


class Device(WorkingThread):
    """A user's device, whose first endpoint is at `first` of `endpoints`."""

    def __init__(self, user: str, endpoints: Sequence[str], first: int) -> None:
        super().__init__(f"device of {user}")
        self.user = user
        self.client = Client()
        self._endpoints = itertools.islice(itertools.cycle(endpoints), first, None)

    def work(self) -> None:
        while not self._ended.is_set():
            try:
                self._stay(next(self._endpoints))
            except httpx.TransportError:
                self._ended.wait(_TURN_SECONDS)

    def _stay(self, endpoint: str) -> None:
        positions = [{"name": name, "after": str(after)} for name, after in self.client.connect().items()]
        body = {"raw_data": True, "include_checksum": True, "client_id": self.user, "buckets": positions}
        headers = {"authorization": f"Token {token_for(self.user)}", "accept-encoding": "gzip"}
        timeout = httpx.Timeout(10.0, read=_SILENCE_SECONDS)
        with httpx.stream("POST", f"{endpoint}/sync/stream", json=body, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:  # no checkpoint yet
                self._ended.wait(1.0)
                return
            for line in response.iter_lines():
                self.client.receive(line.encode() + b"\n")
                if self._ended.is_set():
                    return

    def end(self) -> None:
        """The next line ends it."""
        self._ended.set()

    def rows(self) -> dict[tuple[str, str], str]:
        """What it shows: by table and id, the row as text that does not depend on the order of columns."""
        shown = contents(self.client.buckets.values())
        return {key: json.dumps(row, sort_keys=True) for key, row in shown.items()}
