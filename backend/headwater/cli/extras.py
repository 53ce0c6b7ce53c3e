"""What an installation without Spark says of a command that needs it."""

from __future__ import annotations

from headwater.errors import HeadwaterError

_OF_SPARK = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})


class NoSparkError(HeadwaterError):
    """The command does bulk work, and the packages for that are not installed."""

    code = "HW_8003"


def missing_extra(error: Exception) -> NoSparkError | None:
    """What to tell about an import that failed, if an extra brings what it misses."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package not in _OF_SPARK:
        return None
    return NoSparkError("this command needs Spark", package, "run pip install 'headwater[spark]'")
