"""The errors of commands that need packages which not every installation has."""

from __future__ import annotations

from headwater.embedded.extras import how_to_add
from headwater.errors import HeadwaterError

_OF_SPARK = frozenset({"pyspark", "py4j", "pyarrow", "pandas", "numpy"})


class NoSparkError(HeadwaterError):
    """The command does bulk work, but the packages for it are not installed."""

    code = "HW_8003"


class NoTracesError(HeadwaterError):
    """Traces are to be sent, but the packages for it are not installed."""

    code = "HW_8004"


def missing_extra(error: Exception) -> HeadwaterError | None:
    """The error to print for a failed import, if an extra provides the missing package."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in _OF_SPARK:
        return NoSparkError("this command needs Spark", package, how_to_add("spark"))
    if package == "opentelemetry":
        fix = f"{how_to_add('otel')}; or set OTEL_SDK_DISABLED=true to send none"
        return NoTracesError("traces are configured, and need OpenTelemetry", package, fix)
    return None
