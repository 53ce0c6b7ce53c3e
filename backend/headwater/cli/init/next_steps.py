"""What `headwater init` prints: what was proposed, what `source prepare` will do, and how an app connects."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import click

from headwater.cli.init.files import CONFIG, RULES, SECRETS
from headwater.errors import HeadwaterError
from headwater.source.catalog.schema import read_schema
from headwater.source.connect import SourceSettings
from headwater.source.readiness.prepare import missing_sql, sql_block
from headwater_rules.describe.client_languages import schema_code
from headwater_rules.describe.client_schema import client_schema
from headwater_rules.describe.languages import Language
from headwater_rules.plan import SyncPlan
from headwater_rules.propose.propose import Proposal

_TITLES = {
    Language.TS: "TypeScript: web, React Native, Node",
    Language.DART: "Dart: Flutter",
    Language.KOTLIN: "Kotlin",
    Language.SWIFT: "Swift",
    Language.PYTHON: "Python",
    Language.SQL: "SQL, for reading",
}
_ENDPOINT = "http://localhost:8080"


def print_next_steps(
    directory: Path, source: SourceSettings, proposal: Proposal, plan: SyncPlan, languages: Sequence[Language]
) -> None:
    """Print all of it. The files are written already, so that what the source lacks is no error here. `plan` is the
    compiled proposal."""
    _print_snippets(plan, source, languages)
    click.echo(f"Wrote {CONFIG}, {RULES} and {SECRETS} in {directory.resolve()}.")
    click.echo(f"  Given to their users: {_names(proposal.given)}")
    if proposal.undecided:
        click.echo(f"  Commented out, for you to decide: {_names(proposal.undecided)}")
    for crowd in proposal.crowded:
        click.echo(f"  CAUTION: the stream {crowd.table.shown} has {crowd}.\n    -> {crowd.fix}")
    if not proposal.given:
        click.echo(f"  Nothing leads to a user. Write a stream in {RULES}, then go on.")
    else:
        _print_preparation(plan, source)
    where = "" if directory.resolve() == Path.cwd() else f"cd {directory}\n  "
    click.echo(f"""
Next:
  {where}headwater rules explain {RULES}    # who gets what, in words
  headwater source prepare             # --admin-uri URI, if this role may not do the above
  headwater doctor                     # whether anything is missing
  headwater serve
  headwater token USER                 # a token, to try it""")


def _print_preparation(plan: SyncPlan, source: SourceSettings) -> None:
    try:
        statements = missing_sql(source, plan.tables())
    except HeadwaterError as error:
        click.echo(f"\n`headwater source prepare` will refuse until this is done:\n  {error}")
        return
    if not statements:
        click.echo("\nThe source is prepared already.")
        return
    click.echo("\n`headwater source prepare` will run, or ask somebody with more rights to:")
    click.echo("\n".join(f"  {line}" for line in sql_block(statements).splitlines()))


def _print_snippets(plan: SyncPlan, source: SourceSettings, languages: Sequence[Language]) -> None:
    if not plan.streams:
        return
    tables = client_schema(plan, read_schema(source))
    for language in languages:
        click.echo(f"---- {_TITLES[language]} ----\n")
        click.echo(schema_code(tables, language))
        click.echo(connection_code(language))


def connection_code(language: Language) -> str:
    """How an app connects, as source code; empty where no SDK speaks the language."""
    file = resources.files(__package__).joinpath("connect", f"{language.value}.txt")
    return file.read_text(encoding="utf-8").replace("ENDPOINT", _ENDPOINT) if file.is_file() else ""


def _names(tables: Sequence[str]) -> str:
    names = [each.removeprefix("public.") for each in tables]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
