"""The source's schema, read from the source or from a file, for commands that compare rules with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from headwater.cli.config import ServiceConfig
from headwater.cli.options import load
from headwater.cli.rules.sync_config import read_text
from headwater.cli.source.spark import spark_results
from headwater.config import ConfigSource
from headwater.config.document import ConfigError, ConfigIssue
from headwater.insight.words import count
from headwater.source.catalog.computed import with_computed
from headwater.source.catalog.schema import schema_of, see_schema
from headwater_rules.schema import SchemaFormatError, SeenSchema, SourceSchema, not_compared

_BRIEFLY = 5
"""Seconds to wait for a source that nobody has asked to compare with."""


def live_schema(config: ServiceConfig) -> SeenSchema:
    """The tables of all configured sources. Raises the error of one that can't be read."""
    config.chosen(())
    return schema_of(config.sources)


def found_schema(configs: ConfigSource) -> SeenSchema:
    """The tables of the sources that the service config names, if it can be used and they can be read."""
    try:
        config = load(configs, warn=False)
    except ConfigError as error:
        return not_compared(f"the service config can't be used: {error.issues[0].what}")
    return see_schema(
        [replace(source, connect_timeout=min(source.connect_timeout, _BRIEFLY)) for source in config.sources]
    )


def described(configs: ConfigSource, schema: SourceSchema, text: str) -> SourceSchema:
    """The same, with the computed tables of a sync config as the sources of the service config, and its Spark, describe
    them."""
    config = load(configs, warn=False)
    with spark_results(config) as spark:
        return with_computed(schema, config.sources, text, spark)


def stored_schema(file: Path) -> SeenSchema:
    """The schema in a file. Raises ConfigError."""
    try:
        schema = SourceSchema.from_json(read_text(file, "the source schema"))
    except SchemaFormatError as error:
        issue = ConfigIssue(f"not a source schema: {error}", fix="write it with `headwater source schema`")
        raise ConfigError(str(file), [issue]) from None
    return SeenSchema(schema, f"compared with the tables in {file}")


def show_schema(config: ServiceConfig, output: Path | None) -> None:
    """Print the source's schema, or write it to a file, in the form that `--schema-file` reads."""
    schema = live_schema(config).schema
    assert schema is not None
    if output is None:
        click.echo(schema.to_json(), nl=False)
        return
    try:
        output.write_text(schema.to_json(), encoding="utf-8")
    except OSError as error:
        issue = ConfigIssue(f"the file can't be written: {error.strerror}", fix="check the path")
        raise ConfigError(str(output), [issue]) from error
    click.echo(f"{output}: {count(len(schema.tables), 'table')}")
