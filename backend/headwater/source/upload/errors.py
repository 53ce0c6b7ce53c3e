"""Why an upload is not applied: the transaction is bad and parked (Refused), an operator has to fix something, or the
device should send it again later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwater.errors import HeadwaterError, Kind

MOST_SAID = 1000
"""Characters of a message of Postgres that are kept: it may quote a value of any size."""


class Refused(HeadwaterError):
    """This transaction can't be applied, however often it is sent. Raise a subclass.

    `op_id` is the entry that failed, if known. `sqlstate` and `said` come from Postgres. `said` may contain a value of
    the row, so it goes to the device and the dead letter, never to a log.
    """

    kind: ClassVar[Kind] = Kind.REJECT

    def __init__(
        self,
        what: str,
        where: str = "",
        fix: str = "",
        *,
        sqlstate: str = "",
        said: str = "",
        op_id: int | None = None,
    ) -> None:
        super().__init__(what, where, fix)
        self.sqlstate = sqlstate
        self.said = said
        self.op_id = op_id

    @property
    def reason(self) -> Reason:
        """The refusal as the device and the dead letter get it."""
        place = f" ({self.where})" if self.where else ""
        said = f": {self.said[:MOST_SAID]}" if self.said else ""
        message = f"{self.what}{place}{said}{f'; {self.fix}' if self.fix else ''}"
        return Reason(self.code, self.sqlstate, message, self.op_id)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a transaction is parked, as its dead letter keeps it. `message` may contain a value of the row."""

    code: str
    sqlstate: str
    message: str
    op_id: int | None


class WriteNotAllowed(Refused):
    """A write to a table or column, or with an operation, that `upload.tables` does not allow."""

    code: ClassVar[str] = "HW_6110"


class BadEntry(Refused):
    """An uploaded entry is malformed, or has a value that its column can't hold."""

    code: ClassVar[str] = "HW_6111"


class ChangedMeanwhile(Refused):
    """The row changed since the device read it, and the table's conflict policy is `reject_changed`."""

    code: ClassVar[str] = "HW_6112"


class RowGone(Refused):
    """An update of a row that does not exist, or that this user can't see."""

    code: ClassVar[str] = "HW_6113"


class PolicyRefused(Refused):
    """Row-level security or a trigger prevented an update or delete of a row that the user can see."""

    code: ClassVar[str] = "HW_6114"


class OpIdReused(Refused):
    """The device used this op id before, for another change. Its database was probably restored from a copy."""

    code: ClassVar[str] = "HW_6115"


class OpIdTooOld(Refused):
    """The op id is older than what is remembered of this device, so it is unknown whether it was applied."""

    code: ClassVar[str] = "HW_6116"


class PostgresRefused(Refused):
    """Postgres refused the write: a constraint, a policy, a value, a missing right, or an error in a function."""

    code: ClassVar[str] = "HW_6117"


class NotPrepared(HeadwaterError):
    """The tables that uploads need are missing in the source, or the login may not use or create them."""

    code: ClassVar[str] = "HW_6120"


class UnsafeRole(HeadwaterError):
    """The role that uploads write as does not exist, the login may not switch to it, or row-level security does not
    apply to it."""

    code: ClassVar[str] = "HW_6121"


class TableNotReady(HeadwaterError):
    """A table of `upload.tables` can't be written as configured."""

    code: ClassVar[str] = "HW_6122"


class TooManyLetters(HeadwaterError):
    """A user has so many dead letters, or so many bytes of them, that no more transactions are parked until an operator
    retries or discards some."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_6124"


class TooManyDevices(HeadwaterError):
    """A user has as many devices as are remembered of one user, and all of them sent something lately. Uploads of
    further ones wait."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_6125"


class TryLater(HeadwaterError):
    """The source can't apply the upload now: a lock, a deadlock, a lost connection. Sending it again may succeed."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_6130"
