"""Why an upload is not applied, by who can mend it: the user, whose write is refused and parked (UploadRefusedError);
the operator or the app's developer, for whom it waits (UploadBlockedError); or nobody, since it passes
(UploadRetryError)."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

import psycopg

from headwater.errors import HeadwaterError

BY_POSTGRES, BY_APP = "HW_6117", "HW_6140"
"""Codes of what Postgres refuses for its content, and of what a function of the app refuses by RAISE."""

MOST_SAID = 1000
"""Characters of a message of Postgres that are kept: it may quote a value of any size."""


class UploadRefusedError(HeadwaterError):
    """This transaction can't be applied, however often it is sent.

    `op_id` is the entry that failed, if known. `sqlstate` and `said` come from Postgres. `said` may contain a value of
    the row, so it goes to the device and the dead letter, never to a log.
    """

    def __init__(
        self,
        what: str,
        where: str = "",
        fix: str = "",
        *,
        code: str = "",
        sqlstate: str = "",
        said: str = "",
        op_id: int | None = None,
    ) -> None:
        super().__init__(what, where, fix, code=code)
        self.sqlstate = sqlstate
        self.said = said
        self.op_id = op_id

    @property
    def reason(self) -> Reason:
        """The refusal as the device and the dead letter get it."""
        if self.code == BY_APP:  # its message is meant for the user, and shown as it is
            return Reason(self.code, self.sqlstate, self.said[:MOST_SAID], self.op_id)
        place = f" ({self.where})" if self.where else ""
        said = f": {self.said[:MOST_SAID]}" if self.said else ""
        message = f"{self.what}{place}{said}{f'; {self.fix}' if self.fix else ''}"
        return Reason(self.code, self.sqlstate, message, self.op_id)


class Reason(NamedTuple):
    """Why a transaction is parked, as its dead letter keeps it. `message` may contain a value of the row."""

    code: str
    sqlstate: str
    message: str
    op_id: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """How long a transaction has been held back: `tries` for the same cause, and `hours` for any."""

    tries: int
    hours: float


class UploadBlockedError(UploadRefusedError):
    """This transaction can't be applied before an operator or the app's developer mends something. It is not parked
    until it has waited for long."""

    def is_over(self, held: Held, park_after_hours: int) -> bool:
        """Whether it has waited long enough, so that it is parked."""
        return held.hours >= park_after_hours


class WriteFailedError(UploadBlockedError):
    """Postgres fails to do the write, through no fault of its values: a missing grant or default, a broken policy,
    trigger or function."""

    code = "HW_6132"
    verb: str = "SELECT"  # what it may lack the right for: a policy selects, a trigger does what its statement says


class WriteTimeoutError(UploadBlockedError):
    """The writes of one transaction, or a statement of them, take longer than the time limit. It is tried again, and
    parked when that fails `seconds` or more after the first time: a source that is slow for a moment is no reason."""

    code = "HW_6119"

    def __init__(self, what: str, *, fix: str, seconds: float) -> None:
        super().__init__(what, fix=fix)
        self._seconds = seconds

    def is_over(self, held: Held, park_after_hours: int) -> bool:
        return held.tries > 1 and held.hours * 3600 >= self._seconds


class UploadRetryError(HeadwaterError):
    """The source can't apply the upload now: a lock, a deadlock, a lost connection. Sending it again may succeed."""

    code = "HW_6130"
    held_up: bool = False  # it waited for a lock, or ran, for as long as it may


class Mender(Enum):
    """Who can mend an error of Postgres."""

    USER = "user"
    OPERATOR = "operator"
    NOBODY = "nobody"  # it passes


_PASSES: Final = (
    "08",  # connections
    "40",  # deadlocks, serialization
    "53",  # full disk, memory, connections
    "57",  # time-outs, shutdowns
    "58000", "58030",  # input and output
    "72",  # an old snapshot
    "25006", "25P03", "25P04",  # read-only; other time-outs of transactions
    "55006", "55P03",  # locks
)  # fmt: skip

_OPERATORS: Final = (
    "0", "20", "21", "24", "25", "26", "27", "28", "2B", "2D", "2F", "3", "42", "F0", "HV", "XX",
    "2200H",  # a sequence is used up
    "54001",  # triggers that call each other without end
    "55", "58",
    "P0004",  # an assertion of a function
)  # fmt: skip
"""SQLSTATEs of what is wrong with the schema, rights, policies or functions. All others are about this write: data
exceptions (22), constraints (23), sizes (54), and what functions raise, with codes of their own too."""

_RAISED: Final = "exec_stmt_raise"
_POLICY: Final = "ExecWithCheckOptions"
"""Functions of Postgres that report an error: RAISE of PL/pgSQL, and the check of a new row against the policies. They
are told in every language, and tell a refusal from a missing grant, which has the same SQLSTATE."""


