"""The base error, and the four decisions that a caller can take on one.

Every error says what happened, where, and what to do, and carries a stable code: the published `PSYNC_…` code
where one exists, a `HW_…` code of our own elsewhere. Errors are picklable, because Spark ships them between
processes, and never carry a cell value or a secret.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar


class Kind(Enum):
    """What the caller should do about an error."""

    RETRY = "retry"  # the outside world failed; the same call may succeed later
    STOP = "stop"  # a person has to change something first
    RESYNC = "re-sync"  # our copy can no longer follow by the stream alone
    REJECT = "reject"  # this one input is bad; everything else goes on


class HeadwaterError(Exception):
    """Base of every error of ours; raise a subclass.

    `what` happened, `where` it happened (a file, a table, a setting), and the `fix`: the next step of whoever reads it.
    """

    kind: ClassVar[Kind] = Kind.STOP
    code: ClassVar[str] = "HW_0000"

    def __init__(self, what: str, where: str = "", fix: str = "") -> None:
        super().__init__(what, where, fix)  # args are what pickle replays
        self.what = what
        self.where = where
        self.fix = fix

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        remedy = f"; {self.fix}" if self.fix else ""
        return f"[{self.code}] {self.what}{place}{remedy}"
