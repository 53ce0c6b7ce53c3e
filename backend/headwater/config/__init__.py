"""The service config: read once, typed, with all errors reported at once. No layer below reads the environment."""

from headwater.config.errors import ConfigError, ConfigIssue
from headwater.config.load import load_config
from headwater.config.model import (
    ApiConfig,
    ClientAuth,
    Logging,
    ServiceConfig,
    SyncConfigText,
)
from headwater.config.origin import ConfigSource

__all__ = [
    "ApiConfig",
    "ClientAuth",
    "ConfigError",
    "ConfigIssue",
    "ConfigSource",
    "Logging",
    "ServiceConfig",
    "SyncConfigText",
    "load_config",
]
