"""What becomes of one thing in a deployment of the published service."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Fate(Enum):
    """In the order in which they are told."""

    TAKEN = "Taken over as it is"
    IGNORED = "Ignored, or read with a warning"
    CHANGE = "Has to change"
    NOTE = "Good to know"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One thing and its fate. `fix` says what to do, if anything."""

    fate: Fate
    area: str
    what: str
    fix: str = ""
