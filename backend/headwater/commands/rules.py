"""`headwater rules …`: work on sync configs."""

from __future__ import annotations

from pathlib import Path

import click
import orjson

from headwater.config.errors import ConfigError, ConfigIssue
from headwater_rules.compile import compile_config
from headwater_rules.errors import RuleErrors


def check_file(file: Path, *, as_json: bool) -> int:
    """Show every finding; the exit code: 0 when the config can be deployed."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        issue = ConfigIssue(f"the sync config can't be read: {error.strerror}", fix="check the path")
        raise ConfigError(str(file), [issue]) from error
    except UnicodeDecodeError as error:
        issue = ConfigIssue("the sync config is not UTF-8 text", fix="save it as UTF-8")
        raise ConfigError(str(file), [issue]) from error
    try:
        compiled = compile_config(text)
    except RuleErrors as error:
        click.echo(_json(error.to_dict()) if as_json else f"{file}:\n{error.render()}", err=not as_json)
        return 1
    if as_json:
        warnings = [warning.to_dict() for warning in compiled.warnings]
        click.echo(_json({"code": None, "errors": [], "warnings": warnings}))
        return 0
    for warning in compiled.warnings:
        click.echo(warning.render(), err=True)
    plan = compiled.plan
    click.echo(
        f"{file}: ok, {len(plan.streams)} streams, {len(plan.buckets)} bucket definitions, {len(plan.lookups)} lookups"
    )
    return 0


def _json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
