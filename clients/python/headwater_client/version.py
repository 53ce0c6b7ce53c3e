"""The version of this package, which servers are told."""

from __future__ import annotations

VERSION = "0.1.0"
