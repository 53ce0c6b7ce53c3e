"""Measures the size of the store, at a limited rate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headwater.errors import HeadwaterError
from headwater.storage.contract.stats import Disk

SECONDS = 60.0
"""The least time between two measurements."""

_SHARE = 0.01
"""The most of all time that measuring may take: it reads a part of every page of an embedded store."""

log = logging.getLogger(__name__)


class StoreSizes:
    """Keeps the last measurement, and starts a new one in a thread when that is due."""

    def __init__(self, measure: Callable[[], Disk], now: Callable[[], float] = time.monotonic) -> None:
        self._measure = measure
        self._now = now
        self._lock = threading.Lock()
        self._due = now()
        self._known: Disk | None = None

    def known(self) -> Disk | None:
        """The last measurement; None before the first one. Does not wait for a new one."""
        with self._lock:
            if self._now() >= self._due:
                self._due = float("inf")
                threading.Thread(target=self._run, name="headwater-sizes", daemon=True).start()
        return self._known

    def _run(self) -> None:
        began = self._now()
        try:
            self._known = self._measure()
        except HeadwaterError as error:
            log.warning("the size of the store is not known: %s", error)
        except Exception:
            log.exception("the size of the store could not be measured")
        finally:
            took = self._now() - began
            self._due = self._now() + max(SECONDS, took / _SHARE)
