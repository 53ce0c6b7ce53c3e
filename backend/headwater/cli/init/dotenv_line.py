"""Writes a line of a .env file so that its readers agree on the value: ours and Docker Compose's.

Both have quotes and escapes, and mean different things by them: within '…' only ours knows escapes, Compose has
variables without quotes, and its versions differ within "…", which is therefore not used.
"""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[\w.~+/=@:%,-]+", re.ASCII)
_LITERAL = re.compile(r"(?:[^'\\\r\n]|\\[^'\\\r\n])*")
"""What means itself between single quotes: a backslash only before what it does not escape."""
_BARE = re.compile(r"[^\s'\"#$](?:[^#$\r\n]*[^\s#$])?")
"""What means itself without quotes: no comment, no variable, and nothing that is trimmed."""
_NOTE = "# Headwater reads this as it was given; Docker Compose, if it reads this file, does not.\n"


def dotenv_line(name: str, value: str) -> str:
    """`NAME=value`, with a comment above it where no form of it means the same to both."""
    if _PLAIN.fullmatch(value):
        return f"{name}={value}\n"
    if _LITERAL.fullmatch(value):
        return f"{name}='{value}'\n"
    if _BARE.fullmatch(value):
        return f"{name}={value}\n"
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"{_NOTE}{name}='{escaped}'\n"
