"""The source's schema, read from the source or from a file, for commands that compare rules with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from headwater.cli.rules.sync_config import read_text
from headwater.config.errors import ConfigError, ConfigIssue
from headwater.config.model import ServiceConfig
from headwater.insight.words import count
from headwater.source.catalog.schema import read_schema
from headwater.source.connect import SourceRefused, SourceUnreachable
from headwater_rules.compiler.compile import compile_config
from headwater_rules.errors import Code, RuleError, RuleErrors
from headwater_rules.schema import SchemaFormatError, SourceSchema


def live_schema(config: ServiceConfig) -> SourceSchema:
    """The tables of all configured sources. Raises SourceUnreachable and SourceRefused."""
    config.source()
    return SourceSchema.of(read_schema(source) for source in config.sources)


@dataclass(frozen=True, slots=True)
class Unsent:
    """The places of a sync config that name tables whose rows can't be replicated, and a note if the source could not
    be asked."""

    findings: tuple[RuleError, ...] = ()
    note: str = ""


def unsent(config: ServiceConfig, text: str) -> Unsent:
    """Compare a sync config with what the sources publish and let our role read."""
    if not config.sources:
        return Unsent()
    try:
        schema = live_schema(config)
    except (SourceUnreachable, SourceRefused) as error:
        return Unsent(note=f"its tables are not compared with the source: {error}")
    try:
        found = compile_config(text, schema=schema).warnings
    except RuleErrors as errors:  # of a strict config
        found = (*errors.errors, *errors.warnings)
    return Unsent(tuple(each for each in found if each.code is Code.NOT_SENT))


def stored_schema(file: Path) -> SourceSchema:
    """The schema in a file. Raises ConfigError."""
    try:
        return SourceSchema.from_json(read_text(file, "the source schema"))
    except SchemaFormatError as error:
        issue = ConfigIssue(f"not a source schema: {error}", fix="write it with `headwater source schema`")
        raise ConfigError(str(file), [issue]) from None


def show_schema(config: ServiceConfig, output: Path | None) -> None:
    """Print the source's schema, or write it to a file, in the form that `--schema-file` reads."""
    schema = live_schema(config)
    if output is None:
        click.echo(schema.to_json(), nl=False)
        return
    try:
        output.write_text(schema.to_json(), encoding="utf-8")
    except OSError as error:
        issue = ConfigIssue(f"the file can't be written: {error.strerror}", fix="check the path")
        raise ConfigError(str(output), [issue]) from error
    click.echo(f"{output}: {count(len(schema.tables), 'table')}")
