"""Counts what is done within one turn of an event loop, during which nobody else is served."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass
class Calls:
    """How often something was called: in all, and at most in one turn."""

    all: int = 0
    most: int = 0
    _now: int = 0

    def note(self) -> None:
        if self._now == 0:
            asyncio.get_running_loop().call_soon(self._next)
        self.all += 1
        self._now += 1
        self.most = max(self.most, self._now)

    def _next(self) -> None:
        self._now = 0


def in_each_turn(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Calls:
    """Count the calls of a method from here on."""
    calls, method = Calls(), getattr(owner, name)

    def counted(*given: Any) -> Any:
        calls.note()
        return method(*given)

    monkeypatch.setattr(owner, name, counted)
    return calls
