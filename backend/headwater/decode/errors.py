"""The one error of this package: bytes or text from the source that do not read as what they should be."""

from __future__ import annotations

from typing import ClassVar

from headwater.errors import HeadwaterError


class DecodeError(HeadwaterError):
    """A message, row line or value of the source that cannot be read. Names type and position, never a value.

    The kind is stop, because going on would lose a change; a caller that may skip one does so knowingly.
    """

    code: ClassVar[str] = "HW_3001"
