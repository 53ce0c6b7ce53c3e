"""Options and help that commands have in common."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headwater.cli.supervise import SUPERVISED
from headwater.cli.watching.logs import set_up_logging
from headwater.config.given import ConfigSource

if TYPE_CHECKING:
    from headwater.config.model import ServiceConfig

_log = logging.getLogger(__name__)


def examples(*lines: str) -> str:
    """The examples at the end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the three options for the configs; the command gets them as one ConfigSource."""

    @click.option("-c", "--config", "--config-path", "path", type=click.Path(path_type=Path), metavar="FILE",
                  help="The service config (default: headwater.yaml here, or HEADWATER_CONFIG_PATH).")  # fmt: skip
    @click.option("-c64", "--config-base64", "encoded", metavar="TEXT", help="The service config itself, as base64.")
    @click.option("-sync64", "--sync-base64", "sync", metavar="TEXT", help="The sync config itself, as base64.")
    @functools.wraps(command)
    def wrapped(*args: object, path: Path | None, encoded: str | None, sync: str | None, **options: object) -> None:
        command(*args, configs=ConfigSource(encoded, path, sync), **options)

    return wrapped


def load(configs: ConfigSource, *, warn: bool = True) -> ServiceConfig:
    """Load the service config and set up logging accordingly. Logs its warnings, unless `warn` is False. Raises
    ConfigError."""
    from headwater.config.load import load_config

    config = load_config(configs, os.environ, Path.cwd())
    set_up_logging(config.logging.level, config.logging.format)
    if warn and SUPERVISED not in os.environ:
        for warning in config.warnings:
            _log.warning("%s", warning)
    return config
