"""Lists the fixtures: every `tests/support/fix_*.py` is a plugin. Sets how hypothesis works."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# Dozens of short-lived JVMs spend most of their time on optimising code that is hardly run
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# How fast examples come says something of the machine and what else it does, nothing of the code
settings.register_profile("headwater", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headwater")

pytest_plugins = [f"tests.support.{file.stem}" for file in sorted(Path(__file__).parent.glob("support/fix_*.py"))]
