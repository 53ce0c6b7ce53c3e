"""The languages that client schemas are written in."""

from __future__ import annotations

from enum import StrEnum


class Language(StrEnum):
    """The languages of client SDKs, Python as plain data for `headwater-client`, and SQL for reading."""

    TS = "ts"
    DART = "dart"
    KOTLIN = "kotlin"
    SWIFT = "swift"
    PYTHON = "python"
    SQL = "sql"
