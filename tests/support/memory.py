"""How much memory a process took at most; this one, since it was last asked to forget."""

from __future__ import annotations

from pathlib import Path

_FORGET = Path("/proc/self/clear_refs")


def forget_peak() -> int:
    """Let the peak begin anew; returns the bytes that are resident now."""
    _FORGET.write_text("5")
    return _value("self", "VmRSS")


def peak(pid: int | None = None) -> int:
    """The most bytes that were resident since, of this process or another."""
    return _value("self" if pid is None else str(pid), "VmHWM")


def _value(process: str, name: str) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10
