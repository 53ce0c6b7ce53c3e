"""What `headwater init` prints: what was proposed, what `source prepare` will do, and how an app connects."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import click

from headwater.cli.init.files import CONFIG, POLICIES, RULES, SECRETS, Written
from headwater.cli.init.page import FOLDER, Page
from headwater.errors import HeadwaterError
from headwater.source.connect import SourceSettings
from headwater.source.readiness.prepare import missing_sql, sql_block
from headwater_rules.describe.client_schema import ClientSchema, schema_code
from headwater_rules.plan import SyncPlan
from headwater_rules.propose.propose import Proposal
from headwater_rules.schema import Language

_TITLES = {
    Language.TS: "TypeScript: web, React Native, Node",
    Language.DART: "Dart: Flutter",
    Language.KOTLIN: "Kotlin",
    Language.SWIFT: "Swift",
    Language.PYTHON: "Python",
    Language.SQL: "SQL, for reading",
}
_ENDPOINT = "http://localhost:8080"


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown to app developers: the tables of devices (None: there are none), in which languages, and the page
    that was written."""

    tables: ClientSchema | None
    languages: tuple[Language, ...]
    page: Page | None


def print_next_steps(directory: Path, written: Written, proposal: Proposal, plan: SyncPlan, shown: Shown) -> None:
    """Print all of it. The files are written already, so that what the source lacks is no error here. `plan` is the
    compiled proposal."""
    if shown.tables is not None:
        _print_snippets(shown.tables, shown.languages)
    names = [CONFIG, RULES, *([POLICIES] if written.unsecured else []), *([f"{FOLDER}/"] if shown.page else [])]
    click.echo(f"Wrote {', '.join(names)} and {SECRETS} in {directory}.")
    click.echo(f"  Given to their users: {_names(proposal.given)}")
    if proposal.undecided:
        click.echo(f"  Commented out, for you to decide: {_names(proposal.undecided)}")
    if written.writable:
        click.echo(f"  Devices may write to: {', '.join(each.name for each in written.writable)}")
    if secured := [each.name for each in written.writable if each.table.secured]:
        click.echo(f"  Under policies that are there, which have to let {written.role} do so: {', '.join(secured)}")
    for crowd in proposal.crowded:
        click.echo(f"  CAUTION: the stream {crowd.table.shown} has {crowd}.\n    -> {crowd.fix}")
    if not proposal.given:
        click.echo(f"  Nothing leads to a user. Write a stream in {RULES}, then go on.")
    else:
        _print_preparation(plan, written.source)
    click.echo("\nNext:")
    for command, why in _steps(directory, written, shown.page):
        click.echo(f"  {command:<36} # {why}" if why else f"  {command}")


def _steps(directory: Path, written: Written, page: Page | None) -> Iterator[tuple[str, str]]:
    """Commands, each with what it is for."""
    if directory.resolve() != Path.cwd().resolve():
        yield f"cd {shlex.quote(os.path.relpath(directory))}", ""
    yield f"headwater rules explain {RULES}", "who gets what, in words"
    if written.unsecured:
        at = f"postgresql://{written.source.user}@{written.source.address}"
        with_any = "" if shutil.which("psql") else "; or with any other SQL client"
        yield f"psql {shlex.quote(at)} -f {POLICIES}", f"read it first; as the owner of the tables{with_any}"
    upload = " --upload" if written.writable else ""
    yield f"headwater source prepare{upload}", "--admin-uri URI, if this role may not do the above"
    yield "headwater doctor", "whether anything is missing"
    yield "headwater serve", "leave it running"
    if page is None:
        yield "headwater token USER", "a token, to try it"
        return
    npm = "npm" if shutil.which("npm") else "python -m headwater.embedded.node npm"
    yield f"cd {FOLDER} && {npm} install && {npm} run dev", "in a second terminal"
    who = f"signed in as {page.user}" if page.user else "enter the id of a user there"
    yield "http://localhost:5173", f"the rows of {page.shown.name}; {who}"


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


def _print_snippets(tables: ClientSchema, languages: Sequence[Language]) -> None:
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
