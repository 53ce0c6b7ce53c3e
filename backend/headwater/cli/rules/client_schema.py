"""`headwater rules schema`: the schema that an app declares for the rows of a sync config."""

from __future__ import annotations

from pathlib import Path

import click

from headwater.cli.rules.sync_config import compile_rules, read_rules
from headwater_rules.describe.client_schema import client_schema, schema_code
from headwater_rules.schema import Language, SourceSchema


def show_client_schema(file: Path, schema: SourceSchema | None, language: Language) -> None:
    """Print the schema in a language. Raises WrongRules."""
    plan = compile_rules(read_rules(file), str(file)).plan
    click.echo(schema_code(client_schema(plan, schema), language), nl=False)
