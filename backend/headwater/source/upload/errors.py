"""Why an upload is not applied: this transaction is bad (parked), a person has to mend something, or later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headwater.errors import HeadwaterError, Kind


class Refused(HeadwaterError):
    """This transaction can't be applied, however often it is sent. Raise a subclass.

    `op_id` is the entry that fails, if one is known. `sqlstate` and `said` are Postgres' words; those may have a value
    of the row, so they are for the device and the dead letter, and never for a log.
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
        """For the device and the dead letter."""
        place = f" ({self.where})" if self.where else ""
        message = f"{self.what}{place}{f': {self.said}' if self.said else ''}{f'; {self.fix}' if self.fix else ''}"
        return Reason(self.code, self.sqlstate, message, self.op_id)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a transaction is parked, as its dead letter tells. May have a value of the row in it."""

    code: str
    sqlstate: str
    message: str
    op_id: int | None


class WriteNotAllowed(Refused):
    """A table, operation or column that `upload.tables` does not allow."""

    code: ClassVar[str] = "HW_6110"


class BadEntry(Refused):
    """An entry of an upload that makes no sense, or a value that no column can take."""

    code: ClassVar[str] = "HW_6111"


class ChangedMeanwhile(Refused):
    """The row is not as the device knew it, and the table's policy is to reject that."""

    code: ClassVar[str] = "HW_6112"


class RowGone(Refused):
    """An update of a row that is not there, or that this user does not see."""

    code: ClassVar[str] = "HW_6113"


class PolicyRefused(Refused):
    """An update or delete that row-level security, or a trigger, left undone for a row that the user sees."""

    code: ClassVar[str] = "HW_6114"


class OpIdReused(Refused):
    """An op id that this device used before, for something else: its database was restored from a copy."""

    code: ClassVar[str] = "HW_6115"


class OpIdTooOld(Refused):
    """An op id from before what is remembered of this device: nobody knows whether it was applied."""

    code: ClassVar[str] = "HW_6116"


class PostgresRefused(Refused):
    """Postgres does not take the write: a constraint, a policy, a value, a right, or an error of a function."""

    code: ClassVar[str] = "HW_6117"


class NotPrepared(HeadwaterError):
    """What uploads need is not in the source yet, or the login may not use it."""

    code: ClassVar[str] = "HW_6120"


class UnsafeRole(HeadwaterError):
    """The role that uploads write as is not there, or row-level security does not bind it."""

    code: ClassVar[str] = "HW_6121"


class TableNotReady(HeadwaterError):
    """A table of `upload.tables` can't be written as configured."""

    code: ClassVar[str] = "HW_6122"


class TooManyLetters(HeadwaterError):
    """So many of a user's transactions wait as dead letters that no more are put aside: an operator has to look."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_6124"


class TryLater(HeadwaterError):
    """The source does not take the upload now: a lock, a deadlock, a lost connection. Sent again, it may go well."""

    kind: ClassVar[Kind] = Kind.RETRY
    code: ClassVar[str] = "HW_6130"
