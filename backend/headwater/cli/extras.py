"""The error of a command that needs Spark in an installation without it."""

from __future__ import annotations

from headwater.errors import HeadwaterError

_OF_SPARK = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})


class NoSparkError(HeadwaterError):
    """The command does bulk work, but the packages for it are not installed."""

    code = "HW_8003"


def missing_extra(error: Exception) -> NoSparkError | None:
    """The error to print for a failed import, if an extra provides the missing package."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package not in _OF_SPARK:
        return None
    return NoSparkError("this command needs Spark", package, "run pip install 'headwater[spark]'")
