"""Deleting dropped generations in a background thread, because it may take long."""

from __future__ import annotations

import logging
import threading

from headwater.errors import HeadwaterError
from headwater.storage.postgres import tables
from headwater.storage.postgres.connection import Connections

_log = logging.getLogger(__name__)


class Sweeper:
    """Runs `tables.sweep` on demand. What one run leaves, the next one deletes."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Request a run."""
        self._wanted.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="store sweeper", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            if self._closing.is_set():
                return
            try:
                with self._connections.lend() as connection:
                    tables.sweep(connection, self._closing)
            except HeadwaterError as error:
                _log.info("old rows will be deleted later: %s", error)

    def close(self) -> None:
        self._closing.set()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()
