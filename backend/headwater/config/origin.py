"""Finds the config: on the command line, in the environment, or in a file, in that order."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.config import CONFIG_B64, CONFIG_OF, CONFIG_PATH, DEFAULT_FILES, SYNC_B64, ConfigSource
from headwater.config.document import ConfigError, ConfigIssue, ConfigNode, parse_json, parse_yaml

_LONGEST_VARIABLE = 100_000  # in bytes; Linux allows 128 KiB


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """A config's tree, its name for messages, and the directory that its paths are relative to."""

    root: ConfigNode
    origin: str
    directory: Path


def find_config(source: ConfigSource, environment: Mapping[str, str], directory: Path) -> FoundConfig:
    """The service config. `directory` is the working directory. Raises ConfigError."""
    if source.base64 is not None:
        return _decoded(source.base64, "--config-base64", environment, directory)
    if source.path is None and environment.get(CONFIG_OF) and environment.get(CONFIG_B64[0]):
        file = Path(environment[CONFIG_OF])
        return _of_file(file, decode_base64(environment[CONFIG_B64[0]], CONFIG_B64[0]), environment)
    for name in CONFIG_B64 if source.path is None else ():
        if environment.get(name):
            return _decoded(environment[name], name, environment, directory)
    found = _file(source, environment, directory)
    if found is not None:
        return from_file(found, environment)
    issue = ConfigIssue(
        f"there is no service config: no --config, no {CONFIG_PATH[0]}, and no {DEFAULT_FILES[0]} here",
        fix="pass --config FILE, write one by `headwater init`, or try `headwater dev`, which needs none",
    )
    raise ConfigError(str(directory), [issue])


def for_children(source: ConfigSource, environment: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Variables that give child processes the text that the config's file has now, so that one that is started again
    later has the config of the others. Empty if the config is in no file, or too large for a variable."""
    if source.base64 is not None or (source.path is None and any(environment.get(name) for name in CONFIG_B64)):
        return {}
    file = _file(source, environment, directory)
    try:
        text = b"" if file is None else base64.b64encode(file.read_bytes())
    except OSError:
        return {}
    if not 0 < len(text) <= _LONGEST_VARIABLE:
        return {}
    return {CONFIG_B64[0]: text.decode(), CONFIG_OF: str(file)}


def _file(source: ConfigSource, environment: Mapping[str, str], directory: Path) -> Path | None:
    given = [source.path, *(environment.get(name) for name in CONFIG_PATH)]
    chosen = [directory / each for each in given if each]
    return next(iter([*chosen, *(directory / name for name in DEFAULT_FILES if (directory / name).is_file())]), None)


def is_configured(source: ConfigSource, environment: Mapping[str, str], directory: Path) -> bool:
    """Whether `find_config` would find one."""
    given = source.base64 is not None or any(environment.get(name) for name in CONFIG_B64)
    return given or _file(source, environment, directory) is not None


def find_sync_base64(source: ConfigSource, environment: Mapping[str, str]) -> str | None:
    """The sync config's text if given as base64, else None. Raises ConfigError."""
    if source.sync_base64 is not None:
        return decode_base64(source.sync_base64, "--sync-base64")
    for name in SYNC_B64:
        if environment.get(name):
            return decode_base64(environment[name], name)
    return None


def decode_base64(text: str, origin: str) -> str:
    """Base64 (either alphabet, line breaks allowed) of UTF-8 text. Raises ConfigError."""
    compact = "".join(text.split()).translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(compact + "=" * (-len(compact) % 4), validate=True).decode()
    except (binascii.Error, ValueError):  # of which UnicodeDecodeError is one
        issue = ConfigIssue("it is not base64 of UTF-8 text", fix="create it with: base64 -w0 headwater.yaml")
        raise ConfigError(origin, [issue]) from None


def _decoded(text: str, origin: str, environment: Mapping[str, str], directory: Path) -> FoundConfig:
    return FoundConfig(_parsed(decode_base64(text, origin), origin, environment), origin, directory)


def from_file(path: Path, environment: Mapping[str, str]) -> FoundConfig:
    """What a file of YAML or JSON has. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(str(path), [ConfigIssue("it is not UTF-8 text", fix="save it as UTF-8")]) from None
    except OSError as error:
        issue = ConfigIssue(f"can't be read: {error.strerror}", fix="correct the path given with --config")
        raise ConfigError(str(path), [issue]) from error
    return _of_file(path, text, environment)


def _of_file(path: Path, text: str, environment: Mapping[str, str]) -> FoundConfig:
    environment = {**_beside(path), **environment}
    root = parse_json(text, str(path)) if path.suffix == ".json" else _parsed(text, str(path), environment)
    return FoundConfig(root, str(path), path.resolve().parent)


def _beside(path: Path) -> dict[str, str]:
    """The variables in the file `.env` beside a config, which count where the environment has no such variable."""
    file = path.resolve().parent / ".env"
    if not file.is_file():
        return {}
    from dotenv import dotenv_values

    try:
        return {name: value for name, value in dotenv_values(file, interpolate=False).items() if value is not None}
    except (OSError, UnicodeDecodeError):
        return {}  # what it was to give is missed by name


def _parsed(text: str, origin: str, environment: Mapping[str, str]) -> ConfigNode:
    """Parse YAML, or JSON that is not valid YAML (which forbids tabs)."""
    if text.lstrip().startswith("{"):
        try:
            return parse_json(text, origin)
        except ConfigError:
            pass  # a YAML mapping in braces
    return parse_yaml(text, origin, environment)
