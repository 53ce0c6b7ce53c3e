"""The admin tokens, and what their holders may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

LONGEST_NAME: Final = 100


class Role(StrEnum):
    """What an operator may do: see everything, or also change it."""

    VIEW = "view"
    EDIT = "edit"


@dataclass(frozen=True, slots=True)
class AdminToken:
    """A token of the admin API, what its holder may do, and what the holder is called, if that is known."""

    text: str = field(repr=False)
    role: Role = Role.EDIT
    name: str = ""


@dataclass(frozen=True, slots=True)
class Operator:
    """Who sent a request. `until` is when the session ends, in seconds since 1970; a token ends with the config.
    `ended` says whether the session has ended meanwhile, maybe before."""

    name: str
    role: Role
    until: float | None = None
    ended: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)
