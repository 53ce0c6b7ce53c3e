"""Options, arguments and help that commands have in common."""

from __future__ import annotations

import functools
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import orjson

from headwater.cli.supervise import SUPERVISED
from headwater.cli.watching import set_up_logging
from headwater.config import ConfigSource
from headwater.errors import HeadwaterError
from headwater_rules.results import StreamSubscription, SyncRequest

if TYPE_CHECKING:
    from headwater.cli.config import ServiceConfig

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


def source_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --source to `config_options`, within which it stands: of several sources, `load` leaves this one."""

    @click.option("--source", metavar="NAME", help="The source, where several are configured: its tag, or tag/shard.")
    @functools.wraps(command)
    def wrapped(*args: object, source: str | None, configs: ConfigSource, **options: object) -> None:
        command(*args, configs=replace(configs, source=source), **options)

    return wrapped


def sources_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --source as `sources`, for commands that go through all sources unless some are named."""
    return click.option("--source", "sources", multiple=True, metavar="NAME",
                        help="Only rows of this source: its tag, or tag/shard. Can be repeated.")(command)  # fmt: skip


def load_without_lists(configs: ConfigSource) -> ServiceConfig:
    """Load the service config for a command that asks no source: it need not wait for the lists of connections, nor for
    a database that has one. Logs no warnings. Raises ConfigError."""
    from headwater.cli.config import load_config

    config = load_config(configs, os.environ, Path.cwd(), lists_too=False)
    set_up_logging(config.logging.level, config.logging.format)
    return config


def load(configs: ConfigSource, *, warn: bool = True) -> ServiceConfig:
    """Load the service config and set up logging accordingly. Logs its warnings, unless `warn` is False. Raises
    ConfigError."""
    from headwater.cli.config import load_config

    config = load_config(configs, os.environ, Path.cwd())
    if configs.source is not None:
        config = replace(config, sources=config.chosen([configs.source]))
    set_up_logging(config.logging.level, config.logging.format)
    if warn and SUPERVISED not in os.environ:
        for warning in config.warnings:
            _log.warning("%s", warning)
    return config


def sources_changed(configs: ConfigSource, config: ServiceConfig) -> Callable[[], bool]:
    """Tells whether the connections are others now than in a config. While some can't be read, only whether there is
    one that is new. What is wrong is logged once."""
    from headwater.cli.config import load_config

    said = list(config.unread_lists)
    for line in said:
        _log.error("%s", line)

    def tell(wrong: Sequence[str]) -> None:
        for line in wrong:
            if line not in said:
                _log.error("%s; the connections stay as they are", line)
        said[:] = wrong

    def changed() -> bool:
        try:
            now = load_config(configs, os.environ, Path.cwd())
        except HeadwaterError as error:
            tell([str(error)])
            return False
        tell(now.unread_lists)
        if now.unread_lists:
            return any(source not in config.sources for source in now.sources)
        return now.sources != config.sources or bool(config.unread_lists)

    return changed


def json_object(text: str) -> dict[str, object]:
    """A JSON object."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise click.BadParameter(f"not JSON: {error.msg}, at character {error.pos + 1}") from None
    if not isinstance(found, dict):
        raise click.BadParameter('must be a JSON object, such as {"name": "value"}')
    return found


def claim(text: str) -> tuple[str, object]:
    """Parse `NAME=VALUE`. The value is JSON if it parses as such, otherwise text."""
    name, given, value = text.partition("=")
    if not name or not given:
        raise click.BadParameter("write NAME=VALUE")
    if name in {"sub", "aud", "iat", "exp"}:
        raise click.BadParameter(f"{name} is set by USER, --audience and --expires")
    try:
        return name, orjson.loads(value)
    except orjson.JSONDecodeError:
        return name, value


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> int:
    """Parse a time to seconds: a number of seconds, or a number with a unit, as `90s`, `15m`, `1h`, `7d`."""
    found = re.fullmatch(r"([0-9]{1,9})([smhd]?)", text, re.ASCII)
    if found is None or int(found[1]) == 0:
        raise click.BadParameter("write it like 90s, 15m, 1h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def subscription(text: str) -> StreamSubscription:
    """`STREAM`, or `STREAM=` and a JSON object of parameters."""
    stream, given, parameters = text.partition("=")
    if not stream:
        raise click.BadParameter("has no stream; write STREAM or STREAM=JSON")
    return StreamSubscription(stream, json_object(parameters) if given else None)


def request_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that describe a client, for a command with a USER or --user; it gets them as a SyncRequest."""

    @click.option("--claims", type=json_object, metavar="JSON", help="Other claims of the user's token.")
    @click.option("--params", type=json_object, metavar="JSON", help="Parameters that the client sends.")
    @click.option("--subscribe", "subscriptions", type=subscription, multiple=True, metavar="STREAM[=JSON]",
                  help="A stream that the client subscribes to, and its parameters. Can be repeated.")  # fmt: skip
    @functools.wraps(command)
    def wrapped(
        *,
        user: str,
        claims: dict[str, object] | None,
        params: dict[str, object] | None,
        subscriptions: tuple[StreamSubscription, ...],
        **options: object,
    ) -> None:
        if (claims or {}).get("sub", user) != user:
            raise click.BadParameter("its sub names another user", param_hint="'--claims'")
        command(request=SyncRequest({**(claims or {}), "sub": user}, params, subscriptions=subscriptions), **options)

    return wrapped


def to_json(value: object) -> str:
    """Indented JSON."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
