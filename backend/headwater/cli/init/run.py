"""`headwater init`: asks, proposes, writes the files, and says what comes next."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import click

from headwater.cli.config import review_config
from headwater.cli.databases import source_of
from headwater.cli.init.files import CONFIG, RULES, SECRETS, InitSetup, check_absent, variable, write_files
from headwater.cli.init.hosts import Host, recognised
from headwater.cli.init.page import FOLDER, Page, page_for, write_page
from headwater.config import ConfigSource
from headwater.config.document import ConfigError, ConfigIssue
from headwater.errors import HeadwaterError
from headwater.insight.words import count
from headwater.source.catalog.schema import read_outline, read_schema
from headwater.source.connect import SourceSettings
from headwater.source.readiness.prepare import missing_sql, sql_block
from headwater_rules.compiler.compile import compile_config
from headwater_rules.describe.client_schema import ClientSchema, client_schema, schema_code
from headwater_rules.plan import SyncPlan
from headwater_rules.propose.outline import OutlinedTable
from headwater_rules.propose.propose import Proposal, propose
from headwater_rules.schema import Language, SourceSchema

_TITLES = {
    Language.TS: "TypeScript: web, React Native, Node",
    Language.DART: "Dart: Flutter",
    Language.KOTLIN: "Kotlin",
    Language.SWIFT: "Swift",
    Language.PYTHON: "Python",
    Language.SQL: "SQL, for reading",
}
_ENDPOINT = "http://localhost:8080"


def _print_next_steps(
    directory: Path, written: InitSetup, proposal: Proposal, plan: SyncPlan, page: Page | None
) -> None:
    """The files are written already, so that what the source lacks is no error here. `plan` is the compiled
    proposal."""
    click.echo(f"Wrote {_files(written, page)} in {directory}.")
    click.echo(f"  Given to their users: {_names(proposal.given)}")
    if proposal.undecided:
        click.echo(f"  Commented out, for you to decide: {_names(proposal.undecided)}")
    if written.writable:
        click.echo(f"  Devices may write to: {', '.join(each.name for each in written.writable)}")
    for source in written.sources:
        if secured := written.writable_in(source, secured=True):
            names = ", ".join(each.name for each in secured)
            click.echo(f"  Under policies that are there, which have to let {written.role(source)} do so: {names}")
    for crowd in proposal.crowded:
        click.echo(f"  CAUTION: the stream {crowd.table.shown} has {crowd}.\n    -> {crowd.fix}")
    if not proposal.given:
        click.echo(f"  Nothing leads to a user. Write a stream in {RULES}, then go on.")
    else:
        for source in written.sources:
            _print_preparation(plan, source, several=len(written.sources) > 1)
    click.echo("\nNext:")
    for command, why in _steps(directory, written, page):
        click.echo(f"  {command:<36} # {why}" if why else f"  {command}")


def _steps(directory: Path, written: InitSetup, page: Page | None) -> Iterator[tuple[str, str]]:
    """Commands, each with what it is for."""
    if directory.resolve() != Path.cwd().resolve():
        yield f"cd {shlex.quote(os.path.relpath(directory))}", ""
    yield f"headwater rules explain {RULES}", "who gets what, in words"
    with_any = "" if shutil.which("psql") else "; or with any other SQL client"
    for file, source in written.policies().items():
        at = f"postgresql://{source.user}@{source.address}"
        yield f"psql {shlex.quote(at)} -f {file}", f"read it first; as the owner of the tables{with_any}"
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


def _print_preparation(plan: SyncPlan, source: SourceSettings, *, several: bool) -> None:
    where = f", in {source.name}" if several else ""
    try:
        statements = missing_sql(source, plan.tables())
    except HeadwaterError as error:
        click.echo(f"\n`headwater source prepare` will refuse until this is done{where}:\n  {error}")
        return
    if not statements:
        click.echo(f"\nThe source{f' {source.name}' if several else ''} is prepared already.")
        return
    click.echo(f"\n`headwater source prepare` will run{where}, or ask somebody with more rights to:")
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


def _files(written: InitSetup, page: Page | None) -> str:
    names = [CONFIG, RULES, *written.policies(), *([f"{FOLDER}/"] if page else [])]
    return f"{', '.join(names)} and {SECRETS}"


def run(
    uris: Sequence[str],
    directory: Path,
    users: str | None = None,
    languages: Sequence[Language] = (),
    *,
    upload: bool | None = None,
    app: bool = False,
    ask: bool,
    force: bool,
) -> None:
    """Write the files into `directory` and print what comes next. `uris` are the databases, each but one with `TAG=`
    before it; without `ask`, there must be some. `users` is the table of users, `upload` whether devices may write,
    None where the developer did not say; `app` writes a page, `languages` are those to print code in."""
    check_absent(directory, force=force, page=app)
    if not uris:
        if not ask or not sys.stdin.isatty():
            raise click.UsageError("give the database as --uri or HEADWATER_SOURCE_URI")
        uris = [click.prompt("Database to sync, as postgresql://user:password@host:5432/database", type=str)]
    sources = {source_at(uri, ask=ask, tag=tag): uri for tag, uri in _tagged(uris)}
    _refuse_twice(sources)
    tables = {source: read_outline(source) for source in sources}
    every = tuple(chain.from_iterable(tables.values()))
    where = ", ".join(source.address for source in sources)
    proposal = proposed(every, where, users)
    _print_found(every, where, proposal, named=users is not None)
    hosts: dict[SourceSettings, Host | None] = {}
    for source, uri in sources.items():
        found = recognised(source, tables[source], near=_is_near(uri))
        hosts[source] = next((each for each in found if each.role), None)
        _print_hosts(source, found, several=len(sources) > 1)
    if ask and users is None:
        proposal = _asked_users(proposal, every, where)
    if upload is None:
        upload = _may_write(proposal, ask=ask)
    writable = proposal.writable if upload else ()
    page = page_for(proposal, sources, uploads=upload) if app else None
    if app and page is None:
        click.echo(f"No page is written: write a stream in {RULES}, and take {FOLDER}/ from `headwater init` then.")
    written = InitSetup(hosts, proposal.text, writable, proposal.users)
    if ask and not click.confirm(f"Write {_files(written, page)} to {directory}?", default=True):
        raise click.Abort
    plan = compile_config(proposal.text).plan
    kept = write_files(directory, written)
    if plan.streams:
        schema = client_schema(plan, SourceSchema.of(map(read_schema, sources)))
        if page is not None:
            write_page(directory / FOLDER, page, proposal, schema)
        _print_snippets(schema, languages)
    _print_next_steps(directory, written, proposal, plan, page)
    for warning in review_config(ConfigSource(path=directory / CONFIG), os.environ, directory).warnings:
        click.echo(f"\nCAUTION: {warning}")
    if kept:
        click.echo(f"\n{SECRETS} was there and keeps its {', '.join(kept)}.")


_TAGGED = re.compile(r"(?P<tag>[\w/-]+)=(?P<uri>postgres(?:ql)?:.*)", re.DOTALL)


def _tagged(uris: Sequence[str]) -> Iterator[tuple[str | None, str]]:
    """Each URI with its tag. Raises UsageError."""
    seen: set[str] = set()
    for given in uris:
        found = _TAGGED.fullmatch(given)
        tag, uri = (found["tag"], found["uri"]) if found else (None, given)
        if tag is not None and "/" in tag:
            raise click.UsageError(
                f"{tag} is a shard: name one of them {tag.partition('/')[0]}, and write the others into {CONFIG} then,"
                " where they are told apart by `shard` (docs/several-databases.md)"
            )
        called = variable(tag or "default")
        if called in seen:
            raise click.UsageError(
                "give each database but the first a tag of its own, by which rules name its tables:"
                " --uri crm=postgresql://…"
            )
        seen.add(called)
        yield tag, uri


def _refuse_twice(sources: Iterable[SourceSettings]) -> None:
    """Raise UsageError where a database is given twice, which can be followed only once."""
    names: dict[str, str] = {}
    for source in sources:
        first = names.setdefault(source.address, source.name)
        if first != source.name:
            raise click.UsageError(
                f"{source.name} is the database that {first} is ({source.address}): give it once, rules may read all"
                " of its tables"
            )


def _print_found(tables: Sequence[OutlinedTable], where: str, proposal: Proposal, *, named: bool) -> None:
    users = proposal.people or "no table that was found"
    click.echo(f"{where}: {count(len(tables), 'table')}, users in {users}")
    others = [each for each in proposal.candidates if ".".join(each.table.place) != proposal.people]
    if others and not named:
        taken = next((each for each in proposal.candidates if each not in others), None)
        click.echo(f"  taken: {taken or users}\n  or --users: {'; '.join(map(str, others[:5]))}")


def _print_hosts(source: SourceSettings, hosts: Sequence[Host], *, several: bool) -> None:
    for host in hosts:
        click.echo(f"{source.name if several else 'This'} is {host.name} ({host.page}):")
        for note in host.notes:
            click.echo(f"  - {note}")


def source_at(uri: str, *, ask: bool, tag: str | None = None) -> SourceSettings:
    """The database at a URI, asking for a password that it lacks. Raises ConfigError."""
    source_of(uri, sslmode="disable")  # an error of its own for what urlsplit refuses with the password in its message
    query = parse_qs(urlsplit(uri).query)
    cacert = _authority(query.get("sslrootcert", [""])[-1])
    sslmode = query.get("sslmode", [""])[-1]
    if sslmode in {"", "prefer", "allow"}:  # which promise nothing
        sslmode = "disable" if _is_near(uri) and not cacert else "verify-full"
    source = source_of(uri, sslmode=sslmode, cacert=cacert, tag=tag)
    if source.password or not ask:
        return source
    at = f" at {source.address}" if tag else ""
    password = click.prompt(f"Password of {source.user}{at}, empty for none", default="", hide_input=True,
                            show_default=False)  # fmt: skip
    return source_of(uri, password=password, sslmode=sslmode, cacert=cacert, tag=tag)


def _authority(file: str) -> str | None:
    """The certificate in a file that the URI names, or for `system` none: that is what verifying begins with."""
    if file in {"", "system"}:
        return None
    try:
        return Path(file).expanduser().read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not PEM text"
        issue = ConfigIssue(f"{file} can't be read: {why}", "sslrootcert", fix="name the file with the PEM text")
        raise ConfigError("--uri", [issue]) from error


_THIS_MACHINE = ("host.docker.internal", "host.containers.internal")
"""What containers call it. Other names in .internal are those of clouds, and cross their networks."""


def _is_near(uri: str) -> bool:
    """Whether the host is this machine, or a name that only a network of one's own knows."""
    try:
        host = urlsplit(uri).hostname or ""
    except ValueError:
        return False
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return "." not in host or host in _THIS_MACHINE or host.endswith((".local", ".localhost"))


def proposed(tables: Sequence[OutlinedTable], where: str, users: str | None) -> Proposal:
    """What is proposed for the tables of the databases at `where`. Raises HW_8601."""
    if not tables:
        fix = "check the database's name, or create its tables first"
        raise HeadwaterError("there are no tables to sync", where, fix, code="HW_8601")
    proposal = propose(tables, users)
    if users is not None and proposal.people is None:
        names = ", ".join(sorted(each.shown for each in tables)[:20])
        raise HeadwaterError(f"there is no table {users} with one key column", where, f"name {names}", code="HW_8601")
    return proposal


def _asked_users(proposal: Proposal, tables: Sequence[OutlinedTable], where: str) -> Proposal:
    """The proposal for the table that the developer names in place of the one that was found."""
    default = proposal.people or ""
    question = "Table of those who log in, whose ids your tokens carry as `sub`"
    named: str = click.prompt(question, default=default).strip()
    return proposed(tables, where, named) if named and named != default else proposal


def _may_write(proposal: Proposal, *, ask: bool) -> bool:
    if not ask or not proposal.writable:
        return False
    names = ", ".join(each.name for each in proposal.writable)
    return click.confirm(f"May devices write, through Headwater, to rows of theirs in {names}?", default=False)
