"""Reads a service config key by key, for those who want to know what becomes of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headwater.config.document import Item
from headwater.config.errors import ConfigIssue, ConfigWarning
from headwater.config.given import ConfigSource
from headwater.config.load import read_config
from headwater.config.model import ServiceConfig
from headwater.config.origin import find_config, find_sync_base64


@dataclass(frozen=True, slots=True)
class Review:
    """A service config and what was found in it. `keys` are all that it gives, as paths, in the order of the file.
    `config` has the default of whatever `errors` speak of."""

    origin: str
    config: ServiceConfig
    keys: tuple[str, ...]
    errors: tuple[ConfigIssue, ...]
    warnings: tuple[ConfigWarning, ...]

    @property
    def right(self) -> tuple[str, ...]:
        """The keys that no error and no warning speaks of. A type that is wrong makes its whole section so."""
        named = [*(each.key for each in self.errors), *(each.key for each in self.warnings)]
        named += [each.key.removesuffix(".type") for each in self.errors if each.key.endswith(".type")]
        return tuple(key for key in self.keys if not any(_within(key, each) for each in named))


def review_config(source: ConfigSource, environment: Mapping[str, str], directory: Path) -> Review:
    """Review the service config. `directory` is the working directory. Raises ConfigError when it can't be read."""
    found = find_config(source, environment, directory)
    config, findings = read_config(found, find_sync_base64(source, environment), environment)
    return Review(found.origin, config, tuple(_keys(found.root, "")), tuple(findings.errors), tuple(findings.warnings))


def _keys(item: Item, path: str) -> Iterator[str]:
    match item.value:
        case dict(values):
            for name, value in values.items():
                yield from _keys(value, f"{path}.{name}" if path else name)
        case list(items) if any(isinstance(each.value, dict) for each in items):
            for number, each in enumerate(items):
                yield from _keys(each, f"{path}[{number}]")
        case _:
            yield path


def _within(key: str, named: str) -> bool:
    """Whether `named` is the key or something above it; a section's warning concerns the whole section."""
    return key == named or key.startswith((f"{named}.", f"{named}["))
