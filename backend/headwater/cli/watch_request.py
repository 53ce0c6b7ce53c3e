"""Shows progress while a command waits for work of another process."""

from __future__ import annotations

import time

import click
from rich.console import Console
from rich.status import Status

_LINE_SECONDS = 5.0


class WaitDisplay:
    """Shows what is waited for: a changing line on a terminal, a line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status: Status | None = None
        self._said = ""
        self._said_at = 0.0

    def __enter__(self) -> WaitDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, text: str) -> None:
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(text)
                self._status.start()
            self._status.update(text)
        elif text != self._said and (not self._said or time.monotonic() - self._said_at >= _LINE_SECONDS):
            self._said, self._said_at = text, time.monotonic()
            click.echo(f"waiting: {text}", err=True)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
