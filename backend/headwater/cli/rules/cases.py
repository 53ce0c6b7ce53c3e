"""`headwater rules test`: named cases of what users get under a sync config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from headwater.cli.rules.sync_config import compile_rules, read_text, wrong_rules
from headwater.insight.words import count
from headwater_rules.testing.cases import Outcome, config_path, read_cases, run_cases


def run_files(files: Sequence[Path], rules: Path | None) -> int:
    """Run the cases of these files against the sync config that each names, or against `rules`. Prints what fails and
    why. Returns the exit code. Raises WrongRulesError for a file or a config with errors."""
    outcomes = [outcome for file in files for outcome in _of_file(file, rules)]
    failed = sum(1 for outcome in outcomes if outcome.problems)
    click.echo(f"{count(len(outcomes) - failed, 'case')} passed, {failed} failed")
    return 1 if failed else 0


def _of_file(file: Path, rules: Path | None) -> list[Outcome]:
    with wrong_rules(str(file)):
        cases = read_cases(read_text(file, "the file of cases"))
    config = config_path(cases, file) if rules is None else rules
    plan = compile_rules(read_text(config), str(config)).plan
    outcomes = []
    with wrong_rules(str(file)):
        for outcome in run_cases(cases, plan):
            outcomes.append(outcome)
            click.echo(f"{'failed' if outcome.problems else 'ok':<6} {outcome.case}")
            for problem in outcome.problems:
                click.echo("".join(f"  {line}\n" for line in problem.splitlines()), nl=False)
    return outcomes
