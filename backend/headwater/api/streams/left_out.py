"""What devices go without, from one connection to the next."""

from __future__ import annotations

import threading
from collections import OrderedDict

MOST_KEYS = 100_000
"""Subscriptions that are remembered, of all devices: those of who connected longest ago are forgotten first."""


class LeftOutMemory:
    """The keys of the subscriptions that did not fit into a device's limits when it was answered last, so that they do
    not come and go with its connections. Of one process, bounded, and safe to use from several threads."""

    def __init__(self, most: int = MOST_KEYS) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._held: OrderedDict[str, tuple[int, frozenset[str]]] = OrderedDict()
        self._keys = 0

    def of(self, device: str, config_id: int) -> frozenset[str]:
        """What a device went without under this sync config; nothing under another one."""
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
