"""Remembers which subscriptions did not fit into a device's limits, from one connection to the next."""

from __future__ import annotations

import hashlib
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
        self._held: OrderedDict[bytes, tuple[int, frozenset[str]]] = OrderedDict()
        self._keys = 0

    def of(self, device: str, config_id: int) -> frozenset[str]:
        """The keys that were left out for a device under this sync config; none under another one."""
        with self._lock:
            held, keys = self._held.get(_name(device), (config_id, frozenset[str]()))
            return keys if held == config_id else frozenset()

    def put(self, device: str, config_id: int, keys: frozenset[str]) -> None:
        with self._lock:
            self._drop(name := _name(device))
            if keys:
                self._held[name] = config_id, keys
                self._keys += len(keys)
            while self._keys > self._most:
                self._drop(next(iter(self._held)))

    def _drop(self, name: bytes) -> None:
        _, keys = self._held.pop(name, (0, frozenset[str]()))
        self._keys -= len(keys)


def _name(device: str) -> bytes:
    """A short name for a device: clients choose ids of up to a kilobyte."""
    return hashlib.blake2b(device.encode(), digest_size=16).digest()
