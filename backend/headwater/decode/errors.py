"""The error of this package: bytes or text from the source that can't be decoded."""

from __future__ import annotations

from headwater.errors import HeadwaterError


class DecodeError(HeadwaterError):
    """A message, row line or value of the source can't be decoded. Names type and position, never a value.

    The kind is STOP, because going on would lose a change; a caller that may skip one has to decide so.
    """

    code = "HW_3001"


def not_utf8(table: str, row: str, column: str) -> str:
    """The log line for a row with text that is not UTF-8, which a database of the encoding SQL_ASCII may hold."""
    return (
        f"[HW_3002] a row has text that is not UTF-8 and is left out: no device gets it ({table}, row {row}, column "
        f"{column}); write the text in UTF-8 in the source"
    )