def mender_of(error: psycopg.Error, nulls: Container[str] = ()) -> Mender:
    """Who can mend an error of a write that sets these columns to null."""
    state, diag = error.sqlstate, error.diag
    if state is None:
        return Mender.NOBODY if isinstance(error, psycopg.OperationalError) else Mender.USER
    if state.startswith(_PASSES) and state != "40002":
        return Mender.NOBODY
    if diag.source_function == _RAISED:
        return Mender.USER
    if diag.source_function == _POLICY:  # of what the device writes, or of what a function writes in its stead
        return Mender.OPERATOR if diag.context else Mender.USER
    if state == MUST_NOT_BE_NULL and diag.column_name not in nulls:  # it is not sent, and has no default
        return Mender.OPERATOR
    if state == "23514" and diag.constraint_name is None:  # no partition takes the row
        return Mender.OPERATOR
    return Mender.OPERATOR if state.startswith(_OPERATORS) else Mender.USER


def refused_by_postgres(
    error: psycopg.Error, table: str = "", nulls: Container[str] = (), op_id: int | None = None
) -> UploadRefusedError:
    """Turn an error of Postgres that does not pass into ours. `what` names only the condition, and objects of the
    schema; `said` is Postgres' own message, which may contain a value of the row."""
    said, context = error.diag.message_primary or "", error.diag.context or ""
    place, state = _place(error), error.sqlstate or ""
    if mender_of(error, nulls) is Mender.USER:
        return refused_for_values(error, op_id)
    # messages of class 42 name objects of the schema, and no values unless a function made SQL of them
    named, said = (f": {printable(said)}", "") if state.startswith("42") and "EXECUTE" not in context else ("", said)
    what = f"Postgres can't do this write: {name_of(error)}{named}"
    by_policy = error.diag.source_function == _POLICY
    fix = (_BEHIND if by_policy else _FIXES.get(state, _MEND)).format(table=place or table)
    failed = WriteFailedError(what, table or place, fix, sqlstate=state, said=said, op_id=op_id)
    if by_policy:
        failed.verb = ""
    elif verb := re.search(r"\b(insert|update|delete)\b", context, re.IGNORECASE):
        failed.verb = verb[0].upper()
    return failed


def refused_for_values(error: psycopg.Error, op_id: int | None) -> UploadRefusedError:
    """An error of Postgres that the user has to know."""
    code = BY_APP if error.diag.source_function == _RAISED else BY_POSTGRES
    what, said = f"Postgres refused the write: {name_of(error)}", error.diag.message_primary or ""
    return UploadRefusedError(what, _place(error), code=code, sqlstate=error.sqlstate or "", said=said, op_id=op_id)


def _place(error: psycopg.Error) -> str:
    """What of the schema the error is about, if it says so."""
    diag = error.diag
    names = (diag.schema_name, diag.table_name, diag.constraint_name or diag.column_name or diag.datatype_name)
    return ".".join(name for name in names if name)


def failed_in_policy(error: psycopg.Error, table: str, op_id: int) -> WriteFailedError:
    """An error with one of the UNREADABLE codes that no value of the write explains."""
    what = f"a policy or default of the table fails: {name_of(error)}"
    fix = f"{_MEND}: such as a claim of the token that is cast to a type which it does not have"
    return WriteFailedError(what, table, fix, sqlstate=error.sqlstate or "", op_id=op_id)


UNREADABLE: Final = ("22P02", "22007", "22008", "22023")
"""A text could not be read as a value of some type, or a value had the wrong form: as a rule one of the write's."""

MUST_NOT_BE_NULL: Final = "23502"
NOT_ALLOWED: Final = "42501"

_MEND: Final = "mend the table's policies, triggers, defaults or functions"
_BEHIND: Final = "give that table a policy for what the trigger writes, or make the trigger's function SECURITY DEFINER"
_FIXES: Final = {
    MUST_NOT_BE_NULL: "give the column {table} a default (ALTER TABLE … ALTER COLUMN … SET DEFAULT …), or have the app"
    " send it",
    "23514": "create the partition that takes the row (CREATE TABLE … PARTITION OF {table} …)",
    NOT_ALLOWED: "grant the upload role what it lacks",
    "42704": "create it; a setting that a policy reads may be missing with current_setting(…, true)",
    "42883": "create the function again, or correct the policy, trigger or default that calls it",
    "42P17": "mend the policies that need each other; a SECURITY DEFINER function ends the recursion",
    "2200H": "ALTER SEQUENCE … MAXVALUE …, or give the column a larger type",
}


def printable(text: str) -> str:
    """The text for terminals and logs: characters that are not printable are escaped."""
    return "".join([each if each.isprintable() else ascii(each)[1:-1] for each in text])


def name_of(error: psycopg.Error) -> str:
    """The condition, such as `CheckViolation (23514)`. Never contains a value of the row."""
    state = f" ({error.sqlstate})" if error.sqlstate else ""
    return f"{type(error).__name__}{state}"
