"""How large the store is, measured now and then."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from headwater.errors import HeadwaterError
from headwater.storage.contract.stats import Disk

SECONDS = 60.0
"""Between two measurements at least."""

_SHARE = 0.01
"""Of the time that measuring takes at most: of the embedded store, it reads a part of every page."""

log = logging.getLogger(__name__)


class StoreSizes:
    """Measures when it is asked, from a thread of its own, unless it did so a moment ago."""

    def __init__(self, measure: Callable[[], Disk], now: Callable[[], float] = time.monotonic) -> None:
        self._measure = measure
        self._now = now
        self._lock = threading.Lock()
        self._due = now()
        self._known: Disk | None = None

    def known(self) -> Disk | None:
        """What was measured last; None before the first time."""
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
