"""The version of this package, which is sent to servers."""

from __future__ import annotations

VERSION = "0.1.0"
