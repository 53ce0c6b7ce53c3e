"""Remembers which subscriptions did not fit into a device's limits, from one connection to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict

MOST_KEYS = 100_000
"""The most subscriptions that are remembered, of all devices. Those of the device that connected longest ago are
forgotten first."""


class LeftOutMemory:
    """The keys of the subscriptions that did not fit into a device's limits when it was answered last, so that each new
    connection leaves out the same ones. Per process, and safe to use from several threads."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[str, tuple[int, frozenset[str]]] = OrderedDict()
        self._keys = 0

    def of(self, device: str, config_id: int) -> frozenset[str]:
        """The keys that were left out for a device under this sync config; none under another one."""
        with self._lock:
            held, keys = self._held.get(device, (config_id, frozenset[str]()))
            return keys if held == config_id else frozenset()

    def put(self, device: str, config_id: int, keys: frozenset[str]) -> None:
        with self._lock:
            self._drop(device)
            if keys:
                self._held[device] = config_id, keys
                self._keys += len(keys)
            while self._keys > self._most:
                self._drop(next(iter(self._held)))

    def _drop(self, device: str) -> None:
        _, keys = self._held.pop(device, (0, frozenset[str]()))
        self._keys -= len(keys)
