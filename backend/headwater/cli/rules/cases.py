"""`headwater rules test`: named cases of what users get under a sync config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from headwater.cli.options import to_json
from headwater.cli.rules.sync_config import compile_rules, read_text, wrong_rules
from headwater.insight.words import count
from headwater_rules.testing.cases import Outcome, config_path, read_cases, run_cases


def run_files(files: Sequence[Path], rules: Path | None, *, as_json: bool) -> int:
    """Run the cases of these files against the sync config that each names, or against `rules`. Prints what fails and
    why. Returns the exit code. Raises WrongRulesError for a file or a config with errors."""
    outcomes: list[tuple[Path, Outcome]] = []
    for file in files:
        for outcome in _of_file(file, rules, as_json=as_json):
            outcomes.append((file, outcome))
            if not as_json:
                _show(outcome)
    failed = sum(1 for _, outcome in outcomes if outcome.problems)
    passed = len(outcomes) - failed
    if as_json:
        cases = [
            {"file": str(file), "case": each.case, "ok": not each.problems, "problems": each.problems}
            for file, each in outcomes
        ]
        click.echo(to_json({"passed": passed, "failed": failed, "cases": cases}))
    else:
        click.echo(f"{count(passed, 'case')} passed, {failed} failed")
    return 1 if failed else 0


def _of_file(file: Path, rules: Path | None, *, as_json: bool) -> Iterator[Outcome]:
    with wrong_rules(str(file), as_json=as_json):
        cases = read_cases(read_text(file, "the file of cases"))
    config = config_path(cases, file) if rules is None else rules
    plan = compile_rules(read_text(config), str(config), as_json=as_json).plan
    with wrong_rules(str(file), as_json=as_json):
        yield from run_cases(cases, plan)


def _show(outcome: Outcome) -> None:
    click.echo(f"{'failed' if outcome.problems else 'ok':<6} {outcome.case}")
    for problem in outcome.problems:
        click.echo("".join(f"  {line}\n" for line in problem.splitlines()), nl=False)
