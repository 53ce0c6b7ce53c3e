"""Lists the fixtures: every `tests/support/fix_*.py` is a plugin. Sets how hypothesis works, and where files go."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
from hypothesis import HealthCheck, settings

from tests.support.examples import examples

# Dozens of short-lived JVMs spend most of their time on optimising code that is hardly run
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Nothing that tests write is to outlive the machine, and memory is a quarter quicker than a disk. A run takes some
# 5 GB, so only where there is plenty
_MEMORY, _PLENTY = Path("/dev/shm"), 12 << 30
if _MEMORY.is_dir():
    _there = os.statvfs(_MEMORY)
    _room = min(_there.f_bavail * _there.f_frsize, psutil.virtual_memory().available)
    if _room >= _PLENTY and not _there.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# Who starts us in the background of a shell has us ignore SIGINT, and so would the commands that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How fast examples come says something of the machine and what else it does, nothing of the code
settings.register_profile(
    "headwater", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("headwater")

pytest_plugins = [f"tests.support.{file.stem}" for file in sorted(Path(__file__).parent.glob("support/fix_*.py"))]
