"""`headwater rules explain`: describes what a sync config does."""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path

import click

from headwater.cli.rules.sync_config import compile_rules, read_rules, to_json
from headwater_rules.describe.explain import explain, explanation_lines

_WIDTH = 100


def show_explanation(file: Path, *, as_json: bool) -> None:
    """Print an explanation of a sync config. Raises WrongRules."""
    explanation = explain(compile_rules(read_rules(file), str(file), as_json=as_json).plan)
    if as_json:
        click.echo(to_json(asdict(explanation)))
        return
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    for line in explanation_lines(explanation, width):
        click.echo(line)
