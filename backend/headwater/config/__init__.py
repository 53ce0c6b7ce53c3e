"""How a config is found and read. What the settings are is declared where they are used.

This module says how the config is given, and imports nothing else of ours, so that `--help` comes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONFIG_B64 = ("HEADWATER_CONFIG_B64", "POWERSYNC_CONFIG_B64")
CONFIG_OF = "HEADWATER_CONFIG_OF"
"""Set by Headwater for its child processes: the file that the text in the first of CONFIG_B64 was read from."""

CONFIG_PATH = ("HEADWATER_CONFIG_PATH", "POWERSYNC_CONFIG_PATH")
SYNC_B64 = ("HEADWATER_SYNC_CONFIG_B64", "POWERSYNC_SYNC_CONFIG_B64", "POWERSYNC_SYNC_RULES_B64")
DEFAULT_FILES = ("headwater.yaml", "powersync.yaml")


@dataclass(frozen=True, slots=True)
class ConfigSource:
    """The command line's options for the config: its base64 text or its file, the sync config's base64 text, and the
    source that is meant."""

    base64: str | None = None
    path: Path | None = None
    sync_base64: str | None = None
    source: str | None = None
