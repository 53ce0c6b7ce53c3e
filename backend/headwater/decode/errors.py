"""The error of this package: bytes or text from the source that can't be decoded."""

from __future__ import annotations

from typing import ClassVar

from headwater.errors import HeadwaterError


class DecodeError(HeadwaterError):
    """A message, row line or value of the source can't be decoded. Names type and position, never a value.

    The kind is STOP, because going on would lose a change; a caller that may skip one has to decide so.
    """

    code: ClassVar[str] = "HW_3001"
