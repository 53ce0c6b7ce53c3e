"""Lists the fixtures: every `tests/support/fix_*.py` is a plugin."""

from __future__ import annotations

from pathlib import Path

pytest_plugins = [f"tests.support.{file.stem}" for file in sorted(Path(__file__).parent.glob("support/fix_*.py"))]
