"""A thread that works beside a test until it is told to end."""

from __future__ import annotations

import threading


class WorkingThread(threading.Thread):
    """Does `work`. `failure` is what it could not go on with: whoever started the thread looks at it."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.failure: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - told to whoever looks
            self.failure = error

    def work(self) -> None:
        """Work until `_ended` is set, or there is nothing more to do."""
        raise NotImplementedError

    def end(self) -> None:
        """When this returns, it does nothing more."""
        self._ended.set()
        if self.ident is not None:
            self.join(60)
