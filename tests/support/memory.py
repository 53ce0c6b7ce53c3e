"""How much memory this process took at most, since it was last asked to forget."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")
_FORGET = Path("/proc/self/clear_refs")


def forget_peak() -> int:
    """Let the peak begin anew; returns the bytes that are resident now."""
    _FORGET.write_text("5")
    return _value("VmRSS")


def peak() -> int:
    """The most bytes that were resident since."""
    return _value("VmHWM")


def _value(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10
